"""``conv`` and ``deconv`` in NumPy: windows gathered into matrices that BLAS multiplies.

The matrix of windows is made a stretch of rows at a time, small enough to stay in the cache
between the copy that makes it and the product that reads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

from cml_engine.ir.graph import Array, Attrs, Fact
from cml_engine.ops.common.blas import multiply
from cml_engine.ops.common.window import add_tap, pad_border
from cml_engine.ops.conv.shapes import ConvShape, conv_shape, deconv_shape
from cml_engine.ops.declaration.scratch import Scratch

#: floats of one stretch of windows: 4 MB; smaller ones wake BLAS's threads too often
_STRETCH = 1 << 20
#: products this deep are worth a matrix of their own for each row of taps
_DEEP = 64


def conv_cpu(attrs: Attrs, x: Array, filter: Array, bias: Array) -> Array:
    shape = conv_shape(attrs, *_facts(x, filter, bias))
    if attrs.get("carrier") == "int32":
        sums = exact_sums(shape, x, filter)
        return sums + bias.astype(np.float64).reshape(-1, *(1,) * len(shape.axes))
    return convolve(shape, x, filter, bias, Scratch())


def exact_sums(shape: ConvShape, x: Array, filter: Array, dtype: type = np.float64) -> Array:
    """Returns the sums of a convolution of integers, computed in ``dtype`` tap by tap.

    They are exact in float64 below 2^53; int32 wraps around.
    """
    weights = filter.reshape(shape.groups, shape.group_out, shape.group_in, shape.taps)
    weights = np.ascontiguousarray(weights.transpose(3, 0, 1, 2), dtype)
    flat = (shape.groups, shape.group_in, prod(shape.narrow))
    out: Array = np.zeros((shape.batch, shape.out_channels, *shape.narrow), dtype)
    padded = pad_border(x.astype(dtype), shape.padding, shape.border)
    for image, result in zip(padded, out, strict=True):
        windows = _windows(shape, image, 0, shape.narrow[0])
        sums = result.reshape(shape.groups, shape.group_out, flat[2])
        taps = np.ndindex(*(a.size for a in shape.axes))
        for weight, tap in zip(weights, taps, strict=True):
            sums += np.matmul(weight, windows[(slice(None), *tap)].reshape(flat))
    return out


def convolve(shape: ConvShape, x: Array, filter: Array, bias: Array, scratch: Scratch) -> Array:
    """Returns the result of ``conv`` in memory of ``scratch``."""
    out = scratch.result(shape.batch, shape.out_channels, *shape.narrow)
    if out.size == 0:
        return out
    padded = pad_border(x, shape.padding, shape.border)
    for image, result in zip(padded, out, strict=True):
        _conv_image(shape, image, filter, result, scratch)
    _add_bias(out, bias)
    return out


def _conv_image(
    shape: ConvShape, image: Array, filter: Array, result: Array, scratch: Scratch
) -> None:
    unit = all(a.stride == 1 for a in shape.axes)
    if shape.group_in == 1 and shape.groups > 1:
        _conv_by_taps(shape, image, filter, result)
    elif unit and len(shape.axes) > 1 and shape.group_in * shape.axes[-1].size >= _DEEP:
        _conv_by_rows(shape, image, filter, result, scratch)
    else:
        _conv_by_matmul(shape, image, filter, result, scratch)


def deconv_cpu(attrs: Attrs, x: Array, filter: Array, bias: Array) -> Array:
    shape = deconv_shape(attrs, *_facts(x, filter, bias))
    out = np.empty((shape.batch, shape.out_channels, *shape.wide), np.float32)
    if out.size == 0:
        return out
    for image, result in zip(x, out, strict=True):
        _deconv_image(shape, image, filter, result)
    _add_bias(out, bias)
    return out


def _facts(*arrays: Array) -> list[Fact]:
    return [Fact("scalar", np.shape(a)) for a in arrays]


def _add_bias(out: Array, bias: Array) -> None:
    values = np.asarray(bias, np.float32).reshape(-1)
    if values.any():
        out += values.reshape(-1, *(1,) * (out.ndim - 2))


def _windows(shape: ConvShape, image: Array, first: int, count: int) -> Array:
    """Returns a view (channels, taps…, positions…) of a padded image's windows.

    They are the windows of ``count`` rows of the result, from row ``first``.
    """
    strides = image.strides[1:]
    kernel = [a.size for a in shape.axes]
    over_taps = [s * a.dilation for s, a in zip(strides, shape.axes, strict=True)]
    over_rows = [s * a.stride for s, a in zip(strides, shape.axes, strict=True)]
    return as_strided(
        image[:, first * shape.axes[0].stride :],
        (image.shape[0], *kernel, count, *shape.narrow[1:]),
        (image.strides[0], *over_taps, *over_rows),
        writeable=False,
    )


def _stretches(rows: int, elements_per_row: int) -> Iterator[tuple[int, int]]:
    step = max(1, min(rows, _STRETCH // max(elements_per_row, 1)))
    for first in range(0, rows, step):
        yield first, min(step, rows - first)


def _conv_by_matmul(
    shape: ConvShape, image: Array, filter: Array, result: Array, scratch: Scratch
) -> None:
    groups, depth = shape.groups, shape.group_in * shape.taps
    weights = filter.reshape(groups, shape.group_out, depth)
    flat = result.reshape(groups, shape.group_out, -1)
    per_row = prod(shape.narrow[1:])
    for first, count in _stretches(shape.narrow[0], groups * depth * per_row):
        windows = _windows(shape, image, first, count)
        columns = _copy_windows(windows, scratch).reshape(groups, depth, count * per_row)
        span = slice(first * per_row, (first + count) * per_row)
        multiply(weights, columns, out=flat[:, :, span])


def _conv_by_rows(
    shape: ConvShape, image: Array, filter: Array, result: Array, scratch: Scratch
) -> None:
    """Computes a convolution of stride 1 into ``result`` from the flattened padded image.

    In the flat image the taps have fixed distances. Only the shifts along the last axis are
    copied; the taps of other axes are slices of that copy. Positions between the end of a row
    and the next one are computed too and discarded.
    """
    flat = np.ascontiguousarray(image).reshape(image.shape[0], -1)
    steps = [prod(image.shape[i + 1 :]) for i in range(1, image.ndim)]
    outer, last = shape.axes[:-1], shape.axes[-1]
    weights = _weights_by_row(shape, filter)
    for first, count in _stretches(shape.narrow[0], shape.in_channels * last.size * steps[0]):
        extents = (count, *shape.narrow[1:])
        length = sum((n - 1) * s for n, s in zip(extents, steps, strict=True)) + 1
        extra_length = sum((a.reach - 1) * s for a, s in zip(outer, steps, strict=False))
        windows = as_strided(
            flat[:, first * steps[0] :],
            (flat.shape[0], last.size, length + extra_length),
            (flat.strides[0], last.dilation * flat.itemsize, flat.itemsize),
            writeable=False,
        )
        shifted = _copy_windows(windows, scratch).reshape(shape.groups, -1, length + extra_length)
        sums, product = (
            scratch.take(name, shape.groups, shape.group_out, length)
            for name in ("sums", "product")
        )
        for i, tap in enumerate(np.ndindex(*(a.size for a in outer))):
            offset = sum(t * a.dilation * s for t, a, s in zip(tap, outer, steps, strict=False))
            multiply(
                weights[i], shifted[:, :, offset : offset + length], out=product if i else sums
            )
            if i:
                sums += product
        strides = (length * sums.itemsize, *(s * sums.itemsize for s in steps))
        result[:, first : first + count] = as_strided(
            sums, (shape.out_channels, *extents), strides, writeable=False
        )


def _copy_windows(windows: Array, scratch: Scratch) -> Array:
    """Returns the windows as a contiguous array, copied to scratch memory if necessary."""
    if windows.flags.c_contiguous:
        return windows
    copied = scratch.take("windows", *windows.shape)
    np.copyto(copied, windows)
    return copied


def _weights_by_row(shape: ConvShape, filter: Array) -> Array:
    """Returns the filter as [outer taps][group][out][in, taps of the last axis]."""
    width = shape.axes[-1].size
    parts = filter.reshape(shape.groups, shape.group_out, shape.group_in, -1, width)
    parts = np.ascontiguousarray(parts.transpose(3, 0, 1, 2, 4))
    return parts.reshape(-1, shape.groups, shape.group_out, shape.group_in * width)


def _conv_by_taps(shape: ConvShape, image: Array, filter: Array, result: Array) -> None:
    """Computes a convolution with one input channel per group into ``result``, tap by tap.

    A matrix product of depth ``taps`` would gain nothing.
    """
    groups, multiplier = shape.groups, shape.group_out
    spatial = (1,) * len(shape.axes)
    weights = filter.reshape(groups, multiplier, -1)
    target = result.reshape(groups, multiplier, *shape.narrow)
    row_elements = 2 * shape.out_channels * prod(shape.narrow[1:])
    for first, count in _stretches(shape.narrow[0], row_elements):
        windows = _windows(shape, image, first, count)
        part = target[:, :, first : first + count]
        for i, tap in enumerate(np.ndindex(*(a.size for a in shape.axes))):
            weight = weights[:, :, i].reshape(groups, multiplier, *spatial)
            value = windows[(slice(None), *tap)][:, None]
            if i == 0:
                np.multiply(weight, value, out=part)
            else:
                part += weight * value


def _deconv_image(shape: ConvShape, image: Array, filter: Array, result: Array) -> None:
    """Computes the deconvolution of one image into ``result``.

    One matrix product gives every input's contribution to all taps. The contributions are then
    added at the positions of the taps.
    """
    groups, taps, stride = shape.groups, shape.taps, shape.axes[0].stride
    weights = filter.reshape(groups, shape.group_in, shape.group_out * taps)
    weights = np.ascontiguousarray(weights.transpose(0, 2, 1))
    result[:] = 0
    per_row = prod(shape.narrow[1:])
    for first, count in _stretches(shape.narrow[0], shape.out_channels * taps * per_row):
        part = image[:, first : first + count].reshape(groups, shape.group_in, count * per_row)
        spread = multiply(weights, part).reshape(shape.out_channels, taps, count, *shape.narrow[1:])
        rows = replace(shape.axes[0], narrow=count, before=shape.axes[0].before - first * stride)
        for i, tap in enumerate(np.ndindex(*(a.size for a in shape.axes))):
            add_tap((rows, *shape.axes[1:]), spread[:, i], tap, result)
