"""The operator ``gather_elements``, which takes an element of an axis for each index.

A negative index counts from the end.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cml_engine.errors import ShapeError
from cml_engine.ir.graph import Array, Attrs, Fact
from cml_engine.ops.common.shapes import MAX_RANK, check_indices, contiguous_strides
from cml_engine.ops.declaration.lowering import Lowering, for_each
from cml_engine.ops.declaration.registry import define
from cml_engine.ops.declaration.spec import (
    EXACT,
    Case,
    Dispatch,
    OpSpec,
    engine_kernel,
    gathered_cost,
    integers,
    truth_values,
)
from cml_engine.ops.indexing.scatter import check_other_axes


def _gather_infer(attrs: Attrs, x: Fact, indices: Fact) -> Fact:
    check_other_axes(x, indices, attrs.axis)
    if x.shape[attrs.axis] == 0 < indices.size:
        raise ShapeError(f"axis {attrs.axis} of {x} is empty: {indices} find nothing in it")
    return Fact(x.dtype, indices.shape)


def _gather_cpu(attrs: Attrs, x: Array, indices: Array) -> Array:
    axis = attrs.axis
    extent = x.shape[axis]
    check_indices("gather_elements", indices, axis, -extent, extent)
    positions = np.where(indices < 0, indices + extent, indices)
    selection = [slice(None) if d == axis else slice(n) for d, n in enumerate(indices.shape)]
    return np.take_along_axis(x[tuple(selection)], positions, axis)


def _gather_lower(op: Lowering) -> Iterator[Dispatch]:
    x, indices = op.inputs
    axis, strides = op.attrs.axis, contiguous_strides(x.shape)
    params = {
        "rank": x.rank,
        "extent": indices.shape,
        "stride": [0 if d == axis else s for d, s in enumerate(strides)],
        "slots": x.shape[axis],
        "step": strides[axis],
    }
    yield for_each(op, indices.size, params, types="uint int uint")


_GATHER = engine_kernel(
    "indexing/gather_elements.hlsl",
    f"n:u rank:u extent:u{MAX_RANK} stride:u{MAX_RANK} slots:u step:u",
    lower=_gather_lower,
)


define(
    OpSpec(
        "gather_elements",
        infer=_gather_infer,
        cpu=_gather_cpu,
        kernel=_GATHER,
        cost=gathered_cost,
        tolerance=EXACT,
        cases=[
            Case(((4, 5), integers(3, 5, below=4)), {"axis": 0}, "first axis"),
            Case(((4, 5), integers(2, 70, below=5)), {"axis": 1}, "fewer lines, longer ones"),
            Case(
                (integers(2, 3, 4, 5), integers(1, 6, 4, 2, below=3)),
                {"axis": 1},
                "integers",
            ),
            Case((truth_values(7), integers(3, below=7)), {"axis": 0}, "logical"),
            Case(((1, 1), integers(1, 9, below=1)), {"axis": 1}, "extent 1"),
            Case(((2, 0), integers(2, 0, below=2)), {"axis": 0}, "empty"),
            Case(
                ((1, 2, 1, 3, 1, 2, 1, 3), integers(1, 4, 1, 3, 1, 2, 1, 3, below=2)), {"axis": 1}
            ),
        ],
    )
)
