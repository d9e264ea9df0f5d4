"""Imports gather, scatter and selection by index, and operators whose results' sizes depend on
values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cml_engine.formats.onnx.op_schemas import ML, OnnxCall, at_least, one_of, op
from cml_engine.formats.onnx.operators.elementwise import wrap
from cml_engine.formats.onnx.ranges import INT32, Interval
from cml_engine.formats.onnx.values import (
    InvalidNode,
    Operand,
    Value,
    add_operators,
    allocate,
    bounded,
    checked_axis,
    checked_shape,
    concat,
    current_import,
    interval_of,
    unsupported_error,
    zeros,
)
from cml_engine.ir.graph import Array


def _positive_indices(array: Array, extent: int) -> Array:
    """Returns known indices as int64, with negative ones, which count from the end, made positive.

    Raises an error if an index is outside ``extent`` elements.
    """
    if array.size and (array.min() < -extent or array.max() >= extent):
        invalid = array[(array < -extent) | (array >= extent)].flat[0]
        raise InvalidNode(f"index {invalid} of {extent} elements")
    return np.asarray(array % extent if extent else array, np.int64)


def _wrap_indices(indices: Value, extents: list[int]) -> Value:
    """Adds operators that make negative indices, which count from the end, positive.

    ``extents`` has one extent for all indices, or one per element of the last axis. Returns the
    indices.
    """
    extent: Operand = extents[0] if len(extents) == 1 else Value.known(np.array(extents, np.int64))
    if interval_of(indices).low >= 0:
        return indices
    wrapped = indices + extent
    return indices.lt(0).select(wrapped, indices).typed(indices.dtype)


def _valid(indices: Value, extents: Sequence[int]) -> Value:
    """Returns computed indices with the bounds of valid ones, if they have wider bounds than int32.

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
    extent = x.shape[axis]
    if indices.array is None:
        indices = _valid(indices, [extent])
        return x.gather(_wrap_indices(indices, [extent]), axis=axis)
    positive = _positive_indices(indices.array, extent)
    flat = positive.reshape(-1).tolist()
    if flat and positive.ndim <= 1 and flat == list(range(flat[0], flat[0] + len(flat))):
        part = x.slice(axis, flat[0], flat[0] + len(flat))
        return part if positive.ndim else part.squeeze([axis])
    return x.gather(Value.known(positive), axis=axis)


@op("ArrayFeatureExtractor", "gather", domain=ML)
def array_feature_extractor(x: Value, indices: Value) -> Value:
    x = x.unsqueeze([0]) if x.rank == 1 else x
    indices = _valid(indices.reshape([indices.size]), [x.shape[-1]])
    wrapped = _wrap_indices(indices, [x.shape[-1]])
    return x.gather(wrapped, axis=x.rank - 1)


@op("GatherND", "gather_nd")
def gather_nd(x: Value, indices: Value, *, batch_dims: int = at_least(0, 0)) -> Value:
    depth = indices.shape[-1]
    extents = list(x.shape[batch_dims : batch_dims + depth])
    indices = _wrap_indices(_valid(indices, extents), extents)
    if batch_dims:
        # prepend each element's batch indices to the given indices
        grid = np.indices(indices.shape[:-1])[:batch_dims]
        batch_indices = Value.known(np.moveaxis(grid, 0, -1).astype(np.int64))
        indices = concat([batch_indices, indices], indices.rank - 1)
    return x.gather_nd(indices)


@op("GatherElements", "gather_elements")
def gather_elements(x: Value, indices: Value, *, axis: int = 0) -> Value:
    return x.gather_elements(indices, axis=checked_axis(axis, x.rank))


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
    y = x.scatter_elements(indices, updates, axis=axis, reduction=reduction)
    return _scattered(x, y, reduction)


@op("ScatterND", "scatter_nd")
def scatter_nd(x: Value, indices: Value, updates: Value, *, reduction: str = _REDUCTION) -> Value:
    _check_reduction(x, reduction)
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
    axis_shape = [-1 if a == axis else 1 for a in range(cache.rank)]
    steps = np.arange(update.shape[axis]).reshape(axis_shape)
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
    axis = checked_axis(axis, indices.rank + 1)
    lifted = indices.cast("integer").unsqueeze([axis])
    checked_shape([*indices.shape, *allocate([count])])
    classes = np.arange(count).reshape([count if a == axis else 1 for a in range(lifted.rank)])
    is_class = lifted.eq(Value.known(classes)).or_(lifted.eq(Value.known(classes - count)))
    off_value, on_value = (values.slice(0, i, i + 1).reshape([]) for i in range(2))
    return is_class.select(on_value, off_value).typed(values.dtype)


@op("Compress", "gather")
def compress(x: Value, condition: Array, *, axis: int | None = None) -> Value:
    selected = np.flatnonzero(condition)
    if axis is None:
        x, axis = x.reshape([x.size]), 0
    axis = checked_axis(axis, x.rank)
    if selected.size and selected[-1] >= x.shape[axis]:
        raise InvalidNode(f"a condition of {condition.shape[0]} for {x.shape[axis]} elements")
    if x.array is not None:
        return Value.known(x.array.take(selected, axis))
    return x.gather(Value.known(selected), axis=axis)


# -- results whose sizes depend on values --------------------------------------------------------


@op("NonZero", "nonzero")
def non_zero(call: OnnxCall, x: Value) -> Value:
    if x.array is not None:
        allocate([x.rank, x.array.size])
        return Value.known(np.array(np.nonzero(x.array), np.int64))
    indices, count = add_operators("nonzero", 2, x, capacity=x.size)
    current_import().add_count(call.node.outputs[0], count, indices, 1)
    return indices.typed(np.int64)


@op("NonMaxSuppression", "non_max_suppression")
def non_max_suppression(
    call: OnnxCall,
    boxes: Value,
    scores: Value,
    boxes_per_class: float = 0.0,
    iou_threshold: float = 0.0,
    score_threshold: float | None = None,
    *,
    center_point_box: bool = False,
) -> Value:
    """Imports NonMaxSuppression; the result has the largest possible number of rows.

    Rows after the last selected box are -1. The number of boxes is an extra output of the graph.
    """
    if boxes_per_class < 1:
        return zeros((0, 3), np.int64)
    more = {} if score_threshold is None else {"score_threshold": score_threshold}
    selected, count = add_operators(
        "non_max_suppression", 2, boxes, scores, iou_threshold=iou_threshold,
        max_per_class=min(int(boxes_per_class), boxes.shape[1]),
        center_point_box=center_point_box, **more,
    )  # fmt: skip
    if count.array is not None:
        return selected.typed(np.int64).slice(0, 0, int(count.array[0]))
    current_import().add_count(call.node.outputs[0], count, selected, 0)
    return selected.typed(np.int64)


#: the most comparisons of numbers: Unique compares every part with every other
_MAX_COMPARED = 1 << 22


@op("Unique", "eq, lt, all_reduce, argmax_reduce, sum_reduce, gather, select")
def unique(
    call: OnnxCall,
    x: Value,
    *,
    axis: int | None = None,
    sorted: bool = True,
) -> list[Value]:
    """Imports Unique: the distinct parts of a tensor, in results of the largest possible extent.

    Entries after the last distinct part are -1. The number of distinct parts is an extra output
    of the graph.
    """
    if x.array is not None:
        return _unique_of_known(x.array, axis, sorted)
    unique_axis = 0 if axis is None else checked_axis(axis, x.rank)
    count = x.size if axis is None else x.shape[unique_axis]
    if x.kind == "logical" or not 0 < count * x.size <= _MAX_COMPARED:
        raise unsupported_error(f"Unique of {count:,} parts, {x.size:,} of {x.dtype} in all")
    order = [unique_axis, *(a for a in range(x.rank) if a != unique_axis)]
    transposed = x if axis is None else x.transpose(order)
    rows = transposed.reshape([count, x.size // count])
    are_equal, precedes = _compare_rows(rows)
    column = Value.known(np.arange(count).reshape(-1, 1))
    row = Value.known(np.arange(count).reshape(1, -1))
    # the first of equal parts is kept; its rank is the number of kept parts before it
    equal_count = are_equal.select(1.0, 0.0)
    first = equal_count.argmax_reduce(axes=[1])
    is_first = first.eq(column).transpose([1, 0])
    ones = is_first.select(1.0, 0.0)
    preceding_kept = (precedes if sorted else row.lt(first)).select(ones, 0.0)
    rank_of_part = preceding_kept.sum_reduce(axes=[1]).cast("integer")
    # the part at each rank
    is_at_rank = rank_of_part.transpose([1, 0]).eq(column).and_(is_first)
    part_at_rank = is_at_rank.select(1.0, 0.0).argmax_reduce(axes=[1])
    has_part = is_at_rank.any_reduce(axes=[1])
    n_distinct = ones.sum_reduce(axes=[0, 1]).cast("integer")
    flat = part_at_rank.squeeze([1])

    def filled(value: Value) -> Value:
        return has_part.select(value, -1 if value.kind == "integer" else -1.0)

    values = filled(rows.gather(flat, axis=0)).reshape(transposed.shape)
    if axis is None:
        values = values.reshape([count])
    else:
        values = values.transpose(np.argsort(order).tolist())
    counts = filled(equal_count.sum_reduce(axes=[1]).cast("integer").gather(flat, axis=0))
    results = [
        values.typed(x.dtype),
        *(v.squeeze([1]) for v in (filled(part_at_rank), rank_of_part, counts)),
    ]
    for i, valid_along in ((0, unique_axis), (1, 0), (3, 0)):
        if call.wants(i):
            n_valid = n_distinct.squeeze([1])
            current_import().add_count(call.node.outputs[i], n_valid, results[i], valid_along)
    return [results[0], *(v.typed(np.int64) for v in results[1:])]


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
