"""Streams tiles: requests by urgency, shows finished ones, drops the least recently used."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from statistics import median
from typing import TYPE_CHECKING

from cml_engine import FrameScheduler, Job
from cml_engine.demo_game.agents import TileJobs, TileSource
from cml_engine.demo_game.chain import name_shown_tensors
from cml_engine.demo_game.world.draft import drafts
from cml_engine.demo_game.world.quadtree import Selection
from cml_engine.demo_game.world.tile import MAX_LEVEL, TileId

if TYPE_CHECKING:  # needs a GPU
    import wgpu

    from cml_engine.demo_game.render.tiles import TilePool

#: the tiles that are generated at a time: at least, so that one can run while the jobs of another
#: wait for each other, and at most
LEAST_IN_FLIGHT, IN_FLIGHT = 2, 4
#: number of usual frames of work to keep queued: with more, each tile only finishes later
WORK_FRAMES = 8
#: factor by which a tile out of view counts as farther away
OUT_OF_SIGHT = 3.0
#: deadline of the nearest tile in ms; each span of distance adds as much again
SOON_MS = 400.0
#: spans of distance that count as much as a second until a tile is needed
SPANS_PER_SECOND = 2.0
#: number of finished tiles whose usual time counts
_TIMED = 15
#: seconds in which a new tile moves from its parent's shape to its own
FADE_S = 0.6


@dataclass(slots=True)
class TileSlot:
    """A tile's slot in the renderer's textures.

    ``since_s`` is the time of its first drawing, infinity until then. It may be later than the
    tile's arrival, because siblings are drawn together.
    """

    slot: int
    since_s: float
    last_used: int


@dataclass
class Counts:
    """Counts of tiles and jobs since the start, and the tiles' latencies."""

    requested: int = 0
    finished: int = 0
    cancelled: int = 0
    #: tiles that were there before they were needed
    ahead: int = 0
    #: finished jobs by session
    by_agent: Counter[str] = field(default_factory=Counter)
    #: seconds from the first time that a tile was wanted until it came; 0 if it came before
    latencies_s: list[float] = field(default_factory=list)


class Streaming:
    """Requests tiles from a tile source, and keeps the finished ones in the renderer's slots."""

    def __init__(
        self, agents: TileSource, scheduler: FrameScheduler, pool: TilePool, seed: int
    ) -> None:
        self.agents, self.scheduler, self.pool, self.seed = agents, scheduler, pool, seed
        self.shown: dict[TileId, TileSlot] = {}
        #: drafts, drawn in place of tiles that the networks have not generated yet
        self.drafts: dict[TileId, TileSlot] = {}
        self.making: dict[TileId, TileJobs] = {}
        self.counts = Counts()
        #: counts changes: it grows when a tile gets or loses a slot
        self.changes = 0
        self.error = ""
        #: called with a tile when the copies of its tensors were submitted
        self.hand_over: Callable[[TileJobs], None] = TileJobs.release
        #: tiles whose copies are encoded but not known to be submitted
        self._copied: list[TileJobs] = []
        self._wanted_since: dict[TileId, float] = {}
        #: tiles that came before they were needed, and have not been drawn yet
        self._early: set[TileId] = set()
        #: when unfinished tiles were requested, and how many seconds the last ones took
        self._requested_s: dict[TileId, float] = {}
        self._took_s: deque[float] = deque(maxlen=_TIMED)
        #: number of calls of :meth:`draw`, the time base of ``last_used``
        self._looks = 0

    def ready(self, tile: TileId) -> bool:
        """Returns True if the networks' tile (not only its draft) can be drawn."""
        return tile in self.shown

    def drawn(self, tile: TileId) -> TileSlot | None:
        """Returns the memory slot of the tile, or else of its coarse draft, or None."""
        return self.shown.get(tile) or self.drafts.get(tile)

    def draw(self, tiles: Collection[TileId], now_s: float) -> None:
        """Marks tiles as drawn, and them and their ancestors as used, so that they keep slots.

        A tile that was not drawn before begins to fade in.
        """
        self._looks += 1
        for tile in tiles:
            slot = self.drawn(tile)
            if slot is not None and slot.since_s == math.inf:
                slot.since_s = now_s
                if tile in self._early:
                    self._early.discard(tile)
                    self.counts.ahead += 1
                    self.counts.latencies_s.append(0.0)
        for tile in _with_ancestors(tiles):
            slot = self.drawn(tile)
            if slot is not None:
                slot.last_used = self._looks

    def draft(self, tiles: Iterable[TileId], now_s: float) -> None:
        """Writes drafts of the tiles into free slots, as long as there are any."""
        for tile_draft in drafts(tiles, self.seed):
            slot = self.pool.acquire()
            if slot is None:
                return
            self.pool.write(slot, tile_draft.height, tile_draft.shading, tile_draft.colours)
            self.drafts[tile_draft.tile] = TileSlot(slot, now_s - FADE_S, self._looks)
            self.changes += 1

    def renew(self) -> None:
        """Cancels unfinished tiles and turns finished ones into drafts, to generate all again."""
        self.cancel_all()
        self.drafts |= self.shown
        self.shown.clear()
        self._early.clear()
        self.changes += 1

    def drop_drafts(self) -> None:
        """Frees the slots of all drafts."""
        for draft in self.drafts.values():
            self.pool.release(draft.slot)
        self.changes += bool(self.drafts)
        self.drafts.clear()

    @property
    def lead_s(self) -> float:
        """Seconds before it is needed that a tile should be requested, to be there in time.

        0 before the first tile was finished.
        """
        return FADE_S + 2 * median(self._took_s) if self._took_s else 0.0

    @property
    def jobs(self) -> list[Job]:
        """The jobs of all tiles that are being generated, one for each network of a tile."""
        return [job for tile_jobs in self.making.values() for job in tile_jobs.jobs.values()]

    @property
    def summary(self) -> str:
        """A line with the numbers of finished and unfinished tiles."""
        return f"{len(self.shown)} tiles there, {len(self.making)} being made"

    def describe(self) -> str:
        """Returns the summary, and for each unfinished tile a line with the reason why it waits."""
        lines = [f"tile {tile}: {_waits_for(tile_jobs)}" for tile, tile_jobs in self.making.items()]
        return "\n".join([self.summary, *lines])

    def request_each(
        self, selection: Selection, in_view: Collection[TileId], now_s: float
    ) -> Iterator[TileId]:
        """Cancels tiles that are no longer needed, and requests the most urgent needed ones.

        It yields each tile before it is requested, so that a frame need not request all of them.

        Tiles ``in_view`` come before others, and tiles that are needed now before those that will
        be. Requests stop when there is enough unfinished work. Call it before the scheduler's
        ``encode``.
        """
        self._drop_unwanted(selection)
        # some may have come since the look around
        missing = [t for t in selection.wanted if t not in self.shown]
        self._wanted_since = {t: self._wanted_since.get(t, now_s) for t in missing}
        missing += [t for t in selection.ahead if t not in self.shown]
        needs = [_Need.of(tile, selection, tile in in_view) for tile in missing]
        for need in sorted(needs, key=attrgetter("rank")):
            if self._busy:
                break
            if need.tile not in self.making:
                yield need.tile
                self._request(need, now_s)

    @property
    def _busy(self) -> bool:
        """True if there is enough unfinished work for the coming frames."""
        if len(self.making) >= IN_FLIGHT:
            return True
        enough_ms = WORK_FRAMES * self.scheduler.rate * self.scheduler.frame_ms
        remaining_ms = sum(job.remaining_ms for job in self.jobs)
        return len(self.making) >= LEAST_IN_FLIGHT and remaining_ms > enough_ms

    def _request(self, need: _Need, now_s: float) -> None:
        within_ms = SOON_MS * (1 + need.spans) * (1 if need.in_view else OUT_OF_SIGHT)
        within_ms += 1e3 * need.seconds
        priority = (2.0 if need.in_view else 1.0) / (1 + need.spans)
        self.making[need.tile] = self.agents.submit(
            self.scheduler, need.tile, self.seed, priority, within_ms
        )
        self._requested_s[need.tile] = now_s
        self.counts.requested += 1

    def _drop_unwanted(self, selection: Selection) -> None:
        """Cancels tiles that are no longer wanted and less than half done."""
        for tile, tile_jobs in list(self.making.items()):
            is_needed = tile in selection.wanted or tile in selection.ahead
            if not is_needed and tile_jobs.progress < 0.5:
                tile_jobs.cancel()
                del self.making[tile], self._requested_s[tile]
                self.counts.cancelled += 1

    def collect(self, encoder: wgpu.GPUCommandEncoder, now_s: float) -> int:
        """Encodes the copies of finished tiles into their slots; returns the number of tiles.

        A tile is copied whole. A failed tile is cancelled and its message put into ``error``. Call
        :meth:`submitted` after the encoder's submit.
        """
        filled = 0
        for tile, tile_jobs in list(self.making.items()):
            if tile_jobs.failed:
                self.error = f"tile {tile}: {tile_jobs.failed}"
                tile_jobs.cancel()
                del self.making[tile], self._requested_s[tile]
            elif tile_jobs.done and self._show(encoder, tile, tile_jobs, now_s):
                del self.making[tile]
                filled += 1
        return filled

    def _show(
        self, encoder: wgpu.GPUCommandEncoder, tile: TileId, tile_jobs: TileJobs, now_s: float
    ) -> bool:
        slot = self._slot(tile)
        if slot is None:
            return False
        self.pool.fill(
            encoder, slot, **{name: tile_jobs.tensor(name) for name in name_shown_tensors(tile)}
        )
        self._copied.append(tile_jobs)
        self.shown[tile] = TileSlot(slot, math.inf, self._looks)
        self.changes += 1
        self.counts.finished += 1
        self.counts.by_agent.update(tile_jobs.jobs.keys())
        self._took_s.append(now_s - self._requested_s.pop(tile))
        wanted_s = self._wanted_since.pop(tile, None)
        if wanted_s is not None:
            self.counts.latencies_s.append(now_s - wanted_s)
        else:
            self._early.add(tile)
        return True

    def submitted(self) -> None:
        """Hands over the tiles whose copies were submitted, to be read or released."""
        while self._copied:
            self.hand_over(self._copied.pop(0))

    def _slot(self, tile: TileId) -> int | None:
        """Returns a slot for the tile: its draft's, a free one, or that of another tile.

        Other drafts lose theirs first, then the least recently used tile. None if all slots are
        in use now. The slot's former tile or draft is forgotten.
        """
        if tile in self.drafts:
            return self.drafts.pop(tile).slot
        free = self.pool.acquire()
        if free is not None:
            return free
        if self.drafts:  # of somewhere else by now
            return self.drafts.pop(_oldest(self.drafts)).slot
        oldest = _oldest(self.shown)
        if self.shown[oldest].last_used >= self._looks:
            return None
        self._early.discard(oldest)
        return self.shown.pop(oldest).slot

    def fade(self, tile: TileId, now_s: float) -> float:
        """Returns the tile's fade: 1 in its parent's shape, falling to 0 in its own.

        1 if the tile is not drawn.
        """
        slot = self.drawn(tile)
        if slot is None or slot.since_s == math.inf:
            return 1.0
        return max(0.0, 1.0 - (now_s - slot.since_s) / FADE_S)

    def cancel_all(self) -> None:
        """Cancels all unfinished tiles."""
        for tile_jobs in self.making.values():
            tile_jobs.cancel()
        self.making.clear()
        self._requested_s.clear()


@dataclass(frozen=True, slots=True)
class _Need:
    """A missing tile, its distance in spans, and the seconds until it is needed."""

    tile: TileId
    spans: float
    in_view: bool
    seconds: float

    @classmethod
    def of(cls, tile: TileId, selection: Selection, in_view: bool) -> _Need:
        seconds, metres = selection.ahead.get(tile) or (0.0, selection.wanted[tile])
        return cls(tile, metres / tile.span_m, in_view, seconds)

    @property
    def rank(self) -> tuple[float, TileId]:
        """The sort key: coarse tiles first, as they cover holes, then those soon near the eye."""
        spans = 1 + self.spans + SPANS_PER_SECOND * self.seconds
        return (1.0 if self.in_view else OUT_OF_SIGHT) * spans - 2.0 * self.tile.level, self.tile


def _oldest(tiles: Mapping[TileId, TileSlot]) -> TileId:
    """Returns the least recently used tile."""
    return min(tiles, key=lambda tile: (tiles[tile].last_used, -tile.level, tile))


def _waits_for(tile_jobs: TileJobs) -> str:
    job = next((job for job in tile_jobs.jobs.values() if job.state != "done"), None)
    if job is None:
        return (
            "there, and no slot is free: all are in use"
            if tile_jobs.done
            else "read from the planet"
        )
    return f"{job.name}, {job.waiting_for}"


def _with_ancestors(tiles: Iterable[TileId]) -> set[TileId]:
    """Returns the tiles and all their ancestors."""
    family: set[TileId] = set()
    for start in tiles:
        tile = start
        while tile not in family and tile.level <= MAX_LEVEL:
            family.add(tile)
            tile = tile.parent
    return family
