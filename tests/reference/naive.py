"""NNEF's operators as the specification writes them: loops over elements, in double precision.

The module shares no code with the engine. Tests of slow operators use small inputs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Pairs = Sequence[tuple[int, int]]


def left(*arrays: Any) -> list[Array]:
    """Reshapes arrays for NNEF's broadcasting: trailing axes of extent 1, up to the largest
    rank."""
    found = [np.asarray(a) for a in arrays]
    found = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in found]
    rank = max(a.ndim for a in found)
    return [a.reshape(a.shape + (1,) * (rank - a.ndim)) for a in found]


def border_index(at: int, extent: int, border: str) -> int | None:
    """Maps an index into the extent by the border's definition; None if the border has no value."""
    while not 0 <= at < extent:
        if border in ("constant", "ignore"):
            return None
        if border == "replicate" or extent == 1:
            at = min(max(at, 0), extent - 1)
        elif border == "reflect":
            at = -at if at < 0 else 2 * (extent - 1) - at
        else:
            at = -1 - at if at < 0 else 2 * extent - 1 - at
    return at


def border_value(x: Array, at: Sequence[int], border: str) -> float | None:
    """Returns the input at a position that may lie outside; None if there is no value
    ('ignore')."""
    place = []
    for i, extent in zip(at, x.shape, strict=True):
        if 0 <= i < extent:
            place.append(i)
        elif border == "constant":
            return 0.0
        elif border == "ignore":
            return None
        elif border == "replicate":
            place.append(min(max(i, 0), extent - 1))
        elif border == "reflect":
            i = abs(i) % max(2 * extent - 2, 1)
            place.append(min(i, 2 * extent - 2 - i) if extent > 1 else 0)
        else:
            i = (i if i >= 0 else -1 - i) % (2 * extent)
            place.append(min(i, 2 * extent - 1 - i))
    return float(x[tuple(place)])


def geometry(extents: Sequence[int], size: Sequence[int], padding: Pairs = (),
             stride: Sequence[int] = (),
             dilation: Sequence[int] = ()) -> tuple[Any, ...]:  # fmt: skip
    """Returns the padding before, the stride, the dilation and the result's extents, all
    explicit."""
    stride = list(stride) or [1] * len(extents)
    dilation = list(dilation) or [1] * len(extents)
    before, result = [], []
    for i, extent in enumerate(extents):
        reach = (size[i] - 1) * dilation[i] + 1
        if padding:
            p, q = padding[i]
            result.append((p + extent + q - reach) // stride[i] + 1)
        else:
            result.append(math.ceil(extent / stride[i]))
            p = max((result[-1] - 1) * stride[i] + reach - extent, 0) // 2
        before.append(p)
    return before, stride, dilation, result


def windows(x: Array, size: Sequence[int], border: str, **window: Any) -> Iterator[Any]:
    """Yields each result's index with its window's values in row-major order."""
    before, stride, dilation, result = geometry(x.shape, size, **window)
    for index in itertools.product(*map(range, result)):
        values = []
        for tap in itertools.product(*map(range, size)):
            at = [
                i * s + t * d - p
                for i, s, t, d, p in zip(index, stride, tap, dilation, before, strict=True)
            ]
            values.append(border_value(x, at, border))
        yield index, values


def pool(x: Array, reduce: Callable[[list[Any]], float], size: Sequence[int],
         border: str = "constant", **window: Any) -> Array:  # fmt: skip
    result = geometry(x.shape, size, **window)[3]
    y = np.zeros(result)
    for index, values in windows(x, size, border, **window):
        y[index] = reduce(values)
    return y


def total(values: list[Any]) -> float:
    return sum(v for v in values if v is not None)


def mean(values: list[Any]) -> float:
    known = [v for v in values if v is not None]
    return sum(known) / max(len(known), 1)


def greatest(values: list[Any]) -> float:
    return max((v for v in values if v is not None), default=-math.inf)


def first_greatest(values: list[Any]) -> int:
    known = [-math.inf if v is None else v for v in values]
    return known.index(max(known))


def conv(x: Array, w: Array, bias: Any = 0.0, border: str = "constant", padding: Pairs = (),
         stride: Sequence[int] = (), dilation: Sequence[int] = (),
         groups: int = 1) -> Array:  # fmt: skip
    groups = groups or x.shape[1]
    before, stride, dilation, extents = geometry(
        x.shape[2:], w.shape[2:], padding, stride, dilation
    )
    y = np.zeros((x.shape[0], w.shape[0], *extents))
    each_out, each_in = w.shape[0] // groups, x.shape[1] // groups
    offset = np.broadcast_to(np.asarray(bias, np.float64).reshape(-1), w.shape[0])
    for n, c in itertools.product(range(y.shape[0]), range(y.shape[1])):
        first = c // each_out * each_in
        for index in itertools.product(*map(range, extents)):
            sum_ = 0.0
            for k in range(each_in):
                for tap in itertools.product(*map(range, w.shape[2:])):
                    at = [
                        i * s + t * d - p
                        for i, s, t, d, p in zip(index, stride, tap, dilation, before, strict=True)
                    ]
                    value = border_value(x[n, first + k], at, border)
                    sum_ += float(w[(c, k, *tap)]) * (value or 0.0)
            y[(n, c, *index)] = sum_ + offset[c]
    return y


def deconv(x: Array, w: Array, bias: Any = 0.0, padding: Pairs = (), stride: Sequence[int] = (),
           dilation: Sequence[int] = (), output_shape: Sequence[int] = (),
           groups: int = 1) -> Array:  # fmt: skip
    """Scatters every value over its window, then crops by the padding."""
    rank = x.ndim - 2
    stride, dilation = list(stride) or [1] * rank, list(dilation) or [1] * rank
    groups = groups or (output_shape[1] if output_shape else x.shape[0 + 1])
    channels = w.shape[1] * groups
    reach = [(w.shape[2 + i] - 1) * dilation[i] + 1 for i in range(rank)]
    extents, before = [], []
    for i in range(rank):
        narrow = x.shape[2 + i]
        if padding:
            p, q = padding[i]
            wide = (narrow - 1) * stride[i] + reach[i] - p - q
            wide = output_shape[2 + i] if output_shape else wide
        else:
            wide = output_shape[2 + i] if output_shape else narrow * stride[i]
            p = max((narrow - 1) * stride[i] + reach[i] - wide, 0) // 2
        extents.append(wide)
        before.append(p)
    y = np.zeros((x.shape[0], channels, *extents))
    y += np.broadcast_to(np.asarray(bias, np.float64).reshape(-1), channels).reshape(
        1, -1, *[1] * rank
    )
    each_in = x.shape[1] // groups
    for n, c in itertools.product(range(x.shape[0]), range(x.shape[1])):
        for index in itertools.product(*map(range, x.shape[2:])):
            for k in range(w.shape[1]):
                out = c // each_in * w.shape[1] + k
                for tap in itertools.product(*map(range, w.shape[2:])):
                    at = [
                        i * s + t * d - p
                        for i, s, t, d, p in zip(index, stride, tap, dilation, before, strict=True)
                    ]
                    if all(0 <= a < e for a, e in zip(at, extents, strict=True)):
                        y[(n, out, *at)] += float(x[(n, c, *index)]) * float(w[(c, k, *tap)])
    return y


def halves_up(x: Array) -> Array:
    return np.floor(x + 0.5)


def min_max_quantize(x: Array, low: Any, high: Any, bits: int, signed: bool,
                     symmetric: bool) -> Array:  # fmt: skip
    x, low, high = left(x, low, high)
    steps = 2.0**bits - 1 - (signed and symmetric)
    lowest = 2.0 ** (bits - 1) - symmetric if signed else 0.0
    q = halves_up((np.clip(x, low, high) - low) / (high - low) * steps) - lowest
    return (q + lowest) / steps * (high - low) + low


def zero_point_quantize(x: Array, zero: Any, scale: Any, bits: int, signed: bool,
                        symmetric: bool) -> Array:  # fmt: skip
    x, zero, scale = left(x, zero, scale)
    highest = 2.0 ** (bits - 1) - 1 if signed else 2.0**bits - 1
    lowest = (-highest if symmetric else -highest - 1) if signed else 0.0
    return (np.clip(halves_up(x / scale) + zero, lowest, highest) - zero) * scale


def logarithmic_quantize(x: Array, high: Any, bits: int) -> Array:
    x, high = left(x, high)
    top = np.ceil(np.log2(high))
    with np.errstate(divide="ignore"):
        q = halves_up(np.clip(np.log2(np.abs(x)), top - (2.0**bits - 1), top))
    return np.sign(x) * 2.0**q
