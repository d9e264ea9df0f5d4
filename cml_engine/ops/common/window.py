"""Sliding windows: extents, automatic padding, and the transposed case.

A window slides over the *wide* side (the input of ``box``, the result of ``debox``) and there is
one value per window on the *narrow* side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from types import EllipsisType

import numpy as np

from cml_engine.errors import ShapeError
from cml_engine.ir.graph import Array, Attrs, Fact
from cml_engine.ops.common.shapes import check_word
from cml_engine.ops.declaration.spec import OperandRows, RowMapping, RowsOf, Span

#: the values around a tensor; a pool may also ignore them
BORDERS = ("constant", "replicate", "reflect", "reflect-even")
POOL_BORDERS = (*BORDERS, "ignore")


@dataclass(frozen=True, slots=True)
class WindowAxis:
    """One dimension of a sliding window and of the tensors on both of its sides.

    ``wide`` and ``narrow`` are the tensors' extents, ``size`` the window's, ``before`` and
    ``after`` the padding of the wide side.
    """

    wide: int
    narrow: int
    size: int = 1
    stride: int = 1
    dilation: int = 1
    before: int = 0
    after: int = 0

    @property
    def reach(self) -> int:
        """The extent of the dilated window."""
        return (self.size - 1) * self.dilation + 1

    @property
    def trivial(self) -> bool:
        """True if every window contains a single value and the axis keeps its extent."""
        return self.size == 1 and self.stride == 1 and self.before == 0 == self.after

    @property
    def whole(self) -> bool:
        """True if there is one window, which covers the whole axis."""
        return (
            self.narrow == 1
            and self.before == 0
            and self.size == self.wide
            and (self.dilation == 1 or self.size == 1)
        )


Window = tuple[WindowAxis, ...]
#: a window of up to three axes as a kernel's parameters
GEOMETRY = "wide:u3 narrow:u3 taps:u3 stride:u3 dilation:u3 before:i3"


def geometry(window: Sequence[WindowAxis]) -> dict[str, list[int]]:
    """Returns the kernels' parameters of a window by name: a list for three axes, innermost first.

    The names are those of :data:`GEOMETRY`; missing axes have extent 1.
    """
    axes = [*window[::-1], *[WindowAxis(1, 1)] * (3 - len(window))]
    return {
        "wide": [a.wide for a in axes],
        "narrow": [a.narrow for a in axes],
        "taps": [a.size for a in axes],
        "stride": [a.stride for a in axes],
        "dilation": [a.dilation for a in axes],
        "before": [a.before for a in axes],
    }


def volume(window: Window) -> int:
    """Returns the number of taps: the product of the window's sizes."""
    return prod(axis.size for axis in window)


def resolve_window(
    shape: Sequence[int],
    size: Sequence[int],
    padding: Sequence[tuple[int, int]],
    stride: Sequence[int],
    dilation: Sequence[int],
    first_axis: int = 0,
) -> Window:
    """Returns the window over a tensor of ``shape`` with defaults resolved, axis by axis.

    Empty ``padding`` is automatic (as many windows as strides fit, the odd one padded at the
    end); empty ``stride`` and ``dilation`` are 1 everywhere. Padding may be negative. Messages
    count axes from ``first_axis``. Raises :class:`ShapeError` for invalid values.
    """
    axes = []
    for i, (wide, f, s, d, pair) in enumerate(
        _parameters(shape, size, padding, stride, dilation), first_axis
    ):
        reach = (f - 1) * d + 1
        if pair is None:
            narrow = -(-wide // s)
            pair = _same_padding(wide, narrow, reach, s)
        else:
            padded = pair[0] + wide + pair[1]
            narrow = (padded - reach) // s + 1
            if narrow <= 0 and wide:
                raise ShapeError(
                    f"axis {i}: a window of {f} (dilation {d}: {reach}) does not fit into {wide} + "
                    f"padding ({pair[0]},{pair[1]}) = {padded}; add padding"
                )
        axes.append(WindowAxis(wide, max(narrow, 0), f, s, d, *pair))
    return tuple(axes)


def resolve_reverse(
    shape: Sequence[int],
    size: Sequence[int],
    padding: Sequence[tuple[int, int]],
    stride: Sequence[int],
    dilation: Sequence[int],
    output_shape: Sequence[int],
    first_axis: int = 0,
) -> Window:
    """Returns the window of a transposed operator, whose narrow side has ``shape``.

    Raises :class:`ShapeError` if a stated ``output_shape`` would not lead back to ``shape``.
    """
    if output_shape:
        _check("output_shape", output_shape, shape, 0)
    axes = []
    for i, (narrow, f, s, d, pair) in enumerate(
        _parameters(shape, size, padding, stride, dilation)
    ):
        reach = (f - 1) * d + 1
        if pair is None:
            wide = output_shape[i] if output_shape else narrow * s
            pair = _same_padding(wide, narrow, reach, s)
            windows = -(-wide // s)
        else:
            full = (narrow - 1) * s + reach - sum(pair) if narrow else 0
            wide = output_shape[i] if output_shape else full
            windows = (wide + sum(pair) - reach) // s + 1
        axes.append(WindowAxis(wide, narrow, f, s, d, *pair))
        _check_reverse(i + first_axis, axes[-1], windows if output_shape else narrow)
    return tuple(axes)


def _parameters(
    shape: Sequence[int],
    size: Sequence[int],
    padding: Sequence[tuple[int, int]],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> Iterator[tuple[int, int, int, int, tuple[int, int] | None]]:
    """Returns (extent, size, stride, dilation, padding) of each axis; the padding may be None.

    Raises :class:`ShapeError` if a list is too short or too long, or has an invalid number.
    """
    for name, values in (("size", size), ("stride", stride), ("dilation", dilation)):
        if values or name == "size":
            _check(name, values, shape, 1)
    if padding and (len(padding) != len(shape) or any(len(pair) != 2 for pair in padding)):
        raise ShapeError(
            f"padding={list(padding)} has {len(padding)} entries, wanted {len(shape)} pairs "
            f"(before, after): one for each extent of {list(shape)}"
        )
    ones = (1,) * len(shape)
    pairs = padding or (None,) * len(shape)
    return zip(shape, size, stride or ones, dilation or ones, pairs, strict=True)


def _same_padding(wide: int, narrow: int, reach: int, stride: int) -> tuple[int, int]:
    """Returns the automatic padding (before, after) of an axis; an odd element is after."""
    total = max((narrow - 1) * stride + reach - wide, 0) if narrow else 0
    return total // 2, total - total // 2


def _check(name: str, values: Sequence[int], shape: Sequence[int], minimum: int) -> None:
    if len(values) != len(shape):
        raise ShapeError(
            f"{name}={list(values)} has {len(values)} values, wanted {len(shape)}: one for each "
            f"extent of {list(shape)}"
        )
    if any(v < minimum for v in values):
        raise ShapeError(f"{name}={list(values)}, wanted {minimum} or more everywhere")


def _check_reverse(i: int, axis: WindowAxis, windows: int) -> None:
    if axis.wide < 0 or (axis.wide == 0 and axis.narrow):
        raise ShapeError(
            f"axis {i}: padding ({axis.before},{axis.after}) crops all of the "
            f"{(axis.narrow - 1) * axis.stride + axis.reach} that {axis.narrow} windows cover; "
            "use less padding"
        )
    if axis.narrow and windows != axis.narrow:
        raise ShapeError(
            f"axis {i}: output_shape {axis.wide} goes back to {windows} with stride {axis.stride}, "
            f"padding ({axis.before},{axis.after}) and a window of {axis.reach}, but the input "
            f"has {axis.narrow}; check output_shape"
        )


def check_border(border: str, borders: Sequence[str], window: Window, first_axis: int = 0) -> None:
    """Raises :class:`ShapeError` if the border is unknown, or has no value that it could repeat."""
    check_word("border", border, borders)
    for i, axis in enumerate(window, first_axis):
        if axis.wide == 0 < axis.narrow and border not in ("constant", "ignore"):
            raise ShapeError(
                f"axis {i} of the input is empty, so border='{border}' finds no value to repeat; "
                "use border='constant'"
            )


def border_index(border: str, index: Array, extent: int) -> Array:
    """Returns, for each index of an axis, the index inside of it whose value the border repeats.

    Indices inside stay the same. With ``constant`` and ``ignore`` those outside stay too.
    """
    if border == "replicate":
        return np.asarray(np.clip(index, 0, extent - 1))
    if border == "reflect":  # a wave of period 2 (extent - 1): the edge is not repeated
        phase = index % max(2 * (extent - 1), 1)
        return np.asarray(np.minimum(phase, np.abs(2 * (extent - 1) - phase)) % max(extent, 1))
    if border == "reflect-even":
        phase = index % max(2 * extent, 1)
        return np.asarray(np.minimum(phase, 2 * extent - 1 - phase))
    return index


def window_of(attrs: Attrs, shape: Sequence[int]) -> Window:
    """Returns the window of a pooling operator from its attributes and its input's shape.

    Raises :class:`ShapeError` for invalid attributes.
    """
    window = resolve_window(
        shape, attrs["size"], attrs["padding"], attrs["stride"], attrs["dilation"]
    )
    check_border(attrs["border"], POOL_BORDERS, window)
    return window


def reverse_window_of(attrs: Attrs, shape: Sequence[int]) -> Window:
    """Returns the window of ``debox`` or ``desample`` from its attributes and its input's shape.

    Raises :class:`ShapeError` for invalid attributes.
    """
    if attrs["border"] not in ("constant", "ignore"):
        raise ShapeError(
            f"border='{attrs['border']}' has no meaning here, wanted 'constant' or 'ignore': "
            "what falls onto the padding is dropped"
        )
    return resolve_reverse(
        shape, attrs["size"], attrs["padding"], attrs["stride"], attrs["dilation"],
        attrs["output_shape"],
    )  # fmt: skip


# --- windows of NumPy arrays --------------------------------------------------------------------


def pad_border(
    x: Array,
    padding: Sequence[tuple[int, int]],
    border: str,
    filled: Callable[[tuple[int, ...]], Array] | None = None,
) -> Array:
    """Returns an array with a border of ``padding`` (before, after) on each of its last axes.

    Negative padding crops. The result is a view if no values are added. ``filled`` makes the array
    for a border that repeats no values; by default it has zeros.
    """
    first_axis = x.ndim - len(padding)
    extents = x.shape[first_axis:]
    pairs = list(zip(extents, padding, strict=True))
    if border not in ("constant", "ignore"):
        for axis, (extent, (before, after)) in enumerate(pairs, first_axis):
            if before or after:
                index = border_index(border, np.arange(-before, extent + after), extent)
                x = np.take(x, index, axis)
        return x
    inner = x[_last(slice(max(-b, 0), max(n - max(-a, 0), 0)) for n, (b, a) in pairs)]
    if all(before <= 0 and after <= 0 for before, after in padding):
        return inner
    shape = (*x.shape[:first_axis], *(max(b + n + a, 0) for n, (b, a) in pairs))
    padded = filled(shape) if filled else np.zeros(shape, x.dtype)
    starts = [max(before, 0) for before, _ in padding]
    ranges = zip(starts, inner.shape[first_axis:], strict=True)
    padded[_last(slice(start, start + n) for start, n in ranges)] = inner
    return padded


def _last(slices: Iterable[slice]) -> tuple[EllipsisType | slice, ...]:
    """Returns an index of an array's last axes."""
    return (..., *slices)


def tap_ranges(axis: WindowAxis, tap: int) -> tuple[slice, slice]:
    """Returns the windows whose tap is on the wide side, and the tap's positions there."""
    offset = tap * axis.dilation - axis.before
    first = max(-(offset // axis.stride), 0)
    last = max(min((axis.wide - 1 - offset) // axis.stride + 1, axis.narrow), first)
    start = first * axis.stride + offset
    return slice(first, last), slice(start, start + (last - first) * axis.stride, axis.stride)


def add_tap(window: Window, values: Array, tap: Sequence[int], wide: Array) -> None:
    """Adds a value of each window to ``wide``, the array that it slides over, at one of its taps.

    The window's axes are the last of both arrays.
    """
    ranges = [tap_ranges(axis, t) for axis, t in zip(window, tap, strict=True)]
    wide[_last(positions for _, positions in ranges)] += values[
        _last(windows for windows, _ in ranges)
    ]


# --- rows of results and of operands ------------------------------------------------------------


def same_rows(attrs: Attrs, facts: Sequence[Fact], axis: int) -> RowMapping | None:
    """Returns the row mapping of an operator whose result row k needs row k of every operand.

    An operand of extent 1 along the axis, which is broadcast, is needed as a whole.
    """
    extent = max((f.shape[axis] for f in facts if f.rank > axis), default=1)
    has_rows = [f.rank > axis and f.shape[axis] == extent > 1 for f in facts]

    def need(begin: int, end: int) -> OperandRows:
        return OperandRows(
            tuple((begin, end) if rows else None for rows in has_rows), attrs, (begin, end)
        )

    return RowMapping(axis, need)


def exclude_axes(*named: str) -> RowsOf:
    """Returns a function like :func:`same_rows` that returns None for axes in the named attributes.

    An attribute's value may be an axis or a list of axes.
    """

    def rows(attrs: Attrs, facts: Sequence[Fact], axis: int) -> RowMapping | None:
        values = [attrs[name] for name in named]
        axes = [a for v in values for a in (v if isinstance(v, list | tuple) else [v])]
        return None if axis in axes else same_rows(attrs, facts, axis)

    return rows


def under_windows(axis: WindowAxis, border: str, begin: int, end: int) -> tuple[Span, Span]:
    """Returns the range of rows under the windows ``begin`` to ``end``, and the padding around it.

    With that padding (before, after), the rows produce exactly these windows. If the border repeats
    rows of the operand, those rows are included.
    """
    low = begin * axis.stride - axis.before
    high = (end - 1) * axis.stride - axis.before + axis.reach
    first, last = max(low, 0), min(high, axis.wide)
    if border not in ("constant", "ignore"):
        above, below = max(-low, 0), max(high - axis.wide, 0)
        if max(above, below) >= axis.wide:  # reflected more than once
            first, last = 0, axis.wide
        else:
            last = max(last, above + 1 if above else 0)
            first = min(first, axis.wide - below - 1 if below else first)
    first = min(first, axis.wide - 1)
    last = max(last, first + 1)
    return (first, last), (first - low, high - last)


def onto_windows(axis: WindowAxis, begin: int, end: int) -> tuple[Span, Span]:
    """Returns the operand's rows and the padding for results ``begin`` to ``end`` of a deconv.

    With that padding (before, after), the rows produce exactly these results.
    """
    first = max(-((axis.reach - 1 - begin - axis.before) // axis.stride), 0)
    last = min((end - 1 + axis.before) // axis.stride + 1, axis.narrow)
    first = min(first, axis.narrow - 1)
    last = max(last, first + 1)
    before = begin + axis.before - first * axis.stride
    full = (last - first - 1) * axis.stride + axis.reach
    return (first, last), (before, full - before - (end - begin))


def scale_rows(attrs: Attrs, axis: int, factor: int, result_axis: int | None = None) -> RowMapping:
    """Returns the row mapping of an operator that makes ``factor`` rows from each operand row.

    ``axis`` is the operand's axis; ``result_axis`` is the result's, if it differs.
    """

    def need(begin: int, end: int) -> OperandRows:
        first, last = begin // factor, -(-end // factor)
        return OperandRows(((first, last),), attrs, (first * factor, last * factor))

    return RowMapping(axis if result_axis is None else result_axis, need, factor)


def gather_rows(attrs: Attrs, axis: int, factor: int, result_axis: int | None = None) -> RowMapping:
    """Returns the row mapping of an operator that makes one row from ``factor`` operand rows.

    ``axis`` is the operand's axis; ``result_axis`` is the result's, if it differs.
    """

    def need(begin: int, end: int) -> OperandRows:
        return OperandRows(((begin * factor, end * factor),), attrs, (begin, end))

    return RowMapping(axis if result_axis is None else result_axis, need)
