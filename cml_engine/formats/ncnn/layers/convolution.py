"""Convolution and deconvolution in one, two and three dimensions, with and without groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from cml_engine.formats.ncnn.conversion import Conversion
from cml_engine.formats.ncnn.layer_types import layer
from cml_engine.formats.ncnn.layers.activations import activated
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
        """Returns the padding before and after an axis of ``size`` elements; resolves "same"
        padding."""
        if self.before not in (SAME_UPPER, SAME_LOWER):
            return self.before, self.behind
        total = max(0, self.extent + (size - 1) // self.stride * self.stride - size)
        return halves(total, self.before)


def halves(total: int, kind: int) -> tuple[int, int]:
    """Splits a sum in two; the larger part is the last or the first one."""
    small, large = total // 2, total - total // 2
    return (small, large) if kind == SAME_UPPER else (large, small)


@layer("Convolution1D", params="0-6 9 10 15 18 19", inputs=(1, 3), limits="computed weights")
@layer("Convolution", params="0-6 8-16 18 19", inputs=(1, 3),
       limits="int8 weights, computed weights")  # fmt: skip
@layer("Convolution3D", params="0-6 9-18 21-24", limits="")
@layer("ConvolutionDepthWise1D", params="0-7 9 10 15 18 19", inputs=(1, 3),
       limits="computed weights")  # fmt: skip
@layer("ConvolutionDepthWise", params="0-16 18 19", inputs=(1, 3),
       limits="int8 weights, computed weights")  # fmt: skip
@layer("ConvolutionDepthWise3D", params="0-7 9-18 21-24")
def _convolution(one: NcnnLayer, to: Conversion, x: str, *computed: str) -> str:
    if computed or one.whole(19):
        raise one.unsupported("a convolution whose weights are computed")
    axes = _axes(one)
    if len(axes) == 2 and len(to.extents(x)) == 1 and all(a.kernel == 1 for a in axes):
        return _dense(one, to, x)
    count, groups = _outputs(one), _groups(one)
    _check_input(one, to, x, axes)
    channels, *sizes = to.extents(x)
    kernel = [axis.kernel for axis in axes]
    weights = to.weights.flagged(_weights(one, channels, count, groups, kernel), one)
    weights = weights.reshape(count, channels // groups, *kernel)
    padding = [axis.padding(size) for axis, size in zip(axes, sizes, strict=True)]
    value = one.number(18)
    inputs = to.weight(weights, "filter"), _bias(one, to, count)
    if value and any(map(any, padding)):
        around = [(0, 0), (0, 0), *padding]
        x = to.op("pad", x, padding=around, border="constant", value=value)
        padding = [(0, 0) for _ in axes]
    elif all(axis.before == SAME_UPPER for axis in axes):
        padding = []  # NNEF's automatic padding
    result = to.op(
        "conv",
        x,
        *inputs,
        padding=padding,
        stride=[axis.stride for axis in axes],
        dilation=[axis.dilation for axis in axes],
        groups=groups,
    )
    return activated(one, to, result)


@layer("Deconvolution1D", params="0-6 9 10 15 18 20 28", inputs=(1, 3), limits="computed weights")
@layer("Deconvolution", params="0-6 8-16 18-21 28", inputs=(1, 3),
       limits="int8 weights, computed weights")  # fmt: skip
@layer("Deconvolution3D", params="0-6 9-18 19-27")
@layer("DeconvolutionDepthWise1D", params="0-7 9 10 15 18 20 28", inputs=(1, 3),
       limits="computed weights")  # fmt: skip
@layer("DeconvolutionDepthWise", params="0-16 18-21 28", inputs=(1, 3),
       limits="int8 weights, computed weights")  # fmt: skip
@layer("DeconvolutionDepthWise3D", params="0-7 9-27")
def _deconvolution(one: NcnnLayer, to: Conversion, x: str, *computed: str) -> str:
    if computed or one.whole(28):
        raise one.unsupported("a deconvolution whose weights are computed")
    axes, count, groups = _axes(one), _outputs(one), _groups(one)
    _check_input(one, to, x, axes)
    channels, *sizes = to.extents(x)
    kernel = [axis.kernel for axis in axes]
    weights = to.weights.flagged(_weights(one, channels, count, groups, kernel), one)
    weights = weights.reshape(groups, count // groups, channels // groups, *kernel)
    weights = weights.swapaxes(1, 2).reshape(channels, count // groups, *kernel)
    result = to.op(
        "deconv",
        x,
        to.weight(weights, "filter"),
        _bias(one, to, count),
        padding=_cut(one, axes, sizes),
        stride=[axis.stride for axis in axes],
        dilation=[axis.dilation for axis in axes],
        groups=groups,
    )
    return activated(one, to, result)


def _cut(one: NcnnLayer, axes: Sequence[PaddedAxis], sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Returns the elements that a deconvolution crops on each side of each axis.

    Output padding is a negative crop. A fixed output size is used only with "same" padding.
    """
    longer, fixed = ([0] * len(axes), [0] * len(axes))
    for values, ids in zip((longer, fixed), _OUTPUT_IDS[len(axes)], strict=True):
        first = one.whole(ids[0])
        values[:] = [one.whole(key, first) for key in ids][::-1]
    found = []
    for axis, size, more, wanted in zip(axes, sizes, longer, fixed, strict=True):
        if axis.before not in (SAME_UPPER, SAME_LOWER):
            found.append((axis.before, axis.behind - more))
            continue
        total = (size - 1) * axis.stride + axis.extent + more - wanted
        if wanted <= 0 or total < 0:
            raise one.unsupported(f"'same' padding to an output of {wanted}")
        before, behind = halves(total, axis.before)
        found.append((before, behind - more))
    return found


def _axes(one: NcnnLayer) -> list[PaddedAxis]:
    """Returns the window's axes, outermost first; missing parameters default to the width's."""
    count = 1 if one.type.endswith("1D") else 3 if one.type.endswith("3D") else 2
    width = PaddedAxis(
        *(one.whole(key, default) for key, default in zip(_IDS[0], (0, 1, 1, 0, 0), strict=True))
    )
    found = []
    for ids in _IDS[:count]:
        kernel, dilation, stride, before = (
            one.whole(key, default)
            for key, default in zip(
                ids[:4], (width.kernel, width.dilation, width.stride, width.before), strict=True
            )
        )
        found.append(PaddedAxis(kernel, dilation, stride, before, one.whole(ids[4], before)))
        if min(kernel, dilation, stride) < 1:
            raise one.damaged(f"kernel {kernel}, dilation {dilation}, stride {stride}")
    sides = {side for axis in found for side in (axis.before, axis.behind)}
    if min(sides) < 0 and sides not in ({SAME_UPPER}, {SAME_LOWER}):
        raise one.damaged(f"padding by {sorted(sides)}")
    return found[::-1]


def _outputs(one: NcnnLayer) -> int:
    one.refuse(8, "int8 weights")
    return one.whole(0)


def _groups(one: NcnnLayer) -> int:
    return one.whole(7, 1) if "DepthWise" in one.type else 1


def _check_input(one: NcnnLayer, to: Conversion, x: str, axes: Sequence[PaddedAxis]) -> None:
    extents = to.extents(x)
    if len(extents) != 1 + len(axes):
        shape = ",".join(map(str, extents))
        wanted = f"the channels and {len(axes)} more"
        raise one.damaged(f"an input of [{shape}] without the batch: wanted {wanted}")


def _weights(one: NcnnLayer, channels: int, count: int, groups: int, kernel: Sequence[int]) -> int:
    """Returns the number of weights; raises an error if it differs from the shapes' product."""
    if min(count, groups) < 1 or count % groups or channels % groups:
        raise one.damaged(f"{channels} channels to {count} in {groups} groups")
    wanted = count * (channels // groups) * prod(kernel)
    if one.whole(6) != wanted:
        what = f"{channels} channels to {count} by a kernel of {'x'.join(map(str, kernel))}"
        raise one.damaged(f"{one.whole(6)} weights where {what} want {wanted}")
    return wanted


def _bias(one: NcnnLayer, to: Conversion, count: int) -> str | float:
    return to.raw(count, "bias") if one.whole(5) else 0.0


def _dense(one: NcnnLayer, to: Conversion, x: str) -> str:
    """Converts a convolution of a vector by kernels of one value as a matrix product."""
    count, (width,) = _outputs(one), to.extents(x)
    weights = to.weights.flagged(_weights(one, width, count, 1, (1,)), one)
    filters = to.weight(weights.reshape(count, width), "filter")
    return activated(one, to, to.op("linear", x, filters, _bias(one, to, count)))
