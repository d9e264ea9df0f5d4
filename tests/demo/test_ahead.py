"""Tests that tiles on the camera's way are requested before they are needed."""

import math
from types import SimpleNamespace

import pytest

from cml_engine.demo_game.flight import FASTEST, CameraWay, ScriptedFlight
from cml_engine.demo_game.render.camera import Camera
from cml_engine.demo_game.streaming import Streaming
from cml_engine.demo_game.world import bounds
from cml_engine.demo_game.world.bounds import Boxes
from cml_engine.demo_game.world.quadtree import Detail, compute_boxes, list_ahead, select
from tests.demo.test_streaming import FakeAgents, FakePool

SEED = 7
DETAIL = Detail(0, 5, 1.1, 9000.0)
FLIGHT = ScriptedFlight(SEED)
#: looks at the world in a second, and seconds of flight before the tiles are counted
LOOKS, LOADED_S = 10, 10


def fly(is_ahead, work_ms, seconds=40):
    """Flies on a virtual clock; ``work_ms`` of networks run in a second, a tile takes 14 ms.

    Returns the share of tiles that were there when they first should have been drawn in view, and
    the mean number of missing tiles in view.
    """
    scheduler = SimpleNamespace(last_report=None, rate=0.3, frame_ms=1000 / 60)
    world = Streaming(FakeAgents(), scheduler, FakePool(400), SEED)  # type: ignore[arg-type]
    way, needed, early, missing = CameraWay(), set(), 0, 0
    for look in range(seconds * LOOKS):
        now_s = look / LOOKS
        pose = FLIGHT.pose(now_s)
        camera = Camera(pose.position, pose.yaw, pose.pitch, far=11_000.0, aspect=16 / 9)
        selection = select(pose.position, SEED, DETAIL, world.ready)
        moments = way.predict(pose.position, now_s, world.lead_s) if is_ahead else []
        selection.ahead = list_ahead(selection, moments, SEED, DETAIL, world.ready)
        final = select(pose.position, SEED, DETAIL, lambda tile: True).draw
        shown = set(Boxes(final, SEED).in_view(camera.sees_boxes))
        new = shown - needed
        needed |= new
        if now_s >= LOADED_S:
            early += sum(world.ready(tile) for tile in new)
            missing += sum(not world.ready(tile) for tile in shown)
        else:
            counted = len(needed)
        wanted = [*selection.wanted, *selection.ahead]
        world.draw(selection.draw, now_s)
        in_view = set(Boxes(wanted, SEED).in_view(camera.sees_boxes))
        for _ in world.request_each(selection, in_view, now_s):
            pass
        run(world, work_ms / LOOKS)
        world.collect(None, now_s)  # type: ignore[arg-type]
    frames = (seconds - LOADED_S) * LOOKS
    return early / (len(needed) - counted), missing / frames


def run(world, ms):
    """Runs the jobs of tiles in the order of their requests for ``ms``."""
    for job in world.jobs:
        taken = min(ms, job.remaining_ms)
        job.remaining_ms -= taken
        ms -= taken
        if job.remaining_ms <= 0.0:
            job.state = "done"


@pytest.mark.parametrize("work_ms", [150.0, 300.0])
def test_tiles_on_the_way_are_there_before_they_come_into_view(work_ms):
    without, missing_without = fly(False, work_ms)
    early, missing = fly(True, work_ms)
    assert early > 0.6 and early > 3 * without
    assert missing < 0.5 * missing_without


def test_tiles_on_the_way_do_not_hold_up_those_that_are_missing_now():
    """With too little time for all tiles, the view is as complete as without a look ahead."""
    _, missing_without = fly(False, 60.0)
    _, missing = fly(True, 60.0)
    assert missing < 1.1 * missing_without


def test_the_way_is_that_of_a_moving_camera():
    way = CameraWay()
    assert way.predict((0.0, 100.0, 0.0), 5.0, 4.0) == [], "one position is no way"
    moments = way.predict((7.0, 101.0, -14.0), 5.5, 4.0)
    assert [seconds for seconds, _ in moments] == [1.0, 2.0, 3.0, 4.0]
    assert moments[-1][1] == pytest.approx((7.0 + 56.0, 101.0 + 8.0, -14.0 - 112.0))
    assert way.predict((7.0, 101.0, -14.0), 6.0, 4.0) == [], "it stands still"
    assert way.predict((8.0, 101.0, -14.0), 6.0, 4.0) == [], "no time has passed"
    far = 8.0 + 1.1 * FASTEST
    assert way.predict((far, 101.0, -14.0), 7.0, 4.0) == [], "it has jumped"
    assert way.predict((far + 1, 101.0, -14.0), 7.5, 4.0)


def test_tiles_ahead_are_those_that_are_needed_later():
    """Every tile that the end of the way needs is present, requested, or listed ahead."""
    pose, later = FLIGHT.pose(20.0), FLIGHT.pose(24.0)
    ready = set(select(pose.position, SEED, DETAIL, lambda tile: True).draw)
    ready |= {parent for tile in ready for parent in ancestors(tile)}
    moments = [(2.0, FLIGHT.pose(22.0).position), (4.0, later.position)]
    selection = select(pose.position, SEED, DETAIL, ready.__contains__)
    ahead = list_ahead(selection, moments, SEED, DETAIL, ready.__contains__)
    needed = set(select(later.position, SEED, DETAIL, lambda tile: True).draw)
    assert not selection.wanted and needed - ready and needed <= ready | set(ahead)
    assert all(seconds in (2.0, 4.0) and math.isfinite(m) for seconds, m in ahead.values())
    assert not list_ahead(selection, [], SEED, DETAIL, ready.__contains__)


def ancestors(tile):
    """Yields the ancestors of a tile up to the coarsest level."""
    while tile.level < DETAIL.coarsest:
        tile = tile.parent
        yield tile


def test_boxes_are_computed_after_the_yield_that_announces_them(monkeypatch):
    """A frame without time for a box must not compute it."""
    computed = []
    block = bounds._block
    monkeypatch.setattr(bounds, "_blocks", {})
    monkeypatch.setattr(bounds, "_block", lambda *key: computed.append(key) or block(*key))
    bounds.box.cache_clear()
    eye = FLIGHT.pose(0.0).position
    for number, _ in enumerate(compute_boxes(eye, SEED, DETAIL)):
        assert len(computed) == number
    assert len(computed) == number + 1 > 4
    assert list(compute_boxes(eye, SEED, DETAIL)) == [], "all are known"
