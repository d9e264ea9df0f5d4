"""Tests that the demo's drawing effort and its driver threads fit the machine."""

import math
import os

import pytest

from cml_engine.demo_game.driver_threads import DriverPins, assign_cores
from cml_engine.demo_game.render.pace import EFFORTS, DrawingPace

MOST = 11.7


def machine(effort, fixed_ms, full_ms):
    """Returns the milliseconds of a frame: ``fixed_ms`` plus ``full_ms`` times the share of
    pixels."""
    return fixed_ms + full_ms * effort.pixels


def settle(pace, fixed_ms, full_ms, frames=3000):
    """Runs the pace on a simulated machine with noise; returns the effort of each frame."""
    used = []
    for frame in range(frames):
        used.append(pace.effort)
        noise = 0.3 * math.sin(1.7 * frame) + (6.0 if frame % 40 == 0 else 0.0)
        pace.add_time(machine(pace.effort, fixed_ms, full_ms) + noise)
    return used


@pytest.mark.parametrize("first", [0, 4, len(EFFORTS) - 1])
@pytest.mark.parametrize("full_ms", [2.0, 8.0, 16.0, 30.0])
def test_the_effort_settles_where_frames_are_on_time(first, full_ms):
    pace = DrawingPace(MOST, first)
    used = settle(pace, 5.0, full_ms)
    late = used[-1000:]
    assert all(machine(effort, 5.0, full_ms) <= MOST for effort in late)
    changes = sum(a != b for a, b in zip(late, late[1:], strict=False))
    assert changes == 0, "nothing has changed on the machine"
    better = [e for e in EFFORTS if e.pixels > late[-1].pixels]
    room = [e for e in better if machine(e, 5.0, full_ms) < 0.6 * MOST]
    assert not room, "and it is not lazy"


def test_the_effort_follows_the_load_of_the_machine():
    pace = DrawingPace(MOST)
    quiet = settle(pace, 2.0, 5.0)[-1]
    busy = settle(pace, 6.0, 20.0, 400)[-1]
    assert busy.pixels < quiet.pixels and machine(busy, 6.0, 20.0) <= MOST
    assert settle(pace, 2.0, 5.0, 6000)[-1] == quiet


def test_a_failed_effort_is_retried_at_growing_intervals():
    """An effort that costs more than its pixels predict is tried at growing intervals."""
    pace, used = DrawingPace(MOST, 1), []
    for _ in range(8000):
        used.append(pace.effort)
        pace.add_time(20.0 if pace.effort == EFFORTS[0] else 5.0)
    tried = [i for i in range(1, len(used)) if used[i] == EFFORTS[0] != used[i - 1]]
    gaps = [b - a for a, b in zip(tried, tried[1:], strict=False)]
    assert 2 <= len(tried) < 12 and gaps[-1] > 4 * gaps[0]


def test_single_long_frames_and_invalid_times_keep_the_pace():
    pace = DrawingPace(MOST, 2)
    for frame in range(80):
        pace.add_time(40.0 if frame % 8 == 0 else 9.0)
        for wrong in (math.nan, math.inf, -1.0, 0.0):
            pace.add_time(wrong)
    assert pace.effort == EFFORTS[2]


def test_driver_threads_are_pinned_to_cores(tmp_path):
    names = {11: "python", 12: "llvmpipe-0", 13: "llvmpipe-1", 14: "llvmpipe-2", 15: "llvmpipe-x"}
    names |= {17: "python", 18: "python", 19: "python:disk$0"}
    for thread, name in names.items():
        folder = tmp_path / str(thread)
        folder.mkdir()
        (folder / "comm").write_text(f"{name}\n")
    (tmp_path / "16").mkdir()  # a thread that has just ended
    cores = {12: 4, 13: 7, 14: 4}
    # 17 and 18 run compute shaders: they have no name and follow those that draw
    assert assign_cores(tmp_path, [4, 7]) == {**cores, 17: 4, 18: 7}
    assert assign_cores(tmp_path / "none", [0]) == {}


@pytest.fixture
def pins(tmp_path, monkeypatch):
    """Pins of two driver threads of a system with two cores; ``pins.affinity`` has theirs."""
    affinity = {}
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", affinity.__setitem__, raising=False)
    for thread in (12, 13):
        (tmp_path / str(thread)).mkdir()
        (tmp_path / str(thread) / "comm").write_text(f"llvmpipe-{thread - 12}\n")
    found = DriverPins(tmp_path)
    found.affinity = affinity
    return found


def draw(pins, pinned_ms, free_ms, frames, effort="fine"):
    """Draws pictures with noise; returns for each whether the threads were pinned."""
    used = []
    for frame in range(frames):
        used.append(pins.is_pinned)
        noise = 0.3 * math.sin(1.7 * frame) + (6.0 if frame % 12 == 0 else 0.0)
        pins.add_time((pinned_ms if pins.is_pinned else free_ms) + noise, effort)
    return used


def test_threads_stay_pinned_while_that_is_faster(pins):
    assert pins.affinity == {12: {0}, 13: {1}}
    used = draw(pins, 7.0, 9.0, 8000)
    assert sum(used) > 0.98 * len(used), "the other way is tried seldom and for a short time"
    tried = [i for i in range(1, len(used)) if used[i - 1] and not used[i]]
    gaps = [b - a for a, b in zip(tried, tried[1:], strict=False)]
    assert 3 <= len(tried) < 20 and gaps[-1] > 4 * gaps[0]


def test_threads_are_free_while_another_process_takes_a_core(pins):
    draw(pins, 7.0, 9.0, 4000)
    busy = draw(pins, 15.0, 10.0, 600)
    assert not any(busy[60:100]), "within a second, though trials had become seldom"
    assert sum(busy) < 0.2 * len(busy) and pins.affinity == {12: {0, 1}, 13: {0, 1}}
    quiet = draw(pins, 7.0, 9.0, 3000)
    assert sum(quiet[300:]) > 0.9 * len(quiet[300:])


def test_times_of_different_efforts_are_not_compared(pins):
    draw(pins, 7.0, 9.0, 80)
    assert all(draw(pins, 15.0, 17.0, 60, "finer")), "it is slower by its effort"
    assert pins.affinity == {12: {0}, 13: {1}}


def test_without_driver_threads_nothing_is_pinned(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: pytest.fail("nothing to pin"))
    pins = DriverPins(tmp_path)
    draw(pins, 7.0, 9.0, 400)
