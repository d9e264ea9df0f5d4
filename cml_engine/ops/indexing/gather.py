"""The operator ``gather``, which takes entries of an axis by index."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from cml_engine.errors import ShapeError
from cml_engine.ir.graph import Array, Attrs, Fact
from cml_engine.ops.common.shapes import check_axis, check_indices
from cml_engine.ops.declaration.lowering import Lowering, for_each
from cml_engine.ops.declaration.registry import define
from cml_engine.ops.declaration.spec import (
    EXACT,
    Case,
    Dispatch,
    OpSpec,
    Random,
    engine_kernel,
    gathered_cost,
    integers,
    truth_values,
)

_ITEMS = 4


def _gather_infer(attrs: Attrs, x: Fact, indices: Fact) -> Fact:
    axis = check_axis(attrs.axis, x.rank)
    if x.shape[axis] == 0 < indices.size:
        raise ShapeError(f"axis {axis} of {x} is empty: {indices.size} indices find nothing in it")
    return Fact(x.dtype, (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))


def _gather_cpu(attrs: Attrs, x: Array, indices: Array) -> Array:
    check_indices("gather", indices, attrs.axis, 0, x.shape[attrs.axis])
    return x.take(indices, attrs.axis)


def _gather_lower(op: Lowering) -> Iterator[Dispatch]:
    x, indices = op.inputs
    axis = op.attrs.axis
    row = prod(x.shape[axis + 1 :])
    width, item = (4, "uint4") if row % 4 == 0 else (1, "uint")
    blocks = -(-row // (width * _ITEMS))
    params = {
        "blocks": blocks,
        "row": row // width,
        "extent": x.shape[axis],
        "indices": indices.size,
    }
    n = prod(x.shape[:axis]) * indices.size * blocks
    yield for_each(op, n, params, {"ITEMS": _ITEMS}, types=f"{item} int {item}")


_GATHER = engine_kernel(
    "indexing/gather.hlsl",
    "n:u blocks:u row:u extent:u indices:u",
    lower=_gather_lower,
)


def _index(high: int, *shape: int) -> Random:
    return Random(shape, 0, high, "integer")


define(
    OpSpec(
        "gather",
        infer=_gather_infer,
        cpu=_gather_cpu,
        kernel=_GATHER,
        cost=gathered_cost,
        tolerance=EXACT,
        cases=[
            Case(((10, 7), _index(10, 70)), {"axis": 0}, "rows"),
            Case(((10, 16), _index(10, 3, 5)), {"axis": 0}, "embedding, aligned rows"),
            Case(((2, 9, 3), _index(9, 4)), {"axis": 1}, "middle axis"),
            Case(((5, 6), _index(6, 2, 2)), {"axis": 1}, "last axis"),
            Case(((5, 6), _index(6)), {"axis": 1}, "a single index removes the axis"),
            Case(((1, 3), _index(1, 7)), {"axis": 0}, "extent 1"),
            Case(((5, 6), _index(5, 0)), {"axis": 0}, "no index"),
            Case(((4, 0), _index(4, 2)), {"axis": 0}, "empty rows"),
            Case((integers(3, 1, 2, 1, 3, 1, 2, 2), _index(3, 5)), {"axis": 4}),
            Case((truth_values(6, 3), _index(6, 9)), {"axis": 0}, "logical"),
        ],
    )
)
