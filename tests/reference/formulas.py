"""Every operator of NNEF and every extension as its formula, over whole arrays in double precision.

The engine is compared with these answers. They are written from the specification and share no code
with the engine.
A formula takes the call's tensors and attributes and returns the list of its results.
"""

import functools
import math

import numpy as np

from tests.reference import extension_formulas
from tests.reference.arrays import (
    FORMULAS,
    KERNELS,
    convolution,
    double,
    formula,
    gathered,
    left,
    numpy_functions,
    resampled,
    spread,
    windows,
)

# ---------------------------------------------------------------- one element at a time


def halves_up(x):
    return np.floor(x + 0.5)


def min_max_quantize(x, low, high, bits, signed, symmetric):
    x, low, high = left(x, low, high)
    steps = 2.0**bits - 1 - (signed and symmetric)
    lowest = 2.0 ** (bits - 1) - symmetric if signed else 0.0
    q = halves_up((np.clip(x, low, high) - low) / (high - low) * steps) - lowest
    return (q + lowest) / steps * (high - low) + low


def zero_point_quantize(x, zero, scale, bits, signed, symmetric):
    x, zero, scale = left(x, zero, scale)
    highest = 2.0 ** (bits - 1) - 1 if signed else 2.0**bits - 1
    lowest = (-highest if symmetric else -highest - 1) if signed else 0.0
    return (np.clip(halves_up(x / scale) + zero, lowest, highest) - zero) * scale


def logarithmic_quantize(x, high, bits):
    x, high = left(x, high)
    top = np.ceil(np.log2(high))
    with np.errstate(divide="ignore"):
        q = halves_up(np.clip(np.log2(np.abs(x)), top - (2.0**bits - 1), top))
    return np.sign(x) * 2.0**q


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _elu(x, alpha):
    return np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x)


ELEMENTWISE = {
    # np.power takes one exponent of 0.5 for a square root
    **numpy_functions(
        "add sub=subtract mul=multiply div=divide pow=float_power exp log log2 sin cos tan sinh "
        "cosh tanh asin=arcsin acos=arccos atan=arctan asinh=arcsinh acosh=arccosh "
        "atanh=arctanh abs sign neg=negative lt=less gt=greater le=less_equal ge=greater_equal "
        "eq=equal ne=not_equal and=logical_and or=logical_or not=logical_not floor ceil sqrt "
        "select=where"
    ),
    "rcp": lambda x: 1 / x, "copy": lambda x: x,
    "round": lambda x: np.where(x - np.floor(x) < 0.5, np.floor(x), np.ceil(x)),
    "sqr": lambda x: x * x, "rsqr": lambda x: 1 / (x * x), "rsqrt": lambda x: 1 / np.sqrt(x),
    "min": lambda x, y: np.where(x < y, x, y), "max": lambda x, y: np.where(x > y, x, y),
    # a bound that is NaN does not bound
    "clamp": lambda x, a, b: np.where(x != x, x, np.fmax(np.fmin(x, b), a)),
    "relu": lambda x: np.where(x < 0, 0, x), "sigmoid": _sigmoid,
    "softabs": lambda x, epsilon: np.sqrt(x * x + epsilon),
    "softplus": lambda x: np.logaddexp(0, x), "elu": _elu,
    "selu": lambda x, alpha, scale: scale * _elu(x, alpha),
    "gelu": lambda x: x * _sigmoid(1.702 * x), "silu": lambda x: x * _sigmoid(x),
    "prelu": lambda x, alpha: np.where(x < 0, alpha * x, x),
    "leaky_relu": lambda x, alpha: np.where(x < 0, alpha * x, x),
    "batch_normalization": lambda x, mean, variance, offset, scale, epsilon:
        offset + scale * (x - mean) / np.sqrt(variance + epsilon),
    "erf": np.vectorize(math.erf, [np.float64]),
    "gelu_erf": lambda x: 0.5 * x * (1 + np.vectorize(math.erf, [np.float64])(x * math.sqrt(0.5))),
    "hard_sigmoid": lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1),
    "hard_swish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "mish": lambda x: x * np.tanh(np.logaddexp(0, x)), "mod": lambda x, y: x - y * np.floor(x / y),
    "min_max_linear_quantize": min_max_quantize,
    "zero_point_linear_quantize": zero_point_quantize,
    "linear_quantize": lambda x, low, high, bits:
        min_max_quantize(x, low, high, bits, False, False),
    "logarithmic_quantize": logarithmic_quantize, **extension_formulas.ELEMENTWISE,
}  # fmt: skip


def _elementwise(op):
    def formula(*arrays, **attrs):
        return [np.asarray(ELEMENTWISE[op](*left(*arrays), *attrs.values()))]

    return formula


# ---------------------------------------------------------------- windows


def _pool(reduce):
    def formula(x, size, border="constant", **window):
        index = windows(x.shape, size, border, **window)
        found = reduce(gathered(x, index, outside=np.nan if border == "ignore" else 0))
        return found if isinstance(found, list) else [found]

    return formula


def _mean(values):
    is_there = ~np.isnan(values)
    return np.where(is_there, values, 0).sum(-1) / np.maximum(is_there.sum(-1), 1)


def _greatest(values):
    values = np.where(np.isnan(values), -np.inf, values)
    return [values.max(-1), values.argmax(-1).astype(np.int32)]


@formula
def _box(x, size, normalize=False, **window):
    return _pool(_mean if normalize else lambda v: np.nansum(v, -1))(x, size, **window)


@formula
def _rms_pool(x, size, **window):
    return [np.sqrt(_pool(_mean)(double(x) ** 2, size, **window)[0])]


@formula
def _sample(x, index, size, border="constant", **window):
    values = gathered(x, windows(x.shape, size, border, **window))
    inside = (index >= 0) & (index < values.shape[-1])
    found = np.take_along_axis(values, np.where(inside, index, 0)[..., None], -1)[..., 0]
    return [np.where(inside, found, 0)]


def _wide_windows(narrow, size, shape=(), padding=(), stride=(), dilation=()):
    """Returns the extents of the wide side, ``shape`` if given, and the indices of its windows."""
    n = len(narrow)
    steps, wide = list(stride) or [1] * n, list(shape)
    if not wide and padding:
        axes = zip(narrow, steps, size, dilation or [1] * n, padding, strict=True)
        wide = [(k - 1) * s + (f - 1) * d + 1 - p - q if k else 0 for k, s, f, d, (p, q) in axes]
    elif not wide:
        wide = [k * s for k, s in zip(narrow, steps, strict=True)]
    return wide, windows(wide, size, padding=padding, stride=stride, dilation=dilation)


@formula
def _debox(x, size, border="constant", output_shape=(), normalize=False, **window):
    extents, index = _wide_windows(x.shape, size, output_shape, **window)
    total = spread(np.broadcast_to(x[..., None], index.shape), index, extents)
    if normalize and border == "ignore":
        return [total / np.maximum(spread(np.ones(index.shape), index, extents), 1)]
    return [total / math.prod(size) if normalize else total]


@formula
def _desample(x, index, size, border="constant", output_shape=(), **window):
    extents, taps = _wide_windows(x.shape, size, output_shape, **window)
    is_source = index[..., None] == np.arange(taps.shape[-1])
    return [spread(np.where(is_source, x[..., None], 0), taps, extents)]


def _bias(bias, channels, rank):
    flat = np.asarray(bias, np.float64).reshape(-1)
    return np.broadcast_to(flat, channels).reshape(1, channels, *[1] * (rank - 2))


@formula
def _conv(x, w, bias=0.0, **window):
    return [convolution(double(x), double(w), **window) + _bias(bias, len(w), x.ndim)]


@formula
def _deconv(x, w, bias=0.0, border="constant", output_shape=(), groups=1, **window):
    groups = groups or (output_shape[1] if output_shape else x.shape[1])
    extents, index = _wide_windows(x.shape[2:], w.shape[2:], output_shape[2:], **window)
    channels = groups * w.shape[1]
    y = np.zeros((len(x), channels, *extents))
    if x.size:
        parts = double(x).reshape(len(x), groups, x.shape[1] // groups, *x.shape[2:])
        filters = w.reshape(groups, x.shape[1] // groups, w.shape[1], index.shape[-1])
        terms = np.einsum("ngi...,giot->ngo...t", parts, filters)
        y = spread(terms.reshape(len(x), channels, *index.shape), index, extents, 2)
    return [y + _bias(bias, channels, x.ndim)]


@formula
def _separable_conv(x, plane, point, bias=0.0, groups=1, **given):
    return _conv(_conv(x, plane, **given, groups=0)[0], point, bias, groups=groups)


@formula
def _separable_deconv(x, plane, point, bias=0.0, groups=1, **given):
    return _deconv(_deconv(x, point, groups=groups)[0], plane, bias, **given, groups=0)


# ---------------------------------------------------------------- resolution and regions


def place(method, low, size, count):
    """Returns the positions of ``count`` samples of an interval."""
    i = np.arange(count)
    if method == "symmetric":
        return low + (i + 0.5) * size / count - 0.5
    if method == "asymmetric":
        return low + i * size / count
    return low + i * (size - 1) / max(count - 1, 1)


@formula
def _multilinear_upsample(x, factor, method="symmetric", border="replicate"):
    for axis, f in enumerate(factor, 2):
        at = place(method, 0, x.shape[axis], x.shape[axis] * f)
        x = resampled(x, axis, at, border="replicate" if method == "aligned" else border)
    return [x]


@formula
def _nearest_upsample(x, factor):
    for axis, f in enumerate(factor, 2):
        x = x.repeat(f, axis)
    return [x]


@formula
def _nearest_downsample(x, factor):
    return [x[(slice(None), slice(None), *(slice(None, None, f) for f in factor))]]


def _blocks(x, factor):
    """Returns the values of adjacent blocks of this size on a last axis."""
    block = [1, 1, *factor]
    return gathered(x, windows(x.shape, block, padding=[(0, 0)] * x.ndim, stride=block))


_LIMIT = 2.0**24


def _regions(x, rois, index):
    corners = np.where(np.isnan(rois), 0, rois).astype(np.float64).clip(-_LIMIT, _LIMIT)
    half = rois.shape[1] // 2
    items = np.broadcast_to(index.reshape(-1), len(rois)).clip(0, len(x) - 1)
    return [(x[i], c[:half], c[half:]) for i, c in zip(items, corners, strict=True)]


def _roi_pool(reduce):
    def formula(x, rois, index, output_size):
        y = np.zeros((len(rois), x.shape[1], *output_size))
        for n, (item, low, high) in enumerate(_regions(x, rois, index)):
            first = np.floor(low + 0.5).astype(int)
            size = np.maximum(np.floor(high + 0.5).astype(int) - first, 0)
            for c, *cell in np.ndindex(y.shape[1:]):
                parts = []
                for a, (i, p) in enumerate(zip(cell, output_size, strict=True)):
                    start = first[a] + i * (size[a] // p)
                    stop = start + -(-size[a] // p)
                    parts.append(slice(max(start, 0), max(min(stop, item.shape[a + 1]), 0)))
                values = item[c][tuple(parts)]
                y[(n, c, *cell)] = reduce(values) if values.size else 0
        return [y]

    return formula


@formula
def _roi_resample(x, rois, index, output_size, method="symmetric"):
    y = np.zeros((len(rois), x.shape[1], *output_size))
    for n, (item, low, high) in enumerate(_regions(x, rois, index)):
        for a, count in enumerate(output_size):
            at = place(method, low[a], high[a] - low[a], count)
            item = resampled(item, a + 1, at)
        y[n] = item
    return [y]


def _roi_align(name):
    def formula(x, rois, index, output_size, sampling_rate, resize_method="symmetric"):
        fine = [n * r for n, r in zip(output_size, sampling_rate, strict=True)]
        samples = _roi_resample(x, rois, index, fine, resize_method)[0]
        return [getattr(_blocks(samples, sampling_rate), name)(-1)]

    return formula


@formula
def _resize(x, output_size, method, coordinates, rounding, cubic_coefficient):
    kernel = KERNELS[method]
    if method == "cubic":
        kernel = functools.partial(kernel, a=cubic_coefficient)
    for axis, count in enumerate(output_size, 2):
        at = place(coordinates, 0, x.shape[axis], count)
        if method == "nearest":
            at = np.round(at * 2 * count * max(count - 1, 1)) / (2 * count * max(count - 1, 1))
            at = {"floor": np.floor(at), "ceil": np.ceil(at), "half_up": np.floor(at + 0.5),
                  "half_down": np.ceil(at - 0.5)}[rounding]  # fmt: skip
        x = resampled(x, axis, at, kernel)
    return [x]


# ---------------------------------------------------------------- reductions and products


def _reduce(function):
    def formula(x, axes, normalize=False):
        value = double(x)
        if value.size == 0 and function in (np.max, np.min):
            shape = [1 if a in axes else e for a, e in enumerate(x.shape)]
            return [np.full(shape, -np.inf if function is np.max else np.inf)]
        y = function(value, axis=tuple(axes), keepdims=True)
        return [y / math.prod(x.shape[a] for a in axes) if normalize else y]

    return formula


def _arg(function):
    def formula(x, axes):
        kept = [a for a in range(x.ndim) if a not in axes]
        count = math.prod(x.shape[a] for a in axes)
        flat = x.transpose(*kept, *sorted(axes)).reshape(*(x.shape[a] for a in kept), count)
        shape = [1 if a in axes else e for a, e in enumerate(x.shape)]
        return [function(flat, -1).reshape(shape).astype(np.int32)]

    return formula


@formula
def _moments(x, axes):
    y, over = double(x), tuple(axes)
    return [y.mean(over, keepdims=True), y.var(over, keepdims=True)]


@formula
def _softmax(x, axes=(1,)):
    y = double(x)
    if x.size == 0:
        return [y]
    e = np.exp(y - y.max(tuple(axes), keepdims=True))
    return [e / e.sum(tuple(axes), keepdims=True)]


@formula
def _matmul(a, b, transposeA=False, transposeB=False):
    a = np.swapaxes(a, -1, -2) if transposeA else a
    b = np.swapaxes(b, -1, -2) if transposeB else b
    return [a.astype(np.float64) @ b.astype(np.float64)]


@formula
def _linear(x, w, bias=0.0):
    bias = np.asarray(bias)
    if bias.ndim == 1:  # as exporters write it
        bias = bias[None]
    y, bias = left(_matmul(x, w, transposeB=True)[0], bias)
    return [y + bias]


def _norm(power):
    def formula(x, axes, bias=0.0, epsilon=0.0):
        length = (np.abs(double(x)) ** power).sum(tuple(axes), keepdims=True) ** (1 / power)
        return [x / np.maximum(length + bias, epsilon)]

    return formula


@formula
def _local_mean_normalization(x, size):
    return [double(x) - _box(x, size, True)[0]]


@formula
def _local_variance_normalization(x, size, bias=0.0, epsilon=0.0):
    return [double(x) / np.maximum(_rms_pool(x, size)[0] + bias, epsilon)]


@formula
def _local_contrast_normalization(x, size, bias=0.0, epsilon=0.0):
    return _local_variance_normalization(_local_mean_normalization(x, size)[0], size, bias, epsilon)


@formula
def _local_response_normalization(x, size, alpha=1.0, beta=0.5, bias=1.0):
    y = double(x)
    return [y / (bias + alpha * _rms_pool(x, size)[0] ** 2) ** beta]


def _normal(x, axes, epsilon):
    mean, variance = _moments(x, axes)
    return (x - mean) / np.sqrt(variance + epsilon)


def _layer_norm(x, scale, offset, axes, epsilon):
    y, scale, offset = left(_normal(x, axes, epsilon), scale, offset)
    return [y * scale + offset]


@formula
def _group_norm(x, scale, offset, groups, axes, epsilon):
    parts = x.reshape(x.shape[0], groups, -1, *x.shape[2:])
    y = _normal(parts, [2, *(a + 1 for a in axes)], epsilon).reshape(x.shape)
    y, scale, offset = left(y, scale, offset)
    return [y * scale + offset]


@formula
def _lstm_step(x, h, c, w, r, bias=0.0):
    i, f, g, o = np.split(_linear(x, w, bias)[0] + _linear(h, r)[0], 4, 1)
    cell = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
    return [_sigmoid(o) * np.tanh(cell), cell]


@formula
def _gru_step(x, h, w, r, b=0.0, q=0.0):
    xr, xz, xn = np.split(_linear(x, w, b)[0], 3, 1)
    hr, hz, hn = np.split(_linear(h, r, q)[0], 3, 1)
    z = _sigmoid(xz + hz)
    return [(1 - z) * np.tanh(xn + _sigmoid(xr + hr) * hn) + z * h]


# ---------------------------------------------------------------- moving elements


@formula
def _reshape(x, shape, axis_start=0, axis_count=-1):
    stop = x.ndim if axis_count < 0 else axis_start + axis_count
    middle = [x.shape[axis_start + i] if e == 0 else e for i, e in enumerate(shape)]
    if -1 in middle:
        total = math.prod(x.shape[axis_start:stop])
        middle[middle.index(-1)] = total // max(-math.prod(middle), 1)
    return [x.reshape((*x.shape[:axis_start], *middle, *x.shape[stop:]))]


@formula
def _transpose(x, axes):
    return [x.transpose(*axes, *range(len(axes), x.ndim))]


@formula
def _split(x, axis, ratios):
    unit = x.shape[axis] // max(sum(ratios), 1)
    cuts = np.cumsum([unit * r for r in ratios])[:-1]
    return np.split(x, cuts, axis)


@formula
def _slice(x, axes, begin, end, stride=()):
    steps = list(stride) or [1] * len(axes)
    parts = [slice(None)] * x.ndim
    for axis, first, last, step in zip(axes, begin, end, steps, strict=True):
        is_end = last == 0 and all(s == 1 for s in steps)
        parts[axis] = slice(first, None if is_end else last, step)
    return [x[tuple(parts)]]


@formula
def _unsqueeze(x, axes):
    return [np.expand_dims(x, tuple(axes))]


@formula
def _pad(x, padding, border="constant", value=0.0):
    index = windows(x.shape, [1] * x.ndim, border, padding=padding)
    return [gathered(x, index, outside=value)[..., 0]]


@formula
def _cast(x, dtype):
    kind = {"scalar": np.float64, "integer": np.int32, "logical": np.bool_}[dtype]
    if dtype == "integer" and x.dtype.kind == "f":
        x = np.trunc(np.nan_to_num(double(x))).clip(-(2.0**31), 2.0**31 - 1)
    return [x.astype(kind)]


@formula
def _depth_to_space(x, block_size, blocks_first=True):
    n, c, h, w = x.shape
    b = block_size
    y = np.zeros((n, c // b // b, h * b, w * b), x.dtype)
    for k in range(c):
        block, channel = divmod(k, c // b // b) if blocks_first else divmod(k, b * b)[::-1]
        y[:, channel, block // b :: b, block % b :: b] = x[:, k]
    return [y]


@formula
def _space_to_depth(x, block_size, blocks_first=True):
    n, c, h, w = x.shape
    b = block_size
    y = np.zeros((n, c * b * b, h // b, w // b), x.dtype)
    for k in range(b * b):
        channels = slice(k * c, (k + 1) * c) if blocks_first else slice(k, None, b * b)
        y[:, channels] = x[:, :, k // b :: b, k % b :: b]
    return [y]


@formula
def _top_k(x, k, axis, largest):
    key = np.where(np.isnan(x), np.inf, double(x))
    order = np.lexsort((key, np.isnan(x)), axis) if not largest else np.lexsort(
        (-key, ~np.isnan(x)), axis
    )  # fmt: skip
    index = order.take(np.arange(k), axis).astype(np.int32)
    return [np.take_along_axis(x, index, axis), index]


@formula
def _concat(*arrays, axis):
    return [np.concatenate(arrays, axis)]


@formula
def _add_n(*arrays):
    return [np.asarray(sum(left(*arrays)), np.float64)]


FORMULAS.update({
    **{op: _elementwise(op) for op in ELEMENTWISE},
    "avg_pool": _pool(_mean),
    "max_pool": _pool(lambda v: _greatest(v)[:1]), "max_pool_with_index": _pool(_greatest),
    "argmax_pool": _pool(lambda v: _greatest(v)[1:]),
    "area_downsample": lambda x, factor: [_blocks(x, factor).mean(-1)],
    "avg_roi_pool": _roi_pool(np.mean), "max_roi_pool": _roi_pool(np.max),
    "avg_roi_align": _roi_align("mean"),
    "max_roi_align": _roi_align("max"), "sum_reduce": _reduce(np.sum),
    "mean_reduce": _reduce(np.mean), "max_reduce": _reduce(np.max), "min_reduce": _reduce(np.min),
    "any_reduce": _reduce(np.any), "all_reduce": _reduce(np.all),
    "argmax_reduce": _arg(np.argmax), "argmin_reduce": _arg(np.argmin),
    "l1_normalization": _norm(1), "l2_normalization": _norm(2),
    "mean_variance_norm": lambda x, axes, epsilon: [_normal(x, axes, epsilon)],
    "layer_norm": _layer_norm, "instance_norm": _layer_norm,
    "squeeze": lambda x, axes: [np.squeeze(x, tuple(axes))],
    "stack": lambda *arrays, axis: [np.stack(arrays, axis)],
    "unstack": lambda x, axis: [x.take(i, axis) for i in range(x.shape[axis])],
    "tile": lambda x, repeats: [np.tile(x, repeats)],
    "gather": lambda x, indices, axis=0: [x.take(indices, axis)],
    "copy_n": lambda x, times: [x] * times,
    "gather_nd": lambda x, indices: [
        x[tuple(np.moveaxis(indices, -1, 0))] if indices.shape[-1] else
        np.broadcast_to(x, (*indices.shape[:-1], *x.shape))],
    "einsum": lambda *arrays, equation: [
        np.asarray(np.einsum(equation, *(a.astype(np.float64) for a in arrays)))],
})  # fmt: skip


def wanted(op, arrays, attrs):
    """Returns the operator's results in the engine's types."""
    with np.errstate(all="ignore"):
        results = FORMULAS[op](*arrays, **attrs)
        kinds = {"f": np.float32, "i": np.int32, "u": np.int32, "b": np.bool_}
        return [np.asarray(r).astype(kinds[np.asarray(r).dtype.kind]) for r in results]
