"""Converts normalisation layers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from cml_engine.formats.ncnn.conversion import Conversion
from cml_engine.formats.ncnn.layer_types import converts
from cml_engine.formats.ncnn.param import NcnnLayer


@converts("BatchNorm", params="0-1")
def _batch_norm(layer: NcnnLayer, graph: Conversion, x: str) -> str:
    count = _channels(layer, graph, x, 0)
    scale, mean, variance, offset = (
        graph.raw(count, what) for what in ("scale", "mean", "variance", "offset")
    )
    inputs = (x, mean, variance, offset, scale)
    return graph.op("batch_normalization", *inputs, epsilon=layer.number(1))


@converts("InstanceNorm", params="0-2")
def _instance_norm(layer: NcnnLayer, graph: Conversion, x: str) -> str:
    axes = list(range(2, 1 + len(graph.extents(x))))
    if len(axes) < 2:
        raise layer.unsupported_error(f"an input of {len(axes) + 1} axes")
    scale, offset = _affine(layer, graph, x, 0, layer.integer(2, 1))
    mean, variance = graph.ops("moments", 2, x, axes=axes)
    epsilon = layer.number(1, 0.001)
    return graph.op("batch_normalization", x, mean, variance, offset, scale, epsilon=epsilon)


@converts("GroupNorm", params="0-3")
def _group_norm(layer: NcnnLayer, graph: Conversion, x: str) -> str:
    extents, groups = graph.extents(x), layer.integer(0, 1)
    _channels(layer, graph, x, 1)
    if groups < 1 or extents[0] % groups:
        raise layer.damaged_error(f"{extents[0]} channels in {groups} groups")
    scale, offset = _affine(layer, graph, x, 1, layer.integer(3, 1))
    grouped = graph.split(x, 1, [groups, -1])
    mean, variance = graph.ops("moments", 2, grouped, axes=list(range(2, 2 + len(extents))))
    epsilon = layer.number(2, 0.001)
    even = graph.op("batch_normalization", grouped, mean, variance, 0.0, 1.0, epsilon=epsilon)
    even = graph.merge(even, 1, 2)
    if isinstance(scale, str):
        even = graph.op("add", graph.op("mul", even, scale), offset)
    return even


@converts("LayerNorm", params="0-2")
def _layer_norm(layer: NcnnLayer, graph: Conversion, x: str) -> str:
    axes = _inner(layer, graph, x)
    mean, variance = graph.ops("moments", 2, x, axes=axes)
    epsilon = layer.number(1, 0.001)
    even = graph.op("batch_normalization", x, mean, variance, 0.0, 1.0, epsilon=epsilon)
    if not layer.integer(2, 1):
        return even
    scaled = graph.op("mul", even, _over(layer, graph, x, axes, "scale"))
    return graph.op("add", scaled, _over(layer, graph, x, axes, "offset"))


@converts("RMSNorm", params="0-2")
def _rms_norm(layer: NcnnLayer, graph: Conversion, x: str) -> str:
    axes = _inner(layer, graph, x)
    squares = graph.op("mean_reduce", graph.op("sqr", x), axes=axes)
    even = graph.op("mul", x, graph.op("rsqrt", graph.op("add", squares, layer.number(1, 0.001))))
    return (
        graph.op("mul", even, _over(layer, graph, x, axes, "scale"))
        if layer.integer(2, 1)
        else even
    )


@converts("MVN", params="0-2")
def _mvn(layer: NcnnLayer, graph: Conversion, x: str) -> str:
    if len(graph.extents(x)) != 3:
        raise layer.unsupported_error(f"an input of {len(graph.extents(x))} axes")
    axes = [1, 2, 3] if layer.integer(1) else [2, 3]
    centred = graph.op("sub", x, graph.op("mean_reduce", x, axes=axes))
    if not layer.integer(0):
        return centred
    spread = graph.op("sqrt", graph.op("mean_reduce", graph.op("sqr", centred), axes=axes))
    return graph.op("div", centred, graph.op("add", spread, layer.number(2, 0.0001)))


@converts("Normalize", params="0-4 9")
def _normalize(layer: NcnnLayer, graph: Conversion, x: str) -> str:
    """Converts Normalize: divides by the norm over a channel, a position or all, then scales."""
    rank = len(graph.extents(x))
    across_space, across_channels = layer.integer(0), layer.integer(4, 1)
    if rank != 3 or not (across_space or across_channels):
        raise layer.unsupported_error(f"an input of {rank} axes, or a norm over none")
    axes = ([1] if across_channels else []) + ([2, 3] if across_space else [])
    squares, epsilon = (
        graph.op("sum_reduce", graph.op("sqr", x), axes=axes),
        layer.number(2, 0.0001),
    )
    mode = layer.integer(9)
    if mode == 0:
        factor = graph.op("rsqrt", graph.op("add", squares, epsilon))
    elif mode == 1:
        factor = graph.op("rcp", graph.op("max", graph.op("sqrt", squares), epsilon))
    elif mode == 2:
        factor = graph.op("rsqrt", graph.op("max", squares, epsilon))
    else:
        raise layer.unsupported_error(f"epsilon mode {mode}")
    even = graph.op("mul", x, factor)
    count = layer.integer(3)
    if count != (1 if layer.integer(1) else graph.extents(x)[0]):
        raise layer.damaged_error(f"{count} factors for {graph.extents(x)[0]} channels")
    return graph.op("mul", even, graph.raw(count, "scale"))


@converts("LRN", params="0-4")
def _lrn(layer: NcnnLayer, graph: Conversion, x: str) -> str:
    """Converts LRN, which normalises by neighbouring channels or by neighbours in a channel.

    It divides ``x`` by ``(bias + alpha * mean of squares) ** beta``.
    """
    size, across = layer.integer(1, 5), layer.integer(0) == 0
    if layer.integer(0) not in (0, 1) or size < 1 or len(graph.extents(x)) != 3:
        raise layer.unsupported_error(f"region {layer.integer(0)} of size {size}")
    side = (size // 2, size - 1 - size // 2)
    window, padding = ([1, size, 1, 1], [(0, 0), side, (0, 0), (0, 0)])
    if not across:
        window, padding = ([1, 1, size, size], [(0, 0), (0, 0), side, side])
    squares = graph.op("box", graph.op("sqr", x), size=window, padding=padding, border="constant")
    weighed = graph.op("mul", squares, layer.number(2, 1.0) / prod(window))
    factor = graph.op("pow", graph.op("add", weighed, layer.number(4, 1.0)), -layer.number(3, 0.75))
    return graph.op("mul", x, factor)


def _channels(layer: NcnnLayer, graph: Conversion, x: str, key: int) -> int:
    count = layer.integer(key)
    if count != graph.extents(x)[0]:
        raise layer.damaged_error(f"{count} channels, its input has {graph.extents(x)[0]}")
    return count


def _affine(
    layer: NcnnLayer, graph: Conversion, x: str, key: int, given: int
) -> tuple[str | float, str | float]:
    """Reads the scale and the offset of each channel as constants and returns their names.

    Returns 1 and 0 if the file has none, which is when ``given`` is 0.
    """
    if not given:
        return 1.0, 0.0
    count = _channels(layer, graph, x, key)
    scale = graph.raw(count, "scale")
    return scale, graph.raw(count, "offset")


def _inner(layer: NcnnLayer, graph: Conversion, x: str) -> list[int]:
    """Returns the normalised axes, in NNEF's numbering: the last one or the last two.

    They are the axes whose elements are as many as the layer's weights.
    """
    extents, size = graph.extents(x), layer.integer(0)
    for count in (1, 2):
        if prod(extents[-count:]) == size and len(extents) >= count:
            return list(range(len(extents) + 1 - count, len(extents) + 1))
    raise layer.damaged_error(f"a norm over {size} numbers, its input has {list(extents)}")


def _over(layer: NcnnLayer, graph: Conversion, x: str, axes: Sequence[int], what: str) -> str:
    """Reads a constant with one weight per position on the given axes, and returns its name."""
    shape = [n if axis in axes else 1 for axis, n in enumerate((1, *graph.extents(x)))]
    return graph.weight(graph.weights.raw(prod(shape), layer).reshape(shape), what)
