"""Converts normalisation layers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from cml_engine.formats.ncnn.conversion import NcnnLayer, NcnnTensor, converts


@converts("BatchNorm", params="0-1")
def _batch_norm(layer: NcnnLayer, x: NcnnTensor) -> NcnnTensor:
    count = _channels(layer, x, 0)
    scale, mean, variance, offset = (
        layer.raw(suffix, 1, count) for suffix in ("scale", "mean", "variance", "offset")
    )
    epsilon = layer.number(1)
    return x.batch_normalization(mean, variance, offset, scale, epsilon=epsilon)


def _standardized(
    layer: NcnnLayer,
    x: NcnnTensor,
    axes: Sequence[int],
    key: int,
    offset: NcnnTensor | float = 0.0,
    scale: NcnnTensor | float = 1.0,
) -> NcnnTensor:
    """Normalises ``x`` over ``axes`` to mean 0 and variance 1; parameter ``key`` is epsilon."""
    mean, variance = layer.ops("moments", 2, x, axes=list(axes))
    epsilon = layer.number(key, 0.001)
    return x.batch_normalization(mean, variance, offset, scale, epsilon=epsilon)


@converts("InstanceNorm", params="0-2")
def _instance_norm(layer: NcnnLayer, x: NcnnTensor) -> NcnnTensor:
    axes = range(2, 1 + len(x.extents))
    if len(axes) < 2:
        raise layer.unsupported_error(f"an input of {len(axes) + 1} axes")
    scale, offset = _scale_and_offset(layer, x, 0, layer.integer(2, 1)) or (1.0, 0.0)
    return _standardized(layer, x, axes, 1, offset, scale)


@converts("GroupNorm", params="0-3")
def _group_norm(layer: NcnnLayer, x: NcnnTensor) -> NcnnTensor:
    extents, groups = x.extents, layer.integer(0, 1)
    _channels(layer, x, 1)
    if groups < 1 or extents[0] % groups:
        raise layer.damaged_error(f"{extents[0]} channels in {groups} groups")
    stored = _scale_and_offset(layer, x, 1, layer.integer(3, 1))
    grouped = x.unflatten(1, [groups, -1])
    normalized = _standardized(layer, grouped, range(2, 2 + len(extents)), 2).merge(1, 2)
    return normalized * stored[0] + stored[1] if stored else normalized


#: ncnn does not check the size that the layer states, and applies the first weights to each row
#: or channel
_ALL_AXES = "weights for all axes: over all, as in PyTorch (ncnn: over each row or channel)"


@converts("LayerNorm", params="0-2", differences=_ALL_AXES)
def _layer_norm(layer: NcnnLayer, x: NcnnTensor) -> NcnnTensor:
    axes = _inner_axes(layer, x)
    normalized = _standardized(layer, x, axes, 1)
    if not layer.integer(2, 1):
        return normalized
    return normalized * _over(layer, x, axes, "scale") + _over(layer, x, axes, "offset")


@converts("RMSNorm", params="0-2", differences=_ALL_AXES)
def _rms_norm(layer: NcnnLayer, x: NcnnTensor) -> NcnnTensor:
    axes = _inner_axes(layer, x)
    squares = x.sqr().mean_reduce(axes=axes)
    normalized = x * (squares + layer.number(1, 0.001)).rsqrt()
    return normalized * _over(layer, x, axes, "scale") if layer.integer(2, 1) else normalized


@converts("MVN", params="0-2")
def _mvn(layer: NcnnLayer, x: NcnnTensor) -> NcnnTensor:
    if len(x.extents) != 3:
        raise layer.unsupported_error(f"an input of {len(x.extents)} axes")
    axes = [1, 2, 3] if layer.integer(1) else [2, 3]
    centred = x - x.mean_reduce(axes=axes)
    if not layer.integer(0):
        return centred
    deviation = centred.sqr().mean_reduce(axes=axes).sqrt()
    return centred.div(deviation + layer.number(2, 0.0001))


@converts("Normalize", params="0-4 9")
def _normalize(layer: NcnnLayer, x: NcnnTensor) -> NcnnTensor:
    """Divides by the norm over a channel, a position or all, then scales."""
    rank = len(x.extents)
    across_space, across_channels = layer.integer(0), layer.integer(4, 1)
    if rank != 3 or not (across_space or across_channels):
        raise layer.unsupported_error(f"an input of {rank} axes, or a norm over none")
    axes = ([1] if across_channels else []) + ([2, 3] if across_space else [])
    squares = x.sqr().sum_reduce(axes=axes)
    mode, epsilon = layer.integer(9), layer.number(2, 0.0001)
    if mode == 0:
        factor = (squares + epsilon).rsqrt()
    elif mode == 1:
        factor = squares.sqrt().max(epsilon).rcp()
    elif mode == 2:
        factor = squares.max(epsilon).rsqrt()
    else:
        raise layer.unsupported_error(f"epsilon mode {mode}")
    normalized, count = x * factor, layer.integer(3)
    if count != (1 if layer.integer(1) else x.extents[0]):
        raise layer.damaged_error(f"{count} factors for {x.extents[0]} channels")
    return normalized * layer.raw("scale", 1, count)


@converts("LRN", params="0-4")
def _lrn(layer: NcnnLayer, x: NcnnTensor) -> NcnnTensor:
    """Converts LRN, which normalises by neighbouring channels or by neighbours in a channel.

    It divides ``x`` by ``(bias + alpha * mean of squares) ** beta``.
    """
    size, across_channels = layer.integer(1, 5), layer.integer(0) == 0
    if layer.integer(0) not in (0, 1) or size < 1 or len(x.extents) != 3:
        raise layer.unsupported_error(f"region {layer.integer(0)} of size {size}")
    pair = (size // 2, size - 1 - size // 2)
    window, padding = ([1, size, 1, 1], [(0, 0), pair, (0, 0), (0, 0)])
    if not across_channels:
        window, padding = ([1, 1, size, size], [(0, 0), (0, 0), pair, pair])
    squares = x.sqr().box(size=window, padding=padding)
    weighted = squares * (layer.number(2, 1.0) / prod(window))
    return x * (weighted + layer.number(4, 1.0)).pow(-layer.number(3, 0.75))


def _channels(layer: NcnnLayer, x: NcnnTensor, key: int) -> int:
    count = layer.integer(key)
    if count != x.extents[0]:
        raise layer.damaged_error(f"{count} channels, its input has {x.extents[0]}")
    return count


def _scale_and_offset(
    layer: NcnnLayer, x: NcnnTensor, key: int, is_stored: int
) -> tuple[NcnnTensor, NcnnTensor] | None:
    """Reads the scale and the offset of each channel; None if the file has none."""
    if not is_stored:
        return None
    count = _channels(layer, x, key)
    scale = layer.raw("scale", 1, count)
    return scale, layer.raw("offset", 1, count)


def _inner_axes(layer: NcnnLayer, x: NcnnTensor) -> list[int]:
    """Returns the normalised axes, in NNEF's numbering: the last one or several of the last.

    They are the axes whose elements are as many as the layer's weights.
    """
    extents, size = x.extents, layer.integer(0)
    for count in range(1, 1 + len(extents)):
        if prod(extents[-count:]) == size:
            return list(range(len(extents) + 1 - count, len(extents) + 1))
    raise layer.damaged_error(f"a norm over {size} numbers, its input has {list(extents)}")


def _over(layer: NcnnLayer, x: NcnnTensor, axes: Sequence[int], suffix: str) -> NcnnTensor:
    """Reads a constant with one weight per position on the given axes."""
    extents = enumerate((1, *x.extents))
    return layer.raw(suffix, *(n if axis in axes else 1 for axis, n in extents))
