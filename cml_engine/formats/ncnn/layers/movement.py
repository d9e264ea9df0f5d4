"""Layers that move elements without computing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from cml_engine.formats.ncnn.conversion import Conversion
from cml_engine.formats.ncnn.inputs import EXTENTS
from cml_engine.formats.ncnn.layer_types import ANY, layer
from cml_engine.formats.ncnn.param import MISSING, NcnnLayer

#: ncnn's axis orders by number, innermost first.
_ORDERS = {
    2: "WH HW",
    3: "WHC HWC WCH CWH HCW CHW",
    4: "WHDC HWDC WDHC DWHC HDWC DHWC WHCD HWCD WCHD CWHD HCWD CHWD WDCH DWCH WCDH CWDH DCWH CDWH "
       "HDCW DHCW HCDW CHDW DCHW CDHW",
}  # fmt: skip
_AXES = {1: "W", 2: "HW", 3: "CHW", 4: "CDHW"}

# -- parts and wholes --------------------------------------------------------------------------


@layer("Concat", params="0", inputs=(1, ANY))
def _concat(one: NcnnLayer, to: Conversion, *inputs: str) -> str:
    return to.op("concat", *inputs, axis=to.axis(inputs[0], one.whole(0)))


@layer("Slice", params="0-2", outputs=(1, ANY))
def _slice(one: NcnnLayer, to: Conversion, x: str) -> list[str]:
    axis = to.axis(x, one.whole(1))
    extent = to.extents(x)[axis - 1]
    ends = _ends(one, extent)
    if ends[-1] != extent or any(a >= b for a, b in pairwise([0, *ends])):
        raise one.damaged(f"parts that end at {ends} of {extent}")
    sizes = [b - a for a, b in pairwise([0, *ends])]
    equal = len(set(sizes)) == 1
    ratios = [1] * len(sizes) if equal else sizes
    return to.ops("split", len(sizes), x, axis=axis, ratios=ratios)


def _ends(one: NcnnLayer, extent: int) -> list[int]:
    """Returns the end position of each part of a split.

    The layer states positions, or sizes of which some share the remaining extent.
    """
    count, places = len(one.outputs), one.wholes(2)
    if places:
        found = [place + extent if place < 0 else place for place in places]
        found = [*found, extent] if len(found) == count - 1 else found
    else:
        found = []
        for i, size in enumerate(one.wholes(0)):
            at = found[-1] if found else 0
            found.append(at + ((extent - at) // max(1, count - i) if size == MISSING else size))
    if len(found) != count:
        raise one.damaged(f"{len(found)} parts for {count} outputs")
    return found


@layer("Crop", params="0-11 13-15 19-21", inputs=(1, 2), limits="positions that are computed")
def _crop(one: NcnnLayer, to: Conversion, x: str, *reference: str) -> str:
    if any(map(one.text, (19, 20, 21))):
        raise one.unsupported("a place that is an expression")
    extents = to.extents(x)
    if one.wholes(9):
        begin, end = _by_axes(one, to, x)
    else:
        begin, end = _by_offsets(one, to, extents, reference)
    for first, last, extent in zip(begin, end, extents, strict=True):
        if not 0 <= first < last <= extent:
            raise one.damaged(f"from {begin} to {end} of {list(extents)}")
    kept = [i for i, n in enumerate(extents) if (begin[i], end[i]) != (0, n)]
    if not kept:
        return x
    return to.op(
        "slice",
        x,
        axes=[1 + i for i in kept],
        begin=[begin[i] for i in kept],
        end=[end[i] if end[i] != extents[i] else 0 for i in kept],  # 0 means up to the end
    )


def _by_axes(one: NcnnLayer, to: Conversion, x: str) -> tuple[list[int], list[int]]:
    extents, starts, ends = to.extents(x), one.wholes(9), one.wholes(10)
    axes = one.wholes(11) or list(range(len(extents)))
    if not len(starts) == len(ends) == len(axes):
        raise one.damaged(f"{len(starts)} starts, {len(ends)} ends, {len(axes)} axes")
    begin, end = [0] * len(extents), list(extents)
    for axis, first, last in zip(axes, starts, ends, strict=True):
        at = to.axis(x, axis) - 1
        n = extents[at]
        begin[at] = 0 if first == MISSING else first + n if first < 0 else first
        end[at] = n if last == MISSING else last + n if last < 0 else min(last, n)
    return begin, end


def _by_offsets(
    one: NcnnLayer, to: Conversion, extents: Sequence[int], reference: Sequence[str]
) -> tuple[list[int], list[int]]:
    """Returns the begin and the end of a crop on each axis.

    The layer states offsets at both ends or sizes; a second input gives the sizes.
    """
    keys = _AXES[len(extents)]
    before = {"W": 0, "H": 1, "D": 13, "C": 2}
    size = {"W": 3, "H": 4, "D": 14, "C": 5}
    behind = {"W": 6, "H": 7, "D": 15, "C": 8}
    if any(one.whole(before[key]) == MISSING for key in keys):
        raise one.unsupported("a crop whose place is computed")
    begin = [one.whole(before[key]) for key in keys]
    if reference:
        wanted = list(to.extents(reference[0]))
        if len(wanted) != len(extents) and (len(wanted), len(extents)) != (2, 3):
            raise one.damaged(f"the size {wanted} from {list(extents)}")
        wanted = [*extents[: len(extents) - len(wanted)], *wanted]
        return begin, [first + n for first, n in zip(begin, wanted, strict=True)]
    end = []
    for key, first, n in zip(keys, begin, extents, strict=True):
        left = n - first - one.whole(behind[key])
        given = one.whole(size[key])
        if not given:
            raise one.damaged(f"no size: parameter {size[key]}")
        end.append(first + (min(given, left) if given > 0 else left))
    return begin, end


@layer("Padding", params="0-8", limits="values for each channel, sizes that are computed")
def _padding(one: NcnnLayer, to: Conversion, x: str) -> str:
    kind, rank = one.whole(4), len(to.extents(x))
    one.refuse(6, "a value for each channel")
    if kind not in (0, 1, 2):
        raise one.unsupported(f"padding of type {kind}")
    sides = [(one.whole(a), one.whole(b)) for a, b in ((7, 8), (0, 1), (2, 3))]
    sides = sides[-rank:] if rank <= 3 else [(0, 0), *sides]
    if any(n < 0 for side in sides for n in side):
        raise one.unsupported(f"padding by {sides}")
    if kind == 2 and any(max(side) >= n for side, n in zip(sides, to.extents(x), strict=True)):
        raise one.damaged(f"a reflection by {sides} of {list(to.extents(x))}")
    border = ("constant", "replicate", "reflect")[kind]
    value = one.number(5) if kind == 0 else 0.0
    return to.op("pad", x, padding=[(0, 0), *sides], border=border, value=value)


@layer("Tile", params="0-2")
def _tile(one: NcnnLayer, to: Conversion, x: str) -> str:
    extents, repeats = to.extents(x), one.wholes(2)
    if not repeats:
        repeats = [1] * len(extents)
        repeats[to.axis(x, one.whole(0)) - 1] = one.whole(1, 1)
    if len(repeats) > len(extents):
        # new axes become the outermost, except that depth comes after the channels
        new = [1] * (len(repeats) - len(extents))
        place = 1 if len(repeats) == 4 and len(extents) == 3 else 0
        x = to.reshaped(x, [*extents[:place], *new, *extents[place:]])
    repeats = [1] * (len(to.extents(x)) - len(repeats)) + repeats
    if min(repeats) < 1:
        raise one.damaged(f"{repeats} times")
    return to.op("tile", x, repeats=[1, *repeats])


# -- other axes --------------------------------------------------------------------------------


@layer("Permute", params="0")
def _permute(one: NcnnLayer, to: Conversion, x: str) -> str:
    rank, number = len(to.extents(x)), one.whole(0)
    orders = _ORDERS.get(rank, "W").split()
    if not 0 <= number < len(orders):
        raise one.damaged(f"order {number} of {rank} axes")
    if number == 0:
        return x
    return to.permuted(x, [_AXES[rank].index(letter) for letter in reversed(orders[number])])


@layer("Flatten")
def _flatten(one: NcnnLayer, to: Conversion, x: str) -> str:
    return to.reshaped(x, [-1])


@layer("Reshape", params="0-3 6 11-13", inputs=(1, ANY),
       limits="shapes given as an expression")  # fmt: skip
def _reshape(one: NcnnLayer, to: Conversion, x: str, *rest: str) -> str:
    one.refuse(3, "a reshape with the channels innermost")
    if rest or one.text(6) or 12 in one.params or 13 in one.params:
        raise one.unsupported("a shape that is an expression")
    sizes = [one.whole(key, MISSING) for key in EXTENTS]
    wanted = [size for size in sizes if size != MISSING][::-1]
    if not wanted or MISSING in sizes[: 2 if len(wanted) > 1 else 1]:
        raise one.damaged(f"the shape {sizes}")
    if len(wanted) == len(to.extents(x)):
        return to.op("reshape", x, shape=wanted, axis_start=1)
    # 0 stands for the input's extent of the same name, or 1 if the input has none
    own = dict(zip(_AXES[len(to.extents(x))], to.extents(x), strict=True))
    names = _AXES[len(wanted)]
    shape = [n or own.get(name, 1) for name, n in zip(names, wanted, strict=True)]
    return to.op("reshape", x, shape=shape, axis_start=1)


@layer("Squeeze", params="0-3 11")
def _squeeze(one: NcnnLayer, to: Conversion, x: str) -> str:
    extents = to.extents(x)
    axes = [to.axis(x, axis) for axis in one.wholes(3)] or _flagged(one, len(extents))
    gone = [axis for axis in axes if extents[axis - 1] == 1]
    kept = [n for axis, n in enumerate(extents, 1) if axis not in gone]
    return to.reshaped(x, kept or [1])


@layer("ExpandDims", params="0-3 11")
def _expand_dims(one: NcnnLayer, to: Conversion, x: str) -> str:
    extents, axes = list(to.extents(x)), one.wholes(3)
    rank = len(extents)
    if not axes:
        raise one.unsupported("axes by their names")
    total = rank + len(axes)
    places = sorted({axis % total for axis in axes if -total <= axis < total})
    if len(places) != len(axes) or total > 4:
        raise one.damaged(f"axes {axes} in {rank}")
    for place in places:
        extents.insert(place, 1)
    return to.reshaped(x, extents)


def _flagged(one: NcnnLayer, rank: int) -> list[int]:
    """Returns the axes selected by flags for width, height, depth and channels."""
    letters = _AXES[rank]
    keys = dict(zip("WHDC", EXTENTS, strict=True))
    return [i for i, letter in enumerate(letters, 1) if one.whole(keys[letter])]


# -- between channels and space ----------------------------------------------------------------


@layer("PixelShuffle", params="0-1")
def _pixel_shuffle(one: NcnnLayer, to: Conversion, x: str) -> str:
    """Moves channels to space: (C r r, H, W) -> (C, H r, W r)."""
    factor, mode = _block(one, to, x)
    if to.extents(x)[0] % (factor * factor):
        raise one.damaged(f"{to.extents(x)[0]} channels by {factor} x {factor}")
    split = to.split(x, 1, [-1, factor, factor] if mode == 0 else [factor, factor, -1])
    woven = to.permuted(split, [0, 3, 1, 4, 2] if mode == 0 else [2, 3, 0, 4, 1])
    return to.merged(to.merged(woven, 2, 2), 3, 2)


@layer("Reorg", params="0-1")
def _reorg(one: NcnnLayer, to: Conversion, x: str) -> str:
    """Moves space to channels: (C, H s, W s) -> (C s s, H, W)."""
    stride, mode = _block(one, to, x)
    _, height, width = to.extents(x)
    if height % stride or width % stride:
        raise one.damaged(f"{height} x {width} by {stride}")
    split = to.split(to.split(x, 2, [-1, stride]), 4, [-1, stride])
    order = [0, 2, 4, 1, 3] if mode == 0 else [2, 4, 0, 1, 3]
    return to.merged(to.permuted(split, order), 1, 3)


def _block(one: NcnnLayer, to: Conversion, x: str) -> tuple[int, int]:
    factor, mode = one.whole(0, 1), one.whole(1)
    if factor < 1 or mode not in (0, 1) or len(to.extents(x)) != 3:
        raise one.unsupported(f"factor {factor}, mode {mode}, {len(to.extents(x))} axes")
    return factor, mode


@layer("ShuffleChannel", params="0-1")
def _shuffle_channel(one: NcnnLayer, to: Conversion, x: str) -> str:
    channels, *rest = to.extents(x)
    groups = one.whole(0, 1)
    if groups < 1 or channels % groups:
        raise one.damaged(f"{channels} channels in {groups} groups")
    if one.whole(1):
        groups = channels // groups
    split = to.split(x, 1, [groups, channels // groups])
    return to.merged(to.permuted(split, [1, 0, *range(2, 2 + len(rest))]), 1, 2)
