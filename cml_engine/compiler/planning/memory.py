"""Places tensors in the arena by their sizes and lifetimes."""

from __future__ import annotations

import math
import random
from bisect import insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cml_engine.compiler.plan import Memory
from cml_engine.io.frame_gate import yield_to_frame
from cml_engine.ir.graph import Array

#: a placement this close to the lower bound is not improved any further
GOOD_RATIO = 1.02
#: the total number of tensor placements in random orders, tried if the fixed orders are not good,
#: and the least number of random orders
_TRIED_ITEMS, _LEAST_TRIES = 10_000, 40
#: with more tensors a random order takes too long during a load
_MAX_ITEMS_FOR_TRIES = 600
#: tensors that live for fewer steps are indexed by step; most tensors in bands do
_BRIEF = 16
#: the arena sizes tried, as multiples of the lower bound
_CAPACITIES = (1.0, 1.01, 1.02, 1.03, 1.05, 1.08, 1.12, 1.2)


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A tensor to place in the arena: its size in bytes, and the first and the last step that
    need it, inclusive."""

    name: str
    nbytes: int
    first: int
    last: int

    def overlaps(self, other: Lifetime) -> bool:
        return self.first <= other.last and other.first <= self.last


def place(items: Sequence[Lifetime], alignment: int) -> tuple[dict[str, int], Memory]:
    """Returns the byte offset of each tensor by name, and the size of the arena.

    First, tensors are placed in execution order, each beside the neighbour that outlives it, in
    an arena slightly larger than the bound. If that fails, greedy best-fit placement is tried in
    several orders (tensors of the fullest step first, largest first, longest-lived first), then
    random exchanges in each order. The smallest arena wins. Sizes are rounded up to
    ``alignment``, also for the lower bound. The result is deterministic.
    """
    rounded = rounded_up(items, alignment)
    bound = lower_bound(rounded)
    best = _place_in_time(rounded, bound, alignment)
    starts = [rounded]
    for order in _orders(rounded):
        if best is not None and best[0] <= GOOD_RATIO * bound:
            break
        starts.append(sorted(rounded, key=order))
        candidate = _place_in_order(starts[-1])
        if best is None or candidate[0] < best[0]:
            best = candidate
    assert best is not None
    if best[0] > GOOD_RATIO * bound and len(items) <= _MAX_ITEMS_FOR_TRIES:
        best = _improve(best, starts, bound)
    return best[1], Memory(best[0], bound)


def place_in_segments(
    items: Sequence[Lifetime], alignment: int, max_bytes: int
) -> tuple[dict[str, int], Memory]:
    """Places tensors as :func:`place` does, in several buffers of at most ``max_bytes`` bytes if
    needed.

    No tensor crosses two buffers. If a tensor is larger than ``max_bytes``, all share one larger
    buffer.
    """
    offsets, memory = place(items, alignment)
    segment = max_bytes // alignment * alignment
    if memory.peak <= max_bytes or max(item.nbytes for item in items) > segment:
        return offsets, memory
    rounded = rounded_up(items, alignment)
    fullest_first, _, largest_first, _, _, first_first, _ = _orders(rounded)
    orders = (largest_first, fullest_first, first_first)
    placements = (_place_in_order(sorted(rounded, key=order), segment) for order in orders)
    peak, offsets = min(placements, key=lambda placed: placed[0])
    return offsets, Memory(peak, lower_bound(rounded), segment)


def _orders(items: Sequence[Lifetime]) -> list[Callable[[Lifetime], tuple[int, ...]]]:
    """Returns the keys that sort tensors into the orders of greedy placement."""
    fullest = _fullest_steps(items)
    return [
        lambda i: (-fullest[i.name], -i.nbytes, i.first),
        lambda i: (-fullest[i.name], i.first - i.last, -i.nbytes),
        lambda i: (-i.nbytes, i.first),
        lambda i: (-i.nbytes * (1 + i.last - i.first), i.first),
        lambda i: (-(i.last - i.first), -i.nbytes),
        lambda i: (i.first, -i.nbytes),
        lambda i: (-i.last, -i.nbytes),
    ]


def rounded_up(items: Iterable[Lifetime], alignment: int) -> list[Lifetime]:
    """Returns the tensors with sizes rounded up to multiples of the alignment, in the same
    order."""
    return [replace(i, nbytes=-(-i.nbytes // alignment) * alignment) for i in items]


def live_bytes(items: Sequence[Lifetime]) -> tuple[Array, int]:
    """Returns the sum of bytes alive at each step as an array, and the number of its first step."""
    begin = min((item.first for item in items), default=0)
    end = max((item.last for item in items), default=begin - 1) + 1
    change = np.zeros(end - begin + 1, np.int64)
    for item in items:
        change[item.first - begin] += item.nbytes
        change[item.last + 1 - begin] -= item.nbytes
    return np.cumsum(change)[:-1], begin


def lower_bound(items: Sequence[Lifetime]) -> int:
    """Returns the largest sum of bytes alive at one step, which bounds every placement from
    below."""
    return int(live_bytes(items)[0].max(initial=0))


def _fullest_steps(items: Sequence[Lifetime]) -> dict[str, int]:
    """Returns for each tensor, by name, the largest sum of bytes alive at a step that needs it.

    If that is near the bound, the tensors of the step must fit together exactly. Other tensors
    can be placed later.
    """
    alive, begin = live_bytes(items)
    return {i.name: int(alive[i.first - begin : i.last + 1 - begin].max()) for i in items}


def _place_in_time(
    items: Sequence[Lifetime], bound: int, alignment: int
) -> tuple[int, dict[str, int]] | None:
    """Returns the arena size and the offsets with the tensors placed in execution order, or None if
    that fails.

    A tensor is placed at the end of a gap whose neighbour (or arena border) lives longest.
    Tensors that die first then leave one large gap, not two small ones.
    """
    ordered = sorted(items, key=lambda i: (i.first, -(i.last - i.first), -i.nbytes))
    for share in _CAPACITIES:
        offsets = _fit(ordered, int(share * bound) // alignment * alignment)
        if offsets is not None:
            return max((offsets[i.name] + i.nbytes for i in items), default=0), offsets
    return None


def _fit(ordered: Sequence[Lifetime], capacity: int) -> dict[str, int] | None:
    yield_to_frame()
    alive: list[tuple[int, Lifetime]] = []  # (offset, item), sorted
    offsets: dict[str, int] = {}
    for item in ordered:
        alive = [(offset, neighbour) for offset, neighbour in alive if neighbour.last >= item.first]
        offset = _offset_at_longest_neighbour(item, alive, capacity)
        if offset is None:
            return None
        offsets[item.name] = offset
        insort(alive, (offset, item), key=lambda a: a[0])
    return offsets


def _offset_at_longest_neighbour(
    item: Lifetime, alive: Sequence[tuple[int, Lifetime]], capacity: int
) -> int | None:
    """Returns the offset at the end of a gap whose neighbour lives longest, or None if no gap holds
    the item.

    ``alive`` has the live tensors with their offsets, in ascending order; ``capacity`` is the
    size of the arena.
    """
    best: tuple[float, int, int] | None = None
    end, below = 0, math.inf
    walls: list[tuple[int, int, float]] = [
        (offset, offset + live.nbytes, live.last) for offset, live in alive
    ]
    for start, stop, last in [*walls, (capacity, capacity, math.inf)]:
        gap = start - end
        if gap >= item.nbytes:
            for neighbour, offset in ((below, end), (last, start - item.nbytes)):
                rank = (-neighbour, gap, offset)
                best = rank if best is None else min(best, rank)
        if stop >= end:
            end, below = stop, last
    return None if best is None else best[2]


def _improve(
    best: tuple[int, dict[str, int]], starts: Sequence[list[Lifetime]], bound: int
) -> tuple[int, dict[str, int]]:
    """Returns the best placement (arena size and offsets) found by random moves in each order of
    the tensors.

    A move is kept unless it makes the arena larger. Many short searches find more than one long
    search, which stays in a local minimum.
    """
    generator = random.Random(0)
    tries = max(_LEAST_TRIES, _TRIED_ITEMS // len(starts[0])) // len(starts)
    for start in starts:
        order, current = start, _place_in_order(start)
        for _ in range(tries):
            a, b = generator.randrange(len(order)), generator.randrange(len(order))
            candidate = order.copy()
            candidate.insert(a, candidate.pop(b))
            moved = _place_in_order(candidate)
            if moved[0] <= current[0]:
                current, order = moved, candidate
            if current[0] <= GOOD_RATIO * bound:
                return current
        best = min(best, current, key=lambda moved: moved[0])
    return best


def _place_in_order(items: Iterable[Lifetime], segment: int = 0) -> tuple[int, dict[str, int]]:
    """Returns the arena size and the offsets with each item in turn placed in the tightest gap that
    holds it.

    With ``segment`` no item crosses a multiple of that many bytes.
    """
    yield_to_frame()
    placed = _Placed()
    peak = 0
    for item in items:
        offset = _tightest_gap(item, placed.overlapping(item), segment)
        placed.add(item, offset)
        peak = max(peak, offset + item.nbytes)
    return peak, placed.offsets


class _Placed:
    """Placed tensors with their offsets; those that live for a few steps are indexed by step, to
    find neighbours fast."""

    def __init__(self) -> None:
        self.offsets: dict[str, int] = {}
        self._brief: dict[int, list[Lifetime]] = {}
        self._long: list[Lifetime] = []
        self._all: list[Lifetime] = []

    def add(self, item: Lifetime, offset: int) -> None:
        self.offsets[item.name] = offset
        self._all.append(item)
        if not _is_brief(item):
            self._long.append(item)
            return
        for step in range(item.first, item.last + 1):
            self._brief.setdefault(step, []).append(item)

    def overlapping(self, item: Lifetime) -> list[tuple[int, int]]:
        """Returns the byte ranges (begin, end) of placed tensors that live at the same time as
        ``item``, sorted."""
        if _is_brief(item):
            steps = range(item.first, item.last + 1)
            by_name = {
                neighbour.name: neighbour
                for step in steps
                for neighbour in self._brief.get(step, ())
            }
            by_name |= {
                neighbour.name: neighbour for neighbour in self._long if neighbour.overlaps(item)
            }
            neighbours: Iterable[Lifetime] = by_name.values()
        else:
            neighbours = [neighbour for neighbour in self._all if neighbour.overlaps(item)]
        offsets = self.offsets
        return sorted((offsets[o.name], offsets[o.name] + o.nbytes) for o in neighbours)


def _is_brief(item: Lifetime) -> bool:
    return item.last - item.first < _BRIEF


def _tightest_gap(item: Lifetime, neighbours: Sequence[tuple[int, int]], segment: int) -> int:
    end = 0
    best_offset, best_gap = -1, -1
    for start, stop in neighbours:
        end = _offset_in_one_segment(end, item.nbytes, segment)
        gap = start - end
        if gap >= item.nbytes and (best_offset < 0 or gap < best_gap):
            best_offset, best_gap = end, gap
        end = max(end, stop)
    return best_offset if best_offset >= 0 else _offset_in_one_segment(end, item.nbytes, segment)


def _offset_in_one_segment(offset: int, nbytes: int, segment: int) -> int:
    """Returns the first offset, at ``offset`` or after it, at which ``nbytes`` bytes fit into one
    segment.

    A ``segment`` of 0 bytes is no limit.
    """
    if segment and offset % segment + nbytes > segment:
        return -(-offset // segment) * segment
    return offset


# -- views -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PartPlace:
    """The place of a view in the memory of tensor ``parent``: its offset in 32-bit words.

    The parent may be a view itself.
    """

    parent: str
    offset: int


Views = Mapping[str, PartPlace]


def resolve_view(views: Views, name: str) -> tuple[str, int]:
    """Returns the tensor that owns the memory of ``name``, and the offset of ``name`` in it in
    32-bit words.

    A tensor that is no view owns its memory and has offset 0.
    """
    offset = 0
    while name in views:
        name, offset = views[name].parent, offset + views[name].offset
    return name, offset


def merge_lifetimes(items: Iterable[Lifetime], views: Views) -> list[Lifetime]:
    """Returns the tensors that own memory, with lifetimes extended to those of all their views."""
    wholes: dict[str, Lifetime] = {}
    lives: dict[str, tuple[int, int]] = {}
    for item in items:
        root, _ = resolve_view(views, item.name)
        if root == item.name:
            wholes[root] = item
        first, last = lives.get(root, (item.first, item.last))
        lives[root] = (min(first, item.first), max(last, item.last))
    return [Lifetime(name, item.nbytes, *lives[name]) for name, item in wholes.items()]
