"""``pixel_shuffle``: moves channels to positions, as after a convolution that enlarges a map.

Models write it as a transpose between two reshapes, which works on plain maps. Integer networks,
whose maps are packed in blocks of channels, have it as one operator whose kernel reads and
writes blocks. With a factor of 1 it converts between layouts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from cml_engine.errors import ShapeError
from cml_engine.ir.graph import Array, Attrs, Fact
from cml_engine.ops.common.window import scale_rows
from cml_engine.ops.declaration.epilogue import PARAMS, epilogue_of
from cml_engine.ops.declaration.lowering import Lowering
from cml_engine.ops.declaration.registry import define
from cml_engine.ops.declaration.spec import (
    EXACT,
    GROUP,
    Case,
    Dispatch,
    OpSpec,
    RowMapping,
    Traits,
    elementwise_cost,
    engine_kernel,
)


def _infer(attrs: Attrs, x: Fact) -> Fact:
    factor = int(attrs["factor"])
    if factor == 1 and x.rank > 2 and x.dtype == "scalar":
        return x
    if x.rank != 4 or x.dtype != "scalar" or factor < 1 or x.shape[1] % factor**2:
        raise ShapeError(
            f"pixel_shuffle of {x} by {factor}: wanted numbers [N, C, H, W] whose channels are a "
            f"multiple of {factor**2}"
        )
    batch, channels, height, width = x.shape
    return Fact(x.dtype, (batch, channels // factor**2, height * factor, width * factor))


def _cpu(attrs: Attrs, x: Array) -> Array:
    factor = int(attrs["factor"])
    if factor == 1:
        return x
    batch, channels, height, width = _infer(attrs, Fact("scalar", x.shape)).shape
    split = (batch, channels, factor, factor, height // factor, width // factor)
    return x.reshape(split).transpose(0, 1, 4, 2, 5, 3).reshape(batch, channels, height, width)


def _rows(attrs: Attrs, facts: Sequence[Fact], axis: int) -> RowMapping | None:
    return scale_rows(attrs, 2, int(attrs["factor"])) if axis == 2 else None


def regroup(
    op: Lowering, factor: int = 1, quantization: Sequence[float] = ()
) -> Iterator[Dispatch]:
    """Yields the dispatch that copies the node's operand to its result and converts the layout.

    A ``factor`` above 1 also shuffles channels to positions. ``quantization`` (the inverse of the
    scale, the least and the largest word) also quantizes real numbers.
    """
    (source,), (target,) = op.in_names, op.out_names
    shape, result = op.fact(source).shape, op.fact(target)
    blocked = op.is_blocked(target)
    if not result.size:
        return
    height = shape[2] if factor > 1 else 1
    depth = -(-result.shape[1] // 4) if blocked else result.shape[1]
    n = result.shape[0] * depth * prod(result.shape[2:])
    epilogue = epilogue_of(op, 1, vector=blocked)
    yield Dispatch(
        groups=-(-n // GROUP),
        tensors=(source, *epilogue.tensors, target),
        params={
            "n": n,
            "channels": shape[1],
            "height": height,
            "width": prod(shape[2:]) // height,
            "side": factor,
            "entry": quantization or [0.0] * 3,
            **epilogue.params,
        },
        defines={
            "IN_C4": int(op.is_blocked(source)),
            "OUT_C4": int(blocked),
            "WORDS": int(bool(quantization)),
            "OUT": f"T{1 + len(epilogue.tensors)}",
            "T0_TYPE": op.vector_type(source),
            f"T{1 + len(epilogue.tensors)}_TYPE": op.vector_type(target),
            **epilogue.defines,
        },
    )


def _lower(op: Lowering) -> Iterator[Dispatch]:
    yield from regroup(op, int(op.attrs["factor"]))


#: the kernel of every operator that converts a map from one layout to another
KERNEL = engine_kernel(
    "movement/shuffle.hlsl",
    f"n:u channels:u height:u width:u side:u entry:f3 {PARAMS}",
    lower=_lower,
    layouts="any",
    half="each",
    epilogues="places",
)

define(
    OpSpec(
        "pixel_shuffle",
        infer=_infer,
        cpu=_cpu,
        kernel=KERNEL,
        cost=elementwise_cost(0),
        tolerance=EXACT,
        custom=True,
        traits=Traits(rows=_rows),
        cases=[
            Case(((1, 8, 3, 5),), {"factor": 2}, "blocks of channels"),
            Case(((2, 20, 3, 1),), {"factor": 2}, "channels that fill no block, an extent of one"),
            Case(((1, 18, 1, 4),), {"factor": 3}, "an odd factor"),
            Case(((2, 5, 3, 2),), {"factor": 1}, "nothing moves"),
            Case(((2, 5, 3),), {"factor": 1}, "nothing moves, one spatial axis"),
            Case(((1, 16, 0, 4),), {"factor": 4}, "empty"),
        ],
    )
)
