"""Converts stored tensors, and layers that move elements without computing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

import numpy as np

from cml_engine.formats.ncnn.conversion import ANY, AXES, NcnnLayer, NcnnTensor, converts, joined
from cml_engine.formats.ncnn.files import EXTENTS, MISSING
from cml_engine.io.load_limits import current_budget

#: ncnn's axis orders by number, innermost first.
_ORDERS = {
    2: "WH HW",
    3: "WHC HWC WCH CWH HCW CHW",
    4: "WHDC HWDC WDHC DWHC HDWC DHWC WHCD HWCD WCHD CWHD HCWD CHWD WDCH DWCH WCDH CWDH DCWH CDWH "
       "HDCW DHCW HCDW CHDW DCHW CDHW",
}  # fmt: skip
#: The parameter of the offset along each axis.
_OFFSETS = {"W": 0, "H": 1, "D": 13, "C": 2}
#: ncnn's number of an axis that is not the batch.
_NO_AXIS = 233

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


@converts("Crop", params="0-11 13-15 19-21", inputs=(1, ANY), limits="positions that are computed")
def _crop(layer: NcnnLayer, x: NcnnTensor, *reference: NcnnTensor) -> NcnnTensor:
    extents = x.extents
    if layer.text(19):
        starts, ends = (layer.sizes(key, x, *reference) for key in (19, 20))
        axes = layer.sizes(21, x, *reference) if layer.text(21) else []
        begin, end = _by_axes(layer, x, starts, ends, axes)
    elif layer.integers(9):
        begin, end = _by_axes(layer, x, *map(layer.integers, (9, 10, 11)))
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


def _by_axes(
    layer: NcnnLayer, x: NcnnTensor, starts: list[int], ends: list[int], axes: list[int]
) -> tuple[list[int], list[int]]:
    extents = x.extents
    axes = axes or list(range(len(extents)))
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
    keys = AXES[len(extents)]
    size = {"W": 3, "H": 4, "D": 14, "C": 5}
    after = {"W": 6, "H": 7, "D": 15, "C": 8}
    if any(layer.integer(_OFFSETS[key]) == MISSING for key in keys):
        raise layer.unsupported_error("a crop whose place is computed")
    begin = [layer.integer(_OFFSETS[key]) for key in keys]
    if len(reference) > 1:
        raise layer.damaged_error(f"{1 + len(reference)} inputs")
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


@converts("CopyTo", params="0-2 9 11 13", inputs=(2, 2))
def _copy_to(layer: NcnnLayer, x: NcnnTensor, part: NcnnTensor) -> NcnnTensor:
    """Converts CopyTo: ``x`` with ``part`` in place of the elements from a position on."""
    extents, rank = x.extents, len(x.extents)
    if layer.integers(9):
        starts, axes = layer.integers(9), layer.integers(11) or list(range(rank))
        if len(starts) != len(axes):
            raise layer.damaged_error(f"{len(starts)} starts, {len(axes)} axes")
        begin = [0] * rank
        for axis, first in zip(axes, starts, strict=True):
            index = x.axis(axis) - 1
            begin[index] = 0 if first == MISSING else first + extents[index] * (first < 0)
    else:
        begin = [layer.integer(_OFFSETS[letter]) for letter in AXES[rank]]
    inner = list(part.extents)
    if len(inner) > rank:
        raise layer.damaged_error(f"a part of {inner} for {list(extents)}")
    # missing axes are the outermost; in a volume of four axes depth comes after the channels
    inner = [*inner[: len(inner) == 3 and rank == 4], *[1] * (rank - len(inner)),
             *inner[len(inner) == 3 and rank == 4 :]]  # fmt: skip
    ends = [first + n for first, n in zip(begin, inner, strict=True)]
    if any(not 0 <= a < b <= n for a, b, n in zip(begin, ends, extents, strict=True)):
        raise layer.damaged_error(f"from {begin} to {ends} of {list(extents)}")
    return _replaced(x, part.reshape(inner), begin, ends, 1)


def _replaced(
    x: NcnnTensor, part: NcnnTensor, begin: Sequence[int], end: Sequence[int], axis: int
) -> NcnnTensor:
    """Returns ``x`` with ``part`` between two positions on the axes from ``axis`` on."""
    if axis > len(begin):
        return part
    first, last, extent = begin[axis - 1], end[axis - 1], x.extents[axis - 1]

    def slab(a: int, b: int) -> list[NcnnTensor]:
        return [x.slice(axes=[axis], begin=[a], end=[b])] if a < b else []

    before, after = slab(0, first), slab(last, extent)
    within = slab(first, last)[0] if before or after else x
    return joined([*before, _replaced(within, part, begin, end, axis + 1), *after], axis)


# -- other axes --------------------------------------------------------------------------------


@converts("Permute", params="0")
def _permute(layer: NcnnLayer, x: NcnnTensor) -> NcnnTensor:
    rank, number = len(x.extents), layer.integer(0)
    orders = _ORDERS.get(rank, "W").split()
    if not 0 <= number < len(orders):
        raise layer.damaged_error(f"order {number} of {rank} axes")
    if number == 0:
        return x
    return x.permute([AXES[rank].index(letter) for letter in reversed(orders[number])])


@converts("Flip", params="0")
def _flip(layer: NcnnLayer, x: NcnnTensor) -> NcnnTensor:
    axes = {x.axis(axis) for axis in layer.integers(0)}
    if not axes:
        raise layer.damaged_error("no axes")
    for axis in sorted(axes):
        x = x.take(np.arange(x.extents[axis - 1])[::-1], axis)
    return x


@converts("Diag", params="0")
def _diagonal(layer: NcnnLayer, x: NcnnTensor) -> NcnnTensor:
    """Converts Diag: a matrix with a vector in a diagonal, or the diagonal of a matrix.

    Parameter 0 is the diagonal's distance above the main one.
    """
    distance, extents = layer.integer(0), x.extents
    start = max(distance, 0), max(-distance, 0)  # column, row
    if len(extents) == 2:
        length = min(extents[0] - start[1], extents[1] - start[0])
        if length < 1:
            raise layer.damaged_error(f"diagonal {distance} of {list(extents)}")
        places = (np.arange(length) + start[1]) * extents[1] + np.arange(length) + start[0]
        return x.reshape([-1]).take(places, 1)
    if len(extents) != 1:
        raise layer.unsupported_error(f"an input of {len(extents)} axes")
    (length,) = extents
    size = length + abs(distance)
    current_budget().check_bytes(4 * size * (size + 1), "its matrix", layer.source)
    # rows one longer than the matrix's: the elements of the diagonal are their first ones
    rows = x.reshape([length, 1]).pad(padding=[(0, 0), (0, 0), (0, size)])
    first = start[1] * size + start[0]
    flat = rows.reshape([-1]).slice(axes=[1], begin=[0], end=[(length - 1) * (size + 1) + 1])
    padding = [(0, 0), (first, size * size - first - flat.extents[0])]
    return flat.pad(padding=padding).reshape([size, size])


@converts("Flatten")
def _flatten(layer: NcnnLayer, x: NcnnTensor) -> NcnnTensor:
    return x.reshape([-1])


@converts("Reshape", params="0-3 6 11-13", inputs=(1, ANY), limits="a batch of more than 1")
def _reshape(layer: NcnnLayer, x: NcnnTensor, *references: NcnnTensor) -> NcnnTensor:
    if layer.text(6):
        stated_shape = layer.sizes(6, x, *references)[::-1]
    else:
        sizes = [layer.integer(key, MISSING) for key in EXTENTS]
        stated_shape = [size for size in sizes if size != MISSING][::-1]
        if not stated_shape or MISSING in sizes[: 2 if len(stated_shape) > 1 else 1]:
            raise layer.damaged_error(f"the shape {sizes}")
    batch_axes = [layer.integer(key, _NO_AXIS) for key in (12, 13)]
    if batch_axes != [_NO_AXIS, _NO_AXIS]:
        shape = _without_batch(layer, x.extents, stated_shape, *batch_axes)
    elif len(stated_shape) not in AXES:
        raise layer.damaged_error(f"the shape {stated_shape}")
    else:
        # 0 stands for the input's extent of the same name, or 1 if the input has none
        extent_by_axis = dict(zip(AXES[len(x.extents)], x.extents, strict=True))
        letters = AXES[len(stated_shape)]
        shape = [
            n or extent_by_axis.get(name, 1) for name, n in zip(letters, stated_shape, strict=True)
        ]
    result = x.op("reshape", shape=shape, axis_start=1)
    is_same_outermost = len(shape) == len(x.extents) and result.extents[0] == x.extents[0]
    if not layer.integer(3) or is_same_outermost:
        return result
    return _reshaped_innermost(x, result.extents)


def _without_batch(
    layer: NcnnLayer,
    extents: Sequence[int],
    stated_shape: Sequence[int],
    input_axis: int,
    output_axis: int,
) -> list[int]:
    """Returns the shape of a reshape between shapes with a batch, without the result's batch.

    The batch of 1 is axis ``input_axis`` of the input and ``output_axis`` of ``stated_shape``. A
    stated 0 is the input's extent at the same position.
    """

    def position(axis: int, rank: int) -> int:
        if not -rank <= axis < rank:
            raise layer.damaged_error(f"batch axis {axis} of {rank}")
        return axis % rank

    source, shape = list(extents), list(stated_shape)
    if input_axis != _NO_AXIS:
        source.insert(position(input_axis, len(source) + 1), 1)
    if any(n == 0 and i >= len(source) for i, n in enumerate(shape)):
        raise layer.damaged_error(f"the shape {shape} from {source}")
    shape = [n or source[i] for i, n in enumerate(shape)]
    if output_axis != _NO_AXIS:
        batch = shape.pop(position(output_axis, len(shape)))
        if batch < 0:
            batch, rest = divmod(prod(extents), prod(shape))
            batch = batch if not rest else -1
        if batch != 1:
            raise layer.unsupported_error(f"a reshape to a batch of {batch}")
    if len(shape) not in AXES:
        raise layer.damaged_error(f"the shape {list(stated_shape)}")
    return shape


def _reshaped_innermost(x: NcnnTensor, extents: Sequence[int]) -> NcnnTensor:
    """Reshapes a tensor in an order of its elements with the channels innermost.

    ncnn had this option until 2025, for models of TensorFlow. The outermost axis of ``x`` and of
    the result is the innermost one in that order.
    """
    order = [*range(1, len(x.extents)), 0]
    x = x.permute(order).reshape([*extents[1:], extents[0]])
    return x if len(extents) == 1 else x.permute([len(extents) - 1, *range(len(extents) - 1)])


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
    letters = AXES[rank]
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
    if not extents or min(extents) < 0:
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
