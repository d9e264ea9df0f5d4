"""Exports operators that move elements, gather and scatter, and type casts."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from cml_engine.formats.onnx.export.call import ExportCall, ExportTensor, rule
from cml_engine.formats.onnx.same_operators import BORDERS, onnx_names
from cml_engine.ir.graph import NUMPY_DTYPE, Array
from cml_engine.ops.common.window import Window, border_index
from cml_engine.ops.movement.slicing import ranges

_MODES = onnx_names(BORDERS)


@rule("reshape", onnx="`Reshape`")
def _reshape(c: ExportCall) -> ExportTensor:
    return c.x.reshape(c.out.shape)


@rule("squeeze", "unsqueeze", onnx="`Squeeze`, `Unsqueeze`")
def _squeeze(c: ExportCall) -> ExportTensor:
    if not c.attrs.axes:
        return c.x
    is_squeeze = c.node.op == "squeeze"
    return c.x.squeeze(*c.attrs.axes) if is_squeeze else c.x.unsqueeze(*c.attrs.axes)


@rule("transpose", onnx="`Transpose`")
def _transpose(c: ExportCall) -> ExportTensor:
    stated_axes = [int(axis) for axis in c.attrs.axes]
    return c.x.transpose([*stated_axes, *range(len(stated_axes), len(c.shape))])


@rule("concat", onnx="`Concat`")
def _concat(c: ExportCall) -> ExportTensor:
    return c.add("Concat", *c.tensors, axis=c.axis)


@rule("stack", onnx="`Unsqueeze`, `Concat`")
def _stack(c: ExportCall) -> ExportTensor:
    return c.add("Concat", *[x.unsqueeze(c.axis) for x in c.tensors], axis=c.axis)


@rule("split", onnx="`Split`")
def _split(c: ExportCall) -> list[ExportTensor]:
    sizes = c.indices(*(fact.shape[c.axis] for fact in c.results))
    return c.split("Split", c.x, sizes, n_results=len(c.results), axis=c.axis)


@rule("unstack", onnx="`Split`, `Squeeze`")
def _unstack(c: ExportCall) -> list[ExportTensor]:
    count = len(c.results)
    parts = c.split("Split", c.x, c.indices(*[1] * count), n_results=count, axis=c.axis)
    return [part.squeeze(c.axis) for part in parts]


@rule("slice", onnx="`Slice`")
def _slice(c: ExportCall) -> ExportTensor:
    slices = ranges(c.attrs, c.fact(0))
    return c.x.slice({a: part for a, part in enumerate(slices) if part != (0, c.shape[a], 1)})


@rule("tile", onnx="`Tile`")
def _tile(c: ExportCall) -> ExportTensor:
    return c.x.Tile(c.indices(*c.attrs.repeats))


@rule("pad", onnx="`Pad`; `Gather` for border reflect-even, and where a border is longer than the "
      "input")  # fmt: skip
def _pad(c: ExportCall) -> ExportTensor:
    return pad_axes(c.x, c.shape, c.attrs.padding, c.attrs.border, float(c.attrs.value))


def pad_axes(
    x: ExportTensor, shape: Sequence[int], padding: Sequence[tuple[int, int]], border: str,
    value: float = 0.0,
) -> ExportTensor:  # fmt: skip
    """Returns ``x``, whose shape is ``shape``, padded before and after each axis.

    Negative padding crops. A border that ONNX's ``Pad`` cannot express is gathered by a table of
    indices.
    """
    c, pairs = x.call, [(int(before), int(after)) for before, after in padding]
    if not any(map(any, pairs)):
        return x
    fits = all(0 <= n < max(e, 1) for e, pair in zip(shape, pairs, strict=True) for n in pair)
    if border == "constant" or (border in _MODES and fits):
        pads = c.indices(*(p for p, _ in pairs), *(q for _, q in pairs))
        fill = c.constant(np.array(value, NUMPY_DTYPE[c.fact(0).dtype]))
        return x.Pad(pads, *[fill] * (border == "constant"), mode=_MODES[border])
    for axis, (extent, (before, after)) in enumerate(zip(shape, pairs, strict=True)):
        if before or after:
            x = x.gather(border_index(border, np.arange(-before, extent + after), extent), axis)
    return x


def window_attributes(window: Window, pairs: Sequence[tuple[int, int]]) -> dict[str, list[int]]:
    """Returns the attributes of an ONNX operator with this window, padded by ``pairs``."""
    return {
        "kernel_shape": [axis.size for axis in window],
        "strides": [axis.stride for axis in window],
        "dilations": [axis.dilation for axis in window],
        "pads": [*(before for before, _ in pairs), *(after for _, after in pairs)],
    }


@rule("cast", onnx="`Cast`; from scalar to integer guarded: what does not fit becomes the nearest, "
      "NaN 0", function=True)  # fmt: skip
def _cast(c: ExportCall) -> ExportTensor:
    source, target = c.fact(0).dtype, c.out.dtype
    if source == target:
        return c.x
    if (source, target) != ("scalar", "integer"):
        return c.x.cast(target)
    high, low = c.x >= 2.0**31, c.x < -(2.0**31)
    is_out_of_range = c.x.IsNaN() | (high | low)
    converted = is_out_of_range.Where(0.0, c.x).cast("integer")
    info = np.iinfo(np.int32)
    return high.Where(int(info.max), low.Where(int(info.min), converted))


def merge_axes(shape: Sequence[int], axes: Sequence[int]) -> list[int]:
    """Returns a permutation for ``Transpose`` that moves ``axes`` to the end, in their order."""
    return [*(a for a in range(len(shape)) if a not in axes), *axes]


# -- by index ------------------------------------------------------------------------------------

#: the lowest opset of a scatter with a reduction
_SINCE = {"none": 13, "add": 16, "mul": 16, "min": 18, "max": 18}


@rule("gather", onnx="`Gather`")
def _gather(c: ExportCall) -> ExportTensor:
    return c.x.Gather(c.tensor(1), axis=c.axis)


@rule("gather_nd", onnx="`GatherND`")
def _gather_nd(c: ExportCall) -> ExportTensor:
    if c.fact(1).shape[-1] == 0:
        return c.x.Expand(c.indices(*c.out.shape))
    return c.x.GatherND(c.tensor(1).cast("int64"))


@rule("gather_elements", onnx="`GatherElements`")
def _gather_elements(c: ExportCall) -> ExportTensor:
    return c.x.GatherElements(c.tensor(1), axis=c.axis)


@rule("reverse_sequence", onnx="`ReverseSequence`, its lengths cut to the extent")
def _reverse_sequence(c: ExportCall) -> ExportTensor:
    time, batch, rank = int(c.attrs.time_axis), int(c.attrs.batch_axis), len(c.shape)
    limits = [c.constant(np.array(n, np.int64)) for n in (0, c.shape[time])]
    lengths = c.tensor(1).cast("int64").Clip(*limits)
    if {time, batch} == {0, 1}:
        return c.x.ReverseSequence(lengths, time_axis=time, batch_axis=batch)
    order = [batch, time, *(a for a in range(rank) if a not in (batch, time))]
    result = c.x.transpose(order).ReverseSequence(lengths, time_axis=1, batch_axis=0)
    return result.transpose([order.index(a) for a in range(rank)])


@rule("scatter_elements", onnx="`ScatterElements`; computed indices are guarded: those that are "
      "nowhere go to a place that is cut off", function=True)  # fmt: skip
def _scatter_elements(c: ExportCall) -> ExportTensor:
    axis, reduction = c.axis, _reduction(c)
    extent, known_indices = c.shape[axis], c.value(1)
    if c.fact(1).size == 0:
        return c.x
    if known_indices is not None and ((known_indices >= -extent) & (known_indices < extent)).all():
        return c.x.ScatterElements(c.tensor(1), c.tensor(2), axis=axis, **reduction)
    index, limit = c.tensor(1), c.number(extent)
    is_inside = _is_in_axis(index, limit)
    safe_index = is_inside.Where((index < 0).Where(index + limit, index), limit)
    scattered = _longer(c, c.x, axis, c.shape).ScatterElements(
        safe_index, c.tensor(2), axis=axis, **reduction
    )
    return scattered.slice({axis: (0, extent, 1)})


@rule("scatter_nd", onnx="`ScatterND`; computed indices are guarded likewise", function=True)
def _scatter_nd(c: ExportCall) -> ExportTensor:
    reduction, (*rows, width) = _reduction(c), c.fact(1).shape
    extents, index = c.shape[:width], c.value(1)
    if prod(rows) == 0:
        return c.x
    limits = np.array(extents, np.int32)
    if width and index is not None and ((index >= -limits) & (index < limits)).all():
        return c.x.ScatterND(c.tensor(1).cast("int64"), c.tensor(2), **reduction)
    # flattened positions, and an extra one for indices out of range
    count = prod(extents)
    flat = _flat(c, limits, rows) if width else c.constant(np.zeros(rows, np.int32))
    safe_index = flat.cast("int64").reshape((*rows, 1))
    shape = (count, *c.shape[width:])
    x = c.x if shape == c.shape else c.x.reshape(shape)
    scattered = _longer(c, x, 0, shape).ScatterND(safe_index, c.tensor(2), **reduction)
    return scattered.slice({0: (0, count, 1)}).reshape(c.shape)


def _flat(c: ExportCall, limits: Array, rows: Sequence[int]) -> ExportTensor:
    """Adds nodes that turn each row of indices into one index into the flattened first operand.

    The rows are the second operand, and ``limits`` the extents. A row with an index out of range
    becomes the number of elements.
    """
    limit, last_axis = c.constant(limits), [len(rows)]
    is_inside = _is_in_axis(c.tensor(1), limit)
    are_all_inside = is_inside.cast("integer").reduce("ReduceMin", last_axis, keepdims=False)
    safe_index = is_inside.Where(c.tensor(1), 0)
    safe_index = (safe_index < 0).Where(safe_index + limit, safe_index)
    steps = np.array([prod(limits[i + 1 :].tolist()) for i in range(len(limits))], np.int32)
    flat = (safe_index * c.constant(steps)).reduce("ReduceSum", last_axis, keepdims=False)
    return are_all_inside.cast("logical").Where(flat, prod(limits.tolist()))


def _reduction(c: ExportCall) -> dict[str, str]:
    name = str(c.attrs.reduction)
    c.require_opset(_SINCE[name], f"reduction '{name}'")
    return {} if name == "none" else {"reduction": name}


def _is_in_axis(index: ExportTensor, extent: ExportTensor) -> ExportTensor:
    return (index >= extent.Neg()) & (index < extent)


def _longer(c: ExportCall, x: ExportTensor, axis: int, shape: Sequence[int]) -> ExportTensor:
    """Adds nodes that append a zero at the end of an axis of ``x``, whose shape is given."""
    extents = [1 if a == axis else n for a, n in enumerate(shape)]
    return x.Concat(c.constant(np.zeros(extents, NUMPY_DTYPE[c.out.dtype])), axis=axis)


@rule("keep_first", onnx="`Where` of `Less`; of truth values `And`, `Or`")
def _keep_first(c: ExportCall) -> ExportTensor:
    axis = c.axis
    column = [-1 if a == axis else 1 for a in range(len(c.shape))]
    indices = np.arange(c.shape[axis], dtype=np.int32).reshape(column)
    is_kept = c.constant(indices).Less(c.tensor(1).reshape((1,)))
    dtype = c.fact(0).dtype
    if dtype == "logical":
        return is_kept.Not() | c.x if c.attrs.value else is_kept & c.x
    return is_kept.Where(c.x, c.constant(np.array(c.attrs.value, NUMPY_DTYPE[dtype])))
