"""The operator ``keep_first``: the first elements along an axis, as many as a tensor says.

It masks tensors with a counted axis (docs/design/counted_axes.md), and marks an output as counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from cml_engine.errors import ShapeError
from cml_engine.ir.graph import NUMPY_DTYPE, Array, Attrs, Fact
from cml_engine.ops.common.shapes import check_axis
from cml_engine.ops.declaration.lowering import Lowering, for_each
from cml_engine.ops.declaration.registry import define
from cml_engine.ops.declaration.spec import (
    EXACT,
    Case,
    Dispatch,
    OpSpec,
    elementwise_cost,
    engine_kernel,
    integers,
    truth_values,
)


def _infer(attrs: Attrs, x: Fact, count: Fact) -> Fact:
    check_axis(attrs.axis, x.rank)
    if count.size != 1:
        raise ShapeError(f"the count is {count}, wanted one integer")
    if x.dtype == "integer" and not -(2**31) <= attrs.value < 2**31:
        raise ShapeError(f"value {attrs.value} is no 32-bit integer, and the input is {x}")
    return x


def _value(attrs: Attrs, dtype: str) -> Array:
    """Returns the value of the elements that are not kept, in the tensor's type."""
    return np.array(attrs.value, NUMPY_DTYPE[dtype])


def _cpu(attrs: Attrs, x: Array, count: Array) -> Array:
    extent = x.shape[attrs.axis]
    is_kept = np.arange(extent) < count.reshape(())
    shape = [extent if axis == attrs.axis else 1 for axis in range(x.ndim)]
    return np.where(is_kept.reshape(shape), x, np.array(attrs.value, x.dtype))


def _lower(op: Lowering) -> Iterator[Dispatch]:
    x, axis = op.inputs[0], op.attrs.axis
    value = _value(op.attrs, x.dtype)
    params = {
        "inner": max(prod(x.shape[axis + 1 :]), 1),
        "extent": max(x.shape[axis], 1),
        "value": int(value.view(np.uint32)) if value.itemsize == 4 else int(value),
    }
    yield for_each(op, x.size, params, types="uint int uint")


def _count(n: int) -> Array:
    return np.array([n], np.int32)


define(
    OpSpec(
        "keep_first",
        infer=_infer,
        cpu=_cpu,
        kernel=engine_kernel(
            "movement/keep_first.hlsl", "n:u inner:u extent:u value:u", lower=_lower
        ),
        cost=elementwise_cost(0),
        tolerance=EXACT,
        cases=[
            Case(((5, 7), _count(3)), {"axis": 0, "value": 0.0}, "rows"),
            Case(((5, 7), _count(3)), {"axis": 1, "value": -3e38}, "columns"),
            Case(((2, 9, 67), np.array(4, np.int32)), {"axis": 1, "value": -2.5}, "middle axis"),
            Case(((4,), _count(0)), {"axis": 0, "value": 1.0}, "none"),
            Case(((4,), _count(9)), {"axis": 0, "value": 1.0}, "more than there are"),
            Case(((4,), _count(-1)), {"axis": 0, "value": 3.0}, "a negative count"),
            Case((integers(3, 5), _count(2)), {"axis": 1, "value": -7.0}),
            Case((truth_values(3, 5), _count(2)), {"axis": 0, "value": 1.0}),
            Case(((2, 0), _count(1)), {"axis": 1, "value": 0.0}, "empty"),
            Case(((1, 3, 1, 2, 1, 2, 1, 5), _count(1)), {"axis": 5, "value": 0.0}, "rank 8"),
        ],
    )
)
