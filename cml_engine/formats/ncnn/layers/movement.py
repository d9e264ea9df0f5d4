"""Converts stored tensors, and layers that move elements without computing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from cml_engine.formats.ncnn.conversion import ANY, NcnnLayer, NcnnTensor, converts
from cml_engine.formats.ncnn.files import EXTENTS, MISSING

#: ncnn's axis orders by number, innermost first.
_ORDERS = {
    2: "WH HW",
    3: "WHC HWC WCH CWH HCW CHW",
    4: "WHDC HWDC WDHC DWHC HDWC DHWC WHCD HWCD WCHD CWHD HCWD CHWD WDCH DWCH WCDH CWDH DCWH CDWH "
       "HDCW DHCW HCDW CHDW DCHW CDHW",
}  # fmt: skip
_AXES = {1: "W", 2: "HW", 3: "CHW", 4: "CDHW"}

# -- parts and wholes --------------------------------------------------------------------------


@converts("Concat", params="0", inputs=(1, ANY))
def _concat(layer: NcnnLayer, *inputs: NcnnTensor) -> NcnnTensor:
    return layer.op("concat", *inputs, axis=inputs[0].axis(layer.integer(0)))


@converts("Slice", params="0-2", outputs=(1, ANY))
def _slice(layer: NcnnLayer, x: NcnnTensor) -> list[NcnnTensor]:
    axis = x.axis(layer.integer(1))
    extent = x.extents[axis - 1]
    ends = _ends(layer, extent)
    if ends[-1] != extent or any(a >= b for a, b in pairwise([0, *ends])):
        raise layer.damaged_error(f"parts that end at {ends} of {extent}")
    sizes = [b - a for a, b in pairwise([0, *ends])]
    return x.split(axis, [1] * len(sizes) if len(set(sizes)) == 1 else sizes)


def _ends(layer: NcnnLayer, extent: int) -> list[int]:
    """Returns the end position of each part of a split of an axis of ``extent`` elements.

    The layer states positions, or sizes; parts without a size share the remaining elements.
    """
    count, positions = len(layer.outputs), layer.integers(2)
    if positions:
        ends = [position + extent if position < 0 else position for position in positions]
        ends = [*ends, extent] if len(ends) == count - 1 else ends
    else:
        ends = []
        for i, size in enumerate(layer.integers(0)):
            start = ends[-1] if ends else 0
            ends.append(
                start + ((extent - start) // max(1, count - i) if size == MISSING else size)
            )
    if len(ends) != count:
        raise layer.damaged_error(f"{len(ends)} parts for {count} outputs")
    return ends


@converts("Crop", params="0-11 13-15 19-21", inputs=(1, 2), limits="positions that are computed")
def _crop(layer: NcnnLayer, x: NcnnTensor, *reference: NcnnTensor) -> NcnnTensor:
    if any(map(layer.text, (19, 20, 21))):
        raise layer.unsupported_error("a place that is an expression")
    extents = x.extents
    if layer.integers(9):
        begin, end = _by_axes(layer, x)
    else:
        begin, end = _by_offsets(layer, extents, reference)
    for first, last, extent in zip(begin, end, extents, strict=True):
        if not 0 <= first < last <= extent:
            raise layer.damaged_error(f"from {begin} to {end} of {list(extents)}")
    cropped_axes = [i for i, n in enumerate(extents) if (begin[i], end[i]) != (0, n)]
    if not cropped_axes:
        return x
    return x.slice(
        axes=[1 + i for i in cropped_axes],
        begin=[begin[i] for i in cropped_axes],
        end=[end[i] if end[i] != extents[i] else 0 for i in cropped_axes],  # 0 means up to the end
    )


def _by_axes(layer: NcnnLayer, x: NcnnTensor) -> tuple[list[int], list[int]]:
    extents, starts, ends = x.extents, layer.integers(9), layer.integers(10)
    axes = layer.integers(11) or list(range(len(extents)))
    if not len(starts) == len(ends) == len(axes):
        raise layer.damaged_error(f"{len(starts)} starts, {len(ends)} ends, {len(axes)} axes")
    begin, end = [0] * len(extents), list(extents)
    for axis, first, last in zip(axes, starts, ends, strict=True):
        index = x.axis(axis) - 1
        n = extents[index]
        begin[index] = 0 if first == MISSING else first + n if first < 0 else first
        end[index] = n if last == MISSING else last + n if last < 0 else min(last, n)
    return begin, end


def _by_offsets(
    layer: NcnnLayer, extents: Sequence[int], reference: Sequence[NcnnTensor]
) -> tuple[list[int], list[int]]:
    """Returns the begin and the end of a crop on each axis.

    The layer states an offset at the front, and a size or an offset at the back. ``reference``,
    if there is one, is an input whose extents are the size.
    """
    keys = _AXES[len(extents)]
    before = {"W": 0, "H": 1, "D": 13, "C": 2}
    size = {"W": 3, "H": 4, "D": 14, "C": 5}
    after = {"W": 6, "H": 7, "D": 15, "C": 8}
    if any(layer.integer(before[key]) == MISSING for key in keys):
        raise layer.unsupported_error("a crop whose place is computed")
    begin = [layer.integer(before[key]) for key in keys]
    if reference:
        reference_size = list(reference[0].extents)
        if len(reference_size) != len(extents) and (len(reference_size), len(extents)) != (2, 3):
            raise layer.damaged_error(f"the size {reference_size} from {list(extents)}")
        reference_size = [*extents[: len(extents) - len(reference_size)], *reference_size]
        return begin, [first + n for first, n in zip(begin, reference_size, strict=True)]
    end = []
    for key, first, n in zip(keys, begin, extents, strict=True):
        available = n - first - layer.integer(after[key])
        stated_size = layer.integer(size[key])
        if not stated_size:
            raise layer.damaged_error(f"no size: parameter {size[key]}")
        end.append(first + (min(stated_size, available) if stated_size > 0 else available))
    return begin, end


@converts("Padding", params="0-8", limits="values for each channel, sizes that are computed")
def _padding(layer: NcnnLayer, x: NcnnTensor) -> NcnnTensor:
    mode, rank = layer.integer(4), len(x.extents)
    layer.refuse(6, "a value for each channel")
    if mode not in (0, 1, 2):
        raise layer.unsupported_error(f"padding of type {mode}")
    padding = [(layer.integer(a), layer.integer(b)) for a, b in ((7, 8), (0, 1), (2, 3))]
    padding = padding[-rank:] if rank <= 3 else [(0, 0), *padding]
    if any(n < 0 for pair in padding for n in pair):
        raise layer.unsupported_error(f"padding by {padding}")
    if mode == 2 and any(max(pair) >= n for pair, n in zip(padding, x.extents, strict=True)):
        raise layer.damaged_error(f"a reflection by {padding} of {list(x.extents)}")
    border = ("constant", "replicate", "reflect")[mode]
    value = layer.number(5) if mode == 0 else 0.0
    return x.pad(padding=[(0, 0), *padding], border=border, value=value)


@converts("Tile", params="0-2")
def _tile(layer: NcnnLayer, x: NcnnTensor) -> NcnnTensor:
    extents, repeats = x.extents, layer.integers(2)
    if not repeats:
        repeats = [1] * len(extents)
        repeats[x.axis(layer.integer(0)) - 1] = layer.integer(1, 1)
    if len(repeats) > len(extents):
        # new axes become the outermost, except that depth comes after the channels
        ones = [1] * (len(repeats) - len(extents))
        position = 1 if len(repeats) == 4 and len(extents) == 3 else 0
        x = x.reshape([*extents[:position], *ones, *extents[position:]])
    repeats = [1] * (len(x.extents) - len(repeats)) + repeats
    if min(repeats) < 1:
        raise layer.damaged_error(f"{repeats} times")
    return x.tile(repeats=[1, *repeats])


# -- other axes --------------------------------------------------------------------------------


@converts("Permute", params="0")
def _permute(layer: NcnnLayer, x: NcnnTensor) -> NcnnTensor:
    rank, number = len(x.extents), layer.integer(0)
    orders = _ORDERS.get(rank, "W").split()
    if not 0 <= number < len(orders):
        raise layer.damaged_error(f"order {number} of {rank} axes")
    if number == 0:
        return x
    return x.permute([_AXES[rank].index(letter) for letter in reversed(orders[number])])


@converts("Flatten")
def _flatten(layer: NcnnLayer, x: NcnnTensor) -> NcnnTensor:
    return x.reshape([-1])


@converts("Reshape", params="0-3 6 11-13", inputs=(1, ANY),
       limits="shapes given as an expression")  # fmt: skip
def _reshape(layer: NcnnLayer, x: NcnnTensor, *computed: NcnnTensor) -> NcnnTensor:
    layer.refuse(3, "a reshape with the channels innermost")
    if computed or layer.text(6) or 12 in layer.params or 13 in layer.params:
        raise layer.unsupported_error("a shape that is an expression")
    sizes = [layer.integer(key, MISSING) for key in EXTENTS]
    stated_shape = [size for size in sizes if size != MISSING][::-1]
    if not stated_shape or MISSING in sizes[: 2 if len(stated_shape) > 1 else 1]:
        raise layer.damaged_error(f"the shape {sizes}")
    if len(stated_shape) == len(x.extents):
        return x.op("reshape", shape=stated_shape, axis_start=1)
    # 0 stands for the input's extent of the same name, or 1 if the input has none
    extent_by_axis = dict(zip(_AXES[len(x.extents)], x.extents, strict=True))
    names = _AXES[len(stated_shape)]
    shape = [n or extent_by_axis.get(name, 1) for name, n in zip(names, stated_shape, strict=True)]
    return x.op("reshape", shape=shape, axis_start=1)


@converts("Squeeze", params="0-3 11")
def _squeeze(layer: NcnnLayer, x: NcnnTensor) -> NcnnTensor:
    extents = x.extents
    axes = [x.axis(axis) for axis in layer.integers(3)] or _flagged(layer, len(extents))
    removed_axes = [axis for axis in axes if extents[axis - 1] == 1]
    kept_extents = [n for axis, n in enumerate(extents, 1) if axis not in removed_axes]
    return x.reshape(kept_extents or [1])


@converts("ExpandDims", params="0-3 11")
def _expand_dims(layer: NcnnLayer, x: NcnnTensor) -> NcnnTensor:
    extents, axes = list(x.extents), layer.integers(3)
    rank = len(extents)
    if not axes:
        raise layer.unsupported_error("axes by their names")
    total = rank + len(axes)
    positions = sorted({axis % total for axis in axes if -total <= axis < total})
    if len(positions) != len(axes) or total > 4:
        raise layer.damaged_error(f"axes {axes} in {rank}")
    for position in positions:
        extents.insert(position, 1)
    return x.reshape(extents)


def _flagged(layer: NcnnLayer, rank: int) -> list[int]:
    """Returns the axes, in NNEF's numbering, that a layer selects by flags for W, H, D and C."""
    letters = _AXES[rank]
    keys = dict(zip("WHDC", EXTENTS, strict=True))
    return [i for i, letter in enumerate(letters, 1) if layer.integer(keys[letter])]


# -- between channels and space ----------------------------------------------------------------


@converts("PixelShuffle", params="0-1")
def _pixel_shuffle(layer: NcnnLayer, x: NcnnTensor) -> NcnnTensor:
    """Converts PixelShuffle, which moves channels to space: (C r r, H, W) -> (C, H r, W r).

    In mode 1 the blocks' positions are the outer part of the channel index, in mode 0 the inner
    one.
    """
    factor, mode = _block(layer, x)
    if x.extents[0] % (factor * factor):
        raise layer.damaged_error(f"{x.extents[0]} channels by {factor} x {factor}")
    split = x.unflatten(1, [-1, factor, factor] if mode == 0 else [factor, factor, -1])
    interleaved = split.permute([0, 3, 1, 4, 2] if mode == 0 else [2, 3, 0, 4, 1])
    return interleaved.merge(2, 2).merge(3, 2)


@converts("Reorg", params="0-1")
def _reorg(layer: NcnnLayer, x: NcnnTensor) -> NcnnTensor:
    """Converts Reorg, which moves space to channels: (C, H s, W s) -> (C s s, H, W).

    In mode 1 the blocks' positions are the outer part of the channel index, in mode 0 the inner
    one.
    """
    stride, mode = _block(layer, x)
    _, height, width = x.extents
    if height % stride or width % stride:
        raise layer.damaged_error(f"{height} x {width} by {stride}")
    split = x.unflatten(2, [-1, stride]).unflatten(4, [-1, stride])
    order = [0, 2, 4, 1, 3] if mode == 0 else [2, 4, 0, 1, 3]
    return split.permute(order).merge(1, 3)


def _block(layer: NcnnLayer, x: NcnnTensor) -> tuple[int, int]:
    factor, mode = layer.integer(0, 1), layer.integer(1)
    if factor < 1 or mode not in (0, 1) or len(x.extents) != 3:
        raise layer.unsupported_error(f"factor {factor}, mode {mode}, {len(x.extents)} axes")
    return factor, mode


@converts("ShuffleChannel", params="0-1")
def _shuffle_channel(layer: NcnnLayer, x: NcnnTensor) -> NcnnTensor:
    channels, *spatial = x.extents
    groups = layer.integer(0, 1)
    if groups < 1 or channels % groups:
        raise layer.damaged_error(f"{channels} channels in {groups} groups")
    if layer.integer(1):
        groups = channels // groups
    split = x.unflatten(1, [groups, channels // groups])
    return split.permute([1, 0, *range(2, 2 + len(spatial))]).merge(1, 2)


# -- inputs, stored tensors, and layers that only rename ------------------------------------------


@converts("Input", params="0-2 11", inputs=(0, 0))
def _input(layer: NcnnLayer) -> NcnnTensor:
    raise AssertionError("inputs are made before the layers")


@converts("MemoryData", params="0-2 11 21", inputs=(0, 0))
def _memory_data(layer: NcnnLayer) -> NcnnTensor:
    width, height, depth, channels = (layer.integer(key) for key in EXTENTS)
    extents = [n for n in (channels, depth, height, width) if n]
    if any(n < 0 for n in extents):
        raise layer.damaged_error(f"the shape {extents}")
    if layer.integer(21, 1) not in (0, 1):
        raise layer.unsupported_error(f"values loaded as type {layer.integer(21)}")
    read_values = layer.weights.raw if layer.integer(21, 1) else layer.weights.flagged
    values = read_values(prod(extents), layer).reshape(1, *extents)
    return NcnnTensor(layer.builder.variable(layer.outputs[0], values), layer)


@converts("Split", outputs=(1, ANY))
def _split(layer: NcnnLayer, x: NcnnTensor) -> list[NcnnTensor]:
    return [x] * len(layer.outputs)


@converts("Noop", inputs=(0, ANY), outputs=(0, ANY))
def _noop(layer: NcnnLayer, *inputs: NcnnTensor) -> list[NcnnTensor]:
    return list(inputs)


@converts("DeepCopy")
@converts("Packing", params="0-5")
def _identity(layer: NcnnLayer, x: NcnnTensor) -> NcnnTensor:
    return x


@converts("Cast", params="0-1", limits="8-bit types")
def _cast(layer: NcnnLayer, x: NcnnTensor) -> NcnnTensor:
    if 3 in (layer.integer(0), layer.integer(1)):
        raise layer.unsupported_error("8-bit values")
    return x


@converts("Dropout", params="0")
def _dropout(layer: NcnnLayer, x: NcnnTensor) -> NcnnTensor:
    scale = layer.number(0, 1.0)
    return x if scale == 1.0 else x * scale
