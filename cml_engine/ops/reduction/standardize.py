"""The operator ``standardize``: rows of mean 0 and variance 1, in one dispatch.

No model has it: a pass puts it in the place of ``moments`` and ``batch_normalization`` of the last
axis (``compiler/passes/standardize_rows.py``). Shader: ``shaders_hlsl/reduction/standardize.hlsl``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from cml_engine.errors import ShapeError
from cml_engine.ir.graph import Array, Attrs, Fact
from cml_engine.ops.common.window import exclude_axes
from cml_engine.ops.declaration.epilogue import PARAMS as EPILOGUE_PARAMS
from cml_engine.ops.declaration.epilogue import epilogue_of
from cml_engine.ops.declaration.lowering import Lowering
from cml_engine.ops.declaration.registry import define
from cml_engine.ops.declaration.spec import (
    Case,
    Cost,
    Dispatch,
    OpSpec,
    Random,
    Tolerance,
    Traits,
    engine_kernel,
)
from cml_engine.ops.declaration.variant import KernelFamily
from cml_engine.ops.elementwise.kernels.elementwise import Operand
from cml_engine.ops.reduction.reduce import (
    Reduced,
    Reduction,
    Threads,
    by_threads,
    first_stage,
    reduction_key,
)

#: a workgroup reduces a whole row, and may not take too long for a slice of a frame
MAX_ROW = 8192
_KERNEL = engine_kernel(
    "reduction/standardize.hlsl",
    "outputs:u total:u count:f epsilon:f " + EPILOGUE_PARAMS,
    epilogues="columns",
)


def _infer(attrs: Attrs, x: Fact) -> Fact:
    if attrs.axis != x.rank - 1:
        raise ShapeError(f"standardize of axis {attrs.axis} of {x}, wanted its last axis")
    return x


def _cpu(attrs: Attrs, x: Array) -> Array:
    if not x.size:
        return x.copy()
    centred = x - np.asarray(np.mean(x, -1, np.float64, keepdims=True), np.float32)
    variance = np.asarray(np.mean(np.square(centred), -1, np.float64, keepdims=True), np.float32)
    return np.asarray(centred / np.sqrt(variance + np.float32(attrs.epsilon)))


def _lower(op: Lowering) -> Iterator[Dispatch]:
    (x,), axis = op.inputs, op.inputs[0].rank - 1
    if x.size:
        source, out = (Operand(name, x) for name in (op.in_names[0], op.out_names[0]))
        rows = Operand("", Fact("scalar", (*x.shape[:-1], 1)))
        stage = first_stage(op, (axis,), source, rows, rows, natural=False)
        yield from STANDARDIZE.lower(
            Reduced(op, Reduction("SUM"), (axis,), source, out, rows, stage)
        )


def _rows(node: Reduced, threads: Threads) -> Iterator[Dispatch]:
    op, stage = node.op, replace(node.stage, threads=threads)
    epilogue = epilogue_of(op, 1)
    tensors = (node.x.name, *epilogue.tensors, node.out.name)
    target, count = f"T{len(tensors) - 1}", stage.reduced.size
    hlsl_type = "float4" if stage.width == 4 else "float"
    yield Dispatch(
        groups=stage.kept.size if stage.tree else -(-stage.kept.size // stage.group),
        tensors=tensors,
        params={
            "outputs": stage.kept.size,
            "total": count // stage.width,
            "count": float(count),
            "epsilon": op.attrs.epsilon,
            **epilogue.params,
        },
        defines={
            **epilogue.defines,
            "TREE": int(stage.tree),
            "GROUP": stage.group,
            "WIDTH": stage.width,
            "OUT": target,
            "T0_TYPE": hlsl_type,
            f"{target}_TYPE": hlsl_type,
        },
    )


def _cost(attrs: Attrs, inputs: Sequence[Fact], outputs: Sequence[Fact]) -> Cost:
    return Cost(8 * inputs[0].size, 3 * inputs[0].nbytes, outputs[0].nbytes)


def _case(shape: tuple[int, ...], note: str, epsilon: float = 1e-5, low: float = -2.0) -> Case:
    return Case(
        (Random(shape, low, low + 4.0),), {"axis": len(shape) - 1, "epsilon": epsilon}, note
    )


STANDARDIZE = KernelFamily[Reduced]("standardize", reduction_key)
STANDARDIZE.add(by_threads(_KERNEL, _rows, "standardize", _case((3, 40), "rows")))
define(
    OpSpec(
        "standardize",
        infer=_infer,
        cpu=_cpu,
        kernel=replace(_KERNEL, lower=_lower),
        cost=_cost,
        tolerance=Tolerance(
            1e-5, 1e-5, "two sums in another order; the square root of the second is a divisor"
        ),
        custom=True,
        traits=Traits(rows=exclude_axes("axis")),
        cases=[
            _case((2, 3, 48), "vectors"),
            _case((5, 61), "odd"),
            _case((3, 7), "shorter than a wave"),
            _case((2, 1), "one number, whose variance is 0", 1e-3),
            _case((2, 1500), "turns of a workgroup"),
            _case((130, 3), "more rows than threads"),
            _case((2, 260), "far from 0", low=10.0),
            _case((1, 2, 1, 3, 2, 1, 5, 20), "rank 8"),
            _case((0, 4), "no rows"),
            _case((4, 0), "rows of nothing"),
        ],
    )
)
