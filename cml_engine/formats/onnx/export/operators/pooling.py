"""Exports windows without weights: sums, means, maxima, and the positions of maxima.

An ONNX pool is used if the window slides over spatial axes only and the padding is within ONNX's
limits. Otherwise the windows of each axis are gathered by a table of indices with a row per
window.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from math import prod

import numpy as np

from cml_engine.formats.onnx.export.call import ExportCall, ExportTensor, rule
from cml_engine.formats.onnx.export.operators.movement import pad_axes, window_attributes
from cml_engine.ir.graph import Array
from cml_engine.ops.common.shapes import MAX_RANK
from cml_engine.ops.common.window import (
    Window,
    WindowAxis,
    border_index,
    reverse_window_of,
    volume,
    window_of,
)

# -- tables of indices --------------------------------------------------------------------------


def _window_table(axis: WindowAxis, border: str) -> Array:
    """Returns a table [windows, taps] of the source index that each tap reads.

    An index outside the input is -1.
    """
    starts = np.arange(axis.narrow)[:, None] * axis.stride - axis.before
    indices = border_index(border, starts + np.arange(axis.size) * axis.dilation, axis.wide)
    return np.where((indices >= 0) & (indices < axis.wide), indices, -1)


def _spread_table(axis: WindowAxis, taps: int = 1) -> Array:
    """Returns a table of the values that are added up at each position of the axis's wide side.

    A row per position lists indices of values, filled up with -1. With ``taps`` above 1 every
    tap of a window has its own value, otherwise each window has one.
    """
    terms: list[list[int]] = [[] for _ in range(axis.wide)]
    for window in range(axis.narrow):
        for tap in range(axis.size):
            position = window * axis.stride + tap * axis.dilation - axis.before
            if 0 <= position < axis.wide:
                terms[position].append(window * taps + (tap if taps > 1 else 0))
    longest = max(map(len, terms), default=0)
    rows = [row + [-1] * (longest - len(row)) for row in terms]
    return np.array(rows, np.int64).reshape(axis.wide, longest)


def _gather_taps(
    x: ExportTensor, rank: int, axis: int, table: Array, extent: int, fill: float
) -> ExportTensor:
    """Adds nodes that gather an axis of ``x`` by a table of indices, whose two axes replace it.

    An index of -1 gives ``fill``. ``rank`` is the rank of ``x`` and ``extent`` the axis's extent.
    """
    if (table < 0).any():
        pads = [0] * (2 * rank)
        pads[rank + axis] = 1
        x = x.Pad(x.call.indices(*pads), fill, mode="constant")
        table = np.where(table < 0, extent, table)
    return x.gather(table, axis)


def _reduce_taps(
    x: ExportTensor, extents: Sequence[int], axis: int, table: Array, op: str, fill: float
) -> ExportTensor:
    """Adds nodes that reduce the values of each row of a table of indices on one axis of ``x``.

    ``extents`` is the shape of ``x``. The values of a row are an axis more: of a tensor of the
    engine's largest rank the axes before and after are merged meanwhile.
    """
    rank, extent = len(extents), extents[axis]
    if rank < MAX_RANK:
        x = _gather_taps(x, rank, axis, table, extent, fill)
        return x.reduce(op, [axis + 1], keepdims=False)
    before, after = _around(extents, axis)
    x = _gather_taps(x.reshape([before, extent, after]), 3, 1, table, extent, fill)
    x = x.reduce(op, [2], keepdims=False)
    return x.reshape([*extents[:axis], len(table), *extents[axis + 1 :]])


def _around(extents: Sequence[int], axis: int) -> tuple[int, int]:
    """Returns the products of the extents before and after an axis."""
    return prod(extents[:axis]), prod(extents[axis + 1 :])


def _by_axis(x: ExportTensor, window: Window, border: str, op: str, fill: float) -> ExportTensor:
    """Adds nodes that reduce the windows of ``x`` with the ONNX reduction ``op``, axis by axis."""
    extents = [axis.wide for axis in window]
    for i, axis in enumerate(window):
        if not axis.trivial:
            x = _reduce_taps(x, extents, i, _window_table(axis, border), op, fill)
            extents[i] = axis.narrow
    return x


def _terms(tables: Iterable[Array]) -> Array:
    """Returns the number of input values in each window of a result, at least 1.

    ``tables`` are the :func:`_window_table` of each axis.
    """
    counts = [(table >= 0).sum(1).astype(np.float32) for table in tables]
    return np.maximum(reduce(np.multiply.outer, counts, np.ones((), np.float32)), 1)


# -- pools --------------------------------------------------------------------------------------


def _is_pool(window: Window, can_be_dilated: bool) -> bool:
    """Returns True if an ONNX pool can have this window.

    ``can_be_dilated`` says that it may be dilated.
    """
    spatial = window[2:]
    return (
        2 < len(window) <= 5
        and window[0].trivial
        and window[1].trivial
        and all(a.wide for a in spatial)
        and (can_be_dilated or not _is_dilated(spatial))
    )


def _is_dilated(window: Window) -> bool:
    return any(a.dilation > 1 and a.size > 1 for a in window)


def _fits(window: Window) -> bool:
    """Returns True if the padding on each side is smaller than the window.

    ONNX Runtime requires it.
    """
    return all(0 <= n < a.size for a in window for n in (a.before, a.after))


def _pool(
    op: str, x: ExportTensor, window: Window, border: str, **extra_attributes: int
) -> ExportTensor:
    spatial = window[2:]
    pairs = [(a.before, a.after) for a in spatial]
    if border != "ignore" and not (border == "constant" and op == "AveragePool" and _fits(spatial)):
        x = pad_axes(x, [a.wide for a in window], [(0, 0), (0, 0), *pairs], border)
        pairs = [(0, 0)] * len(spatial)
    attributes = window_attributes(spatial, pairs)
    if not _is_dilated(spatial):  # before opset 19 AveragePool lacks the attribute
        del attributes["dilations"]
    return x.call.add(op, x, **attributes, **extra_attributes)


def _mean(x: ExportTensor, window: Window, border: str) -> ExportTensor:
    c = x.call
    if _is_pool(window, c.opset >= 19) and (border != "ignore" or _fits(window[2:])):
        include = int(border == "constant")
        return _pool("AveragePool", x, window, border, count_include_pad=include)
    total = _by_axis(x, window, border, "ReduceSum", 0.0)
    if border == "ignore":
        return total / c.constant(_terms(_window_table(axis, border) for axis in window))
    return total / float(volume(window))


def _windowed(c: ExportCall) -> tuple[Window, str]:
    return window_of(c.attrs, c.shape), c.attrs.border


@rule("box", onnx="sums: `Gather`, `ReduceSum`; normalized `AveragePool`, after `Pad` for other "
      "borders; windows over batch or channels as sums", empty=0.0)  # fmt: skip
def _box(c: ExportCall) -> ExportTensor:
    if c.attrs.normalize:
        return _mean(c.x, *_windowed(c))
    return _by_axis(c.x, *_windowed(c), "ReduceSum", 0.0)


@rule("max_pool", onnx="`MaxPool`; after `Pad` for other borders; windows over batch or channels "
      "by `Gather` and `ReduceMax`")  # fmt: skip
def _max_pool(c: ExportCall) -> ExportTensor:
    window, border = _windowed(c)
    fill = -np.inf if border == "ignore" else 0.0
    if c.is_empty:
        return c.fill(fill)
    if _is_pool(window, can_be_dilated=True) and (border != "ignore" or _fits(window[2:])):
        return _pool("MaxPool", c.x, window, border)
    return _by_axis(c.x, window, border, "ReduceMax", fill)


# -- places within windows ----------------------------------------------------------------------


def _joint(c: ExportCall, window: Window, border: str, fill: float) -> ExportTensor:
    """Adds nodes that gather the values of each window: [windows, taps], in row-major order.

    Axes that are not gathered are merged, so the rank does not grow with that of the input.
    """
    x, taps, extents = c.x, 1, [axis.wide for axis in window]
    for i, axis in enumerate(window):
        if not axis.trivial:
            before, after = _around(extents, i)
            x = x.reshape([before, axis.wide, after, taps])
            x = _gather_taps(x, 4, 1, _window_table(axis, border), axis.wide, fill)
            x = x.transpose([0, 1, 3, 4, 2])
            taps, extents[i] = taps * axis.size, axis.narrow
    return x.reshape([prod(extents), taps])


@rule("argmax_pool", onnx="windows by `Gather`, `ArgMax`", function=True)
def _argmax_pool(c: ExportCall) -> ExportTensor:
    window, border = _windowed(c)
    if c.is_empty:
        return c.fill(0)
    values = _joint(c, window, border, -np.inf if border == "ignore" else 0.0)
    index = values.ArgMax(axis=1, keepdims=0).cast("integer")
    return index.reshape([axis.narrow for axis in window])


@rule("max_pool_with_index", onnx="as `max_pool` and `argmax_pool`", function=True)
def _max_pool_with_index(c: ExportCall) -> list[ExportTensor]:
    return [_max_pool(c), _argmax_pool(c)]


@rule("sample", onnx="windows by `Gather`, `GatherElements`", function=True, empty=0.0)
def _sample(c: ExportCall) -> ExportTensor:
    window, border = _windowed(c)
    values = _joint(c, window, border, 0.0)
    index = c.tensor(1).reshape([prod(axis.narrow for axis in window), 1])
    is_inside = (index >= 0) & (index < volume(window))
    gathered = values.GatherElements(is_inside.Where(index, 0), axis=1)
    return is_inside.Where(gathered, 0.0).reshape([axis.narrow for axis in window])


# -- the other way ------------------------------------------------------------------------------


def _spread(c: ExportCall, x: ExportTensor, window: Window, taps: Sequence[int]) -> ExportTensor:
    """Adds nodes that sum, at each position of the wide side, the values of the windows over it.

    ``taps`` is, for each axis, the number of values that ``x`` has per window.
    """
    extents = [axis.narrow * count for axis, count in zip(window, taps, strict=True)]
    for i, (axis, count) in enumerate(zip(window, taps, strict=True)):
        if axis.trivial and axis.wide == axis.narrow:
            continue
        table = _spread_table(axis, count)
        if not table.size:
            return c.fill(0.0)
        x = _reduce_taps(x, extents, i, table, "ReduceSum", 0.0)
        extents[i] = axis.wide
    return x


@rule("debox", onnx="`Gather`, `ReduceSum`", function=True, empty=0.0)
def _debox(c: ExportCall) -> ExportTensor:
    window = reverse_window_of(c.attrs, c.shape)
    total = _spread(c, c.x, window, [1] * len(window))
    if not c.attrs.normalize:
        return total
    if c.attrs.border != "ignore":
        return total / float(volume(window))
    return total / c.constant(_terms(_spread_table(axis) for axis in window))


@rule("desample", onnx="`Where` by place, `Gather`, `ReduceSum`", function=True, empty=0.0)
def _desample(c: ExportCall) -> ExportTensor:
    window = reverse_window_of(c.attrs, c.shape)
    sizes, taps, extents = [a.size for a in window], volume(window), list(c.shape)
    tap_indices = c.constant(np.arange(taps, dtype=np.int32))
    is_chosen = c.tensor(1).reshape([prod(extents), 1]).Equal(tap_indices)
    values = is_chosen.Where(c.x.reshape([prod(extents), 1]), 0.0)
    for i, size in enumerate(sizes):  # the taps of an axis go behind its windows
        before, after = _around(extents, i)
        taps //= size
        values = values.reshape([before, extents[i], after, size, taps])
        values = values.transpose([0, 1, 3, 2, 4])
        extents[i] *= size
    return _spread(c, values.reshape(extents), window, sizes)
