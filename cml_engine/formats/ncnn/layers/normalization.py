"""Normalisations."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from cml_engine.formats.ncnn.conversion import Conversion
from cml_engine.formats.ncnn.layer_types import layer
from cml_engine.formats.ncnn.param import NcnnLayer


@layer("BatchNorm", params="0-1")
def _batch_norm(one: NcnnLayer, to: Conversion, x: str) -> str:
    count = _channels(one, to, x, 0)
    scale, mean, variance, offset = (
        to.raw(count, what) for what in ("scale", "mean", "variance", "offset")
    )
    inputs = (x, mean, variance, offset, scale)
    return to.op("batch_normalization", *inputs, epsilon=one.number(1))


@layer("InstanceNorm", params="0-2")
def _instance_norm(one: NcnnLayer, to: Conversion, x: str) -> str:
    axes = list(range(2, 1 + len(to.extents(x))))
    if len(axes) < 2:
        raise one.unsupported(f"an input of {len(axes) + 1} axes")
    scale, offset = _affine(one, to, x, 0, one.whole(2, 1))
    mean, variance = to.ops("moments", 2, x, axes=axes)
    epsilon = one.number(1, 0.001)
    return to.op("batch_normalization", x, mean, variance, offset, scale, epsilon=epsilon)


@layer("GroupNorm", params="0-3")
def _group_norm(one: NcnnLayer, to: Conversion, x: str) -> str:
    extents, groups = to.extents(x), one.whole(0, 1)
    _channels(one, to, x, 1)
    if groups < 1 or extents[0] % groups:
        raise one.damaged(f"{extents[0]} channels in {groups} groups")
    scale, offset = _affine(one, to, x, 1, one.whole(3, 1))
    grouped = to.split(x, 1, [groups, -1])
    mean, variance = to.ops("moments", 2, grouped, axes=list(range(2, 2 + len(extents))))
    epsilon = one.number(2, 0.001)
    even = to.op("batch_normalization", grouped, mean, variance, 0.0, 1.0, epsilon=epsilon)
    even = to.merged(even, 1, 2)
    if isinstance(scale, str):
        even = to.op("add", to.op("mul", even, scale), offset)
    return even


@layer("LayerNorm", params="0-2")
def _layer_norm(one: NcnnLayer, to: Conversion, x: str) -> str:
    axes = _inner(one, to, x)
    mean, variance = to.ops("moments", 2, x, axes=axes)
    epsilon = one.number(1, 0.001)
    even = to.op("batch_normalization", x, mean, variance, 0.0, 1.0, epsilon=epsilon)
    if not one.whole(2, 1):
        return even
    scaled = to.op("mul", even, _over(one, to, x, axes, "scale"))
    return to.op("add", scaled, _over(one, to, x, axes, "offset"))


@layer("RMSNorm", params="0-2")
def _rms_norm(one: NcnnLayer, to: Conversion, x: str) -> str:
    axes = _inner(one, to, x)
    squares = to.op("mean_reduce", to.op("sqr", x), axes=axes)
    even = to.op("mul", x, to.op("rsqrt", to.op("add", squares, one.number(1, 0.001))))
    return to.op("mul", even, _over(one, to, x, axes, "scale")) if one.whole(2, 1) else even


@layer("MVN", params="0-2")
def _mvn(one: NcnnLayer, to: Conversion, x: str) -> str:
    if len(to.extents(x)) != 3:
        raise one.unsupported(f"an input of {len(to.extents(x))} axes")
    axes = [1, 2, 3] if one.whole(1) else [2, 3]
    centred = to.op("sub", x, to.op("mean_reduce", x, axes=axes))
    if not one.whole(0):
        return centred
    spread = to.op("sqrt", to.op("mean_reduce", to.op("sqr", centred), axes=axes))
    return to.op("div", centred, to.op("add", spread, one.number(2, 0.0001)))


@layer("Normalize", params="0-4 9")
def _normalize(one: NcnnLayer, to: Conversion, x: str) -> str:
    """Divides by the norm of a channel, of a position, or of the whole tensor; then scales."""
    rank = len(to.extents(x))
    across_space, across_channels = one.whole(0), one.whole(4, 1)
    if rank != 3 or not (across_space or across_channels):
        raise one.unsupported(f"an input of {rank} axes, or a norm over none")
    axes = ([1] if across_channels else []) + ([2, 3] if across_space else [])
    squares, epsilon = to.op("sum_reduce", to.op("sqr", x), axes=axes), one.number(2, 0.0001)
    mode = one.whole(9)
    if mode == 0:
        factor = to.op("rsqrt", to.op("add", squares, epsilon))
    elif mode == 1:
        factor = to.op("rcp", to.op("max", to.op("sqrt", squares), epsilon))
    elif mode == 2:
        factor = to.op("rsqrt", to.op("max", squares, epsilon))
    else:
        raise one.unsupported(f"epsilon mode {mode}")
    even = to.op("mul", x, factor)
    count = one.whole(3)
    if count != (1 if one.whole(1) else to.extents(x)[0]):
        raise one.damaged(f"{count} factors for {to.extents(x)[0]} channels")
    return to.op("mul", even, to.raw(count, "scale"))


@layer("LRN", params="0-4")
def _lrn(one: NcnnLayer, to: Conversion, x: str) -> str:
    """Divides by the neighbouring squares, across the channels or within each channel."""
    size, across = one.whole(1, 5), one.whole(0) == 0
    if one.whole(0) not in (0, 1) or size < 1 or len(to.extents(x)) != 3:
        raise one.unsupported(f"region {one.whole(0)} of size {size}")
    side = (size // 2, size - 1 - size // 2)
    window, padding = ([1, size, 1, 1], [(0, 0), side, (0, 0), (0, 0)])
    if not across:
        window, padding = ([1, 1, size, size], [(0, 0), (0, 0), side, side])
    squares = to.op("box", to.op("sqr", x), size=window, padding=padding, border="constant")
    weighed = to.op("mul", squares, one.number(2, 1.0) / prod(window))
    factor = to.op("pow", to.op("add", weighed, one.number(4, 1.0)), -one.number(3, 0.75))
    return to.op("mul", x, factor)


def _channels(one: NcnnLayer, to: Conversion, x: str, key: int) -> int:
    count = one.whole(key)
    if count != to.extents(x)[0]:
        raise one.damaged(f"{count} channels, its input has {to.extents(x)[0]}")
    return count


def _affine(
    one: NcnnLayer, to: Conversion, x: str, key: int, given: int
) -> tuple[str | float, str | float]:
    """Applies the scale and offset of each channel, if the file has them."""
    if not given:
        return 1.0, 0.0
    count = _channels(one, to, x, key)
    scale = to.raw(count, "scale")
    return scale, to.raw(count, "offset")


def _inner(one: NcnnLayer, to: Conversion, x: str) -> list[int]:
    """Returns the normalised axes: the last one or the last two, by the number of weights."""
    extents, size = to.extents(x), one.whole(0)
    for count in (1, 2):
        if prod(extents[-count:]) == size and len(extents) >= count:
            return list(range(len(extents) + 1 - count, len(extents) + 1))
    raise one.damaged(f"a norm over {size} numbers, its input has {list(extents)}")


def _over(one: NcnnLayer, to: Conversion, x: str, axes: Sequence[int], what: str) -> str:
    """Reads one weight per position on the given axes."""
    shape = [n if axis in axes else 1 for axis, n in enumerate((1, *to.extents(x)))]
    return to.weight(to.weights.raw(prod(shape), one).reshape(shape), what)
