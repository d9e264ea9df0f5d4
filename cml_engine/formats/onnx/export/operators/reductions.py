"""Exports reductions, sorting, running sums and selection."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from cml_engine.formats.onnx.export.call import ExportCall, ExportTensor, rule
from cml_engine.formats.onnx.export.game_operators import write_standard_body
from cml_engine.formats.onnx.export.operators.movement import merge_axes
from cml_engine.formats.onnx.same_operators import POSITIONS, REDUCTIONS, onnx_names
from cml_engine.ir.graph import Fact

#: the result of a reduction of no elements
_OF_NOTHING = {"ReduceProd": 1.0, "ReduceMax": -np.inf, "ReduceMin": np.inf}

for _onnx, _name in REDUCTIONS.items():

    @rule(_name, onnx=f"`{_onnx}`")
    def _reduce(c: ExportCall, op: str = _onnx) -> ExportTensor:
        if op == "ReduceSum" and c.attrs.normalize:
            op = "ReduceMean"
        if not c.attrs.axes:
            return c.x
        if c.is_empty:
            return c.fill(_OF_NOTHING.get(op, 0.0))
        return c.x.reduce(op, c.attrs.axes)


@rule("any_reduce", "all_reduce", onnx="`ReduceMax` or `ReduceMin`, of integers")
def _truth(c: ExportCall) -> ExportTensor:
    if not c.attrs.axes:
        return c.x
    if c.is_empty:
        return c.fill(c.node.op == "all_reduce")
    op = "ReduceMax" if c.node.op == "any_reduce" else "ReduceMin"
    return c.x.cast("integer").reduce(op, c.attrs.axes).cast("logical")


@rule(*POSITIONS.values(), onnx="`ArgMax`, `ArgMin`")
def _position(c: ExportCall) -> ExportTensor:
    axes = sorted(int(axis) for axis in c.attrs.axes)
    if not axes:
        return c.fill(0)
    op = onnx_names(POSITIONS)[c.node.op]
    if len(axes) == 1:
        return c.add(op, c.x, axis=axes[0], keepdims=1).cast("integer")
    kept_shape = [extent for a, extent in enumerate(c.shape) if a not in axes]
    line_length = prod(c.shape[a] for a in axes)
    lines = c.x.transpose(merge_axes(c.shape, axes)).reshape((*kept_shape, line_length))
    positions = c.add(op, lines, axis=len(kept_shape), keepdims=0).cast("integer")
    return positions.reshape(c.out.shape)


@rule("softmax", onnx="`Softmax`; of several axes its formula")
def _softmax(c: ExportCall) -> ExportTensor | Sequence[ExportTensor]:
    axes = c.attrs.axes
    return c.x.Softmax(axis=int(axes[0])) if len(axes) == 1 else write_standard_body(c)


@rule("top_k", onnx="`TopK`")
def _top_k(c: ExportCall) -> list[ExportTensor]:
    values, indices = c.split(
        "TopK", c.x, c.indices(int(c.attrs.k)), n_results=2,
        axis=c.axis, largest=int(c.attrs.largest), sorted=1,
    )  # fmt: skip
    return [values, indices.cast("integer")]


@rule("cumsum", onnx="`CumSum`")
def _cumsum(c: ExportCall) -> ExportTensor:
    axis = c.constant(np.array(c.axis, np.int64))
    exclusive, reverse = int(c.attrs.exclusive), int(c.attrs.reverse)
    return c.x.CumSum(axis, exclusive=exclusive, reverse=reverse)


@rule("cumprod", onnx="`Where` with ones, `ReduceProd`", function=True)
def _cumprod(c: ExportCall) -> ExportTensor:
    axis, rank = c.axis, len(c.shape)
    extent = c.shape[axis]
    mask = np.tri(extent, k=-1 if c.attrs.exclusive else 0, dtype=np.bool_)
    if c.attrs.reverse:
        mask = mask[::-1, ::-1]
    expanded = c.x.unsqueeze(axis)
    mask = np.ascontiguousarray(mask.reshape(extent, extent, *[1] * (rank - axis - 1)))
    return c.constant(mask).Where(expanded, 1.0).reduce("ReduceProd", [axis + 1], keepdims=False)


def _padded(c: ExportCall, selected: ExportTensor, axis: int, fill: int) -> ExportTensor:
    """Adds nodes that append ``fill`` to what was found, and cut it to the first result's shape."""
    padding = c.constant(np.full(c.out.shape, fill, np.int32))
    return selected.Concat(padding, axis=axis).slice({axis: (0, c.out.shape[axis], 1)})


@rule("nonzero", onnx="`NonZero`, `Pad` of what is left over by `Concat`, `Slice`", function=True)
def _nonzero(c: ExportCall) -> list[ExportTensor]:
    x = c.x if c.shape else c.x.reshape((1,))
    indices = x.NonZero().cast("integer")
    needs_slice = c.opset < 15
    count = indices.Shape().slice({0: (1, 1, 1)}) if needs_slice else indices.Shape(start=1)
    count = count.cast("integer")
    if c.out.size == 0:
        return [c.fill(0), count]
    return [_padded(c, indices, 1, int(c.attrs.fill)), count]


@rule("non_max_suppression", onnx="`NonMaxSuppression`, and fill behind what it finds",
      function=True)  # fmt: skip
def _suppression(c: ExportCall) -> list[ExportTensor]:
    a = c.attrs
    if c.out.size == 0:
        return [c.fill(0), c.fill(0, Fact("integer", (1,)))]
    limits = float(a.iou_threshold), float(a.score_threshold)
    selected = c.x.NonMaxSuppression(
        c.tensor(1), c.indices(int(a.max_per_class)), *limits,
        center_point_box=int(a.center_point_box),
    ).cast("integer")  # fmt: skip
    count = selected.Shape().slice({0: (0, 1, 1)}).cast("integer")
    return [_padded(c, selected, 0, int(a.fill)), count]
