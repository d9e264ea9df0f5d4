"""Exports gather and scatter operators."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from cml_engine.formats.onnx.export.call import ExportCall
from cml_engine.formats.onnx.export.export_rules import rule
from cml_engine.formats.onnx.export.operators.movement import slice_axes
from cml_engine.ir.graph import Array

#: the lowest opset of a scatter with a reduction
_SINCE = {"none": 13, "add": 16, "mul": 16, "min": 18, "max": 18}


@rule("gather", onnx="`Gather`")
def _gather(c: ExportCall) -> str:
    return c.add("Gather", c.x, c.tensor(1), axis=int(c.attrs.axis))


@rule("gather_nd", onnx="`GatherND`")
def _gather_nd(c: ExportCall) -> str:
    if c.fact(1).shape[-1] == 0:
        return c.add("Expand", c.x, c.indices(*c.out.shape))
    return c.add("GatherND", c.x, c.cast(c.tensor(1), "int64"))


@rule("gather_elements", onnx="`GatherElements`")
def _gather_elements(c: ExportCall) -> str:
    return c.add("GatherElements", c.x, c.tensor(1), axis=int(c.attrs.axis))


@rule("reverse_sequence", onnx="`ReverseSequence`, its lengths cut to the extent")
def _reverse_sequence(c: ExportCall) -> str:
    time, batch, rank = int(c.attrs.time_axis), int(c.attrs.batch_axis), len(c.shape)
    lengths = c.add("Clip", c.cast(c.tensor(1), "int64"), *(
        c.constant(np.array(n, np.int64)) for n in (0, c.shape[time])))  # fmt: skip
    if {time, batch} == {0, 1}:
        return c.add("ReverseSequence", c.x, lengths, time_axis=time, batch_axis=batch)
    order = [batch, time, *(a for a in range(rank) if a not in (batch, time))]
    lines = c.transpose(c.x, order)
    result = c.add("ReverseSequence", lines, lengths, time_axis=1, batch_axis=0)
    return c.transpose(result, [order.index(a) for a in range(rank)])


@rule("scatter_elements", onnx="`ScatterElements`; computed indices are guarded: those that are "
      "nowhere go to a place that is cut off", function=True)  # fmt: skip
def _scatter_elements(c: ExportCall) -> str:
    axis, how = int(c.attrs.axis), _reduction(c)
    extent, index = c.shape[axis], c.value(1)
    if c.fact(1).size == 0:
        return c.x
    if index is not None and ((index >= -extent) & (index < extent)).all():
        return c.add("ScatterElements", c.x, c.tensor(1), c.tensor(2), axis=axis, **how)
    places = _guarded(c, c.tensor(1), c.whole(extent))
    x = _longer(c, axis)
    wide = c.add("ScatterElements", x, places, c.tensor(2), axis=axis, **how)
    return slice_axes(c, wide, {axis: (0, extent, 1)})


@rule("scatter_nd", onnx="`ScatterND`; computed indices are guarded likewise", function=True)
def _scatter_nd(c: ExportCall) -> str:
    how, width = _reduction(c), c.fact(1).shape[-1]
    extents, index = c.shape[:width], c.value(1)
    rows = c.fact(1).shape[:-1]
    if prod(rows) == 0:
        return c.x
    limits = np.array(extents, np.int32)
    if width and index is not None and ((index >= -limits) & (index < limits)).all():
        places = c.cast(c.tensor(1), "int64")
        return c.add("ScatterND", c.x, places, c.tensor(2), **how)
    # flattened positions, and an extra one for indices out of range
    count = prod(extents)
    flat = _flat(c, limits, rows) if width else c.constant(np.zeros(rows, np.int32))
    places = c.reshape(c.cast(flat, "int64"), (*rows, 1))
    rest = c.shape[width:]
    x = _longer(c, 0, (count, *rest))
    wide = c.add("ScatterND", x, places, c.tensor(2), **how)
    return c.reshape(slice_axes(c, wide, {0: (0, count, 1)}), c.shape)


def _flat(c: ExportCall, limits: Array, rows: Sequence[int]) -> str:
    """Adds nodes that turn each row of indices into one index into the flattened first operand.

    The rows are the second operand, and ``limits`` the extents. A row with an index out of range
    becomes the number of elements. Returns the result's name.
    """
    limit, last = c.constant(limits), [len(rows)]
    inside = _within(c, c.tensor(1), limit)
    every = c.reduce("ReduceMin", c.cast(inside, "integer"), last, keep=False)
    known = c.where(inside, c.tensor(1), c.whole(0))
    known = c.where(c.add("Less", known, c.whole(0)), c.add("Add", known, limit), known)
    steps = np.array([prod(limits[i + 1 :].tolist()) for i in range(len(limits))], np.int32)
    flat = c.reduce("ReduceSum", c.add("Mul", known, c.constant(steps)), last, keep=False)
    return c.where(c.cast(every, "logical"), flat, c.whole(prod(limits.tolist())))


def _reduction(c: ExportCall) -> dict[str, str]:
    name = str(c.attrs.reduction)
    c.require_opset(_SINCE[name], f"reduction '{name}'")
    return {} if name == "none" else {"reduction": name}


def _within(c: ExportCall, index: str, extent: str) -> str:
    low = c.add("GreaterOrEqual", index, c.add("Neg", extent))
    return c.add("And", low, c.add("Less", index, extent))


def _guarded(c: ExportCall, index: str, extent: str) -> str:
    """Adds nodes that make negative indices positive, and indices out of range ``extent``.

    Returns the result's name.
    """
    inside = _within(c, index, extent)
    front = c.where(c.add("Less", index, c.whole(0)), c.add("Add", index, extent), index)
    return c.where(inside, front, extent)


def _longer(c: ExportCall, axis: int, shape: tuple[int, ...] | None = None) -> str:
    """Adds nodes that append a zero at the end of an axis of the first operand.

    With ``shape`` the operand is reshaped to it first. Returns the result's name.
    """
    x, extents = c.x, list(shape or c.shape)
    if shape and shape != c.shape:
        x = c.reshape(x, shape)
    extents[axis] = 1
    dtype = {"scalar": np.float32, "integer": np.int32, "logical": np.bool_}[c.out.dtype]
    return c.add("Concat", x, c.constant(np.zeros(extents, dtype)), axis=axis)
