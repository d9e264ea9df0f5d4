"""Tests of tile streaming with fake jobs: requests, cancellation, complete tiles and eviction."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cml_engine.demo_game.agents import TileJobs
from cml_engine.demo_game.chain import load_chain
from cml_engine.demo_game.streaming import (
    FADE_S,
    IN_FLIGHT,
    LEAST_IN_FLIGHT,
    WORK_FRAMES,
    Streaming,
)
from cml_engine.demo_game.world.quadtree import Selection
from cml_engine.demo_game.world.tile import TileId

CHAIN = load_chain()
ROOT = TileId(2, 0, 0)


class FakeJob:
    def __init__(self, name):
        self.name, self.state, self.error, self.released = name, "queued", "", False
        self.remaining_ms = 2.0

    @property
    def progress(self):
        return 1.0 if self.state == "done" else 0.0

    def tensor(self, name):
        assert self.state == "done" and not self.released
        return f"{self.name}.{name}"

    def cancel(self):
        if self.state != "done":
            self.state = "cancelled"

    def release(self):
        self.released = True


class FakeAgents:
    def __init__(self):
        self.asked: list[tuple[TileId, float, float]] = []

    def submit(self, scheduler, tile, seed, priority, within_ms):
        self.asked.append((tile, priority, within_ms))
        return TileJobs(tile, {name: FakeJob(name) for name in CHAIN.sessions_for(tile)})  # type: ignore[misc]


class FakePool:
    def __init__(self, slots):
        self.free = list(range(slots))
        self.filled: dict[int, dict[str, Any]] = {}

    def acquire(self):
        return self.free.pop() if self.free else None

    def release(self, slot):
        assert slot not in self.free
        self.free.append(slot)

    def write(self, slot, height, shading, colours):
        self.filled[slot] = {"height": height, "colours": colours}

    def fill(self, encoder, slot, **tensors):
        self.filled[slot] = tensors


def streaming(slots=8):
    scheduler = SimpleNamespace(last_report=None, rate=1.0, frame_ms=1000 / 60)
    return Streaming(FakeAgents(), scheduler, FakePool(slots), 7)  # type: ignore[arg-type]


def finish(made):
    for job in made.jobs.values():
        job.state = "done"


def request(world, selection, in_view, now_s):
    """Requests at once what the game requests one tile at a time."""
    for _ in world.request_each(selection, in_view, now_s):
        pass


def arrive(world, tiles, drawn=(), now_s=0.0):
    """Requests the tiles, finishes them all, and returns the number of tiles that got a slot."""
    request(world, Selection(list(drawn), dict.fromkeys(tiles, 1.0)), set(), now_s)
    for made in world.making.values():
        finish(made)
    return world.collect(None, now_s)


def test_tile_is_shown_only_when_complete():
    world = streaming()
    request(world, Selection([], {ROOT: 10.0}), {ROOT}, 1.0)
    made = world.making[ROOT]
    made.jobs["upres"].state = made.jobs["surface"].state = "done"
    assert world.collect(None, 2.0) == 0 and not world.ready(ROOT) and not world.pool.filled
    finish(made)
    assert world.collect(None, 3.5) == 1 and world.ready(ROOT)
    (tensors,) = world.pool.filled.values()
    assert tensors["height"] == "surface.height" and tensors["texels"] == "paint.texels"
    assert not any(job.released for job in made.jobs.values()), "the copies may not have run"
    world.submitted()
    assert all(job.released for job in made.jobs.values())
    assert world.counts.latencies_s == [2.5]
    assert world.fade(ROOT, 9.0) == 1.0, "its siblings may come later: it is not drawn yet"
    world.draw([ROOT], 9.0)
    world.draw([ROOT], 9.5)
    assert world.fade(ROOT, 9.0) == 1.0 and 0.0 < world.fade(ROOT, 9.0 + FADE_S / 2) < 1.0
    assert world.fade(ROOT, 9.01 + FADE_S) == 0.0


def test_coarse_visible_tiles_are_scheduled_first():
    world = streaming()
    near, far = TileId(0, 0, 0), TileId(0, 9, 0)
    expected = {far: 2000.0, near: 5.0, ROOT: 10.0, **{TileId(0, x, 1): 100.0 for x in range(20)}}
    request(world, Selection([], expected), {far, near}, 0.0)
    asked = [tile for tile, _, _ in world.agents.asked]
    assert asked[:2] == [ROOT, near] and len(asked) == IN_FLIGHT
    urgent = {tile: (priority, within) for tile, priority, within in world.agents.asked}
    assert urgent[near][0] > min(p for p, _ in urgent.values())


def test_tiles_that_are_needed_now_come_before_those_that_will_be():
    world = streaming()
    now, soon, later = (TileId(0, x, 0) for x in range(3))
    needed = {"ahead": {later: (4.0, 300.0), soon: (1.0, 300.0)}}
    request(world, Selection([], {now: 300.0}, **needed), {now, soon, later}, 0.0)  # type: ignore[arg-type]
    assert [tile for tile, _, _ in world.agents.asked] == [now, soon, later]
    at_ms, soon_ms, later_ms = (within_ms for _, _, within_ms in world.agents.asked)
    assert (soon_ms - at_ms, later_ms - at_ms) == pytest.approx((1000.0, 4000.0))
    request(world, Selection([], {}, **needed), set(), 0.1)  # type: ignore[arg-type]
    assert set(world.making) == {soon, later}, "what is ahead is not cancelled"


def test_no_more_tiles_are_under_way_than_frames_have_time_for():
    world = streaming()
    expected = {TileId(3, x, 0): 1.0 for x in range(9)}
    a_tile = 2.0 * len(CHAIN.sessions_for(TileId(3, 0, 0)))
    for tiles in (LEAST_IN_FLIGHT, 3, IN_FLIGHT):  # up to the maximum
        world.scheduler.rate = (tiles - 0.5) * a_tile / WORK_FRAMES / world.scheduler.frame_ms
        request(world, Selection([], expected), set(), 0.0)
        assert len(world.making) == tiles
    world.cancel_all()
    world.scheduler.rate = 0.0
    request(world, Selection([], expected), set(), 0.0)
    assert len(world.making) == LEAST_IN_FLIGHT, "or nothing runs while a tile's jobs wait"


def test_tile_finished_since_selection_is_not_generated_again():
    world = streaming()
    seen = Selection([], {ROOT: 10.0})
    request(world, seen, {ROOT}, 0.0)
    finish(world.making[ROOT])
    assert world.collect(None, 0.0) == 1
    request(world, seen, {ROOT}, 0.1)
    assert not world.making and world.counts.requested == 1


def test_unwanted_tiles_are_cancelled_unless_almost_finished():
    world = streaming()
    kept, dropped = TileId(1, 0, 0), TileId(1, 5, 0)
    request(world, Selection([], {kept: 1.0, dropped: 1.0}), set(), 0.0)
    cancelled = world.making[dropped]
    for job in list(world.making[kept].jobs.values())[:5]:
        job.state = "done"
    request(world, Selection([], {}), set(), 0.1)
    assert set(world.making) == {kept} and world.counts.cancelled == 1
    assert all(job.state == "cancelled" for job in cancelled.jobs.values())


def test_least_recently_used_slot_is_reused_but_no_drawn_tile():
    world = streaming(slots=2)
    a, b, c = (TileId(3, x, 0) for x in range(3))
    arrive(world, [a])
    arrive(world, [b])
    world.draw([a, b], 1.0)
    assert arrive(world, [c], [a, b], 1.0) == 0  # both are visible
    world.draw([b], 2.0)
    assert world.collect(None, 2.0) == 1
    assert set(world.shown) == {b, c}


def test_parents_of_drawn_tiles_are_retained():
    world = streaming(slots=2)
    child = TileId(0, 1, 1)
    arrive(world, [child.parent])
    arrive(world, [child])
    world.draw([child], 1.0)
    assert arrive(world, [TileId(0, 9, 9)], [child], 1.0) == 0
    assert set(world.shown) == {child, child.parent}


def test_failed_tile_is_reported_and_dropped():
    world = streaming()
    request(world, Selection([], {ROOT: 1.0}), set(), 0.0)
    job = world.making[ROOT].jobs["upres"]
    job.state, job.error = "failed", "out of GPU memory"
    world.collect(None, 0.0)
    assert world.error == "tile L2 (0, 0): upres: out of GPU memory" and not world.making


def test_draft_slot_is_reused_by_the_generated_tile():
    world = streaming(slots=3)
    other = TileId(2, 1, 0)
    world.draft([ROOT, other], 0.0)
    slot = world.drafts[ROOT].slot
    assert not world.ready(ROOT) and world.drawn(ROOT) is not None and world.fade(ROOT, 0.0) == 0.0
    assert arrive(world, [ROOT], now_s=1.0) == 1
    assert world.shown[ROOT].slot == slot and "texels" in world.pool.filled[slot]
    assert set(world.drafts) == {other}
    world.drop_drafts()
    assert not world.drafts and len(world.pool.free) == 2


def test_drafts_use_free_slots_and_are_evicted_first():
    world = streaming(slots=2)
    tiles = [TileId(2, x, 0) for x in range(4)]
    world.draft(tiles[:3], 0.0)
    assert len(world.drafts) == 2
    assert arrive(world, [tiles[3]]) == 1
    assert set(world.shown) == {tiles[3]} and len(world.drafts) == 1


def test_an_old_tile_is_drawn_until_its_replacement_is_ready():
    world = streaming(slots=3)
    tiles = [TileId(2, x, 0) for x in range(4)]
    assert arrive(world, tiles[:3]) == 3
    request(world, Selection([], {tiles[3]: 1.0}), set(), 0.0)
    world.renew()
    assert (
        not world.making and not any(map(world.ready, tiles)) and all(map(world.drawn, tiles[:3]))
    )
    slot = world.drafts[tiles[1]].slot
    world.draw(tiles[:2], 1.0)
    assert arrive(world, [tiles[1], tiles[3]], tiles[:2], 1.0) == 2
    assert world.shown[tiles[1]].slot == slot, "its own"
    assert set(world.drafts) == {tiles[0]}, "what is drawn stays: another takes what is not"
