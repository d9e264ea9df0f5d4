"""Exports reductions, sorting, running sums and selection."""

from __future__ import annotations

from math import prod

import numpy as np

from cml_engine.formats.onnx.export.call import ExportCall
from cml_engine.formats.onnx.export.export_rules import rule
from cml_engine.formats.onnx.export.operators.movement import merge_axes, slice_axes
from cml_engine.ir.graph import Fact

_REDUCE = {
    "sum_reduce": "ReduceSum", "mean_reduce": "ReduceMean", "prod_reduce": "ReduceProd",
    "max_reduce": "ReduceMax", "min_reduce": "ReduceMin",
}  # fmt: skip
#: the result of a reduction of no elements
_OF_NOTHING = {"ReduceProd": 1.0, "ReduceMax": -np.inf, "ReduceMin": np.inf}

for _name, _onnx in _REDUCE.items():

    @rule(_name, onnx=f"`{_onnx}`")
    def _reduce(c: ExportCall, op: str = _onnx) -> str:
        if op == "ReduceSum" and c.attrs.normalize:
            op = "ReduceMean"
        if not c.attrs.axes:
            return c.x
        if c.fact(0).size == 0:
            return c.fill(_OF_NOTHING.get(op, 0.0))
        return c.reduce(op, c.x, c.attrs.axes)


@rule("any_reduce", "all_reduce", onnx="`ReduceMax` or `ReduceMin`, of integers")
def _truth(c: ExportCall) -> str:
    if not c.attrs.axes:
        return c.x
    if c.fact(0).size == 0:
        return c.fill(c.node.op == "all_reduce")
    op = "ReduceMax" if c.node.op == "any_reduce" else "ReduceMin"
    return c.cast(c.reduce(op, c.cast(c.x, "integer"), c.attrs.axes), "logical")


@rule("argmax_reduce", "argmin_reduce", onnx="`ArgMax`, `ArgMin`")
def _position(c: ExportCall) -> str:
    axes = sorted(int(axis) for axis in c.attrs.axes)
    if not axes:
        return c.fill(0)
    op = "ArgMax" if c.node.op == "argmax_reduce" else "ArgMin"
    if len(axes) == 1:
        return c.cast(c.add(op, c.x, axis=axes[0], keepdims=1), "integer")
    kept = [extent for a, extent in enumerate(c.shape) if a not in axes]
    lines = c.reshape(c.transpose(c.x, merge_axes(c.shape, axes)), (*kept, prod(
        c.shape[a] for a in axes)))  # fmt: skip
    found = c.cast(c.add(op, lines, axis=len(kept), keepdims=0), "integer")
    return c.reshape(found, c.out.shape)


@rule("moments", onnx="`ReduceMean`, `Sub`, `Mul`")
def _moments(c: ExportCall) -> list[str]:
    if not c.attrs.axes:
        return [c.x, c.fill(0.0)]
    if c.fact(0).size == 0:
        return [c.fill(0.0), c.fill(0.0)]
    mean = c.reduce("ReduceMean", c.x, c.attrs.axes)
    apart = c.add("Sub", c.x, mean)
    return [mean, c.reduce("ReduceMean", c.add("Mul", apart, apart), c.attrs.axes)]


@rule("softmax", onnx="`Softmax`; of several axes its formula")
def _softmax(c: ExportCall) -> str:
    axes = [int(axis) for axis in c.attrs.axes]
    if len(axes) == 1:
        return c.add("Softmax", c.x, axis=axes[0])
    if not axes:
        power = c.add("Exp", c.add("Sub", c.x, c.x))
        return c.add("Div", power, power)
    power = c.add("Exp", c.add("Sub", c.x, c.reduce("ReduceMax", c.x, axes)))
    return c.add("Div", power, c.reduce("ReduceSum", power, axes))


@rule("top_k", onnx="`TopK`")
def _top_k(c: ExportCall) -> list[str]:
    values, places = c.split(
        "TopK", c.x, c.indices(int(c.attrs.k)), results=2,
        axis=int(c.attrs.axis), largest=int(c.attrs.largest), sorted=1,
    )  # fmt: skip
    return [values, c.cast(places, "integer")]


@rule("cumsum", onnx="`CumSum`")
def _cumsum(c: ExportCall) -> str:
    axis = c.constant(np.array(c.attrs.axis, np.int64))
    exclusive, reverse = int(c.attrs.exclusive), int(c.attrs.reverse)
    return c.add("CumSum", c.x, axis, exclusive=exclusive, reverse=reverse)


@rule("cumprod", onnx="`Where` with ones, `ReduceProd`", function=True)
def _cumprod(c: ExportCall) -> str:
    axis, rank = int(c.attrs.axis), len(c.shape)
    extent = c.shape[axis]
    mask = np.tri(extent, k=-1 if c.attrs.exclusive else 0, dtype=np.bool_)
    if c.attrs.reverse:
        mask = mask[::-1, ::-1]
    spread = c.add("Unsqueeze", c.x, c.indices(axis))
    mask = mask.reshape(extent, extent, *[1] * (rank - axis - 1))
    factors = c.where(c.constant(np.ascontiguousarray(mask)), spread, c.real(1.0))
    return c.reduce("ReduceProd", factors, [axis + 1], keep=False)


@rule("nonzero", onnx="`NonZero`, `Pad` of what is left over by `Concat`, `Slice`", function=True)
def _nonzero(c: ExportCall) -> list[str]:
    capacity, fill = int(c.attrs.capacity), int(c.attrs.fill)
    x, rank = c.x, len(c.shape)
    if not rank:
        x = c.reshape(x, (1,))
    found = c.cast(c.add("NonZero", x), "integer")
    count = c.add("Shape", found, start=1) if c.opset >= 15 else slice_axes(
        c, c.add("Shape", found), {0: (1, 1, 1)})  # fmt: skip
    count = c.cast(count, "integer")
    if c.results[0].size == 0:
        return [c.fill(0), count]
    rest = c.constant(np.full((rank, capacity), fill, np.int32))
    both = c.add("Concat", found, rest, axis=1)
    return [slice_axes(c, both, {1: (0, capacity, 1)}), count]


@rule("non_max_suppression", onnx="`NonMaxSuppression`, and fill behind what it finds",
      function=True)  # fmt: skip
def _suppression(c: ExportCall) -> list[str]:
    a, rows = c.attrs, c.results[0].shape[0]
    if c.results[0].size == 0:
        return [c.fill(0), c.fill(0, Fact("integer", (1,)))]
    limits = (c.real(a.iou_threshold), c.real(a.score_threshold))
    found = c.add(
        "NonMaxSuppression", c.x, c.tensor(1), c.indices(int(a.max_per_class)), *limits,
        center_point_box=int(a.center_point_box),
    )  # fmt: skip
    found = c.cast(found, "integer")
    count = c.cast(slice_axes(c, c.add("Shape", found), {0: (0, 1, 1)}), "integer")
    rest = c.constant(np.full((rows, 3), int(a.fill), np.int32))
    return [slice_axes(c, c.add("Concat", found, rest, axis=0), {0: (0, rows, 1)}), count]
