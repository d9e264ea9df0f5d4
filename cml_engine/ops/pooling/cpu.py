"""Pooling in NumPy: combines one strided view of the padded input for each tap of the window."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product, repeat

import numpy as np

from cml_engine.ir.graph import Array, Attrs, Fact
from cml_engine.ops.common.window import (
    Window,
    add_tap,
    pad_border,
    reverse_window_of,
    volume,
    window_of,
)
from cml_engine.ops.declaration.scratch import Scratch
from cml_engine.ops.declaration.spec import Cpu


def _pad(x: Array, window: Window, border: str, fill: float = 0.0) -> Array:
    """Returns the input padded as far as windows reach.

    ``fill`` stands where the border has no value.
    """
    ends = [(a.narrow - 1) * a.stride + a.reach - a.before for a in window]
    padding = [(a.before, end - a.wide) for a, end in zip(window, ends, strict=True)]
    return pad_border(x, padding, border, lambda shape: np.full(shape, fill, x.dtype))


def taps_of(padded: Array, window: Window) -> Iterator[Array]:
    """Yields a view per tap, row-major: the padded input's value of every window at that tap."""
    for tap in product(*(range(axis.size) for axis in window)):
        parts = [
            slice(t * a.dilation, t * a.dilation + (a.narrow - 1) * a.stride + 1, a.stride)
            if a.narrow
            else slice(0, 0)
            for t, a in zip(tap, window, strict=True)
        ]
        yield padded[(*parts, ...)]  # the dots make a view of rank 0 too


def _narrow(window: Window) -> tuple[int, ...]:
    return tuple(a.narrow for a in window)


def _valid_taps(window: Window) -> Array:
    """Returns for each window the number of its taps that lie on the input."""
    count = np.ones((), np.int64)
    for axis in window:
        starts = np.arange(axis.narrow)[:, None] * axis.stride - axis.before
        at = starts + np.arange(axis.size) * axis.dilation
        count = np.multiply.outer(count, ((at >= 0) & (at < axis.wide)).sum(1))
    return count


def _sum(x: Array, window: Window, border: str) -> Array:
    total = np.zeros(_narrow(window), np.float64)
    for value in taps_of(_pad(x, window, border), window):
        total += value
    return total


def _mean(x: Array, window: Window, border: str) -> Array:
    total = _sum(x, window, border)
    if border == "ignore":
        return np.asarray(total / np.maximum(_valid_taps(window), 1))
    return np.asarray(total / volume(window))


def box(attrs: Attrs, x: Array) -> Array:
    """Returns the sum of each window or, with ``normalize``, its mean."""
    reduce = _mean if attrs["normalize"] else _sum
    return np.asarray(reduce(x, window_of(attrs, x.shape), attrs["border"]), np.float32)


def avg_pool(attrs: Attrs, x: Array) -> Array:
    return np.asarray(_mean(x, window_of(attrs, x.shape), attrs["border"]), np.float32)


def max_with_index(attrs: Attrs, x: Array) -> tuple[Array, Array]:
    """Returns the greatest value of each window, and its row-major position in the window.

    Of equal values the first counts. A NaN is the greatest.
    """
    window, border = window_of(attrs, x.shape), attrs["border"]
    best = np.full(_narrow(window), -np.inf, np.float32)
    index = np.full(best.shape, -1, np.int32)
    valid = None
    if border == "ignore":
        valid = taps_of(_pad(np.ones(x.shape, np.bool_), window, border), window)
    for tap, value in enumerate(taps_of(_pad(x, window, border), window)):
        # a NaN beats everything, as in max_reduce
        take = (value > best) | (np.isnan(value) & ~np.isnan(best)) | (index < 0)
        if valid is not None:
            take &= next(valid)
        best, index = np.where(take, value, best), np.where(take, np.int32(tap), index)
    return np.asarray(best), np.maximum(index, 0, out=np.asarray(index))


def max_pool(attrs: Attrs, x: Array) -> Array:
    return max_with_index(attrs, x)[0]


def argmax_pool(attrs: Attrs, x: Array) -> Array:
    return max_with_index(attrs, x)[1]


def sample(attrs: Attrs, x: Array, index: Array) -> Array:
    """Returns the value at ``index`` of each window; 0 if the index is outside the window."""
    window = window_of(attrs, x.shape)
    result = np.zeros(_narrow(window), np.float32)
    for tap, value in enumerate(taps_of(_pad(x, window, attrs["border"]), window)):
        result = np.where(index == tap, value, result)
    return result


def _spread(terms: Iterable[Array], window: Window) -> Array:
    """Returns the tensor on the window's wide side, with ``terms`` added at their taps' positions.

    There is one array of terms per tap.
    """
    total: Array = np.zeros([axis.wide for axis in window])
    for tap, term in zip(np.ndindex(*(axis.size for axis in window)), terms, strict=True):
        add_tap(window, term, tap, total)
    return total


def debox(attrs: Attrs, x: Array) -> Array:
    """Returns the enlarged tensor in which every value is added to its whole window.

    With ``normalize``, sums are divided by the window's volume or, with border 'ignore', by the
    number of windows that overlap there.
    """
    window = reverse_window_of(attrs, x.shape)
    total = _spread(repeat(x, volume(window)), window)
    if attrs["normalize"] and attrs["border"] == "ignore":
        total /= np.maximum(_spread(repeat(np.ones_like(x), volume(window)), window), 1)
    elif attrs["normalize"]:
        total /= volume(window)
    return np.asarray(total, np.float32)


def desample(attrs: Attrs, x: Array, index: Array) -> Array:
    """Returns the enlarged tensor in which every value is added at ``index`` of its window."""
    window = reverse_window_of(attrs, x.shape)
    terms = (np.where(index == tap, x, np.float32(0)) for tap in range(volume(window)))
    return np.asarray(_spread(terms, window), np.float32)


def prepare_max_pool(
    attrs: Attrs, facts: Sequence[Fact], constants: Sequence[Array | None], scratch: Scratch
) -> Cpu:
    """Returns a function that computes max pooling for these attributes and shapes, tap by tap.

    A NaN in a window is its result; of two zeros of different sign either may be.
    """
    window = window_of(attrs, facts[0].shape)
    shape = tuple(axis.narrow for axis in window)
    border = attrs["border"]
    border_value = -np.inf if border == "ignore" else 0.0
    ends = [(axis.narrow - 1) * axis.stride + axis.reach for axis in window]
    needs_no_padding = all(a.before == 0 and n <= a.wide for a, n in zip(window, ends, strict=True))

    def pool(attrs: Attrs, x: Array) -> Array:
        out = scratch.result_as(x, shape)
        padded = x if needs_no_padding else _pad(x, window, border, border_value)
        first, *remaining = taps_of(padded, window)
        np.copyto(out, first)
        for value in remaining:
            np.maximum(out, value, out=out)
        return out

    return pool
