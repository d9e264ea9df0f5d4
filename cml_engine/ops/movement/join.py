"""Concatenation along channels of feature maps in blocks of four channels.

Shader: ``shaders_hlsl/movement/join.hlsl``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from cml_engine.ops.declaration.lowering import Lowering, for_each
from cml_engine.ops.declaration.spec import Cost, Dispatch, engine_kernel

_KERNEL = engine_kernel("movement/join.hlsl", "n:u channels:u volume:u first:u depth:u touched:u")


def join_blocks(op: Lowering, channels: Sequence[int]) -> Iterator[Dispatch]:
    """Yields a dispatch per operand that concatenates channels in blocks of four.

    For parts that begin within a block; they must be written one after the other.
    """
    target, first = op.out_names[0], 0
    batch, total, *spatial = op.outputs[0].shape
    for name, count in zip(op.in_names, channels, strict=True):
        n_blocks = -(-(first + count) // 4) - first // 4
        params = {
            "channels": count,
            "volume": prod(spatial),
            "first": first,
            "depth": -(-total // 4),
            "touched": n_blocks,
        }
        yield for_each(
            op, batch * n_blocks * prod(spatial) if count else 0, params,
            types=f"{op.vector_type(name)} {op.vector_type(target)}", tensors=(name, target),
            kernel=_KERNEL, cost=Cost(0, op.nbytes(name), op.nbytes(name)),
        )  # fmt: skip
        first += count
