"""``conv`` in NumPy with channels last in memory: depthwise, pointwise, and by gathered windows.

Sessions use it because they know the filter in advance; the definition is ``conv_cpu``. Results
are views with channels last, like those of ``cpu_winograd``, so the next such ``conv`` finds its
input in the right order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

from cml_engine.ir.graph import Array, Attrs, Fact
from cml_engine.ops.common.blas import multiply, share
from cml_engine.ops.common.window import pad_border
from cml_engine.ops.conv.cpu import conv_cpu, convolve
from cml_engine.ops.conv.cpu_winograd import Winograd, is_faster
from cml_engine.ops.conv.shapes import ConvShape, conv_shape
from cml_engine.ops.declaration.scratch import Scratch
from cml_engine.ops.declaration.spec import Cpu

#: floats of a depthwise filter repeated for each position of a row (2 MB)
_MOST_WEIGHTS = 1 << 19
#: the fewest contiguous floats (of inputs, of outputs) for which ``Windows`` is faster
_MANY = 8
#: floats of one band of windows: 1 MB
_BAND = 1 << 18
#: the fewest bands that are shared out among threads; with fewer, each product is cut instead
_SEVERAL = 4


def prepare_conv(
    attrs: Attrs, facts: Sequence[Fact], constants: Sequence[Array | None], scratch: Scratch
) -> Cpu:
    """Returns a function that computes the convolution in the way that is fastest for the shape.

    If no special way fits, it is the definition, with scratch memory.
    """
    shape = conv_shape(attrs, *facts)
    filter = constants[1]
    if attrs.get("carrier") == "int32":
        return conv_cpu
    if filter is not None and min(facts[0].size, filter.size, prod(shape.narrow)) > 0:
        if is_faster(shape) and not (attrs.get("exact") or attrs.get("direct")):
            return Winograd(shape, filter, scratch)
        if _is_depthwise(shape):
            return Depthwise(shape, filter, scratch, constants[2])
        contiguous_inputs = shape.in_channels * shape.axes[-1].size
        if shape.groups == 1 and min(contiguous_inputs, shape.out_channels) >= _MANY:
            return Windows(shape, filter, scratch, constants[2])
    return partial(_defined, shape, scratch)


def _defined(
    shape: ConvShape, scratch: Scratch, attrs: Attrs, x: Array, filter: Array, bias: Array
) -> Array:
    return convolve(shape, x, filter, bias, scratch)


def _is_depthwise(shape: ConvShape) -> bool:
    """Returns True for a depthwise convolution with few enough weights per row."""
    n_weights = shape.taps * shape.axes[-1].narrow * shape.out_channels
    return shape.group_in == shape.group_out == 1 < shape.groups and n_weights <= _MOST_WEIGHTS


class _ChannelsLast:
    """The base of convolutions with channels last: padding, bias and shape of the result."""

    def __init__(self, shape: ConvShape, scratch: Scratch, bias: Array | None) -> None:
        self._shape = shape
        self._scratch = scratch
        self._bias = None if bias is None else self._row(bias)

    def _row(self, bias: Array) -> Array:
        """Returns the bias repeated for all positions and channels of a row of the result."""
        values = np.asarray(bias, np.float32).reshape(-1)
        width = self._shape.axes[-1].narrow
        return np.broadcast_to(values, (width, self._shape.out_channels)).reshape(-1)

    def _padded(self, x: Array) -> Array:
        """Returns the padded input as (batch, padded extents…, channels), in any memory order."""
        padded = pad_border(x, self._shape.padding, self._shape.border, self._zeros)
        return padded.transpose(0, *range(2, padded.ndim), 1)

    def _zeros(self, shape: tuple[int, ...]) -> Array:
        """Returns zeros of shape (batch, channels, extents…) with channels last in memory."""
        batch, channels, *extents = shape
        zeros = self._scratch.take("last.padded", batch, *extents, channels)
        zeros[:] = 0
        return zeros.transpose(0, -1, *range(1, zeros.ndim - 1))

    def _result(self) -> Array:
        shape = self._shape
        return self._scratch.result(shape.batch, *shape.narrow, shape.out_channels)

    def _finished(self, out: Array, bias: Array) -> Array:
        """Adds the bias in place and returns the result as a view (batch, channels, extents…)."""
        row = self._row(bias) if self._bias is None else self._bias
        rows = out.reshape(-1, row.size)
        np.add(rows, row, out=rows)
        return out.transpose(0, -1, *range(1, out.ndim - 1))


class Depthwise(_ChannelsLast):
    """A convolution with one filter per channel.

    For every tap, a row of the result (all its positions and channels) is contiguous in memory, and
    ``einsum`` multiplies and adds whole rows.
    """

    def __init__(
        self, shape: ConvShape, filter: Array, scratch: Scratch, bias: Array | None = None
    ) -> None:
        super().__init__(shape, scratch, bias)
        taps = np.moveaxis(filter[:, 0], 0, -1)
        kernel, width = taps.shape[:-1], shape.axes[-1].narrow
        rows = np.broadcast_to(taps[..., None, :], (*kernel, width, shape.out_channels))
        self._weights = rows.reshape(*kernel, -1)

    def __call__(self, attrs: Attrs, x: Array, filter: Array, bias: Array) -> Array:
        windows, out = self._windows(self._shifted(self._padded(x))), self._result()
        rows = out.reshape(*out.shape[:-2], -1)
        count = len(self._shape.axes)
        tap_axes, row_axis = list(range(count)), count
        position_axes = list(range(count + 1, 2 * count + 1))
        np.einsum(
            self._weights,
            [*tap_axes, row_axis],
            windows,
            [*position_axes, *tap_axes, row_axis],
            [*position_axes, row_axis],
            out=rows,
        )
        return self._finished(out, bias)

    def _shifted(self, padded: Array) -> Array:
        """Returns the input shifted by each tap of the last axis.

        The shape is (batch, outer extents…, taps, positions, channels). It is a copy unless
        neighbours in the result are neighbours in the input.
        """
        last = self._shape.axes[-1]
        *outer, position, channel = padded.strides
        shifted = as_strided(
            padded,
            (*padded.shape[:-2], last.size, last.narrow, padded.shape[-1]),
            (*outer, last.dilation * position, last.stride * position, channel),
            writeable=False,
        )
        is_contiguous = channel == padded.itemsize and position == channel * padded.shape[-1]
        if is_contiguous and last.stride == 1:
            return shifted
        copied = self._scratch.take("last.shifted", *shifted.shape)
        np.copyto(copied, shifted)
        return copied

    def _windows(self, shifted: Array) -> Array:
        """Returns a view (batch, rows…, taps…, positions and channels of a row)."""
        outer = self._shape.axes[:-1]
        batch, *over, tap, _, item = shifted.strides
        row = shifted.shape[-2] * shifted.shape[-1]
        return as_strided(
            shifted,
            (
                shifted.shape[0],
                *(a.narrow for a in outer),
                *(a.size for a in outer),
                self._shape.axes[-1].size,
                row,
            ),
            (
                batch,
                *(s * a.stride for s, a in zip(over, outer, strict=True)),
                *(s * a.dilation for s, a in zip(over, outer, strict=True)),
                tap,
                item,
            ),
            writeable=False,
        )


def _columns(filter: Array) -> Array:
    """Returns the filter as a matrix (taps and input channels, output channels)."""
    channels_last = np.ascontiguousarray(np.moveaxis(filter, (0, 1), (-1, -2)))
    return channels_last.reshape(-1, filter.shape[0])


class Windows(_ChannelsLast):
    """A convolution by products of matrices whose rows are windows, a band at a time.

    For a pointwise filter the input itself is that matrix.
    """

    def __init__(
        self, shape: ConvShape, filter: Array, scratch: Scratch, bias: Array | None = None
    ) -> None:
        super().__init__(shape, scratch, bias)
        self._weights = scratch.prepared("columns", filter, _columns)
        plain = all(a.stride == 1 and a.before == 0 == a.after for a in shape.axes)
        self._pointwise = plain and shape.taps == 1

    def __call__(self, attrs: Attrs, x: Array, filter: Array, bias: Array) -> Array:
        out = self._result()
        channels_last = x.transpose(0, *range(2, x.ndim), 1)
        if self._pointwise and channels_last.flags.c_contiguous:
            positions = channels_last.reshape(-1, x.shape[1])
            multiply(positions, self._weights, out.reshape(-1, out.shape[-1]))
            return self._finished(out, bias)
        step = max(1, _BAND // (self._weights.shape[0] * prod(self._shape.narrow[1:])))
        windows = [self._windows(image) for image in self._padded(x)]
        bands = [
            (of[first : first + step], result[first : first + step])
            for of, result in zip(windows, out, strict=True)
            for first in range(0, self._shape.narrow[0], step)
        ]
        if len(bands) >= _SEVERAL:
            share([partial(self._compute, np.matmul, *band) for band in bands])
        else:
            for band in bands:
                self._compute(multiply, *band)
        return self._finished(out, bias)

    def _compute(self, product: Callable[..., Array], windows: Array, result: Array) -> None:
        rows = self._matrix(windows)
        product(rows, self._weights, result.reshape(len(rows), -1))

    def _windows(self, image: Array) -> Array:
        """Returns a view (positions…, taps…, channels) of an image with channels last."""
        axes, (*over, channel) = self._shape.axes, image.strides
        strides = [s * a.stride for s, a in zip(over, axes, strict=True)]
        taps = [s * a.dilation for s, a in zip(over, axes, strict=True)]
        extents = (*self._shape.narrow, *(a.size for a in axes), image.shape[-1])
        return as_strided(image, extents, (*strides, *taps, channel), writeable=False)

    def _matrix(self, windows: Array) -> Array:
        """Returns the windows as a matrix (positions, taps and channels).

        It is a view if the memory order allows it, otherwise a copy in scratch memory.
        """
        positions = windows.shape[: len(self._shape.axes)]
        if self._shape.taps == 1 and _is_run(positions, windows.strides):
            step = windows.strides[len(positions) - 1]
            extents = (prod(positions), windows.shape[-1])
            return as_strided(windows, extents, (step, windows.strides[-1]), writeable=False)
        columns = self._scratch.take("last.columns", *windows.shape)
        np.copyto(columns, windows)
        return columns.reshape(prod(positions), -1)


def _is_run(extents: Sequence[int], strides: Sequence[int]) -> bool:
    """Returns True if all dimensions can be walked as one, with the last one's stride."""
    step = strides[len(extents) - 1]
    for extent, stride in zip(reversed(extents), reversed(strides[: len(extents)]), strict=True):
        if extent > 1 and stride != step:
            return False
        step = stride * extent if extent > 1 else step
    return True
