"""Helpers of the formulas: the elements that windows and interpolations read, and their weights."""

import numpy as np

#: the formula of each operator
FORMULAS = {}


def formula(function):
    """Registers a function as the formula of the operator with its name, after an underscore."""
    FORMULAS[function.__name__[1:]] = function
    return function


def double(x):
    """Returns floats in double precision, and other arrays as they are."""
    x = np.asarray(x)
    return x.astype(np.float64) if x.dtype.kind == "f" else x


def left(*arrays):
    """Reshapes arrays for NNEF's broadcasting: trailing axes of extent 1, up to the largest
    rank."""
    arrays = [double(a) for a in arrays]
    rank = max(a.ndim for a in arrays)
    return [a.reshape(a.shape + (1,) * (rank - a.ndim)) for a in arrays]


def numpy_functions(text):
    """Returns functions of NumPy by operator; ``sub=subtract`` is one of another name."""
    pairs = [pair.partition("=") for pair in text.split()]
    return {op: getattr(np, name or op) for op, _, name in pairs}


# ---------------------------------------------------------------- windows


def bordered(at, extent, border):
    """Returns the index of the element that stands at each position of an axis; -1 for none."""
    if border == "replicate":
        return at.clip(0, extent - 1)
    if border in ("reflect", "reflect-even"):
        twice = border == "reflect-even"  # the last element stands on both sides of the mirror
        period = max(2 * (extent - 1 + twice), 1)
        at = at % period
        return np.minimum(at, period - twice - at)
    return np.where((at >= 0) & (at < extent), at, -1)


def window_line(extent, size, padding=None, stride=1, dilation=1):
    """Returns the position of each tap of each window on an axis: an array [windows, taps]."""
    reach = (size - 1) * dilation + 1
    if padding is None:
        count = -(-extent // stride)
        before = max((count - 1) * stride + reach - extent, 0) // 2
    else:
        before, after = padding
        count = (before + extent + after - reach) // stride + 1
    return np.arange(count)[:, None] * stride - before + np.arange(size) * dilation


def window_lines(extents, size, padding=(), stride=(), dilation=()):
    """Returns the :func:`window_line` of each axis."""
    n = len(size)
    defaults = (padding or [None] * n, stride or [1] * n, dilation or [1] * n)
    return [window_line(*axis) for axis in zip(extents, size, *defaults, strict=True)]


def windows(extents, size, border="constant", **window):
    """Returns the flat index of each tap of each window: an array [*windows, taps].

    The taps are row-major. The index is -1 where there is no element.
    """
    index = np.zeros(1, int)
    for extent, line in zip(extents, window_lines(extents, size, **window), strict=True):
        outer, inner = index[..., None, :, None], bordered(line, extent, border)[:, None]
        index = np.where((outer < 0) | (inner < 0), -1, outer * extent + inner)
        *counts, taps, more = index.shape
        index = index.reshape(*counts, taps * more)
    return index


def gathered(x, index, lead=0, outside=0):
    """Returns the elements at flat indices of the axes after the first ``lead``."""
    rows = double(x).reshape(*x.shape[:lead], int(np.prod(x.shape[lead:])))
    none = np.full((*x.shape[:lead], 1), outside, rows.dtype)
    return np.concatenate([rows, none], -1)[..., index]


def spread(terms, index, extents, lead=0):
    """Adds the terms of windows at the flat indices of their taps: the transpose of
    :func:`gathered`."""
    total = np.zeros((*terms.shape[:lead], int(np.prod(extents)) + 1))
    np.add.at(total, (..., index), terms)
    return total[..., :-1].reshape((*terms.shape[:lead], *extents))


def convolution(x, w, border="constant", groups=1, **window):
    """Returns the sums of products of a convolution without bias, in the type of the operands."""
    groups = groups or max(x.shape[1], 1)
    index = windows(x.shape[2:], w.shape[2:], border, **window)
    values = gathered(x, index, 2)
    values = values.reshape(len(x), groups, x.shape[1] // groups, *index.shape)
    filters = w.reshape(groups, len(w) // groups, w.shape[1], index.shape[-1])
    y = np.einsum("ngi...t,goit->ngo...", values, filters)
    return y.reshape(len(x), len(w), *index.shape[:-1])


# ---------------------------------------------------------------- interpolation


def cubic(distance, a=-0.75):
    s = np.abs(distance)
    near = (a + 2) * s**3 - (a + 3) * s**2 + 1
    return np.where(s <= 1, near, np.where(s < 2, a * (s**3 - 5 * s**2 + 8 * s - 4), 0))


#: the weight of an element by its distance, by method
KERNELS = {
    "nearest": lambda s: 1.0 * (s == 0), "linear": lambda s: np.fmax(1 - np.abs(s), 0),
    "cubic": cubic,
}  # fmt: skip


def width(kernel):
    """Returns the distance beyond which a kernel has no weight: 0, 1 or 2."""
    return 0 if kernel(0.5) == 0 else 1 if kernel(1.5) == 0 else 2


def resampled(x, axis, at, kernel=KERNELS["linear"], border="replicate"):
    """Returns the array with the elements of an axis interpolated at positions.

    Elements outside the kernel take no part, so one that is not finite stays in its windows.
    """
    total, reach = 0, width(kernel)
    for k in range(-2, 4):
        i = np.floor(at).astype(int) + k
        source = bordered(i, x.shape[axis], border)
        takes_part = (source >= 0) & (np.abs(at - i) <= reach)
        shape = [-1 if d == axis else 1 for d in range(x.ndim)]
        weight, takes_part = kernel(at - i).reshape(shape), takes_part.reshape(shape)
        total = total + np.where(takes_part, double(x.take(source, axis)) * weight, 0)
    return total


def sampling(at, extent, *rules):
    """Returns the weight of each element of an axis at each position: an array [*at, extent]."""
    return resampled(np.eye(extent), 0, at.ravel(), *rules).reshape(*at.shape, extent)


def sampled(equation, x, *axes):
    """Returns the sums of the elements times the :func:`sampling` of each axis's ``(at, rules)``.

    The result is NaN where one of the windows holds a NaN.
    """
    extents = [x.shape[equation.split(",")[0].index(letter)] for _, _, letter in axes]
    pairs = list(zip(axes, extents, strict=True))
    weights = [sampling(at, extent, *rules) for (at, rules, _), extent in pairs]
    y = np.einsum(equation, np.where(np.isnan(x), 0, double(x)), *weights, optimize=True)
    if np.isnan(x).any():
        inside = []
        for (at, (kernel, border), _), extent in pairs:
            reach = width(kernel)
            near = sampling(at, extent, lambda s, reach=reach: 1.0 * (np.abs(s) <= reach), border)
            inside.append(near)
        y = np.where(np.einsum(equation, 1.0 * np.isnan(x), *inside, optimize=True) > 0, np.nan, y)
    return y
