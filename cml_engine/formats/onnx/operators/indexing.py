"""Imports gather, scatter and selection by index, and operators whose results' sizes depend on
values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cml_engine.formats.onnx.counted_axes import Extent, extent, masked, with_count
from cml_engine.formats.onnx.counted_shapes import reshaped, sliced
from cml_engine.formats.onnx.op_schemas import ML, at_least, one_of, op
from cml_engine.formats.onnx.operators.elementwise import wrap
from cml_engine.formats.onnx.ranges import INT32, Interval
from cml_engine.formats.onnx.values import (
    InvalidNode,
    Operand,
    Value,
    add_operators,
    allocate,
    along,
    bounded,
    checked_axis,
    checked_shape,
    concat,
    interval_of,
    per_channel,
    refuse_counted,
    unsupported_error,
    zeros,
)
from cml_engine.ir.graph import Array


def _check_indices(array: Array, extents: Sequence[int]) -> None:
    """Raises an error if a known index is outside its axis.

    ``extents`` has one extent for all indices, or one per element of the last axis.
    """
    if not array.size:
        return
    axes = tuple(range(array.ndim - (len(extents) > 1)))
    bounds = zip(np.atleast_1d(array.min(axes)), np.atleast_1d(array.max(axes)), strict=True)
    for indices, count in zip(bounds, extents, strict=True):
        for index in indices:
            if not -count <= index < count:
                raise InvalidNode(f"index {index} of {count} elements")


def _positive_indices(array: Array, extent: int) -> Array:
    """Returns known indices as int64, with negative ones, which count from the end, made positive.

    Raises an error if an index is outside ``extent`` elements.
    """
    _check_indices(array, [extent])
    return np.asarray(array % extent if extent else array, np.int64)


def _wrap_indices(indices: Value, extents: Sequence[Extent]) -> Value:
    """Adds operators that make negative indices, which count from the end, positive.

    ``extents`` has one extent for all indices, or one per element of the last axis. Returns the
    indices.
    """
    if interval_of(indices).low >= 0:
        return indices
    sizes = [n if isinstance(n, Value) else Value.known(np.array([n])) for n in extents]
    extent: Operand = concat(sizes, 0) if len(sizes) > 1 or indices.rank else sizes[0].reshape([])
    wrapped = indices + extent
    return indices.lt(0).select(wrapped, indices).typed(indices.dtype)


def _valid(indices: Value, extents: Sequence[int]) -> Value:
    """Returns indices; if their known range exceeds int32, with the range of valid indices.

    ONNX allows no index outside the tensor.
    """
    if interval_of(indices).within(INT32):
        return indices
    return bounded(indices, Interval(-max(extents), max(extents) - 1))


def _gather_fold(x: Array, indices: Array, axis: int) -> Array:
    axis = checked_axis(axis, x.ndim)
    allocate([*indices.shape, *x.shape[:axis], *x.shape[axis + 1 :]], x.itemsize)
    return x.take(_positive_indices(indices, x.shape[axis]), axis)


@op("Gather", "gather; or slice, squeeze", fold=_gather_fold)
def gather(x: Value, indices: Value, *, axis: int = 0) -> Value:
    axis = checked_axis(axis, x.rank)
    if indices.kind != "integer":
        raise InvalidNode(f"the indices are {indices}, wanted integers")
    if indices.array is None:
        indices = _valid(indices, [x.shape[axis]])
        return x.gather(_wrap_indices(indices, [extent(x, axis)]), axis=axis)
    positive = _positive_indices(indices.array, x.shape[axis])
    if axis in x.counts:
        # an index behind the count finds 0
        wrapped = _wrap_indices(indices, [extent(x, axis)])
        return masked(x, [axis], 0.0).gather(wrapped.max(0), axis=axis)
    flat = positive.reshape(-1).tolist()
    if flat and positive.ndim <= 1 and flat == list(range(flat[0], flat[0] + len(flat))):
        part = x.slice(axis, flat[0], flat[0] + len(flat))
        return part if positive.ndim else part.squeeze([axis])
    return x.gather(Value.known(positive), axis=axis)


@op("ArrayFeatureExtractor", "gather", domain=ML)
def array_feature_extractor(x: Value, indices: Value) -> Value:
    x = x.unsqueeze([0]) if x.rank == 1 else x
    indices = _valid(indices.reshape([indices.size]), [x.shape[-1]])
    wrapped = _wrap_indices(indices, [extent(x, x.rank - 1)])
    return x.gather(wrapped, axis=x.rank - 1)


@op("GatherND", "gather_nd")
def gather_nd(x: Value, indices: Value, *, batch_dims: int = at_least(0, 0)) -> Value:
    depth = indices.shape[-1]
    indexed = range(batch_dims, batch_dims + depth)
    indices = _valid(indices, [x.shape[axis] for axis in indexed])
    indices = _from_start(x, indices, indexed)
    if batch_dims:
        # prepend each element's batch indices to the given indices
        grid = np.indices(indices.shape[:-1])[:batch_dims]
        batch_indices = Value.known(np.moveaxis(grid, 0, -1).astype(np.int64))
        batch_indices = batch_indices.counted(indices.counts)
        indices = concat([batch_indices, indices], indices.rank - 1)
    return x.gather_nd(indices)


@op("GatherElements", "gather_elements")
def gather_elements(x: Value, indices: Value, *, axis: int = 0) -> Value:
    axis = checked_axis(axis, x.rank)
    return x.gather_elements(_from_start(x, indices, [axis]), axis=axis)


def _from_start(x: Value, indices: Value, axes: Sequence[int]) -> Value:
    """Returns indices of which none is negative if an axis that they index is counted.

    The operators count negative ones from the end of the largest extent. Raises an error if a
    known index is outside its axis.
    """
    if indices.array is not None:
        _check_indices(indices.array, [x.shape[axis] for axis in axes])
    if not any(axis in x.counts for axis in axes):
        return indices
    return _wrap_indices(indices, [extent(x, axis) for axis in axes])


_REDUCTION = one_of("none", "add", "mul", "max", "min", since=16)


def _scattered(x: Value, y: Value, reduction: str) -> Value:
    """Returns a scatter's result ``y`` with the type of ``x``. Sums and products wrap around."""
    is_sum = y.kind == "integer" and reduction in ("add", "mul")
    return wrap(y, x.dtype) if is_sum else y.typed(x.dtype)


def _check_reduction(x: Value, reduction: str) -> None:
    if reduction != "none" and x.kind == "logical":
        raise unsupported_error(f"reduction='{reduction}' of truth values")


@op("Scatter", "scatter_elements", until=10)
def scatter(x: Value, indices: Value, updates: Value, *, axis: int = 0) -> Value:
    return scatter_elements(x, indices, updates, axis=axis, reduction="none")


@op("ScatterElements", "scatter_elements")
def scatter_elements(
    x: Value, indices: Value, updates: Value, *, axis: int = 0, reduction: str = _REDUCTION
) -> Value:
    axis = checked_axis(axis, x.rank)
    _check_reduction(x, reduction)
    indices = _from_start(x, indices, [axis])
    y = x.scatter_elements(indices, updates, axis=axis, reduction=reduction)
    return _scattered(x, y, reduction)


@op("ScatterND", "scatter_nd")
def scatter_nd(x: Value, indices: Value, updates: Value, *, reduction: str = _REDUCTION) -> Value:
    _check_reduction(x, reduction)
    indices = _from_start(x, indices, range(indices.shape[-1]))
    return _scattered(x, x.scatter_nd(indices, updates, reduction=reduction), reduction)


@op("TensorScatter", "scatter_elements")
def tensor_scatter(
    cache: Value,
    update: Value,
    first: Value | None = None,
    *,
    axis: int = -2,
    mode: str = one_of("linear", "circular"),
) -> Value:
    """Imports TensorScatter: a cache with an update written along one axis.

    ``first`` gives the start index of each batch item (default 0).
    """
    axis = checked_axis(axis, cache.rank)
    steps = np.arange(update.shape[axis]).reshape(along(axis, cache.rank))
    indices = Value.known(np.broadcast_to(steps, update.shape))
    if first is not None:
        last = Interval(0, cache.shape[axis] - 1)
        starts = first if first.array is not None else bounded(first, last)
        indices = indices + starts.reshape([first.shape[0], *[1] * (cache.rank - 1)])
    if mode == "circular":
        indices = indices.int_mod(cache.shape[axis])
    return cache.scatter_elements(indices, update, axis=axis).typed(cache.dtype)


@op("ReverseSequence", "reverse_sequence")
def reverse_sequence(x: Value, lengths: Value, *, batch_axis: int = 1, time_axis: int = 0) -> Value:
    return x.reverse_sequence(lengths, batch_axis=batch_axis, time_axis=time_axis)


@op("OneHot", "int_eq, or, select")
def one_hot(indices: Value, depth: float, values: Value, *, axis: int = -1) -> Value:
    count = int(depth)
    per_channel(values, 2, "the input of values")
    axis = checked_axis(axis, indices.rank + 1)
    lifted = indices.cast("integer").unsqueeze([axis])
    checked_shape([*indices.shape, *allocate([count])])
    classes = np.arange(count).reshape(along(axis, lifted.rank))
    is_class = lifted.eq(Value.known(classes)).or_(lifted.eq(Value.known(classes - count)))
    off_value, on_value = (values.slice(0, i, i + 1).reshape([]) for i in range(2))
    return is_class.select(on_value, off_value).typed(values.dtype)


@op("Compress", "nonzero, gather")
def compress(x: Value, condition: Value, *, axis: int | None = None) -> Value:
    if axis is None:
        x, axis = reshaped(x, [-1]), 0
    axis = checked_axis(axis, x.rank)
    if condition.array is None:
        condition = sliced(reshaped(condition, [-1]), 0, 0, extent(x, axis))
        return x.gather(_places(condition).squeeze([0]), axis=axis)
    selected = np.flatnonzero(condition.array)
    if selected.size and selected[-1] >= x.shape[axis]:
        raise InvalidNode(f"a condition of {condition.shape[0]} for {x.shape[axis]} elements")
    if x.array is not None:
        return Value.known(x.array.take(selected, axis))
    return x.gather(Value.known(selected), axis=axis)


# -- results whose sizes depend on values --------------------------------------------------------


@op("NonZero", "nonzero")
def non_zero(x: Value) -> Value:
    if x.array is not None:
        allocate([x.rank, x.array.size])
        return Value.known(np.array(np.nonzero(x.array), np.int64))
    return _places(x)


def _places(x: Value) -> Value:
    """Returns the indices of elements that are not 0, an axis in each row."""
    indices, count = add_operators("nonzero", 2, x, capacity=x.size, fill=0)
    return indices.typed(np.int64).declare({1: count})


@op("NonMaxSuppression", "non_max_suppression")
def non_max_suppression(
    boxes: Value,
    scores: Value,
    boxes_per_class: float = 0.0,
    iou_threshold: float = 0.0,
    score_threshold: float | None = None,
    *,
    center_point_box: bool = False,
) -> Value:
    """Imports NonMaxSuppression, whose result has a counted axis."""
    if boxes_per_class < 1:
        return zeros((0, 3), np.int64)
    more = {} if score_threshold is None else {"score_threshold": score_threshold}
    selected, count = add_operators(
        "non_max_suppression", 2, boxes, scores, iou_threshold=iou_threshold,
        max_per_class=min(int(boxes_per_class), boxes.shape[1]),
        center_point_box=center_point_box, fill=0, **more,
    )  # fmt: skip
    if count.array is not None:
        return selected.typed(np.int64).slice(0, 0, int(count.array[0]))
    return selected.typed(np.int64).declare({0: count})


#: the most comparisons of numbers: Unique compares every part with every other
_MAX_COMPARED = 1 << 22


@op("Unique", "eq, lt, all_reduce, argmax_reduce, sum_reduce, gather, select")
def unique(
    x: Value,
    *,
    axis: int | None = None,
    sorted: bool = True,
) -> list[Value]:
    """Imports Unique: the distinct parts of a tensor, along a counted axis."""
    if x.array is not None:
        return _unique_of_known(x.array, axis, sorted)
    x = reshaped(x, [-1]) if axis is None else x
    unique_axis = 0 if axis is None else checked_axis(axis, x.rank)
    count, n_parts = x.shape[unique_axis], extent(x, unique_axis)
    other_axes = [a for a in range(x.rank) if a != unique_axis]
    refuse_counted(x, other_axes, "the parts that it compares have a number of their own")
    x = masked(x, [unique_axis], 0.0)
    if x.kind == "logical" or not 0 < count * x.size <= _MAX_COMPARED:
        raise unsupported_error(f"Unique of {count:,} parts, {x.size:,} of {x.dtype} in all")
    order = [unique_axis, *other_axes]
    transposed = x.transpose(order)
    rows = transposed.reshape([count, x.size // count])
    are_equal, precedes = _compare_rows(rows)
    column = Value.known(np.arange(count).reshape(-1, 1))
    row = Value.known(np.arange(count).reshape(1, -1))
    if isinstance(n_parts, Value):  # what lies behind the count is no part
        are_equal = are_equal.and_(row.lt(n_parts))
    # the first of equal parts is kept; its rank is the number of kept parts before it
    equal_count = are_equal.select(1.0, 0.0)
    first = equal_count.argmax_reduce(axes=[1])
    is_first = first.eq(column).transpose([1, 0])
    if isinstance(n_parts, Value):
        is_first = is_first.and_(row.lt(n_parts))
    ones = is_first.select(1.0, 0.0)
    preceding_kept = (precedes if sorted else row.lt(first)).select(ones, 0.0)
    rank_of_part = preceding_kept.sum_reduce(axes=[1]).cast("integer")
    # the part at each rank
    is_at_rank = rank_of_part.transpose([1, 0]).eq(column).and_(is_first)
    part_at_rank = is_at_rank.select(1.0, 0.0).argmax_reduce(axes=[1])
    n_distinct = ones.sum_reduce(axes=[0, 1]).cast("integer").squeeze([1])
    flat = part_at_rank.squeeze([1])
    values = rows.gather(flat, axis=0).reshape(transposed.shape)
    values = values.transpose(np.argsort(order).tolist()).typed(x.dtype)
    counts = equal_count.sum_reduce(axes=[1]).cast("integer").gather(flat, axis=0)
    index, inverse, counts = (
        v.squeeze([1]).typed(np.int64) for v in (part_at_rank, rank_of_part, counts)
    )
    return [
        with_count(values, unique_axis, n_distinct),
        with_count(index, 0, n_distinct),
        with_count(inverse, 0, n_parts),
        with_count(counts, 0, n_distinct),
    ]


def _unique_of_known(x: Array, axis: int | None, is_sorted: bool) -> list[Value]:
    values, index, inverse, counts = np.unique(x, True, True, True, axis=axis)
    inverse = inverse.reshape(-1)
    if not is_sorted:
        order = np.argsort(index)
        values, index, counts = values.take(order, axis or 0), index[order], counts[order]
        inverse = np.argsort(order)[inverse]
    return [
        Value.known(values),
        *(Value.known(a.astype(np.int64)) for a in (index, inverse, counts)),
    ]


def _compare_rows(rows: Value) -> tuple[Value, Value]:
    """Adds comparisons of all pairs of rows and returns two matrices [i, j] of logicals.

    They are True where rows i and j are equal, and where j precedes i. Rows are ordered by the
    first number that differs. NaN is the greatest number and equal to itself.
    """
    a, b = rows.unsqueeze([1]), rows.unsqueeze([0])
    are_equal, precedes = a.eq(b), b.lt(a)
    if rows.kind != "integer":
        is_nan_a, is_nan_b = a.is_nan(), b.is_nan()
        are_equal = are_equal.or_(is_nan_a.and_(is_nan_b))
        precedes = precedes.or_(is_nan_a.and_(is_nan_b.not_()))
    if rows.shape[1] == 1:
        return are_equal.squeeze([2]), precedes.squeeze([2])
    differs = are_equal.select(0.0, 1.0).argmax_reduce(axes=[2])
    decided = precedes.select(1.0, 0.0).gather_elements(differs, axis=2)
    is_less = decided.squeeze([2]).gt(0.5)
    return are_equal.all_reduce(axes=[2]).squeeze([2]), is_less
