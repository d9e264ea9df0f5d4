"""Imports reductions, sorting, running sums and normalization."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf, nan, prod

import numpy as np

from cml_engine.formats.onnx.counted_axes import (
    extent,
    least,
    masked,
    number_of,
    room,
    with_count,
)
from cml_engine.formats.onnx.counted_shapes import elements
from cml_engine.formats.onnx.op_schemas import MICROSOFT, OnnxCall, at_least, attribute, op
from cml_engine.formats.onnx.operators.elementwise import integer_division, integer_root, wrap
from cml_engine.formats.onnx.operators.indexing import gather
from cml_engine.formats.onnx.ranges import EXACT, INT32, UINT32, of_dtype, sum_of
from cml_engine.formats.onnx.same_operators import POSITIONS, REDUCTIONS
from cml_engine.formats.onnx.values import (
    InvalidNode,
    Value,
    add_operator,
    add_operators,
    bounded,
    checked_axes,
    checked_axis,
    concat,
    current_import,
    expandable,
    interval_of,
    per_channel,
    unsupported_error,
    zeros,
)
from cml_engine.ir.graph import Array, DType

Reduce = Callable[[Value, list[int]], Value]

# -- integers that floats do not hold -------------------------------------------------------------


def integer_sum(x: Value, axes: list[int]) -> Value:
    """Adds operators that sum integers over axes, which stay as axes of 1; returns the result.

    They compute in floats if all sums are exact there, otherwise by an integer matrix product.
    """
    x = masked(x, axes, 0.0)
    count = prod(x.shape[axis] for axis in axes)
    if sum_of(interval_of(x), count).within(EXACT):
        return x.scalar().sum_reduce(axes=axes).cast("integer")
    y = _rows(x, axes).int_matmul(Value.known(np.ones((count, 1), np.int64)))
    return y.reshape(_reduced_shape(x, axes)).counted(x.counts)


def _rows(x: Value, axes: list[int]) -> Value:
    """Returns a matrix with a row for each result of a reduction over ``axes``."""
    kept_axes = [axis for axis in range(x.rank) if axis not in axes]
    count = prod(x.shape[axis] for axis in axes)
    return x.transpose([*kept_axes, *axes]).reshape([-1, count])


def _reduced_shape(x: Value | Array, axes: list[int]) -> list[int]:
    return [1 if axis in axes else n for axis, n in enumerate(x.shape)]


_LOW_BITS = 12


def _integer_limit(name: str, x: Value, axes: list[int]) -> Value:
    """Adds operators for the exact maximum or minimum of integers, and returns the result.

    ``name`` is the float operator. If floats are not exact, the upper bits are compared first, then
    the lower bits of the elements with the best upper bits.
    """

    def reduce_part(part: Value) -> Value:
        return add_operator(name, part.scalar(), axes=axes).cast("integer")

    bounds = interval_of(x)
    if bounds.within(EXACT):
        return reduce_part(x)
    if not bounds.within(INT32) and bounds.high - bounds.low <= UINT32.high:
        shift = int(INT32.low - bounds.low)
        return _integer_limit(name, x + shift, axes) - shift
    low = x.bit_and((1 << _LOW_BITS) - 1)
    high = x.bit_and(-1 << _LOW_BITS) / (1 << _LOW_BITS)
    best_high = reduce_part(high)
    best_low = reduce_part(
        high.eq(best_high).select(low, -1 if name == "max_reduce" else 1 << _LOW_BITS)
    )
    result = best_high * (1 << _LOW_BITS) + best_low
    current_import().intervals[result.tensor or ""] = bounds
    return result


def _sum_of_absolutes(x: Value, axes: list[int]) -> Value:
    return integer_sum(x if x.dtype.kind == "u" else x.abs(), axes)


def _sum_of_squares(x: Value, axes: list[int]) -> Value:
    return integer_sum(x * x, axes)


def _integer_mean(x: Value, axes: list[int]) -> Value:
    count = number_of(x, axes)
    total = _wrapped(integer_sum(x, axes), x.dtype)
    return total / (count if isinstance(count, int) else count.reshape([1] * x.rank))


def _integer_norm(x: Value, axes: list[int]) -> Value:
    return integer_root(_wrapped(_sum_of_squares(x, axes), x.dtype))


def _wrapped(total: Value, dtype: DType) -> Value:
    """Returns a sum of which a 32-bit type keeps only what fits into it."""
    return bounded(total, of_dtype(dtype)) if dtype.itemsize == 4 else total


def _integer_product(x: Value, axes: list[int]) -> Value:
    """Adds products of both halves of the elements until one is left; returns the result."""
    x = masked(x, axes, 1.0)
    y = _rows(x, axes)
    while (count := y.shape[1]) > 1:
        half = count // 2
        products = y.slice(1, 0, half) * y.slice(1, half, 2 * half)
        y = concat([products, y.slice(1, 2 * half, count)], 1)
    return y.reshape(_reduced_shape(x, axes)).counted(x.counts)


# -- reductions ----------------------------------------------------------------------------------


def _log_sum_exp(x: Value, axes: list[int]) -> Value:
    """Adds operators for log(sum(exp(x))) over axes and returns the result.

    The exponents are shifted by the maximum, if it is finite, to avoid overflow.
    """
    top = x.max_reduce(axes=axes)
    top = top.is_inf().select(0.0, top)
    return (x - top).exp().sum_reduce(axes=axes).log() + top


@dataclass(frozen=True)
class _Reduction:
    """A reduction: its conversion for floats, its result for no elements, and its NumPy function.

    Without ``of_floats`` it is the engine's operator in the table of shared ones, which over no
    axes is the identity.
    ``of_integers`` is the exact conversion for integers; others are computed in floats. ``fold``
    computes known 64-bit integers. ``nnef`` lists operators for the documentation.
    """

    name: str
    nnef: str
    of_floats: Reduce | None
    empty: float
    of_integers: Reduce | None = None
    fold: Callable[..., object] | None = None


def _constant_mean(x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    count = np.array(prod(x.shape[a] for a in axis))
    return integer_division(np.sum(x, axis=axis, keepdims=keepdims), count)


_MAX, _MIN = (partial(_integer_limit, name) for name in ("max_reduce", "min_reduce"))
_REDUCTIONS = (
    _Reduction("ReduceSum", "sum_reduce; or int_matmul", None, 0, integer_sum,
               np.sum),
    _Reduction("ReduceMean", "mean_reduce", None, nan, _integer_mean,
               _constant_mean),
    _Reduction("ReduceMax", "max_reduce", None, -inf, _MAX, np.max),
    _Reduction("ReduceMin", "min_reduce", None, inf, _MIN, np.min),
    _Reduction("ReduceProd", "prod_reduce; or int_mul", None, 1,
               _integer_product, np.prod),
    _Reduction("ReduceL1", "abs, sum_reduce", lambda x, axes: x.abs().sum_reduce(axes=axes), 0,
               _sum_of_absolutes, lambda x, **more: np.sum(np.abs(x), **more)),
    _Reduction("ReduceL2", "sqr, sum_reduce, sqrt",
               lambda x, axes: x.sqr().sum_reduce(axes=axes).sqrt(), 0,
               _integer_norm),
    _Reduction("ReduceSumSquare", "sqr, sum_reduce", lambda x, axes: x.sqr().sum_reduce(axes=axes),
               0, _sum_of_squares, lambda x, **more: np.sum(np.square(x), **more)),
    _Reduction("ReduceLogSum", "sum_reduce, log", lambda x, axes: x.sum_reduce(axes=axes).log(),
               -inf),
    _Reduction("ReduceLogSumExp", "max_reduce, sub, exp, sum_reduce, log, add", _log_sum_exp,
               -inf),
)  # fmt: skip


def _empty(x: Value | Array, axes: list[int], reduction: _Reduction) -> Array:
    """Returns the result of reducing axes without elements, an array filled with one value.

    Integers and logicals get the nearest value that their type has.
    """
    value: float | bool = reduction.empty
    if x.dtype.kind == "b":
        value = value > 0
    elif x.dtype.kind in "iu":
        limits = np.iinfo(x.dtype.name)
        value = int(np.clip(np.nan_to_num(value), float(limits.min), float(limits.max)))
        value = min(max(value, limits.min), limits.max)
    return np.full(_reduced_shape(x, axes), value, x.dtype)


def _checked(
    x: Value | Array, axes: list[int] | Array | None, noop: bool, reduction: _Reduction
) -> list[int]:
    """Returns the axes to reduce: without ``axes`` all, or none with ``noop``."""
    if x.dtype.kind == "b" and reduction.name not in ("ReduceMax", "ReduceMin"):
        raise InvalidNode(f"it wants numbers, got {x.dtype}{list(x.shape)}")
    if axes is not None and np.size(axes):
        return checked_axes(np.ravel(axes).tolist(), len(x.shape))
    return [] if noop else list(range(len(x.shape)))


def _declare_reduction(reduction: _Reduction) -> None:
    last = 12 if reduction.name == "ReduceSum" else 17

    def fold(
        x: Array,
        axes: Array | None = None,
        keepdims: bool = True,
        noop_with_empty_axes: bool = False,
    ) -> Array:
        reduced = _checked(x, axes, noop_with_empty_axes, reduction)
        if any(x.shape[axis] == 0 for axis in reduced):
            empty = _empty(x, reduced, reduction)
            return empty if keepdims else empty.squeeze(tuple(reduced))
        widened = x if x.dtype.kind == "b" else x.astype(np.int64)
        assert reduction.fold is not None
        result = reduction.fold(widened, axis=tuple(reduced), keepdims=keepdims)
        return np.asarray(result).astype(x.dtype)

    @op(reduction.name, reduction.nnef, fold=fold if reduction.fold else None)
    def form(
        x: Value,
        axes: list[int] | None = attribute(until=last),
        *,
        keepdims: bool = True,
        noop_with_empty_axes: bool = attribute(False, since=last + 1),
    ) -> Value:
        axes = _checked(x, axes, noop_with_empty_axes, reduction)
        if 0 in x.shape:
            counts = {axis: n for axis, n in x.counts.items() if axis not in axes}
            y = Value.known(_empty(x, axes, reduction)).counted(counts)
        elif not axes and reduction.of_floats is None:
            return x
        else:
            if not axes:  # reduce an appended axis of extent 1
                x, axes, keepdims = x.unsqueeze([x.rank]), [x.rank], False
            y = _reduce(x, axes, reduction)
        return y if keepdims else y.squeeze(axes)


def _reduce(x: Value, axes: list[int], reduction: _Reduction) -> Value:
    if x.kind == "logical":
        is_max = reduction.name == "ReduceMax"
        return x.any_reduce(axes=axes) if is_max else x.all_reduce(axes=axes)
    if x.kind == "integer" and reduction.of_integers is not None:
        return wrap(reduction.of_integers(x, axes), x.dtype)
    numbers = x.scalar()
    if reduction.of_floats is None:
        y = add_operator(REDUCTIONS[reduction.name], numbers, axes=axes)
    else:
        y = reduction.of_floats(numbers, axes)
    return y.typed(x.dtype) if x.kind == "scalar" else wrap(y.cast(x.kind), x.dtype)


for _reduction in _REDUCTIONS:
    _declare_reduction(_reduction)


def _declare_position(name: str, best: float) -> None:
    """Declares ArgMax or ArgMin; ``best`` marks the elements that they look for."""
    nnef = POSITIONS[name]
    limit = nnef.removeprefix("arg")

    @op(name, nnef)
    def form(
        x: Value,
        *,
        axis: int = 0,
        keepdims: bool = True,
        select_last_index: bool = attribute(False, since=12),
    ) -> Value:
        axis = checked_axis(axis, x.rank)
        if x.kind == "integer" and not interval_of(x).within(EXACT):
            x = x.eq(_integer_limit(limit, x, [axis])).select(best, 0.0)
        x = x.scalar()
        extent, search = x.shape[axis], nnef
        if select_last_index and axis in x.counts:
            is_best = x.eq(add_operator(limit, x, axes=[axis]))
            x, search = masked(is_best.select(1.0, 0.0), [axis], -1.0), "argmax_reduce"
        if select_last_index:
            x = x.take({axis: range(extent - 1, -1, -1)})
        y = add_operator(search, x, axes=[axis])
        y = extent - 1 - y if select_last_index else y
        return (y if keepdims else y.squeeze([axis])).typed(np.int64)


_declare_position("ArgMax", 1.0)
_declare_position("ArgMin", -1.0)


# -- sorting and running sums --------------------------------------------------------------------


@op("TopK", "top_k")
def top_k(
    x: Value,
    k: Value | int = at_least(0, until=9, required=True),
    *,
    axis: int = -1,
    largest: bool = attribute(True, since=11),
    sorted: bool = attribute(True, since=11),
) -> list[Value]:
    axis = checked_axis(axis, x.rank)
    (count,) = [k] if isinstance(k, int) else elements(k, "k")
    most = room(count, x.shape[axis]) if isinstance(count, Value) else count
    results = add_operators("top_k", 2, x.scalar(), k=most, axis=axis, largest=largest)
    if isinstance(count, Value):
        count = least(count, extent(x, axis))
        results = [with_count(y, axis, count) for y in results]
    values, indices = results
    return [values.like(x), indices.typed(np.int64)]


#: the longest axis of an integer running sum, which is a product with a square matrix
_MAX_COLUMNS = 2048


@op("CumSum", "cumsum; or int_matmul")
def cumsum(x: Value, axis: int, *, exclusive: bool = False, reverse: bool = False) -> Value:
    axis = checked_axis(axis, x.rank)
    counts, count = x.counts, x.shape[axis]
    x = masked(x, [axis], 0.0)
    is_short = x.kind == "integer" and 0 < count <= _MAX_COLUMNS
    if is_short and not sum_of(interval_of(x), count).within(EXACT):
        return _integer_sums(x, axis, exclusive, reverse).counted(counts)
    y = x.scalar().cumsum(axis=axis, exclusive=exclusive, reverse=reverse)
    return y.like(x).counted(counts)


@op("CumProd", "cumprod")
def cumprod(x: Value, axis: int, *, exclusive: bool = False, reverse: bool = False) -> Value:
    axis = checked_axis(axis, x.rank)
    y = x.scalar().cumprod(axis=axis, exclusive=exclusive, reverse=reverse)
    return y.like(x)


def _integer_sums(x: Value, axis: int, exclusive: bool, reverse: bool) -> Value:
    """Adds a product with a triangular matrix of ones, which gives running sums of integers.

    Returns the result.
    """
    count = x.shape[axis]
    order = [a for a in range(x.rank) if a != axis] + [axis]
    transposed = x.transpose(order)
    triangle = np.triu(np.ones((count, count), np.int64), 1 if exclusive else 0)
    y = transposed.reshape([-1, count]).int_matmul(Value.known(triangle.T if reverse else triangle))
    return y.reshape(transposed.shape).transpose(np.argsort(order).tolist()).typed(x.dtype)


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
    scale, offset, mean, variance = (
        _row(v, x.shape[1] if x.rank > 1 else 1) for v in (scale, offset, mean, variance)
    )
    results: list[Value] = []
    if call.opset >= 14 and training_mode:
        running = mean, variance
        batch = add_operators("moments", 2, x, axes=[a for a in range(x.rank) if a != 1])
        mean, variance = (v.reshape([1, x.shape[1]]) for v in batch)
        results = [
            (old * momentum + new * (1 - momentum)).squeeze([0])
            for old, new in zip(running, (mean, variance), strict=True)
        ]
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
    row_scale, row_offset = (_row(v, x.shape[1]) for v in (scale, offset))
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
    scale, offset = (v.reshape([v.size]) for v in (scale, offset))  # ONNX's function reshapes them
    if call.opset < 21 and scale.shape == (num_groups,):  # one scale per group, not per channel
        group_shape = [num_groups, channels // num_groups]
        scale, offset = (
            v.reshape([num_groups, 1]).expand(group_shape).reshape([channels])
            for v in (scale, offset)
        )
    return _normalize_groups(x, num_groups, epsilon, scale, offset)


def _normalize_groups(x: Value, groups: int, epsilon: float, scale: Value, offset: Value) -> Value:
    if groups < 1 or x.shape[1] % groups:
        raise InvalidNode(f"{groups} groups of {x.shape[1]} channels")
    flat = x.reshape([x.shape[0], groups, -(-prod(x.shape[1:]) // groups)])
    normalized = _normalize(flat, [2], epsilon, 1.0, 0.0)[0].reshape(x.shape)
    y = add_operator("mul", normalized, _row(scale, x.shape[1]))
    return add_operator("add", y, _row(offset, x.shape[1]))


def _row(value: Value, channels: int) -> Value:
    """Returns a parameter with one number for each channel as [1, C]."""
    return per_channel(value, channels, "a parameter").unsqueeze([0])


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


@op("LayerNormalization", "moments, batch_normalization")
def layer_normalization(
    x: Value,
    scale: Value,
    offset: Value | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> list[Value]:
    axes = range(checked_axis(axis, x.rank), x.rank)
    y, mean, variance = _normalize_last(x, axes, epsilon, scale, offset)
    return [y, mean, (variance + epsilon).rsqrt()]


def _normalize_last(
    x: Value, axes: Sequence[int], epsilon: float, scale: Value, offset: Value | None
) -> tuple[Value, Value, Value]:
    # NNEF aligns shapes from the left
    lifted = 0.0 if offset is None else expandable(offset, x.shape, "the bias").lift(x.rank)
    scale = expandable(scale, x.shape, "the scale").lift(x.rank)
    return _normalize(x, axes, epsilon, scale, lifted)


@op("RMSNormalization", "sqr, mean_reduce, add, rsqrt, mul")
@op("SimplifiedLayerNormalization", "sqr, mean_reduce, add, rsqrt, mul")
def rms_normalization(
    x: Value, scale: Value, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Value:
    mean = x.sqr().mean_reduce(axes=list(range(checked_axis(axis, x.rank), x.rank)))
    return x * (mean + epsilon).rsqrt() * expandable(scale, x.shape, "the scale")


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


@op("EmbedLayerNormalization", "gather, add, moments, batch_normalization", inputs=9,
    domain=MICROSOFT)  # fmt: skip
def embed_layer_normalization(
    call: OnnxCall, *, epsilon: float = 1e-12, mask_index_type: int = 0
) -> list[Value]:
    words, segments, segment_table = call[0], call.optional(1), call.optional(4)
    mask, positions = call.optional(7), call.optional(8)
    if words.rank != 2:
        raise InvalidNode(f"it wants words [batch, length], got {words}")
    batch, length = words.shape
    if positions is None:
        positions = Value.known(np.arange(length))
    total = gather(call[2], words) + gather(call[3], positions)
    if segments is not None and segment_table is not None:
        total = total + gather(segment_table, segments)
    y, _, _ = _normalize_last(total, [2], epsilon, call[5], call[6])
    lengths = zeros([batch], np.int32)
    if mask is not None:
        lengths = integer_sum(mask.eq(1).cast("integer"), [1]).squeeze([1]).typed(np.int32)
    return [y, lengths, total]


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
    before, n_spatial = (size - 1) // 2, x.rank - 2
    padding = [(0, 0), (before, size - 1 - before)] + [(0, 0)] * n_spatial
    total = x.sqr().box(size=[1, size] + [1] * n_spatial, padding=padding)
    return x / (total * (alpha / size) + bias).pow(beta)
