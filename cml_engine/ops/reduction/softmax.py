"""Softmax on the GPU: one dispatch, or three reductions if a line is too long for a thread or tree.

Shader: ``shaders_hlsl/reduction/softmax.hlsl``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from cml_engine.ir.graph import Fact
from cml_engine.ir.layout import PLAIN
from cml_engine.ops.declaration.expression import Formula
from cml_engine.ops.declaration.lowering import Lowering
from cml_engine.ops.declaration.spec import Dispatch
from cml_engine.ops.declaration.variant import KernelFamily
from cml_engine.ops.elementwise.kernels.elementwise import Operand, launch
from cml_engine.ops.reduction.reduce import (
    KERNEL,
    Reduced,
    Reduction,
    Threads,
    by_threads,
    first_stage,
    reduction,
    reduction_key,
)

_FINISH_SOFTMAX = Formula(
    "exp(a - b) / c", lambda x, m, total: np.exp(x - m) / total, ("scalar",) * 3
)


def softmax(op: Lowering, axes: Sequence[int], x: Operand, out: Operand) -> Iterator[Dispatch]:
    """Yields the dispatches of softmax of ``x`` over ``axes`` into ``out``.

    There is one dispatch if a workgroup or thread can hold a whole line. Otherwise there are
    those of the maximum, the sum of exponentials and the quotient.
    """
    if out.fact.size:
        shape = tuple(1 if a in axes else n for a, n in enumerate(x.fact.shape))
        partial = Operand("", Fact("scalar", shape), PLAIN if 1 in axes else x.layout)
        stage = first_stage(op, axes, x, partial, partial, natural=False)
        yield from SOFTMAX.lower(Reduced(op, Reduction("SUM"), axes, x, out, partial, stage))


def _softmax(node: Reduced, threads: Threads) -> Iterator[Dispatch]:
    op, axes, x, out, partial = node.op, node.axes, node.x, node.out, node.second
    assert partial is not None
    stage = replace(node.stage, threads=threads)
    if stage.chunks == 1 and x.layout == out.layout:
        hlsl_type = "float4" if stage.width == 4 else "float"
        yield Dispatch(
            groups=stage.groups,
            tensors=(x.name, out.name),
            params={**stage.params(True, stage.width), "divisor": 1.0, "start": 0},
            defines={
                "LINE": int(stage.is_line),
                "TREE": int(stage.tree),
                "GROUP": stage.group,
                "WIDTH": stage.width,
                "T0_TYPE": hlsl_type,
                "T1_TYPE": hlsl_type,
            },
        )
        return
    greatest, total = (replace(partial, name=op.scratch(partial.fact.size)) for _ in range(2))
    yield from reduction(op, Reduction("MAX"), axes, x, greatest)
    terms = Reduction("SUM", term="exp(v - m)")
    yield from reduction(op, terms, axes, x, total, greatest)
    yield launch(_FINISH_SOFTMAX, (), (x, greatest, total), out)


SOFTMAX = KernelFamily[Reduced]("softmax", reduction_key)
SOFTMAX.add(by_threads(replace(KERNEL, path="reduction/softmax.hlsl"), _softmax, "softmax"))
