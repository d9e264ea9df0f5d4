"""Three ways to scatter on a GPU; each lets one thread apply the updates of an element in order.

For constant indices, the updates of every slot are listed at load. For computed indices, if only
the last update of a slot counts, every slot is first marked with that update's number. Otherwise
threads search all updates for those of their own slots.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import numpy as np

from cml_engine.ir.graph import Array, AttrValue
from cml_engine.ops.common.broadcast import contiguous_strides
from cml_engine.ops.common.shapes import MAX_RANK
from cml_engine.ops.declaration.lowering import LOOP_TURNS, MOST_TURNS, Lowering, for_each
from cml_engine.ops.declaration.spec import Dispatch, Kernel
from cml_engine.ops.indexing.scatter_places import PlacesOf, element_places, row_places

#: the ways to combine an update with a slot's value, in the kernels' order
REDUCTIONS = ("none", "add", "mul", "min", "max")
#: threads that keep a GPU, or a driver that runs shaders on the CPU, busy
_BUSY, _BUSY_SOFTWARE = 4096, 64
#: the most updates to search, per value that marking would move, before marking is faster
_LOOKS = 8


def _elements_lower(op: Lowering) -> Iterator[Dispatch]:
    x, indices, _ = op.inputs
    if x.size == 0:
        return
    axis = op.attrs.axis
    beside = [d for d in range(x.rank) if d != axis]
    to, start = contiguous_strides(x.shape), contiguous_strides(indices.shape)
    geometry = {
        "slots": x.shape[axis],
        "by_rows": 0,
        "places": 0,
        "limit": [0],
        "rank": len(beside),
        "extent": [x.shape[d] for d in beside] or [1],
        "reach": [indices.shape[d] for d in beside] or [1],
        "to": [to[d] for d in beside] or [0],
        "start": [start[d] for d in beside] or [0],
        "to_step": to[axis],
        "step": start[axis],
    }
    marks = {
        "slots": x.shape[axis],
        "by_rows": 0,
        "rank": x.rank,
        "extent": indices.shape,
        "stride": [0 if d == axis else s for d, s in enumerate(to)],
        "step": to[axis],
    }
    yield from _scatter(op, element_places, 1, indices.shape[axis], geometry, marks)


def _rows_lower(op: Lowering) -> Iterator[Dispatch]:
    x, indices, _ = op.inputs
    if x.size == 0:
        return
    places = indices.shape[-1]
    row = prod(x.shape[places:])
    limit = x.shape[:places] or [0]
    geometry = {
        "slots": x.size // row,
        "by_rows": 1,
        "places": places,
        "limit": limit,
        "rank": 1,
        "extent": [row],
        "reach": [row],
        "to": [1],
        "start": [1],
        "to_step": row,
        "step": row,
    }
    marks = {"slots": 0, "by_rows": 1, "rank": places, "extent": limit, "stride": [0], "step": 0}
    yield from _scatter(op, row_places, row, prod(indices.shape[:-1]), geometry, marks)


def _scatter(
    op: Lowering,
    places_of: PlacesOf,
    row: int,
    updates: int,
    geometry: Mapping[str, Any],
    marks: Mapping[str, Any],
) -> Iterator[Dispatch]:
    """Yields the dispatches of the cheapest of the three ways.

    A slot has ``row`` values; ``updates`` is the number of updates that a thread must search for
    its slots.
    """
    x, constant = op.inputs[0], op.constant(op.in_names[1])
    kind = REDUCTIONS.index(op.attrs.reduction)
    kind += len(REDUCTIONS) * (x.dtype == "integer" and kind > 0)
    busy = _BUSY_SOFTWARE if op.limits.software else _BUSY
    segment = max(1, min(updates, -(-x.size // busy), geometry["slots"], MOST_TURNS // 4))
    threads = x.size // geometry["slots"] * -(-geometry["slots"] // segment)
    if constant is not None:
        yield from _walk_lists(op, places_of, constant, row, kind)
    elif kind == 0 and threads * updates > _LOOKS * (x.size + op.inputs[2].size):
        yield from _mark_updates(op, row, marks)
    else:
        yield from _search_updates(op, threads, segment, updates, kind, geometry)


def _search_updates(
    op: Lowering,
    threads: int,
    segment: int,
    updates: int,
    kind: int,
    geometry: Mapping[str, Any],
) -> Iterator[Dispatch]:
    """Yields dispatches in which each thread searches all updates of a line for its range of slots.

    With few updates there is one thread per slot; with many there are fewer threads, to reduce
    the searching. Very many updates are split into launches that respect the limit of loop
    turns.
    """
    part = MOST_TURNS // 2 // (geometry["places"] + LOOP_TURNS * geometry["by_rows"] or 1)
    for begin in range(0, max(updates, 1), part):
        params = {
            "lines": op.inputs[0].size // geometry["slots"],
            "segment": segment,
            "kind": kind,
            "begin": begin,
            "end": min(begin + part, updates),
            **geometry,
        }
        yield for_each(op, threads, params, types="uint int uint uint")


def _walk_lists(
    op: Lowering, places_of: PlacesOf, indices: Array, row: int, kind: int
) -> Iterator[Dispatch]:
    """Yields a copy of the input, then dispatches that apply each slot's listed updates in order.

    There is a thread for each value of the slots that have updates. Long lists take several
    dispatches.
    """
    (x, index_name, updates), (y,) = op.in_names, op.out_names
    fact = op.inputs[0]
    lists = _lists(places_of(op.attrs, indices, fact.shape)[0])
    hits = int(lists[0])
    yield _step(op, "COPY", fact.size, (x, y), "uint uint")
    if hits == 0:
        return
    shape = "x".join(map(str, fact.shape))
    packed = op.pack(f"{index_name}.lists.{shape}.{op.attrs.get('axis', '')}", lambda: lists)
    longest = int(np.diff(lists[1 + hits : 2 + 2 * hits]).max())
    for begin in range(0, longest, MOST_TURNS):
        params = {"row": row, "begin": begin, "end": begin + MOST_TURNS, "kind": kind}
        yield _step(op, "LISTED", hits * row, (packed, updates, y), "int uint uint", **params)


def _lists(places: Array) -> Array:
    """Returns the numbers of the updates grouped by slot, in one int32 array.

    ``places`` has the slot of each update, -1 for none. The array holds the number of slots with
    updates, these slots, the start of each slot's list, the end of the last list, and the
    numbers of the updates by slot and in order.
    """
    known = np.flatnonzero(places >= 0)
    order = known[np.argsort(places[known], kind="stable")]
    slots, starts = np.unique(places[order], return_index=True)
    return np.concatenate([[len(slots)], slots, starts, [len(order)], order]).astype(np.int32)


def _mark_updates(op: Lowering, row: int, marks: Mapping[str, AttrValue]) -> Iterator[Dispatch]:
    """Yields dispatches that find each slot's last update, then write the result.

    The last update is the one with the greatest number, in whatever order the threads run.
    """
    (x, indices, updates), (y,) = op.in_names, op.out_names
    size, count = op.inputs[0].size, op.inputs[2].size // row
    winners = op.scratch(size // row)
    yield _step(op, "CLEAR", size // row, (winners,), "uint")
    yield _step(op, "MARK", count, (indices, winners), "int uint", **marks)
    yield _step(op, "TAKE", size, (x, updates, winners, y), "uint uint uint uint", row=row)


def _step(
    op: Lowering, name: str, threads: int, tensors: tuple[str, ...], types: str, **params: AttrValue
) -> Dispatch:
    stated = {**_NOTHING, **params}
    return for_each(op, threads, stated, {name: 1}, types=types, tensors=tensors, kernel=_STEPS)


_NOTHING: Mapping[str, AttrValue] = {
    **dict.fromkeys(("row", "begin", "end", "kind", "slots", "by_rows", "rank", "step"), 0),
    **dict.fromkeys(("extent", "stride"), [0]),
}
_STEPS = Kernel(
    "indexing/scatter_steps.hlsl",
    "n:u row:u begin:u end:u kind:u slots:u by_rows:u rank:u step:u "
    f"extent:u{MAX_RANK} stride:u{MAX_RANK}",
    trusted=True,
)
_PARAMS = (
    "n:u lines:u slots:u segment:u kind:u begin:u end:u by_rows:u places:u rank:u to_step:u step:u "
    + " ".join(f"{name}:u{MAX_RANK}" for name in ("limit", "extent", "reach", "to", "start"))
)
ELEMENTS, ROWS = (
    Kernel("indexing/scatter.hlsl", _PARAMS, lower=lower, trusted=True)
    for lower in (_elements_lower, _rows_lower)
)
