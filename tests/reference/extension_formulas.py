"""Formulas of the extensions required by exchange formats other than NNEF; see formulas.py.

Formulas in which an index decides are loops over single elements.
"""

import itertools
import math

import numpy as np

# ---------------------------------------------------------------- one element at a time


def numpy_functions(text):
    """Returns functions of NumPy by operator; ``sub=subtract`` is one of another name."""
    pairs = [pair.partition("=") for pair in text.split()]
    return {op: getattr(np, name or op) for op, _, name in pairs}


def _wrapped(function):
    """Wraps the function so that its integer results of any size are cut to 32 bits."""

    def formula(*arrays):
        wide = [a.astype(object) for a in arrays]
        low = np.asarray(np.frompyfunc(function, len(wide), 1)(*wide)) & 0xFFFFFFFF
        return np.asarray(low, object).astype(np.uint32).astype(np.int32)

    return formula


def _quotient(a, b):
    """Divides integers as C does: rounds towards zero."""
    return (abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1) if b else 0


def _shift(a, by, left):
    if not 0 <= by < 32:
        return 0
    return a << by if left else (a & 0xFFFFFFFF) >> by


_WRAPPED = {
    "int_add": lambda a, b: a + b, "int_sub": lambda a, b: a - b, "int_mul": lambda a, b: a * b,
    "int_div": _quotient, "int_rem": lambda a, b: a - _quotient(a, b) * b if b else 0,
    "int_mod": lambda a, b: a % b if b else 0, "int_neg": lambda a: -a, "int_abs": abs,
    "bit_and": lambda a, b: a & b, "bit_or": lambda a, b: a | b, "bit_xor": lambda a, b: a ^ b,
    "bit_not": lambda a: ~a, "shift_left": lambda a, by: _shift(a, by, True),
    "shift_right": lambda a, by: _shift(a, by, False),
}  # fmt: skip
#: operators of integers; the rest of ELEMENTWISE takes floats
INTEGERS = {op: _wrapped(function) for op, function in _WRAPPED.items()} | numpy_functions(
    "int_min=minimum int_max=maximum int_sign=sign int_lt=less int_gt=greater int_le=less_equal "
    "int_ge=greater_equal int_eq=equal int_ne=not_equal"
)

ELEMENTWISE = {
    **INTEGERS,
    "is_nan": lambda x: x != x,
    "is_inf": lambda x: np.abs(x) == np.inf,
    "to_bits": lambda x: np.array(x, np.float32).view(np.int32),
    "from_bits": lambda x: np.array(x).view(np.float32),
    "round_even": np.round,
    "fmod": np.vectorize(
        lambda x, y: math.nan if y == 0 or math.isinf(x) else math.fmod(x, y), [np.float64]
    ),
}


# ---------------------------------------------------------------- by index


def _gather_elements(x, indices, axis):
    y = np.zeros(indices.shape, x.dtype)
    for at in np.ndindex(*indices.shape):
        place = list(at)
        place[axis] = indices[at]
        y[at] = x[tuple(place)]
    return [y]


_MEET = {
    "none": lambda a, b: b, "add": lambda a, b: a + b, "mul": lambda a, b: a * b,
    "min": min, "max": max,
}  # fmt: skip


def _wide(x):
    return np.array(x, np.float64 if x.dtype.kind == "f" else x.dtype)


def _is_in(place, shape):
    return all(-e <= i < e for i, e in zip(place, shape, strict=False))


def _scatter_elements(x, indices, updates, axis, reduction="none"):
    y = _wide(x)
    for at in np.ndindex(*indices.shape):
        place = list(at)
        place[axis] = indices[at]
        if _is_in(place, x.shape):
            y[tuple(place)] = _MEET[reduction](y[tuple(place)], updates[at])
    return [y]


def _scatter_nd(x, indices, updates, reduction="none"):
    y = _wide(x)
    for at in np.ndindex(*indices.shape[:-1]):
        place = tuple(indices[at])
        if _is_in(place, x.shape):
            old, new = np.asarray(y[place]), np.asarray(updates[at])
            met = [_MEET[reduction](a, b) for a, b in zip(old.flat, new.flat, strict=True)]
            y[place] = np.array(met, y.dtype).reshape(old.shape)
    return [y]


# ---------------------------------------------------------------- along lines


def _cumprod(x, axis, exclusive=False, reverse=False):
    lines = np.moveaxis(_wide(x), axis, 0)
    lines = lines[::-1] if reverse else lines
    y, total = np.ones_like(lines), np.ones(lines.shape[1:])
    for i, line in enumerate(lines):
        y[i] = total if exclusive else total * line
        total = total * line
    return [np.moveaxis(y[::-1] if reverse else y, 0, axis)]


def _reverse_sequence(x, lengths, time_axis, batch_axis):
    y = np.array(x)
    for at in np.ndindex(*x.shape):
        length, place = min(lengths[at[batch_axis]], x.shape[time_axis]), list(at)
        if at[time_axis] < length:
            place[time_axis] = length - 1 - at[time_axis]
        y[at] = x[tuple(place)]
    return [y]


# ---------------------------------------------------------------- positions and regions


def _keys(s):
    """Returns the cubic convolution kernel with the coefficient -0.75."""
    s = abs(s)
    if s <= 1:
        return 1.25 * s**3 - 2.25 * s**2 + 1
    return -0.75 * s**3 + 3.75 * s**2 - 6 * s + 3 if s < 2 else 0.0


_KERNELS = {
    "nearest": lambda s: float(s == 0), "linear": lambda s: max(1 - abs(s), 0.0), "cubic": _keys,
}  # fmt: skip


def _mirrored(at, low, high):
    if low == high:
        return low
    while not low <= at <= high:
        at = 2 * low - at if at < low else 2 * high - at
    return at


def _grid_sample(x, grid, method="linear", border="constant", align_corners=False):
    y = np.zeros((*x.shape[:2], *grid.shape[1:-1]))
    for n, *place in np.ndindex(len(x), *grid.shape[1:-1]):
        axes = []  # indices and weights of each axis
        for given, extent in zip(grid[(n, *place)][::-1], x.shape[2:], strict=True):
            given = np.float64(0 if np.isnan(given) else given)
            at = ((given + 1) * (extent - 1) if align_corners else (given + 1) * extent - 1) / 2
            at = np.rint(at) if method == "nearest" else at
            low, high = (0, extent - 1) if align_corners else (-0.5, extent - 0.5)
            if border == "replicate" and not low <= at <= high:
                at = min(max(at, 0), extent - 1)
            taps = []
            for i in range(math.floor(at) - 2, math.floor(at) + 4):
                weight, source = _KERNELS[method](at - i), i
                if border == "replicate":
                    source = min(max(i, 0), extent - 1)
                if border == "reflect":
                    source = int(_mirrored(i, low, high))
                if weight and 0 <= source < extent:
                    taps.append((source, weight))
            axes.append(taps)
        for taps in itertools.product(*axes):
            value = x[(n, slice(None), *(i for i, _ in taps))].astype(np.float64)
            y[(n, slice(None), *place)] += value * math.prod(w for _, w in taps)
    return [y]


def _bilinear(plane, y, x):
    """Returns the four weighted neighbours; zeros if the position is more than one value
    outside."""
    height, width = plane.shape
    if not (-1 <= y <= height and -1 <= x <= width):
        return [0.0] * 4
    y, x = min(max(y, 0), height - 1), min(max(x, 0), width - 1)
    terms = []
    for i in (math.floor(y), math.floor(y) + 1):
        for j in (math.floor(x), math.floor(x) + 1):
            weight = max(1 - abs(y - i), 0) * max(1 - abs(x - j), 0)
            terms.append(weight * float(plane[min(i, height - 1), min(j, width - 1)]))
    return terms


def _roi_align(
    x, rois, index, output_size, sampling_ratio=0, scale=1.0, half_pixel=True, mode="avg"
):
    y = np.zeros((len(rois), x.shape[1], *output_size))
    shift, limit = 0.5 if half_pixel else 0.0, 2.0**24
    for n, c, *cell in np.ndindex(*y.shape):
        item = int(np.broadcast_to(index.reshape(-1), len(rois))[n])
        plane = x[min(max(item, 0), len(x) - 1), c]
        corners = np.where(np.isnan(rois[n]), 0, rois[n]).astype(np.float64).clip(-limit, limit)
        lines = []
        for axis, (place, cells) in enumerate(zip(cell, output_size, strict=True)):
            start = corners[1 - axis] * scale - shift
            size = corners[3 - axis] * scale - shift - start
            size = size if half_pixel else max(size, 1.0)
            most = math.ceil(2 * plane.shape[axis] / cells)
            count = sampling_ratio or min(max(math.ceil(size / cells), 0), most)
            lines.append([start + (place + (k + 0.5) / count) * size / cells for k in range(count)])
        samples = [_bilinear(plane, *at) for at in itertools.product(*lines)]
        if samples:
            y[(n, c, *cell)] = (
                np.mean([sum(s) for s in samples]) if mode == "avg" else np.max(samples)
            )
    return [y]


FORMULAS = {
    "gather_elements": _gather_elements,
    "scatter_elements": _scatter_elements,
    "scatter_nd": _scatter_nd,
    "cumprod": _cumprod,
    "reverse_sequence": _reverse_sequence,
    "prod_reduce": lambda x, axes: [np.prod(_wide(x), tuple(axes), keepdims=True)],
    "grid_sample": _grid_sample,
    "roi_align": _roi_align,
}
