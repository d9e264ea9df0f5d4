"""Means over areas and multilinear upsampling on the GPU.

Shader: ``shaders_hlsl/resampling/resample.hlsl``. Both support feature maps in blocks of four
channels, where one item holds the values of four channels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from cml_engine.ir.graph import Fact, Node
from cml_engine.ops.common.shapes import inner_first
from cml_engine.ops.declaration.lowering import Lowering, for_each
from cml_engine.ops.declaration.spec import Defines, Dispatch, Half, engine_kernel, word
from cml_engine.ops.elementwise.kernels.elementwise import Operand
from cml_engine.ops.reduction.reduce import Reduction, reduction

_ITEMS = 4
#: values that a thread adds up for a result; more are shared out (MAX_ITERATIONS in lowering.py)
_MAX_PER_THREAD = 1024

KERNEL = engine_kernel(
    "resampling/resample.hlsl",
    "n:u blocks:u in_extent:u3 out_extent:u3 factor:u3",
    layouts="same",
)


def lower_area(op: Lowering) -> Iterator[Dispatch]:
    if prod(op.attrs.factor) > _MAX_PER_THREAD:
        yield from _area_reduced(op)
    else:
        yield from _dispatch(op, {"AREA": 1})


def _area_reduced(op: Lowering) -> Iterator[Dispatch]:
    """Yields the dispatches of the mean over areas, computed as a reduction.

    For areas that are too large for a thread. Every spatial axis is split into the result's
    index and the index within an area; the latter is reduced.
    """
    (source, target), factors = (op.in_names[0], op.out_names[0]), op.attrs.factor
    lanes = (4,) if op.is_blocked(source) else ()
    outer = prod(op.inputs[0].shape[:2]) // (4 if lanes else 1)
    results = op.outputs[0].shape[2:]
    halves = [part for pair in zip(results, factors, strict=True) for part in pair]
    kept_extents = [part for extent in results for part in (extent, 1)]
    x = Operand(source, Fact("scalar", (outer, *halves, *lanes)))
    y = Operand(target, Fact("scalar", (outer, *kept_extents, *lanes)))
    yield from reduction(op, Reduction("SUM", mean=True), range(2, 1 + len(halves), 2), x, y)


def half_of_area(node: Node, facts: Mapping[str, Fact]) -> Half:
    return "none" if prod(node.attrs["factor"]) > _MAX_PER_THREAD else "each"


def lower_multilinear(op: Lowering) -> Iterator[Dispatch]:
    defines: Defines = {
        **word("method", op.attrs.method),
        "ROWS": 2 ** (op.inputs[0].rank - 3),
    }
    # 'aligned' never reaches past the border, so it does not ask
    if op.attrs.border == "constant" and op.attrs.method != "aligned":
        defines["ZERO_BORDER"] = 1
    if op.attrs.border == "reflect":
        defines["REFLECT"] = 1
    yield from _dispatch(op, defines)


def _dispatch(op: Lowering, defines: Defines) -> Iterator[Dispatch]:
    source, target = op.in_names[0], op.out_names[0]
    x, y = op.inputs[0].shape, op.outputs[0].shape
    blocked = op.is_blocked(source)
    blocks = -(-y[-1] // _ITEMS)
    params = {
        "blocks": blocks,
        "in_extent": inner_first(x[2:]),
        "out_extent": inner_first(y[2:]),
        "factor": inner_first(op.attrs.factor),
    }
    stated = {"SPATIAL": len(x) - 2, "ITEMS": _ITEMS, "ITEM": "float4" if blocked else "float"}
    types = f"{op.vector_type(source)} {op.vector_type(target)}"
    n = prod(y[:-1]) // (4 if blocked else 1) * blocks
    yield for_each(op, n, params, stated | defines, types=types)
