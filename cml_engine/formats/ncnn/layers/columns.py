"""Converts layers between images and columns of windows, and convolutions of moved windows."""

from __future__ import annotations

from math import prod

import numpy as np

from cml_engine.formats.ncnn.conversion import NcnnLayer, NcnnTensor, converts
from cml_engine.formats.ncnn.layers.activations import apply_activation
from cml_engine.formats.ncnn.layers.windows import spacing, stored_bias, window_axes
from cml_engine.io.load_limits import current_budget


@converts("Unfold", params="1-4 11-16 18")
def _unfold(layer: NcnnLayer, x: NcnnTensor) -> NcnnTensor:
    """Converts Unfold: the windows of (channels, height, width) as columns."""
    if len(x.extents) != 3:
        raise layer.unsupported_error(f"an input of {len(x.extents)} axes")
    axes = window_axes(layer)
    padding = [axis.padding(n) for axis, n in zip(axes, x.extents[1:], strict=True)]
    if any(map(any, padding)):
        x = x.pad(padding=[(0, 0), (0, 0), *padding], value=layer.number(18))
    channels, *extents = x.extents
    counts = [(n - axis.window) // axis.stride + 1 for axis, n in zip(axes, extents, strict=True)]
    if min(counts) < 1:
        raise layer.damaged_error(f"a kernel of {[a.window for a in axes]} over {extents}")
    taps = [axis.kernel for axis in axes]
    current_budget().check_bytes(8 * prod(taps) * prod(counts), "its windows", layer.source)
    rows, columns = (
        np.arange(axis.kernel)[:, None] * axis.dilation + np.arange(count) * axis.stride
        for axis, count in zip(axes, counts, strict=True)
    )
    # [kernel height, kernel width, height, width]
    places = rows[:, None, :, None] * extents[1] + columns[None, :, None, :]
    windows = x.reshape([channels, prod(extents)]).take(places.reshape(-1), 2)
    return windows.reshape([channels * prod(taps), prod(counts)])


@converts("Fold", params="1-4 11-16 20 21")
def _fold(layer: NcnnLayer, x: NcnnTensor) -> NcnnTensor:
    """Converts Fold: columns are put back as windows of an image; overlapping values are added."""
    axes = window_axes(layer)
    width = layer.integer(20)
    sizes = [layer.integer(21, width), width]
    if len(x.extents) != 2 or any(axis.is_same for axis in axes) or min(sizes) < 1:
        raise layer.unsupported_error(f"an input of {len(x.extents)} axes to a size of {sizes}")
    counts = [
        (n + axis.before + axis.after - axis.window) // axis.stride + 1
        for axis, n in zip(axes, sizes, strict=True)
    ]
    taps = prod(axis.kernel for axis in axes)
    if x.extents[0] % taps or x.extents[1] != prod(counts) or min(counts) < 1:
        raise layer.damaged_error(
            f"columns of {list(x.extents)}: wanted {prod(counts)} windows of {taps} elements"
        )
    return x.col2im(
        output_size=sizes,
        size=[axis.kernel for axis in axes],
        padding=[(axis.before, axis.after) for axis in axes],
        **spacing(axes),
    )


@converts("DeformableConv2D", params="0-6 9-16", inputs=(2, 3))
def _deformable_convolution(
    layer: NcnnLayer, x: NcnnTensor, offset: NcnnTensor, *mask: NcnnTensor
) -> NcnnTensor:
    axes = window_axes(layer)
    if len(x.extents) != 3 or any(axis.is_same for axis in axes):
        raise layer.unsupported_error(f"an input of {len(x.extents)} axes, or 'same' padding,")
    count, channels = layer.integer(0), x.extents[0]
    kernel = [axis.kernel for axis in axes]
    if count < 1 or layer.integer(6) != count * channels * prod(kernel):
        raise layer.damaged_error(f"{layer.integer(6)} weights of {channels} channels to {count}")
    weights = layer.constant(layer.array(count, channels, *kernel), "filter")
    bias = stored_bias(layer, count)
    result = layer.compound(
        "deform_conv",
        x,
        weights,
        offset,
        *mask,
        size=kernel,
        padding=[(axis.before, axis.after) for axis in axes],
        **spacing(axes),
    )
    if isinstance(bias, NcnnTensor):
        result = result + bias
    return apply_activation(layer, result)
