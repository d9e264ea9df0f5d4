"""Converts convolution, deconvolution and pooling in 1, 2 and 3 dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from cml_engine.formats.ncnn.conversion import NcnnLayer, NcnnTensor, converts, joined
from cml_engine.formats.ncnn.files import MISSING
from cml_engine.formats.ncnn.layers.activations import apply_activation

#: "Same" padding with the odd pixel at the end or at the start.
_SAME_UPPER, _SAME_LOWER = -233, -234

#: ncnn itself pads the depth as if the odd pixel were at the end.
_ODD_3D = "odd padding at the start in three dimensions"


def _halves(total: int, mode: int) -> tuple[int, int]:
    """Splits padding into two halves; the larger one is the last if ``mode`` is ``_SAME_UPPER``."""
    small, large = total // 2, total - total // 2
    return (small, large) if mode == _SAME_UPPER else (large, small)


# -- convolution -------------------------------------------------------------------------------

#: Ids of kernel, dilation, stride, padding before and after, for width, height and depth.
_CONV_IDS = ((1, 2, 3, 4, 15), (11, 12, 13, 14, 16), (21, 22, 23, 24, 17))

#: Ids of a deconvolution's output padding and output size, by the number of axes.
_OUTPUT_IDS = {1: ((18,), (20,)), 2: ((18, 19), (20, 21)), 3: ((18, 19, 20), (25, 26, 27))}

_INT8 = "int8 weights"


@dataclass(frozen=True, slots=True)
class _Axis:
    """The parameters of a convolution along one axis."""

    kernel: int
    dilation: int
    stride: int
    before: int
    after: int

    @property
    def window(self) -> int:
        """The extent of the dilated kernel."""
        return (self.kernel - 1) * self.dilation + 1

    @property
    def is_same(self) -> bool:
        return self.before in (_SAME_UPPER, _SAME_LOWER)

    def missing(self, size: int) -> int:
        """Returns how many elements "same" padding adds; negative if windows skip some."""
        return self.window + (size - 1) // self.stride * self.stride - size

    def padding(self, size: int) -> tuple[int, int]:
        """Returns the padding before and after an axis of ``size`` elements; resolves "same"."""
        if not self.is_same:
            return self.before, self.after
        return _halves(max(0, self.missing(size)), self.before)


@converts("Convolution1D", params="0-7 9 10 15 18 19", inputs=(1, 3))
@converts("Convolution", params="0-16 18 19", inputs=(1, 3), limits=_INT8)
@converts("Convolution3D", params="0-7 9-18 21-24", limits=_ODD_3D)
@converts("ConvolutionDepthWise1D", params="0-7 9 10 15 18 19", inputs=(1, 3))
@converts("ConvolutionDepthWise", params="0-16 18 19", inputs=(1, 3), limits=_INT8)
@converts("ConvolutionDepthWise3D", params="0-7 9-18 21-24", limits=_ODD_3D)
def _convolution(layer: NcnnLayer, x: NcnnTensor, *computed: NcnnTensor) -> NcnnTensor:
    axes = _axes_of(layer, computed, is_computed=layer.integer(19))
    if not computed and len(axes) == 2 and len(x.extents) == 1 and all(a.kernel == 1 for a in axes):
        return _dense(layer, x)
    kernel = [axis.kernel for axis in axes]
    if computed:
        count, width, *_ = computed[0].extents
        groups, channels, *sizes = _checked_groups(layer, x, kernel)
        if width * groups != channels or count % groups:
            raise layer.damaged_error(f"weights of {list(computed[0].extents)}, {groups} groups")
        inputs = _computed_inputs(layer, computed, count)
    else:
        count, groups, channels, *sizes = _checked_shape(layer, x, kernel)
        weights = layer.array(count, channels // groups, *kernel)
        inputs = [layer.constant(weights, "filter"), stored_bias(layer, count)]
    padding = [axis.padding(size) for axis, size in zip(axes, sizes, strict=True)]
    if len(axes) == 3 and axes[0].before == _SAME_LOWER and len(set(padding[0])) > 1:
        raise layer.unsupported_error(_ODD_3D)
    missing = [a.missing(size) for a, size in zip(axes, sizes, strict=True) if a.is_same]
    if min(missing, default=0) < 0 < max(missing, default=0):  # ncnn crops the one axis then
        raise layer.unsupported_error("'same' padding where one stride is larger than its window")
    value = layer.number(18)
    if value and any(map(any, padding)):
        x = x.pad(padding=[(0, 0), (0, 0), *padding], value=value)
        padding = [(0, 0) for _ in axes]
    elif all(axis.before == _SAME_UPPER for axis in axes):
        padding = []  # NNEF's automatic padding
    return _windowed(layer, "conv", x, inputs, axes, padding, groups)


@converts("Deconvolution1D", params="0-6 9 10 15 18 20 28", inputs=(1, 3))
@converts("Deconvolution", params="0-6 8-16 18-21 28", inputs=(1, 3), limits=_INT8)
@converts("Deconvolution3D", params="0-6 9-18 19-27")
@converts("DeconvolutionDepthWise1D", params="0-7 9 10 15 18 20 28", inputs=(1, 3))
@converts("DeconvolutionDepthWise", params="0-16 18-21 28", inputs=(1, 3), limits=_INT8)
@converts("DeconvolutionDepthWise3D", params="0-7 9-27")
def _deconvolution(layer: NcnnLayer, x: NcnnTensor, *computed: NcnnTensor) -> NcnnTensor:
    axes = _axes_of(layer, computed, is_computed=layer.integer(28))
    kernel = [axis.kernel for axis in axes]
    if computed:
        width, count, *_ = computed[0].extents
        groups, channels, *sizes = _checked_groups(layer, x, kernel)
        if width != channels:
            raise layer.damaged_error(f"weights of {list(computed[0].extents)}, {groups} groups")
        inputs = _computed_inputs(layer, computed, count * groups)
    else:
        count, groups, channels, *sizes = _checked_shape(layer, x, kernel)
        weights = layer.array(groups, count // groups, channels // groups, *kernel).swapaxes(1, 2)
        weights = weights.reshape(channels, count // groups, *kernel)
        inputs = [layer.constant(weights, "filter"), stored_bias(layer, count)]
    return _windowed(layer, "deconv", x, inputs, axes, _crops(layer, axes, sizes), groups)


def spacing(axes: Sequence[_Axis]) -> dict[str, Any]:
    """Returns the strides and dilations of a window as attributes of NNEF."""
    return {"stride": [axis.stride for axis in axes], "dilation": [axis.dilation for axis in axes]}


def _windowed(
    layer: NcnnLayer,
    op: str,
    x: NcnnTensor,
    inputs: Sequence[NcnnTensor | float],
    axes: Sequence[_Axis],
    padding: Sequence[tuple[int, int]],
    groups: int,
) -> NcnnTensor:
    result = x.op(op, *inputs, padding=padding, **spacing(axes), groups=groups)
    return apply_activation(layer, result)


def _crops(layer: NcnnLayer, axes: Sequence[_Axis], sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Returns the numbers of elements that a deconvolution crops before and after each axis.

    Output padding is a negative crop. "Same" padding crops to the stated output size, or not at
    all without one.
    """
    output_paddings, output_sizes = (
        [layer.integer(key, layer.integer(ids[0])) for key in ids][::-1]
        for ids in _OUTPUT_IDS[len(axes)]
    )
    has_size = min(output_sizes) > 0
    if has_size and not any(axis.is_same or axis.before or axis.after for axis in axes):
        raise layer.damaged_error(f"an output of {output_sizes} without 'same' padding")
    crops = []
    for axis, size, output_padding, output_size in zip(
        axes, sizes, output_paddings, output_sizes, strict=True
    ):
        before, after = (0, 0) if axis.is_same else (axis.before, axis.after)
        if axis.is_same and has_size:
            total = (size - 1) * axis.stride + axis.window + output_padding - output_size
            if total < 0:
                raise layer.unsupported_error(f"'same' padding to an output of {output_size}")
            before, after = _halves(total, axis.before)
        crops.append((before, after - output_padding))
    return crops


def _axes_of(layer: NcnnLayer, computed: Sequence[NcnnTensor], is_computed: int) -> list[_Axis]:
    """Returns the axes of a convolution with a filter and a bias from other layers, if it has any.

    Raises an error if their number is wrong.
    """
    if len(computed) != (1 + layer.integer(5) if is_computed else 0):
        raise layer.damaged_error(f"{1 + len(computed)} inputs")
    return window_axes(layer, *computed[:1])


def _computed_inputs(
    layer: NcnnLayer, computed: Sequence[NcnnTensor], count: int
) -> list[NcnnTensor | float]:
    """Returns the filter and the bias that other layers compute, for ``count`` outputs."""
    biases = [x.reshape([-1]) for x in computed[1:]]
    if any(bias.extents != (count,) for bias in biases):
        raise layer.damaged_error(f"a bias of {list(computed[1].extents)} for {count} outputs")
    return [computed[0].merge(0, 2), biases[0] if biases else 0.0]


def window_axes(layer: NcnnLayer, *weights: NcnnTensor) -> list[_Axis]:
    """Returns the axes, outermost first; a parameter that is missing has the width's value.

    ``weights`` are those that other layers compute, whose last axes are the kernel's.
    """
    count = 1 if layer.type.endswith("1D") else 3 if layer.type.endswith("3D") else 2
    defaults, axes = [0, 1, 1, 0], list[_Axis]()
    for ids in _CONV_IDS[:count]:
        pairs = zip(ids[:4], defaults, strict=True)
        kernel, dilation, stride, before = values = [layer.integer(*pair) for pair in pairs]
        defaults = defaults if axes else values
        if weights:
            if len(weights[0].extents) != 2 + count:
                raise layer.damaged_error(f"weights of {list(weights[0].extents)}")
            kernel = weights[0].extents[-1 - len(axes)]
        if min(kernel, dilation, stride) < 1:
            raise layer.damaged_error(f"kernel {kernel}, dilation {dilation}, stride {stride}")
        axes.append(_Axis(kernel, dilation, stride, before, layer.integer(ids[4], before)))
    paddings = {padding for axis in axes for padding in (axis.before, axis.after)}
    if min(paddings) < 0 and paddings not in ({_SAME_UPPER}, {_SAME_LOWER}):
        raise layer.damaged_error(f"padding by {sorted(paddings)}")
    return axes[::-1]


def _outputs_and_groups(layer: NcnnLayer) -> tuple[int, int]:
    layer.refuse(8, "int8 weights")
    if "DepthWise" not in layer.type:
        layer.refuse(7, "groups in a layer that has none", 1)  # pnnx states the 1
    return layer.integer(0), layer.integer(7, 1)


def _checked_shape(layer: NcnnLayer, x: NcnnTensor, kernel: Sequence[int]) -> tuple[int, ...]:
    """Returns the numbers of outputs, groups and input channels, and the spatial extents.

    Raises an error if the input or the number of weights does not fit them.
    """
    groups, *extents = _checked_groups(layer, x, kernel)
    count = layer.integer(0)
    _check_weights(layer, x.extents[0], count, groups, kernel)
    return count, groups, *extents


def _checked_groups(layer: NcnnLayer, x: NcnnTensor, kernel: Sequence[int]) -> tuple[int, ...]:
    """Returns the numbers of groups and input channels, and the spatial extents."""
    if len(x.extents) != 1 + len(kernel):
        shape = ",".join(map(str, x.extents))
        expected = f"the channels and {len(kernel)} more"
        raise layer.damaged_error(f"an input of [{shape}] without the batch: wanted {expected}")
    _, groups = _outputs_and_groups(layer)
    if groups < 1:
        raise layer.damaged_error(f"{groups} groups")
    return groups, *x.extents


def _check_weights(
    layer: NcnnLayer, channels: int, count: int, groups: int, kernel: Sequence[int]
) -> None:
    """Raises an error if the layer states another number of weights than the shapes require."""
    if min(count, groups) < 1 or count % groups or channels % groups:
        raise layer.damaged_error(f"{channels} channels to {count} in {groups} groups")
    expected = count * (channels // groups) * prod(kernel)
    if layer.integer(6) != expected:
        description = f"{channels} channels to {count} by a kernel of {'x'.join(map(str, kernel))}"
        raise layer.damaged_error(f"{layer.integer(6)} weights where {description} want {expected}")


def stored_bias(layer: NcnnLayer, count: int) -> NcnnTensor | float:
    return layer.raw("bias", 1, count) if layer.integer(5) else 0.0


def _dense(layer: NcnnLayer, x: NcnnTensor) -> NcnnTensor:
    """Converts a convolution of a vector with a kernel of size 1 to a matrix product."""
    (count, _), (width,) = _outputs_and_groups(layer), x.extents
    _check_weights(layer, width, count, 1, (1,))
    filters = layer.weight("filter", count, width)
    return apply_activation(layer, x.linear(filters, stored_bias(layer, count)))


# -- pooling -----------------------------------------------------------------------------------

#: Ids of kernel, stride, padding before and after, and output size, for width, height, depth.
_POOL_IDS = ((1, 2, 3, 14, 8), (11, 12, 13, 15, 18), (21, 22, 23, 16, 28))

#: Ids of padding before and after each axis.
_POOL_PADDINGS = (3, 13, 14, 15, 16, 23)

#: "Same" padding by parameter 5.
_SAME = {2: _SAME_UPPER, 3: _SAME_LOWER}

#: ncnn's maximum of a window that lies entirely in the padding.
_LEAST = -float(np.finfo(np.float32).max)


#: a number in a picture is less harm than NaN, which reaches all layers behind it
_EMPTY_MEAN = "the average of a window that lies in the padding: 0 (ncnn: NaN)"


@converts("Pooling1D", params="0-8 14", differences=_EMPTY_MEAN)
@converts("Pooling", params="0-8 11-15 18", differences=_EMPTY_MEAN)
@converts("Pooling3D", params="0-8 11-16 18 21-23 28", limits=_ODD_3D, differences=_EMPTY_MEAN)
def _pooling(layer: NcnnLayer, x: NcnnTensor) -> NcnnTensor:
    count = {"Pooling1D": 1, "Pooling": 2}.get(layer.type, 3)
    if layer.integer(0) not in (0, 1):
        raise layer.unsupported_error(f"pooling type {layer.integer(0)}")
    if len(x.extents) != 1 + count:
        raise layer.damaged_error(f"an input of {len(x.extents)} axes: wanted {1 + count}")
    if count == 3 and layer.integer(5) == 3:
        raise layer.unsupported_error(_ODD_3D)
    is_average = layer.integer(0) == 1
    reduction = "mean_reduce" if is_average else "max_reduce"
    if layer.integer(4):
        axes = list(range(2, 2 + count))
        return x.op(reduction, axes=axes).squeeze(axes=axes)
    if layer.integer(7):
        return _adaptive(layer, x, reduction, count)
    windows = [_window(layer, ids, x.extents[-1 - i]) for i, ids in enumerate(_POOL_IDS[:count])]
    size, stride, padding = (list(part) for part in zip(*windows[::-1], strict=True))
    if is_average and layer.integer(5) in _SAME and not layer.integer(6):
        # ncnn leaves out the elements that the stated padding would have added
        for key in _POOL_PADDINGS:
            layer.refuse(key, "'same' padding beside a stated one")
    # with "same" padding ncnn always divides by the whole window
    divides_by_window = is_average and (layer.integer(6) or layer.integer(5) in _SAME)
    result = x.op(
        "avg_pool" if is_average else "max_pool",
        size=[1, 1, *size],
        stride=[1, 1, *stride],
        padding=[(0, 0), (0, 0), *padding],
        border="constant" if divides_by_window else "ignore",
    )
    has_empty_windows = any(max(pair) >= k for k, pair in zip(size, padding, strict=True))
    return result.max(_LEAST) if has_empty_windows and not is_average else result


def _window(layer: NcnnLayer, ids: Sequence[int], extent: int) -> tuple[int, int, tuple[int, int]]:
    """Returns an axis's kernel, stride, and padding before and after its ``extent`` elements."""
    width = [layer.integer(*pair) for pair in zip(_POOL_IDS[0], (0, 1, 0), strict=False)]
    kernel, stride, before = (layer.integer(*pair) for pair in zip(ids[:3], width, strict=True))
    after = layer.integer(ids[3], before)
    if kernel < 1 or stride < 1 or before < 0 or after < 0:
        raise layer.damaged_error(f"kernel {kernel}, stride {stride}, padding {before}, {after}")
    mode = layer.integer(5)
    if mode not in _SAME and extent + before + after < kernel:
        raise layer.damaged_error(f"a kernel of {kernel} over {extent} values")
    if mode == 0:  # the output's size is rounded up
        after += -(extent + before + after - kernel) % stride
    elif mode in _SAME:
        total = kernel + (extent - 1) // stride * stride - extent
        if total < 0:
            raise layer.unsupported_error("'same' padding of windows smaller than their stride")
        before, after = _halves(total, _SAME[mode])
    elif mode != 1:
        raise layer.unsupported_error(f"padding mode {mode}")
    return kernel, stride, (before, after)


@converts("SPP", params="0-1")
def _pyramid_pooling(layer: NcnnLayer, x: NcnnTensor) -> NcnnTensor:
    """Converts SPP: pools to 1, 2 x 2, 4 x 4, … windows; the results stand one after another."""
    kind, height = layer.integer(0), layer.integer(1, 1)
    if kind not in (0, 1) or not 1 <= height <= 8 or len(x.extents) != 3:
        raise layer.unsupported_error(f"pooling type {kind} of {height} sizes")
    levels = []
    for level in range(height):
        sizes = [-(-n // 2**level) for n in x.extents[1:]]
        pads = [
            (size * 2**level - n + 1) // 2 for size, n in zip(sizes, x.extents[1:], strict=True)
        ]
        padded = x.pad(padding=[(0, 0), (0, 0), *((n, n) for n in pads)])
        ends = [size * 2**level for size in sizes]
        padded = padded.slice(axes=[2, 3], begin=[0, 0], end=ends)
        pooled = padded.op(
            "avg_pool" if kind else "max_pool",
            size=[1, 1, *sizes],
            stride=[1, 1, *sizes],
            padding=[(0, 0)] * 4,
            border="ignore",
        )
        levels.append(pooled.reshape([-1]))
    return joined(levels, 1)


@converts("StatisticsPooling", params="0")
def _statistics_pooling(layer: NcnnLayer, x: NcnnTensor) -> NcnnTensor:
    """Converts StatisticsPooling: the means of the channels, then their standard deviations.

    A tensor of one or two axes is one channel.
    """
    channels = x.extents[0] if len(x.extents) > 2 else 1
    rows = x.reshape([channels, -1])
    mean = rows.mean_reduce(axes=[2])
    parts = [mean]
    if layer.integer(0):
        parts.append((rows - mean).sqr().mean_reduce(axes=[2]).sqrt())
    return joined([part.reshape([channels]) for part in parts], 1)


def _adaptive(layer: NcnnLayer, x: NcnnTensor, reduction: str, count: int) -> NcnnTensor:
    """Pools the last ``count`` axes to fixed sizes; windows of an axis have nearly equal size."""
    width = layer.integer(8)
    for i, ids in enumerate(_POOL_IDS[:count]):
        axis = count + 1 - i
        extent, output_size = x.extents[axis - 1], layer.integer(ids[4], width)
        if output_size in (MISSING, extent):
            continue
        if not 1 <= output_size <= 4096:
            raise layer.damaged_error(f"an output of {output_size}")
        parts = []
        for k in range(output_size):
            begin, end = k * extent // output_size, -(-(k + 1) * extent // output_size)
            part = x.slice(axes=[axis], begin=[begin], end=[end])
            parts.append(part.op(reduction, axes=[axis]))
        x = joined(parts, axis)
    return x
