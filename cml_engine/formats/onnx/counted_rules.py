"""The rules of NNEF's operators along counted axes.

Every operator that an import adds to a tensor with a counted axis has a rule here, or is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from cml_engine.formats.onnx.counted_axes import (
    Counts,
    Extent,
    all_masked,
    extent,
    fit,
    greatest,
    least,
    masked,
    number_of,
    plus,
    positions,
    quotient_up,
    replaced,
    reshaped_counts,
    shared,
    take,
    with_count,
)
from cml_engine.formats.onnx.counted_shapes import padded
from cml_engine.formats.onnx.ranges import INT32
from cml_engine.formats.onnx.values import (
    COUNTED_RULES,
    CountedRule,
    NnefCall,
    Value,
    as_value,
    counted_error,
    current_import,
    interval_of,
    refuse_counted,
)

#: an index that no tensor has: a scatter leaves out the update
_NOWHERE = float(INT32.high)


def rule(*ops: str) -> Callable[[CountedRule], CountedRule]:
    """Returns a decorator that declares what NNEF operators do along counted axes."""

    def declare(function: CountedRule) -> CountedRule:
        COUNTED_RULES.update(dict.fromkeys(ops, function))
        return function

    return declare


def _results(values: Sequence[Value], counts: Counts) -> list[Value]:
    return [value.declare(counts) for value in values]


# -- elementwise ---------------------------------------------------------------------------------


@rule("elementwise", "cast", "to_bits", "from_bits")
def _elementwise(call: NnefCall) -> list[Value]:
    """Carries the counts: an axis has the same one in all operands that do not broadcast along it.

    NNEF aligns shapes from the left.
    """
    operands, counts = list(call.inputs), dict[int, Value]()
    for axis in range(max(v.rank for v in operands)):
        having = [i for i, v in enumerate(operands) if axis < v.rank]
        fitted, count = shared([operands[i] for i in having], [axis] * len(having))
        if count is not None:
            counts[axis] = count
            for i, value in zip(having, fitted, strict=True):
                operands[i] = value
    return _results(call.add(*operands), counts)


# -- moves ---------------------------------------------------------------------------------------


@rule("transpose")
def _transpose(call: NnefCall) -> list[Value]:
    (x,), order = call.inputs, list(call.attrs["axes"])
    return _results(call.add(), {order.index(axis): n for axis, n in x.counts.items()})


@rule("unsqueeze")
def _unsqueeze(call: NnefCall) -> list[Value]:
    (x,), added = call.inputs, call.attrs["axes"]
    kept = [a for a in range(x.rank + len(added)) if a not in added]
    return _results(call.add(), {kept[axis]: n for axis, n in x.counts.items()})


@rule("squeeze")
def _squeeze(call: NnefCall) -> list[Value]:
    (x,), removed = call.inputs, call.attrs["axes"]
    refuse_counted(x, removed, "only an axis of one element can be removed")
    kept = [a for a in range(x.rank) if a not in removed]
    return _results(call.add(), {kept.index(axis): n for axis, n in x.counts.items()})


@rule("reshape")
def _reshape(call: NnefCall) -> list[Value]:
    (x,), (y,) = call.inputs, call.add()
    counts = reshaped_counts(x, y.shape)
    if counts is None:
        reason = f"the shape {list(y.shape)} does not keep its elements together"
        raise counted_error(x, next(iter(x.counts)), reason)
    return [y.declare(counts)]


@rule("slice")
def _slice(call: NnefCall) -> list[Value]:
    (x,), attrs = call.inputs, call.attrs
    counts = dict(x.counts)
    strides = attrs.get("stride") or [1] * len(attrs["axes"])
    for axis, begin, end, stride in zip(
        attrs["axes"], attrs["begin"], attrs["end"], strides, strict=True
    ):
        if axis not in counts:
            continue
        if stride < 0 or begin < 0 or end <= 0:
            raise counted_error(x, axis, "the slice begins at its end")
        taken = greatest(plus(least(counts[axis], end), -begin), 0)
        counts[axis] = as_value(quotient_up(taken, stride))
    return _results(call.add(), counts)


@rule("split")
def _split(call: NnefCall) -> list[Value]:
    x, axis = call.inputs[0], call.attrs["axis"]
    refuse_counted(x, [axis], "the parts of a split have fixed sizes")
    return _results(call.add(), x.counts)


@rule("tile")
def _tile(call: NnefCall) -> list[Value]:
    """Compacts: the copies follow each other without gaps."""
    x, repeats = call.inputs[0], list(call.attrs["repeats"])
    for axis, n in x.counts.items():
        if repeats[axis] != 1:
            most = x.shape[axis] * repeats[axis]
            x = take(x, axis, positions(most).int_mod(n), n * repeats[axis])
            repeats[axis] = 1
    if all(n == 1 for n in repeats):
        return [x]
    return _results(call.add(x, repeats=repeats), x.counts)


@rule("concat")
def _concat(call: NnefCall) -> list[Value]:
    """Compacts: the elements of the parts follow each other without gaps."""
    axis, parts = call.attrs["axis"], list(call.inputs)
    counts: dict[int, Value] = {}
    for other in range(parts[0].rank):
        if other != axis:
            parts, count = shared(parts, [other] * len(parts))
            if count is not None:
                if any(other not in v.counts for v in parts):
                    raise counted_error(
                        next(v for v in parts if other in v.counts), other, "another part has 1"
                    )
                counts[other] = count
    (y,) = _results(call.add(*parts), counts)
    return [_compacted(y, axis, [v.shape[axis] for v in parts], [extent(v, axis) for v in parts])]


def _compacted(y: Value, axis: int, rooms: Sequence[int], sizes: Sequence[Extent]) -> Value:
    """Returns a concatenation without the gaps behind the counted parts, which have ``rooms``."""
    total: Extent = 0
    index: Value = positions(y.shape[axis])
    start, is_moved = 0, False
    for space, size in zip(rooms, sizes, strict=True):
        if isinstance(total, Value):
            is_moved = True
            places = positions(y.shape[axis])
            index = places.ge(total).select(places - total + start, index)
        total = size + total if isinstance(size, Value) else total + size
        start += space
    return take(y, axis, index, total) if is_moved else with_count(y, axis, total)


@rule("pad")
def _pad(call: NnefCall) -> list[Value]:
    x, attrs = call.inputs[0], call.attrs
    border, padding = attrs.get("border", "constant"), list(attrs["padding"])
    for axis in [a for a in x.counts if tuple(padding[a]) != (0, 0)]:
        before, after = padding[axis]
        if border != "constant":
            x = padded(x, axis, before, after, border)
            padding[axis] = (0, 0)
    counts = {
        axis: as_value(greatest(plus(n, sum(padding[axis])), 0)) for axis, n in x.counts.items()
    }
    if not any(a or b for a, b in padding):
        return [x]
    value = float(attrs.get("value", 0.0))
    filled = masked(x, [a for a in x.counts if any(padding[a])], value)
    return _results(call.add(filled, padding=padding), counts)


# -- reductions ----------------------------------------------------------------------------------


#: the value of which any number leaves the result as it is
_NEUTRAL = {
    "sum_reduce": 0.0, "prod_reduce": 1.0, "max_reduce": -inf, "min_reduce": inf,
    "any_reduce": 0.0, "all_reduce": 1.0, "argmax_reduce": -inf, "argmin_reduce": inf,
}  # fmt: skip


def _float_of(n: Extent, rank: int) -> Value:
    """Returns a number of elements as a float that broadcasts with ``rank`` axes."""
    return as_value(n).reshape([1] * rank).scalar()


@rule(*_NEUTRAL)
def _reduce(call: NnefCall) -> list[Value]:
    x, axes = call.inputs[0], list(call.attrs["axes"])
    if call.attrs.get("normalize"):
        return _mean(call)
    if call.op.startswith("arg") and len(axes) > 1:
        refuse_counted(x, axes, f"{call.op} searches several axes at once")
    filled = masked(x, axes, _NEUTRAL[call.op])
    (y,) = _results(call.add(filled), filled.counts)
    return [_one_of(x, y) if call.op in ("max_reduce", "min_reduce") else y]


def _one_of(x: Value, y: Value) -> Value:
    """Returns a result of elements of ``x``: it has their bounds, not those of what masks them."""
    current_import().intervals[y.tensor or ""] = interval_of(x)
    return y


@rule("mean_reduce", "moments")
def _mean(call: NnefCall) -> list[Value]:
    x, axes = call.inputs[0], list(call.attrs["axes"])
    if not any(axis in x.counts for axis in axes):
        return _results(call.add(), x.counts)
    center = mean(x, axes)
    return [center, mean((x - center).sqr(), axes)] if call.op == "moments" else [center]


def mean(x: Value, axes: Sequence[int]) -> Value:
    return x.sum_reduce(axes=list(axes)) / _float_of(number_of(x, axes), x.rank)


@rule("softmax", "cumsum", "cumprod")
def _along_axes(call: NnefCall) -> list[Value]:
    x, attrs = call.inputs[0], call.attrs
    axes = [attrs["axis"]] if "axis" in attrs else attrs.get("axes", [1])
    neutral = {"softmax": -inf, "cumsum": 0.0, "cumprod": 1.0}[call.op]
    return _results(call.add(masked(x, axes, neutral)), x.counts)


@rule("top_k")
def _top_k(call: NnefCall) -> list[Value]:
    x, axis, k = call.inputs[0], call.attrs["axis"], call.attrs["k"]
    worst = -inf if call.attrs.get("largest", True) else inf
    count = least(extent(x, axis), k)
    results = call.add(masked(x, [axis], worst))
    values, places = _results(results, replaced(x, axis, count))
    return [_one_of(x, values), places]


# -- products ------------------------------------------------------------------------------------


@rule("matmul", "int_matmul")
def _matmul(call: NnefCall) -> list[Value]:
    a, b = call.inputs
    rank = a.rank
    row, inner = (rank - 1, rank - 2) if call.attrs.get("transposeA") else (rank - 2, rank - 1)
    inner_b, column = (rank - 1, rank - 2) if call.attrs.get("transposeB") else (rank - 2, rank - 1)
    (a, b), _ = _summed(a, inner, b, inner_b)
    counts: dict[int, Value] = {}
    for axis in range(rank - 2):
        (a, b), count = shared([a, b], [axis, axis])
        if count is not None:
            counts[axis] = count
    if row in a.counts:
        counts[rank - 2] = a.counts[row]
    if column in b.counts:
        counts[rank - 1] = b.counts[column]
    return _results(call.add(a, b), counts)


def _summed(a: Value, axis: int, b: Value, axis_of_b: int) -> tuple[list[Value], Value | None]:
    """Returns operands with 0 behind the counted elements of the axes along which they are summed.

    Raises an error unless both axes have the same count.
    """
    is_static = axis not in a.counts, axis_of_b not in b.counts
    if all(is_static):
        return [a, b], None
    if any(is_static):
        counted, at = (b, axis_of_b) if is_static[0] else (a, axis)
        other = a.shape[axis] if is_static[0] else b.shape[axis_of_b]
        raise counted_error(counted, at, f"the other factor has {other} elements there")
    (a, b), count = shared([a, b], [axis, axis_of_b])
    return [masked(a, [axis], 0.0), masked(b, [axis_of_b], 0.0)], count


@rule("linear")
def _linear(call: NnefCall) -> list[Value]:
    x, *others = call.inputs
    if any(v.counts for v in others) or 1 in x.counts:
        value = next((v for v in others if v.counts), x)
        raise counted_error(value, next(iter(value.counts)), "the weights have fixed extents")
    return _results(call.add(), x.counts)


# -- indices -------------------------------------------------------------------------------------


@rule("gather")
def _gather(call: NnefCall) -> list[Value]:
    (x, indices), axis = call.inputs, call.attrs["axis"]
    counts = {axis + a: n for a, n in indices.counts.items()}
    for a, n in x.counts.items():
        if a != axis:
            counts[a if a < axis else a - 1 + indices.rank] = n
    return _results(call.add(x, all_masked(indices, 0.0)), counts)


@rule("gather_nd")
def _gather_nd(call: NnefCall) -> list[Value]:
    x, indices = call.inputs
    last = indices.rank - 1
    refuse_counted(indices, [last], "it has one index for each axis")
    counts = dict(indices.counts)
    for axis, n in x.counts.items():
        if axis >= indices.shape[-1]:
            counts[last + axis - indices.shape[-1]] = n
    return _results(call.add(x, all_masked(indices, 0.0)), counts)


@rule("gather_elements")
def _gather_elements(call: NnefCall) -> list[Value]:
    x, indices = call.inputs
    return _results(call.add(x, all_masked(indices, 0.0)), indices.counts)


@rule("scatter_elements")
def _scatter_elements(call: NnefCall) -> list[Value]:
    x, indices, updates = call.inputs
    indices, updates = _update_indices(indices, updates, range(indices.rank))
    return _results(call.add(x, indices, updates), x.counts)


@rule("scatter_nd")
def _scatter_nd(call: NnefCall) -> list[Value]:
    x, indices, updates = call.inputs
    last, depth = indices.rank - 1, indices.shape[-1]
    refuse_counted(indices, [last], "it has one index for each axis")
    for axis in updates.counts:
        target = depth + axis - last
        if axis >= last and target not in x.counts:
            raise counted_error(updates, axis, f"the data has {x.shape[target]} elements there")
    indices, updates = _update_indices(indices, updates, range(last))
    return _results(call.add(x, indices, updates), x.counts)


def _update_indices(indices: Value, updates: Value, axes: Sequence[int]) -> tuple[Value, Value]:
    """Returns indices and updates of a scatter; indices behind a count point nowhere.

    The indices and the updates may have counts of their own: as many updates are done as both have.
    """
    for axis in axes:
        if axis not in indices.counts and axis not in updates.counts:
            continue
        indices, updates = fit([indices, updates], [axis, axis])
        for count in [v.counts[axis] for v in (indices, updates) if axis in v.counts]:
            indices = masked(with_count(indices, axis, count), [axis], _NOWHERE)
    return indices, updates


@rule("nonzero")
def _nonzero(call: NnefCall) -> list[Value]:
    return call.add(all_masked(call.inputs[0], 0.0))


@rule("non_max_suppression")
def _non_max_suppression(call: NnefCall) -> list[Value]:
    boxes, scores = call.inputs
    return call.add(boxes, all_masked(scores, -inf))


# -- items of a batch ----------------------------------------------------------------------------


@rule("conv", "deconv", "int_conv", "resize", "nearest_upsample", "multilinear_upsample",
      "nearest_downsample", "area_downsample")  # fmt: skip
def _of_items(call: NnefCall) -> list[Value]:
    """Carries the count of a batch: each item is computed by itself."""
    x, *others = call.inputs
    refuse_counted(x, range(1, x.rank))
    for value in others:
        refuse_counted(value, value.counts)
    return _results(call.add(), x.counts)


@rule("box", "avg_pool", "max_pool")
def _windows(call: NnefCall) -> list[Value]:
    """Carries the counts of axes along which a window has one element."""
    x, attrs = call.inputs[0], call.attrs
    for axis in x.counts:
        steps = [attrs[name][axis] for name in ("size", "stride") if attrs.get(name)]
        padding = tuple(attrs["padding"][axis]) if attrs.get("padding") else (0, 0)
        if any(n != 1 for n in steps) or padding != (0, 0):
            raise counted_error(x, axis, "its windows reach over the last element")
    return _results(call.add(), x.counts)


@rule("grid_sample")
def _grid_sample(call: NnefCall) -> list[Value]:
    x, grid = call.inputs
    refuse_counted(x, range(1, x.rank))
    (x, grid), count = shared([x, grid], [0, 0])
    counts = {axis + 1: n for axis, n in grid.counts.items() if 0 < axis < grid.rank - 1}
    return _results(call.add(x, grid), counts if count is None else {0: count, **counts})


@rule("roi_align", "avg_roi_pool", "max_roi_pool")
def _regions(call: NnefCall) -> list[Value]:
    """Carries the count of the regions."""
    x, regions, items = call.inputs
    refuse_counted(x, x.counts)
    (regions, items), count = shared([regions, items], [0, 0])
    if count is None or list(regions.counts) != [0]:
        raise counted_error(regions, next(iter(regions.counts)))
    filled = [masked(regions, [0], 0.0), masked(items, [0], 0.0)]
    return _results(call.add(x, *filled), {0: count})
