"""Formulas of the extensions required by exchange formats other than NNEF; see formulas.py.

Formulas in which an index decides, and selections such as NMS, are loops over single elements.
"""

import itertools
import math

import numpy as np

from tests.reference.arrays import (
    FORMULAS,
    KERNELS,
    convolution,
    double,
    formula,
    left,
    numpy_functions,
    sampled,
    spread,
    window_lines,
    windows,
)

# ---------------------------------------------------------------- one element at a time


def _int32(value):
    """Cuts integers of any size to 32 bits."""
    return np.asarray(value & 0xFFFFFFFF, np.uint32).astype(np.int32)


def _wrapped(function):
    """Wraps a function of integers so that its results are cut to 32 bits."""

    def formula(*arrays):
        return _int32(np.frompyfunc(function, len(arrays), 1)(*(a.astype(object) for a in arrays)))

    return formula


def _quotient(a, b):
    """Divides integers as C does: rounds towards zero."""
    return (abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1) if b else 0


def _shift(a, by, left):
    if not 0 <= by < 32:
        return 0
    return a << by if left else (a & 0xFFFFFFFF) >> by


def _random_bits(row, column, draw, seed, stream):
    """Philox4x32-10 as Random123 defines it, on Python's integers."""
    index = (row + column) % 2**32
    counter, keys = [index >> 2, draw % 2**32, 0, 0], [seed % 2**32, stream % 2**32]
    for _ in range(10):
        a, b = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [(b >> 32) ^ counter[1] ^ keys[0], b % 2**32,
                   (a >> 32) ^ counter[3] ^ keys[1], a % 2**32]  # fmt: skip
        keys = [(keys[0] + 0x9E3779B9) % 2**32, (keys[1] + 0xBB67AE85) % 2**32]
    return counter[index % 4]


_WRAPPED = {
    "random_bits": _random_bits,
    "int_add": lambda a, b: a + b, "int_sub": lambda a, b: a - b, "int_mul": lambda a, b: a * b,
    "int_div": _quotient, "int_rem": lambda a, b: a - _quotient(a, b) * b if b else 0,
    "int_mod": lambda a, b: a % b if b else 0, "int_neg": lambda a: -a, "int_abs": abs,
    "bit_and": lambda a, b: a & b, "bit_or": lambda a, b: a | b, "bit_xor": lambda a, b: a ^ b,
    "bit_not": lambda a: ~a, "shift_left": lambda a, by: _shift(a, by, True),
    "shift_right": lambda a, by: _shift(a, by, False),
    "uint_div": lambda a, b: (a & 0xFFFFFFFF) // (b & 0xFFFFFFFF) if b else 0,
    "uint_mod": lambda a, b: (a & 0xFFFFFFFF) % (b & 0xFFFFFFFF) if b else 0,
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


@formula
def _gather_elements(x, indices, axis):
    sources = list(np.indices(indices.shape))
    sources[axis] = indices
    return [x[tuple(sources)]]


_MEET = {
    "none": lambda a, b: b, "add": lambda a, b: a + b, "mul": lambda a, b: a * b,
    "min": np.minimum, "max": np.maximum,
}  # fmt: skip


def _is_in(target, shape):
    return all(-e <= i < e for i, e in zip(target, shape, strict=False))


@formula
def _scatter_elements(x, indices, updates, axis, reduction="none"):
    y = np.array(double(x))
    for at in np.ndindex(*indices.shape):
        target = (*at[:axis], indices[at], *at[axis + 1 :])
        if _is_in(target, x.shape):
            y[target] = _MEET[reduction](y[target], updates[at])
    return [y]


@formula
def _scatter_nd(x, indices, updates, reduction="none"):
    y = np.array(double(x))
    for at in np.ndindex(*indices.shape[:-1]):
        target = tuple(indices[at])
        if _is_in(target, x.shape):
            y[target] = _MEET[reduction](y[target], updates[at])
    return [y]


# ---------------------------------------------------------------- along lines


def _running(function, first):
    def formula(x, axis, exclusive=False, reverse=False):
        total = function(double(np.flip(x, axis) if reverse else x), axis)
        if exclusive:
            total = np.roll(total, 1, axis)
            np.moveaxis(total, axis, 0)[:1] = first
        return [np.flip(total, axis) if reverse else total]

    return formula


@formula
def _reverse_sequence(x, lengths, time_axis, batch_axis):
    y = np.array(x)
    for at in np.ndindex(*x.shape):
        length, time = min(lengths[at[batch_axis]], x.shape[time_axis]), at[time_axis]
        if time < length:
            y[at] = x[(*at[:time_axis], length - 1 - time, *at[time_axis + 1 :])]
    return [y]


# ---------------------------------------------------------------- positions and regions


@formula
def _grid_sample(x, grid, method="linear", border="constant", align_corners=False):
    extents, edge = x.shape[2:], 0 if align_corners else 0.5
    rule = "reflect-even" if border == "reflect" and not align_corners else border
    axes, places = "uvw"[: len(extents)], "xyz"[: len(extents)]
    samplings = []
    for letter, given, extent in zip(
        axes, np.moveaxis(double(grid), -1, 0)[::-1], extents, strict=True
    ):
        at = (np.where(np.isnan(given), 0, given) + 1) * (extent - 1 + 2 * edge) / 2 - edge
        at = np.rint(at) if method == "nearest" else at
        if border == "replicate" and method != "cubic":
            is_far = (at < -edge) | (at > extent - 1 + edge)
            at = np.where(is_far, at.clip(0, extent - 1), at)
        samplings.append((at, (KERNELS[method], rule), letter))
    terms = ["nc" + axes, *(f"n{places}{axis}" for axis in axes)]
    return [sampled(f"{','.join(terms)}->nc{places}", x, *samplings)]


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


@formula
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


# ---------------------------------------------------------------- some of many


@formula
def _nonzero(x, capacity, fill=-1):
    positions = np.argwhere(x)
    y = np.full((x.ndim, capacity), fill, np.int32)
    y[:, : len(positions)] = positions[:capacity].T
    return [y, np.array([len(positions)])]


@formula
def _keep_first(x, count, axis, value=0.0):
    y = np.full_like(x, value)
    kept = [slice(None)] * x.ndim
    kept[axis] = slice(max(int(count.reshape(())), 0))
    y[tuple(kept)] = x[tuple(kept)]
    return [y]


def _overlap(a, b, centers):
    """Returns the intersection over the union of two boxes."""
    ends = [np.array([c[:2] - c[2:] / 2, c[:2] + c[2:] / 2]) if centers else
            np.sort([c[:2], c[2:]], 0) for c in (a, b)]  # fmt: skip
    (low_a, high_a), (low_b, high_b) = ends
    both = np.maximum(np.minimum(high_a, high_b) - np.maximum(low_a, low_b), 0).prod()
    areas = [(high_a - low_a).prod(), (high_b - low_b).prod()]
    return both / (sum(areas) - both) if both > 0 and min(areas) > 0 else 0.0


@formula
def _non_max_suppression(
    boxes,
    scores,
    max_per_class,
    iou_threshold=0.0,
    score_threshold=-3.4e38,
    center_point_box=False,
    fill=-1,
):
    rows = []
    for item, label in np.ndindex(*scores.shape[:2]):
        corners, values = double(boxes[item]), scores[item, label]
        kept = []
        for box in np.argsort(-values, kind="stable"):
            is_apart = all(
                _overlap(corners[box], corners[k], center_point_box) <= iou_threshold for k in kept
            )
            if values[box] > np.float32(score_threshold) and is_apart and len(kept) < max_per_class:
                kept.append(box)
        rows += [(item, label, box) for box in kept]
    capacity = math.prod(scores.shape[:2]) * min(max_per_class, scores.shape[2])
    y = np.full((capacity, 3), fill, np.int32)
    y[: len(rows)] = np.array(rows).reshape(-1, 3)
    return [y, np.array([len(rows)])]


# ---------------------------------------------------------------- windows and products


@formula
def _col2im(x, output_size, size, **window):
    index = windows(output_size, size, **window)
    *counts, taps = index.shape
    terms = x.reshape(len(x), x.shape[1] // taps, taps, *counts)
    return [spread(np.moveaxis(terms, 2, -1), index, output_size, 2)]


@formula
def _deform_columns(x, offset, mask, size, offset_groups=1, **window):
    rows, columns = window_lines(x.shape[2:], size, **window)
    each = [len(x), offset_groups, math.prod(size), len(rows), len(columns)]
    moves = offset.reshape(*each[:3], 2, *each[3:])
    at_y = moves[:, :, :, 0] + rows.T.repeat(size[1], 0)[..., None]
    at_x = moves[:, :, :, 1] + np.tile(columns.T, (size[0], 1))[:, None]
    is_known = np.isfinite(at_y) & np.isfinite(at_x)
    rules = (KERNELS["linear"], "constant")
    samplings = [
        (np.where(is_known, at, -9), rules, letter)
        for at, letter in zip((at_y, at_x), "vu", strict=True)
    ]
    parts = double(x).reshape(len(x), offset_groups, x.shape[1] // offset_groups, *x.shape[2:])
    y = sampled("ngcvu,ngkijv,ngkiju->ngckij", parts, *samplings)
    if np.ndim(mask):
        mask = mask.reshape(*each)[:, :, None]
    return [(y * mask).reshape(len(x), x.shape[1] * each[2], *each[3:])]


@formula
def _deform_conv(x, filter, offset, mask=1.0, bias=0.0, groups=1, **more):
    columns = _deform_columns(x, offset, mask, **more)[0]
    y = convolution(columns, filter.reshape(len(filter), -1, 1, 1), groups=groups)
    return [y + np.asarray(bias).reshape(1, -1, 1, 1)]


@formula
def _matmul_nbits(x, words, scales, zero_points=8.0, block_size=32, bits=4):
    matrix = np.zeros((len(words), x.shape[-1]))
    for n, k in np.ndindex(*matrix.shape):
        word, place = divmod(k * bits, 32)
        code = (int(words[n, word]) & 0xFFFFFFFF) >> place & (2**bits - 1)
        block = k // block_size
        zero = zero_points[n, block] if np.ndim(zero_points) else zero_points
        matrix[n, k] = (code - float(zero)) * float(scales[n, block])
    return [x.astype(np.float64) @ matrix.T]


@formula
def _quantize_linear(x, scale, zero_point=0.0, low=0.0, high=255.0):
    x, scale, zero_point = left(x, scale, zero_point)
    whole = np.round(x.astype(np.float32) / scale.astype(np.float32)) + zero_point
    return [np.clip(whole, low, high).astype(np.int32)]


@formula
def _dequantize_linear(x, scale, zero_point=0.0):
    x, scale, zero_point = left(x, scale, zero_point)
    return [(x.astype(np.float64) - zero_point) * scale]


@formula
def _dynamic_quantize_linear(x, axes):
    low, high = min(x.min(), np.float32(0)), max(x.max(), np.float32(0))
    scale = np.float32(high - low) / np.float32(255) or np.float32(1)
    zero = np.round(-low / scale)
    return [
        _quantize_linear(x, scale, zero)[0],
        np.float64(scale),
        np.asarray(zero).astype(np.int32),
    ]


FORMULAS.update({
    "cumsum": _running(np.cumsum, 0),
    "cumprod": _running(np.cumprod, 1),
    "prod_reduce": lambda x, axes: [np.prod(double(x), tuple(axes), keepdims=True)],
    "int_matmul": lambda a, b: [_int32(a.astype(object) @ b.astype(object))],
    "int_conv": lambda x, filter, **window: [
        _int32(convolution(x.astype(np.int64), filter.astype(np.int64), **window))],
})  # fmt: skip
