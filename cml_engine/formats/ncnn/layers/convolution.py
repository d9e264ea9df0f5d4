"""Converts convolution and deconvolution in 1, 2 and 3 dimensions, with and without groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from cml_engine.formats.ncnn.conversion import Conversion
from cml_engine.formats.ncnn.layer_types import converts
from cml_engine.formats.ncnn.layers.activations import apply_activation
from cml_engine.formats.ncnn.param import NcnnLayer

#: "Same" padding with the odd pixel at the end or at the start.
SAME_UPPER, SAME_LOWER = -233, -234

#: Ids of kernel, dilation, stride, padding before and after, for width, height and depth.
_IDS = ((1, 2, 3, 4, 15), (11, 12, 13, 14, 16), (21, 22, 23, 24, 17))

#: Ids of a deconvolution's output padding and output size, by the number of axes.
_OUTPUT_IDS = {1: ((18,), (20,)), 2: ((18, 19), (20, 21)), 3: ((18, 19, 20), (25, 26, 27))}


@dataclass(frozen=True, slots=True)
class PaddedAxis:
    """The parameters of a window along one axis: kernel, dilation, stride and padding."""

    kernel: int
    dilation: int
    stride: int
    before: int
    behind: int

    @property
    def extent(self) -> int:
        return (self.kernel - 1) * self.dilation + 1

    def padding(self, size: int) -> tuple[int, int]:
        """Returns the padding before and after an axis of ``size`` elements; resolves "same"."""
        if self.before not in (SAME_UPPER, SAME_LOWER):
            return self.before, self.behind
        total = max(0, self.extent + (size - 1) // self.stride * self.stride - size)
        return halves(total, self.before)


def halves(total: int, kind: int) -> tuple[int, int]:
    """Splits ``total`` into two halves and returns both.

    The larger half is the last one if ``kind`` is ``SAME_UPPER``, else the first.
    """
    small, large = total // 2, total - total // 2
    return (small, large) if kind == SAME_UPPER else (large, small)


@converts("Convolution1D", params="0-6 9 10 15 18 19", inputs=(1, 3), limits="computed weights")
@converts("Convolution", params="0-6 8-16 18 19", inputs=(1, 3),
       limits="int8 weights, computed weights")  # fmt: skip
@converts("Convolution3D", params="0-6 9-18 21-24", limits="")
@converts("ConvolutionDepthWise1D", params="0-7 9 10 15 18 19", inputs=(1, 3),
       limits="computed weights")  # fmt: skip
@converts("ConvolutionDepthWise", params="0-16 18 19", inputs=(1, 3),
       limits="int8 weights, computed weights")  # fmt: skip
@converts("ConvolutionDepthWise3D", params="0-7 9-18 21-24")
def _convolution(layer: NcnnLayer, graph: Conversion, x: str, *computed: str) -> str:
    if computed or layer.integer(19):
        raise layer.unsupported_error("a convolution whose weights are computed")
    axes = _axes(layer)
    if len(axes) == 2 and len(graph.extents(x)) == 1 and all(a.kernel == 1 for a in axes):
        return _dense(layer, graph, x)
    count, groups = _outputs(layer), _groups(layer)
    _check_input(layer, graph, x, axes)
    channels, *sizes = graph.extents(x)
    kernel = [axis.kernel for axis in axes]
    weights = graph.weights.flagged(_weights(layer, channels, count, groups, kernel), layer)
    weights = weights.reshape(count, channels // groups, *kernel)
    padding = [axis.padding(size) for axis, size in zip(axes, sizes, strict=True)]
    value = layer.number(18)
    inputs = graph.weight(weights, "filter"), _bias(layer, graph, count)
    if value and any(map(any, padding)):
        around = [(0, 0), (0, 0), *padding]
        x = graph.op("pad", x, padding=around, border="constant", value=value)
        padding = [(0, 0) for _ in axes]
    elif all(axis.before == SAME_UPPER for axis in axes):
        padding = []  # NNEF's automatic padding
    result = graph.op(
        "conv",
        x,
        *inputs,
        padding=padding,
        stride=[axis.stride for axis in axes],
        dilation=[axis.dilation for axis in axes],
        groups=groups,
    )
    return apply_activation(layer, graph, result)


@converts(
    "Deconvolution1D", params="0-6 9 10 15 18 20 28", inputs=(1, 3), limits="computed weights"
)
@converts("Deconvolution", params="0-6 8-16 18-21 28", inputs=(1, 3),
       limits="int8 weights, computed weights")  # fmt: skip
@converts("Deconvolution3D", params="0-6 9-18 19-27")
@converts("DeconvolutionDepthWise1D", params="0-7 9 10 15 18 20 28", inputs=(1, 3),
       limits="computed weights")  # fmt: skip
@converts("DeconvolutionDepthWise", params="0-16 18-21 28", inputs=(1, 3),
       limits="int8 weights, computed weights")  # fmt: skip
@converts("DeconvolutionDepthWise3D", params="0-7 9-27")
def _deconvolution(layer: NcnnLayer, graph: Conversion, x: str, *computed: str) -> str:
    if computed or layer.integer(28):
        raise layer.unsupported_error("a deconvolution whose weights are computed")
    axes, count, groups = _axes(layer), _outputs(layer), _groups(layer)
    _check_input(layer, graph, x, axes)
    channels, *sizes = graph.extents(x)
    kernel = [axis.kernel for axis in axes]
    weights = graph.weights.flagged(_weights(layer, channels, count, groups, kernel), layer)
    weights = weights.reshape(groups, count // groups, channels // groups, *kernel)
    weights = weights.swapaxes(1, 2).reshape(channels, count // groups, *kernel)
    result = graph.op(
        "deconv",
        x,
        graph.weight(weights, "filter"),
        _bias(layer, graph, count),
        padding=_cut(layer, axes, sizes),
        stride=[axis.stride for axis in axes],
        dilation=[axis.dilation for axis in axes],
        groups=groups,
    )
    return apply_activation(layer, graph, result)


def _cut(
    layer: NcnnLayer, axes: Sequence[PaddedAxis], sizes: Sequence[int]
) -> list[tuple[int, int]]:
    """Returns the numbers of elements that a deconvolution crops before and after each axis.

    Output padding is a negative crop. A fixed output size is used only with "same" padding.
    """
    longer, fixed = ([0] * len(axes), [0] * len(axes))
    for values, ids in zip((longer, fixed), _OUTPUT_IDS[len(axes)], strict=True):
        first = layer.integer(ids[0])
        values[:] = [layer.integer(key, first) for key in ids][::-1]
    found = []
    for axis, size, more, wanted in zip(axes, sizes, longer, fixed, strict=True):
        if axis.before not in (SAME_UPPER, SAME_LOWER):
            found.append((axis.before, axis.behind - more))
            continue
        total = (size - 1) * axis.stride + axis.extent + more - wanted
        if wanted <= 0 or total < 0:
            raise layer.unsupported_error(f"'same' padding to an output of {wanted}")
        before, behind = halves(total, axis.before)
        found.append((before, behind - more))
    return found


def _axes(layer: NcnnLayer) -> list[PaddedAxis]:
    """Returns the window's axes, outermost first.

    A parameter that is missing has the width's value.
    """
    count = 1 if layer.type.endswith("1D") else 3 if layer.type.endswith("3D") else 2
    width = PaddedAxis(
        *(
            layer.integer(key, default)
            for key, default in zip(_IDS[0], (0, 1, 1, 0, 0), strict=True)
        )
    )
    found = []
    for ids in _IDS[:count]:
        kernel, dilation, stride, before = (
            layer.integer(key, default)
            for key, default in zip(
                ids[:4], (width.kernel, width.dilation, width.stride, width.before), strict=True
            )
        )
        found.append(PaddedAxis(kernel, dilation, stride, before, layer.integer(ids[4], before)))
        if min(kernel, dilation, stride) < 1:
            raise layer.damaged_error(f"kernel {kernel}, dilation {dilation}, stride {stride}")
    sides = {side for axis in found for side in (axis.before, axis.behind)}
    if min(sides) < 0 and sides not in ({SAME_UPPER}, {SAME_LOWER}):
        raise layer.damaged_error(f"padding by {sorted(sides)}")
    return found[::-1]


def _outputs(layer: NcnnLayer) -> int:
    layer.refuse(8, "int8 weights")
    return layer.integer(0)


def _groups(layer: NcnnLayer) -> int:
    return layer.integer(7, 1) if "DepthWise" in layer.type else 1


def _check_input(layer: NcnnLayer, graph: Conversion, x: str, axes: Sequence[PaddedAxis]) -> None:
    extents = graph.extents(x)
    if len(extents) != 1 + len(axes):
        shape = ",".join(map(str, extents))
        wanted = f"the channels and {len(axes)} more"
        raise layer.damaged_error(f"an input of [{shape}] without the batch: wanted {wanted}")


def _weights(
    layer: NcnnLayer, channels: int, count: int, groups: int, kernel: Sequence[int]
) -> int:
    """Returns the number of weights that the shapes require.

    Raises an error if the layer states another number.
    """
    if min(count, groups) < 1 or count % groups or channels % groups:
        raise layer.damaged_error(f"{channels} channels to {count} in {groups} groups")
    wanted = count * (channels // groups) * prod(kernel)
    if layer.integer(6) != wanted:
        what = f"{channels} channels to {count} by a kernel of {'x'.join(map(str, kernel))}"
        raise layer.damaged_error(f"{layer.integer(6)} weights where {what} want {wanted}")
    return wanted


def _bias(layer: NcnnLayer, graph: Conversion, count: int) -> str | float:
    return graph.raw(count, "bias") if layer.integer(5) else 0.0


def _dense(layer: NcnnLayer, graph: Conversion, x: str) -> str:
    """Converts a convolution of a vector with a kernel of size 1 to a matrix product."""
    count, (width,) = _outputs(layer), graph.extents(x)
    weights = graph.weights.flagged(_weights(layer, width, count, 1, (1,)), layer)
    filters = graph.weight(weights.reshape(count, width), "filter")
    return apply_activation(
        layer, graph, graph.op("linear", x, filters, _bias(layer, graph, count))
    )
