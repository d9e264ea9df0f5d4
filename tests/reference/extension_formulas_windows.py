"""Formulas of the extensions for windows, products of codes, and selections such as NMS.

They are loops over single elements; see tests/reference/formulas.py.
"""

import itertools
import math

import numpy as np

# ---------------------------------------------------------------- some of many


def _nonzero(x, capacity, fill=-1):
    found = [at for at in np.ndindex(*x.shape) if x[at]]
    y = np.full((x.ndim, capacity), fill, np.int32)
    for k, at in enumerate(found[:capacity]):
        y[:, k] = at
    return [y, np.array([len(found)])]


def _shared(a, b, centers):
    """Returns the intersection over the union of two boxes."""
    lines = []
    for axis in (0, 1):
        if centers:
            ends = [(c[axis] - c[2 + axis] / 2, c[axis] + c[2 + axis] / 2) for c in (a, b)]
        else:
            ends = [(min(c[axis], c[2 + axis]), max(c[axis], c[2 + axis])) for c in (a, b)]
        lines.append((ends, min(e[1] for e in ends) - max(e[0] for e in ends)))
    both = math.prod(max(length, 0) for _, length in lines)
    areas = [math.prod(ends[k][1] - ends[k][0] for ends, _ in lines) for k in (0, 1)]
    if both <= 0 or min(areas) <= 0:
        return 0.0
    return both / (sum(areas) - both)


def _nms(
    boxes,
    scores,
    max_per_class,
    iou_threshold=0.0,
    score_threshold=-3.4e38,
    center_point_box=False,
    fill=-1,
):
    rows = []
    for item, kind in np.ndindex(*scores.shape[:2]):
        own, values = boxes[item].astype(np.float64), scores[item, kind]
        order = sorted((b for b in range(len(own)) if values[b] > np.float32(score_threshold)),
                       key=lambda b: (-values[b], b))  # fmt: skip
        kept = []
        for box in order:
            alone = all(_shared(own[box], own[k], center_point_box) <= iou_threshold for k in kept)
            if alone and len(kept) < max_per_class:
                kept.append(box)
        rows += [(item, kind, box) for box in kept]
    room = math.prod(scores.shape[:2]) * min(max_per_class, scores.shape[2])
    y = np.full((room, 3), fill, np.int32)
    y[: len(rows)] = np.array(rows).reshape(-1, 3)
    return [y, np.array([len(rows)])]


# ---------------------------------------------------------------- windows


def _places(extent, size, padding, stride, dilation):
    """Returns the positions of each window's taps on an axis."""
    reach = (size - 1) * dilation + 1
    if padding is None:
        count = math.ceil(extent / stride)
        before = max((count - 1) * stride + reach - extent, 0) // 2
    else:
        before, after = padding
        count = (before + extent + after - reach) // stride + 1
    return [[w * stride - before + t * dilation for t in range(size)] for w in range(count)]


def _lines(extents, size, padding, stride, dilation):
    n = len(size)
    parts = zip(extents, size, padding or [None] * n, stride or [1] * n, dilation or [1] * n,
                strict=True)  # fmt: skip
    return [_places(*part) for part in parts]


def _col2im(x, output_size, size, padding=(), stride=(), dilation=()):
    lines, taps = _lines(output_size, size, padding, stride, dilation), math.prod(size)
    y = np.zeros((x.shape[0], x.shape[1] // taps, *output_size))
    for w, window in enumerate(itertools.product(*lines)):
        for k, place in enumerate(itertools.product(*window)):
            if all(0 <= p < e for p, e in zip(place, output_size, strict=True)):
                y[(..., *place)] += x[:, k::taps, w]
    return [y]


def _between(plane, y, x):
    """Interpolates between the neighbours, with zeros outside."""
    total = 0.0
    for i, j in np.ndindex(*plane.shape):
        total += max(1 - abs(y - i), 0) * max(1 - abs(x - j), 0) * float(plane[i, j])
    return total


def _deform_columns(x, offset, mask, size, padding=(), stride=(), dilation=(), offset_groups=1):
    rows, columns = _lines(x.shape[2:], size, padding, stride, dilation)
    taps = math.prod(size)
    y = np.zeros((x.shape[0], x.shape[1] * taps, len(rows), len(columns)))
    for n, c, k, i, j in np.ndindex(*x.shape[:2], taps, len(rows), len(columns)):
        own = c * offset_groups // x.shape[1] * taps + k
        at_y = rows[i][k // size[1]] + float(offset[n, 2 * own, i, j])
        at_x = columns[j][k % size[1]] + float(offset[n, 2 * own + 1, i, j])
        value = 0.0
        if math.isfinite(at_y) and math.isfinite(at_x):
            value = _between(x[n, c], at_y, at_x)
        y[n, c * taps + k, i, j] = value * (mask[n, own, i, j] if np.ndim(mask) else mask)
    return [y]


def _deform_conv(x, filter, offset, mask=1.0, bias=0.0, groups=1, **more):
    columns = _deform_columns(x, offset, mask, **more)[0]
    parts = np.split(columns, groups, 1)
    filters = np.split(filter.reshape(len(filter), -1).astype(np.float64), groups)
    y = [np.einsum("nkij,ok->noij", c, f) for c, f in zip(parts, filters, strict=True)]
    return [np.concatenate(y, 1) + np.asarray(bias).reshape(1, -1, 1, 1)]


# ---------------------------------------------------------------- products


def _wrapped(value):
    return (value & 0xFFFFFFFF).astype(np.uint32).astype(np.int32)


def _int_conv(x, filter, padding=(), stride=(), dilation=(), groups=1):
    groups = groups or x.shape[1]
    lines = _lines(x.shape[2:], filter.shape[2:], padding, stride, dilation)
    y = np.zeros((x.shape[0], filter.shape[0], *map(len, lines)), object)
    for n, o, *at in np.ndindex(*y.shape):
        first = o * groups // len(filter) * filter.shape[1]
        for c, *tap in np.ndindex(*filter.shape[1:]):
            place = [line[w][t] for line, w, t in zip(lines, at, tap, strict=True)]
            if all(0 <= p < e for p, e in zip(place, x.shape[2:], strict=True)):
                y[(n, o, *at)] += int(x[(n, first + c, *place)]) * int(filter[(o, c, *tap)])
    return [_wrapped(y)]


def _matmul_nbits(x, words, scales, zero_points=8.0, block_size=32, bits=4):
    matrix = np.zeros((len(words), x.shape[-1]))
    for n, k in np.ndindex(*matrix.shape):
        word, place = divmod(k * bits, 32)
        code = (int(words[n, word]) & 0xFFFFFFFF) >> place & (2**bits - 1)
        block = k // block_size
        zero = zero_points[n, block] if np.ndim(zero_points) else zero_points
        matrix[n, k] = (code - float(zero)) * float(scales[n, block])
    return [x.astype(np.float64) @ matrix.T]


# ---------------------------------------------------------------- codes


def _beside(x, *others):
    """Returns the other arrays reshaped to broadcast against ``x`` from the left."""
    return [np.asarray(o).reshape(*np.shape(o), *[1] * (x.ndim - np.ndim(o))) for o in others]


def _quantize(x, scale, zero_point=0.0, low=0.0, high=255.0):
    scale, zero_point = _beside(x, scale, zero_point)
    whole = np.round(x.astype(np.float32) / scale.astype(np.float32)) + zero_point
    return [np.clip(whole, low, high).astype(np.int32)]


def _dequantize(x, scale, zero_point=0.0):
    scale, zero_point = _beside(x, scale, zero_point)
    return [(x.astype(np.float64) - zero_point) * scale]


def _dynamic(x, axes):
    low, high = min(x.min(), np.float32(0)), max(x.max(), np.float32(0))
    scale = np.float32(high - low) / np.float32(255) or np.float32(1)
    zero = np.round(-low / scale)
    return [_quantize(x, scale, zero)[0], np.float64(scale), np.asarray(zero).astype(np.int32)]


FORMULAS = {
    "nonzero": _nonzero,
    "non_max_suppression": _nms,
    "col2im": _col2im,
    "deform_columns": _deform_columns,
    "deform_conv": _deform_conv,
    "int_matmul": lambda a, b: [_wrapped(a.astype(object) @ b.astype(object))],
    "int_conv": _int_conv,
    "matmul_nbits": _matmul_nbits,
    "quantize_linear": _quantize,
    "dequantize_linear": _dequantize,
    "dynamic_quantize_linear": _dynamic,
}
