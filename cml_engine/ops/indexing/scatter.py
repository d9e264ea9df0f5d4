"""The operators ``scatter_elements`` and ``scatter_nd``.

Each element or row has its own index; a negative index counts from the end. Updates of the same
slot are applied in their order, so the result is bit-identical in every run. Indices are data that
other operators computed: an update with an index out of range does nothing, on both backends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from cml_engine.errors import ShapeError
from cml_engine.ir.graph import Array, Attrs, AttrValue, Fact
from cml_engine.ops.common.shapes import (
    MAX_RANK,
    check_axis,
    check_word,
    contiguous_strides,
)
from cml_engine.ops.declaration.lowering import LOOP_ITERATIONS, MAX_ITERATIONS, Lowering, for_each
from cml_engine.ops.declaration.registry import define
from cml_engine.ops.declaration.spec import (
    Case,
    Dispatch,
    Kernel,
    OpSpec,
    Tolerance,
    engine_kernel,
    integers,
    moving_cost,
    truth_values,
)

#: ``places(attrs, indices, the input's shape)`` returns each update's slot and the number of slots
PlacesOf = Callable[[Attrs, Array, tuple[int, ...]], tuple[Array, int]]


def element_places(attrs: Attrs, indices: Array, shape: tuple[int, ...]) -> tuple[Array, int]:
    """Returns the slot of each update of scatter_elements, flattened, and the number of slots.

    Every element of the tensor of that ``shape`` is a slot.
    """
    extent, strides = shape[attrs.axis], contiguous_strides(shape)
    index: Array = np.where(indices < 0, indices.astype(np.int64) + extent, indices)
    slots = np.zeros(indices.shape, np.int64)
    for axis, positions in enumerate(np.indices(indices.shape, np.int64)):
        slots += strides[axis] * (index if axis == attrs.axis else positions)
    return np.where((index >= 0) & (index < extent), slots, -1).reshape(-1), prod(shape)


def row_places(attrs: Attrs, indices: Array, shape: tuple[int, ...]) -> tuple[Array, int]:
    """Returns the slot of each update of scatter_nd, flattened, and the number of slots.

    A slot spans the axes of ``shape`` that are not indexed.
    """
    count = indices.shape[-1]
    extents = np.array(shape[:count], np.int64)
    rows = indices.reshape(prod(indices.shape[:-1]), count).astype(np.int64)
    rows = np.where(rows < 0, rows + extents, rows)
    slots = np.zeros(len(rows), np.int64)
    for axis, extent in enumerate(extents):
        slots = slots * extent + rows[:, axis]
    inside = ((rows >= 0) & (rows < extents)).all(-1)
    return np.where(inside, slots, -1), prod(shape[:count])


#: the ways to combine an update with a slot's value, in the kernels' order
REDUCTIONS = ("none", "add", "mul", "min", "max")
# Three ways to scatter on a GPU; each lets one thread apply the updates of an element in order. For
# constant indices, the updates of every slot are listed at load. For computed indices, if only the
# last update of a slot counts, every slot is first marked with that update's number. Otherwise
# threads search all updates for those of their own slots.

#: threads that keep a GPU, or a driver that runs shaders on the CPU, busy
_BUSY, _BUSY_SOFTWARE = 4096, 64
#: the most updates to search, per value that marking would move, before marking is faster
_MAX_SEARCHES = 8


def _elements_lower(op: Lowering) -> Iterator[Dispatch]:
    x, indices, _ = op.inputs
    if x.size == 0:
        return
    axis = op.attrs.axis
    other_axes = [d for d in range(x.rank) if d != axis]
    targets, start = contiguous_strides(x.shape), contiguous_strides(indices.shape)
    geometry = {
        "slots": x.shape[axis],
        "by_rows": 0,
        "places": 0,
        "limit": [0],
        "rank": len(other_axes),
        "extent": [x.shape[d] for d in other_axes] or [1],
        "reach": [indices.shape[d] for d in other_axes] or [1],
        "to": [targets[d] for d in other_axes] or [0],
        "start": [start[d] for d in other_axes] or [0],
        "to_step": targets[axis],
        "step": start[axis],
    }
    marks = {
        "slots": x.shape[axis],
        "by_rows": 0,
        "rank": x.rank,
        "extent": indices.shape,
        "stride": [0 if d == axis else s for d, s in enumerate(targets)],
        "step": targets[axis],
    }
    yield from _scatter(op, element_places, 1, indices.shape[axis], geometry, marks)


def _rows_lower(op: Lowering) -> Iterator[Dispatch]:
    x, indices, _ = op.inputs
    if x.size == 0:
        return
    indexed_axes = indices.shape[-1]
    row = prod(x.shape[indexed_axes:])
    limit = x.shape[:indexed_axes] or [0]
    geometry = {
        "slots": x.size // row,
        "by_rows": 1,
        "places": indexed_axes,
        "limit": limit,
        "rank": 1,
        "extent": [row],
        "reach": [row],
        "to": [1],
        "start": [1],
        "to_step": row,
        "step": row,
    }
    marks = {
        "slots": 0,
        "by_rows": 1,
        "rank": indexed_axes,
        "extent": limit,
        "stride": [0],
        "step": 0,
    }
    yield from _scatter(op, row_places, row, prod(indices.shape[:-1]), geometry, marks)


def _scatter(
    op: Lowering,
    places_of: PlacesOf,
    row: int,
    updates: int,
    geometry: Mapping[str, Any],
    marks: Mapping[str, AttrValue],
) -> Iterator[Dispatch]:
    """Yields the dispatches of the cheapest of the three ways.

    A slot has ``row`` values; ``updates`` is the number of updates that a thread must search for
    its slots.
    """
    x, constant = op.inputs[0], op.constant(op.in_names[1])
    reduction = REDUCTIONS.index(op.attrs.reduction)
    reduction += len(REDUCTIONS) * (x.dtype == "integer" and reduction > 0)
    busy = _BUSY_SOFTWARE if op.limits.software else _BUSY
    segment = max(1, min(updates, -(-x.size // busy), geometry["slots"], MAX_ITERATIONS // 4))
    threads = x.size // geometry["slots"] * -(-geometry["slots"] // segment)
    if constant is not None:
        yield from _walk_lists(op, places_of, constant, row, reduction)
    elif reduction == 0 and threads * updates > _MAX_SEARCHES * (x.size + op.inputs[2].size):
        yield from _mark_updates(op, row, marks)
    else:
        yield from _search_updates(op, threads, segment, updates, reduction, geometry)


def _search_updates(
    op: Lowering,
    threads: int,
    segment: int,
    updates: int,
    reduction: int,
    geometry: Mapping[str, Any],
) -> Iterator[Dispatch]:
    """Yields dispatches in which each thread searches all updates of a line for its range of slots.

    With few updates there is one thread per slot; with many there are fewer threads, to reduce
    the searching. Very many updates are split into launches that respect the limit of loop
    iterations.
    """
    part = MAX_ITERATIONS // 2 // (geometry["places"] + LOOP_ITERATIONS * geometry["by_rows"] or 1)
    for begin in range(0, max(updates, 1), part):
        params = {
            "lines": op.inputs[0].size // geometry["slots"],
            "segment": segment,
            "kind": reduction,
            "begin": begin,
            "end": min(begin + part, updates),
            **geometry,
        }
        yield for_each(op, threads, params, types="uint int uint uint")


def _walk_lists(
    op: Lowering, places_of: PlacesOf, indices: Array, row: int, reduction: int
) -> Iterator[Dispatch]:
    """Yields a copy of the input, then dispatches that apply each slot's listed updates in order.

    There is a thread for each value of the slots that have updates. Long lists take several
    dispatches.
    """
    (x, index_name, updates), (y,) = op.in_names, op.out_names
    fact = op.inputs[0]
    lists = _lists(places_of(op.attrs, indices, fact.shape)[0])
    hits = int(lists[0])
    yield _step(op, _COPY, fact.size, (x, y), "uint uint")
    if hits == 0:
        return
    shape = "x".join(map(str, fact.shape))
    packed = op.pack(f"{index_name}.lists.{shape}.{op.attrs.get('axis', '')}", lambda: lists)
    longest = int(np.diff(lists[1 + hits : 2 + 2 * hits]).max())
    for begin in range(0, longest, MAX_ITERATIONS):
        params = {"row": row, "begin": begin, "end": begin + MAX_ITERATIONS, "kind": reduction}
        yield _step(op, _APPLY_LISTS, hits * row, (packed, updates, y), "int uint uint", **params)


def _lists(slots_of_updates: Array) -> Array:
    """Returns the numbers of the updates grouped by slot, in one int32 array.

    ``slots_of_updates`` has the slot of each update, -1 for none. The array holds the number of
    slots with updates, these slots, the start of each slot's list, the end of the last list, and
    the numbers of the updates by slot and in order.
    """
    valid = np.flatnonzero(slots_of_updates >= 0)
    order = valid[np.argsort(slots_of_updates[valid], kind="stable")]
    slots, starts = np.unique(slots_of_updates[order], return_index=True)
    return np.concatenate([[len(slots)], slots, starts, [len(order)], order]).astype(np.int32)


def _mark_updates(op: Lowering, row: int, marks: Mapping[str, AttrValue]) -> Iterator[Dispatch]:
    """Yields dispatches that find each slot's last update, then write the result.

    The last update is the one with the greatest number, in whatever order the threads run.
    """
    (x, indices, updates), (y,) = op.in_names, op.out_names
    size, count = op.inputs[0].size, op.inputs[2].size // row
    winners = op.scratch(size // row)
    yield _step(op, _CLEAR, size // row, (winners,), "uint")
    yield _step(op, _MARK, count, (indices, winners), "int uint", **marks)
    yield _step(op, _TAKE, size, (x, updates, winners, y), "uint uint uint uint", row=row)


def _step(
    op: Lowering,
    kernel: Kernel,
    threads: int,
    tensors: tuple[str, ...],
    types: str,
    **params: AttrValue,
) -> Dispatch:
    stated = {**_NOTHING, **params}
    return for_each(op, threads, stated, types=types, tensors=tensors, kernel=kernel)


_NOTHING: Mapping[str, AttrValue] = {
    **dict.fromkeys(("row", "begin", "end", "kind", "slots", "by_rows", "rank", "step"), 0),
    **dict.fromkeys(("extent", "stride"), [0]),
}
_COPY, _APPLY_LISTS, _CLEAR, _MARK, _TAKE = (
    engine_kernel(
        f"indexing/scatter/{name}.hlsl",
        "n:u row:u begin:u end:u kind:u slots:u by_rows:u rank:u step:u "
        f"extent:u{MAX_RANK} stride:u{MAX_RANK}",
    )
    for name in ("copy", "apply_lists", "clear", "mark", "take")
)
_PARAMS = (
    "n:u lines:u slots:u segment:u kind:u begin:u end:u by_rows:u places:u rank:u to_step:u step:u "
    + " ".join(f"{name}:u{MAX_RANK}" for name in ("limit", "extent", "reach", "to", "start"))
)
_ELEMENTS, _ROWS = (
    engine_kernel("indexing/scatter/search.hlsl", _PARAMS, lower=lower)
    for lower in (_elements_lower, _rows_lower)
)


_COMBINE = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


# --- shapes -------------------------------------------------------------------------------------


def check_other_axes(x: Fact, indices: Fact, axis: int) -> None:
    """Raises :class:`ShapeError` if the indices do not fit ``x``.

    They must be integers of the same rank, and must not exceed ``x`` along axes other than
    ``axis``.
    """
    check_axis(axis, x.rank)
    fits = indices.rank == x.rank and all(
        i <= e for d, (i, e) in enumerate(zip(indices.shape, x.shape, strict=True)) if d != axis
    )
    if not fits:
        raise ShapeError(
            f"indices {indices} of {x}: wanted rank {x.rank}, and in every axis but {axis} at most "
            "the input's extent"
        )


def _check_updates(attrs: Attrs, x: Fact, updates: Fact, shape: Sequence[int]) -> None:
    if updates != Fact(x.dtype, tuple(shape)):
        raise ShapeError(f"updates are {updates}, wanted {x.dtype}{list(shape)}")
    check_word("reduction", attrs.reduction, REDUCTIONS)
    if x.dtype == "logical" and attrs.reduction != "none":
        raise ShapeError(f"reduction '{attrs.reduction}' of {x}: logical has 'none' only; cast it")


def _elements_infer(attrs: Attrs, x: Fact, indices: Fact, updates: Fact) -> Fact:
    check_other_axes(x, indices, attrs.axis)
    _check_updates(attrs, x, updates, indices.shape)
    return x


def _nd_infer(attrs: Attrs, x: Fact, indices: Fact, updates: Fact) -> Fact:
    if indices.rank == 0 or indices.shape[-1] > x.rank:
        raise ShapeError(f"indices {indices}, wanted rows of at most {x.rank} numbers for {x}")
    shape = (*indices.shape[:-1], *x.shape[indices.shape[-1] :])
    _check_updates(attrs, x, updates, shape)
    return x


# --- on the CPU ---------------------------------------------------------------------------------


def _scatter_cpu(
    places_of: PlacesOf, attrs: Attrs, x: Array, indices: Array, updates: Array
) -> Array:
    if x.size == 0:
        return np.array(x)
    slots_of_updates, slots = places_of(attrs, indices, x.shape)
    y, inside = np.array(x).reshape(slots, x.size // slots), slots_of_updates >= 0
    valid_slots, values = (
        slots_of_updates[inside],
        updates.reshape(len(slots_of_updates), y.shape[1])[inside],
    )
    if attrs.reduction == "none":
        y[valid_slots] = values  # of several the last one
    else:
        _COMBINE[attrs.reduction].at(y, valid_slots, values)
    return y.reshape(x.shape)


# --- the operators ------------------------------------------------------------------------------


#: one operation per update; the search for updates, which depends on the device, is left out
_scatter_cost = moving_cost(lambda attrs, inputs, outputs: inputs[2].size)

_IN_ORDER = Tolerance(
    1e-5, 1e-5, "up to 100 updates of one place, each rounded; in the same order on both backends"
)


def _elements_cases() -> Iterator[Case]:
    for reduction in REDUCTIONS:
        attrs = {"reduction": reduction}
        yield Case(((4, 5), integers(3, 5, below=4), (3, 5)), {"axis": 0, **attrs}, "first axis")
        yield Case(
            ((3, 9, 2), integers(2, 70, 1, below=9), (2, 70, 1)),
            {"axis": 1, **attrs},
            "fewer lines",
        )
        yield Case(
            (integers(30, below=9), integers(100, below=30), integers(100, below=9)),
            {"axis": 0, **attrs},
            "integers",
        )
    none = {"axis": 1, "reduction": "none"}
    yield Case(((300, 3), integers(5, 3, below=300), (5, 3)), {**none, "axis": 0}, "few of many")
    yield Case((truth_values(3, 4), integers(3, 2, below=4), truth_values(3, 2)), none, "logical")
    yield Case(((2, 4), np.array([[4, -5, 0]]), (1, 3)), none, "indices that are nowhere")
    yield Case(((2, 3), integers(2, 0, below=3), (2, 0)), none, "no updates")
    yield Case(((2, 0), integers(2, 1, below=1), (2, 1)), none, "no places")
    yield Case(((1, 1), integers(1, 1, below=1), (1, 1)), none, "extent 1")


define(
    OpSpec(
        "scatter_elements",
        infer=_elements_infer,
        cpu=partial(_scatter_cpu, element_places),
        kernel=_ELEMENTS,
        cost=_scatter_cost,
        tolerance=_IN_ORDER,
        cases=list(_elements_cases()),
    )
)


def _nd_cases() -> Iterator[Case]:
    for reduction in REDUCTIONS:
        attrs = {"reduction": reduction}
        yield Case(((3, 5), np.array([[2, 4], [0, -5], [2, -1]]), (3,)), attrs, "single values")
        yield Case(((6, 70), integers(4, 2, 1, below=6), (4, 2, 70)), attrs, "rows")
        yield Case(
            (integers(2, 3, 4, below=9), integers(9, 2, below=2), integers(9, 4, below=9)),
            attrs,
            "integers",
        )
    none = {"reduction": "none"}
    yield Case((truth_values(4), integers(3, 1, below=4), truth_values(3)), none, "logical")
    yield Case(((3, 2), np.array([[3], [-4], [1]]), (3, 2)), none, "indices that are nowhere")
    yield Case(((3, 2), np.zeros((2, 0), np.int32), (2, 3, 2)), {"reduction": "add"}, "all of it")
    yield Case(((3, 2), np.zeros((0, 2), np.int32), (0,)), none, "no updates")
    yield Case(((0, 2), np.zeros((3, 1), np.int32), (3, 2)), none, "no places")


define(
    OpSpec(
        "scatter_nd",
        infer=_nd_infer,
        cpu=partial(_scatter_cpu, row_places),
        kernel=_ROWS,
        cost=_scatter_cost,
        tolerance=_IN_ORDER,
        cases=list(_nd_cases()),
    )
)
