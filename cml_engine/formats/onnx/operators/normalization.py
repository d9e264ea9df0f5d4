"""Imports normalization."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cml_engine.formats.onnx.op_schemas import MICROSOFT, OnnxCall, at_least, attribute, op
from cml_engine.formats.onnx.values import (
    InvalidNode,
    Value,
    add_operator,
    add_operators,
    checked_axes,
    checked_axis,
    unsupported_error,
)


@op("BatchNormalization", "batch_normalization")
def batch_normalization(
    call: OnnxCall,
    x: Value,
    scale: Value,
    offset: Value,
    mean: Value,
    variance: Value,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    spatial: bool = attribute(True, until=8),
    training_mode: bool = attribute(False, since=9),
) -> list[Value]:
    if not spatial:
        raise unsupported_error("spatial=0")
    scale, offset, mean, variance = (v.unsqueeze([0]) for v in (scale, offset, mean, variance))
    results = []
    if call.opset >= 14 and training_mode:
        old = mean, variance
        new = add_operators("moments", 2, x, axes=[a for a in range(x.rank) if a != 1])
        mean, variance = (v.reshape([1, x.shape[1]]) for v in new)
        for before, now in zip(old, (mean, variance), strict=True):
            results.append((before * momentum + now * (1 - momentum)).squeeze([0]))
    elif call.wants(1):
        raise unsupported_error("an output besides the first without training_mode")
    return [x.batch_normalization(mean, variance, offset, scale, epsilon=epsilon), *results]


def _normalize(
    x: Value, axes: Sequence[int], epsilon: float, scale: Value | float, offset: Value | float
) -> tuple[Value, Value, Value]:
    """Adds operators for (x - mean) / sqrt(variance + epsilon) * scale + offset.

    Returns the result, the mean and the variance over the axes.
    """
    mean, variance = add_operators("moments", 2, x, axes=list(axes))
    y = x.batch_normalization(mean, variance, offset, scale, epsilon=epsilon)
    return y, mean, variance


@op("InstanceNormalization", "moments, batch_normalization")
def instance_normalization(
    x: Value, scale: Value, offset: Value, *, epsilon: float = 1e-5
) -> Value:
    row_scale, row_offset = scale.unsqueeze([0]), offset.unsqueeze([0])
    return _normalize(x, range(2, x.rank), epsilon, row_scale, row_offset)[0]


@op("GroupNormalization", "moments, batch_normalization")
def group_normalization(
    call: OnnxCall,
    x: Value,
    scale: Value,
    offset: Value,
    *,
    epsilon: float = 1e-5,
    num_groups: int = at_least(1, required=True),
    stash_type: int = 1,
) -> Value:
    channels = x.shape[1]
    if call.opset < 21 and scale.shape == (num_groups,):  # one scale per group, not per channel
        each = [num_groups, channels // num_groups]
        scale, offset = (
            v.reshape([num_groups, 1]).expand(each).reshape([channels]) for v in (scale, offset)
        )
    return _normalize_groups(x, num_groups, epsilon, scale, offset)


def _normalize_groups(x: Value, groups: int, epsilon: float, scale: Value, offset: Value) -> Value:
    if groups < 1 or x.shape[1] % groups:
        raise InvalidNode(f"{groups} groups of {x.shape[1]} channels")
    flat = x.reshape([x.shape[0], groups, -(-int(np.prod(x.shape[1:])) // groups)])
    even = _normalize(flat, [2], epsilon, 1.0, 0.0)[0].reshape(x.shape)
    y = add_operator("mul", even, scale.unsqueeze([0]))
    return add_operator("add", y, offset.unsqueeze([0]))


@op("GroupNorm", "moments, batch_normalization, silu", domain=MICROSOFT)
def group_norm(
    x: Value,
    scale: Value,
    offset: Value,
    *,
    activation: bool = False,
    channels_last: bool = True,
    epsilon: float = 1e-5,
    groups: int = at_least(1, required=True),
) -> Value:
    x = x.transpose([0, x.rank - 1, *range(1, x.rank - 1)]) if channels_last else x
    y = _normalize_groups(x, groups, epsilon, scale, offset)
    y = y.silu() if activation else y
    return y.transpose([0, *range(2, y.rank), 1]) if channels_last else y


# -- over the last axes --------------------------------------------------------------------------


def _lift(value: Value, rank: int) -> Value:
    """Returns a value with axes of 1 prepended up to ``rank``: NNEF aligns shapes from the left."""
    return value.unsqueeze(list(range(rank - value.rank)))


@op("LayerNormalization", "moments, batch_normalization")
def layer_normalization(
    call: OnnxCall,
    x: Value,
    scale: Value,
    offset: Value | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> list[Value | None]:
    axes = range(checked_axis(axis, x.rank), x.rank)
    y, mean, variance = _normalize_last(x, axes, epsilon, scale, offset)
    if not call.wants(1) and not call.wants(2):
        return [y, None, None]
    return [y, mean, (variance + epsilon).rsqrt()]


def _normalize_last(
    x: Value, axes: Sequence[int], epsilon: float, scale: Value, offset: Value | None
) -> tuple[Value, Value, Value]:
    lifted = _lift(scale, x.rank)
    return _normalize(x, axes, epsilon, lifted, 0.0 if offset is None else _lift(offset, x.rank))


@op("RMSNormalization", "sqr, mean_reduce, add, rsqrt, mul")
@op("SimplifiedLayerNormalization", "sqr, mean_reduce, add, rsqrt, mul")
def rms_normalization(
    x: Value, scale: Value, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Value:
    mean = x.sqr().mean_reduce(axes=list(range(checked_axis(axis, x.rank), x.rank)))
    return x * (mean + epsilon).rsqrt() * scale


@op("SkipLayerNormalization", "add, moments, batch_normalization", domain=MICROSOFT)
def skip_layer_normalization(
    x: Value,
    skip: Value,
    scale: Value,
    offset: Value | None = None,
    bias: Value | None = None,
    *,
    epsilon: float = 1e-12,
) -> list[Value | None]:
    total = x + skip if bias is None else x + skip + bias
    y, _, _ = _normalize_last(total, [total.rank - 1], epsilon, scale, offset)
    return [y, None, None, total]


@op("SkipSimplifiedLayerNormalization", "add, sqr, mean_reduce, rsqrt, mul", domain=MICROSOFT)
def skip_rms_normalization(
    x: Value, skip: Value, scale: Value, bias: Value | None = None, *, epsilon: float = 1e-12
) -> list[Value | None]:
    total = x + skip if bias is None else x + skip + bias
    return [rms_normalization(total, scale, epsilon=epsilon), None, None, total]


# -- others --------------------------------------------------------------------------------------


@op("MeanVarianceNormalization", "moments, batch_normalization")
def mean_variance_normalization(x: Value, *, axes: list[int] = attribute([0, 2, 3])) -> Value:
    mean, variance = add_operators("moments", 2, x, axes=checked_axes(axes, x.rank))
    deviation = variance.sqrt() + 1e-9
    return (x - mean) / deviation


@op("LpNormalization", "abs, sqr, sum_reduce, sqrt, div, select")
def lp_normalization(x: Value, *, axis: int = -1, p: int = attribute(2, among=(1, 2))) -> Value:
    axes = [checked_axis(axis, x.rank)]
    norm = x.abs().sum_reduce(axes=axes) if p == 1 else x.sqr().sum_reduce(axes=axes).sqrt()
    return norm.eq(0.0).select(0.0, x / norm)


@op("LRN", "sqr, box, mul, add, pow, div")
def lrn(
    x: Value,
    *,
    alpha: float = 1e-4,
    beta: float = 0.75,
    bias: float = 1.0,
    size: int = at_least(1, required=True),
) -> Value:
    before, rest = (size - 1) // 2, x.rank - 2
    sides = [(0, 0), (before, size - 1 - before)] + [(0, 0)] * rest
    total = x.sqr().box(size=[1, size] + [1] * rest, padding=sides, border="constant")
    return x / (total * (alpha / size) + bias).pow(beta)
