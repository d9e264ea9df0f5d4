"""Tests of the overlay's data, without drawing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cml_engine.ir.memory import Holding, MemoryStats
from demo_game.overlay.frame_lanes import (
    LANES,
    complete,
    lanes,
    latest_overrun,
    mean_overlay_ms,
    summary,
)
from demo_game.overlay.layout import layout_for
from demo_game.overlay.memory_rows import CATEGORIES, limit_lines, memory_rows
from demo_game.reporting.telemetry import FrameSample

ROOT = Path(__file__).resolve().parents[3]


def sample(number: int, frame_ms: float, render: float | None, inference: float | None = 2.0):
    return FrameSample(number, frame_ms, 1.0, render, inference, 4.0)


# --- frames


def test_frames_are_shown_once_they_are_measured() -> None:
    frames = [sample(0, 16, 5), sample(1, 16, 5), sample(2, 16, None), sample(3, 0, None)]
    assert [s.number for s in complete(frames)] == [0, 1]


def test_a_frame_lost_between_measured_ones_stays() -> None:
    frames = [sample(0, 16, 5), sample(1, 16, None), sample(2, 16, 5), sample(3, 0, None)]
    assert [s.number for s in complete(frames)] == [0, 1, 2]


def test_without_gpu_times_all_frames_but_the_last_are_shown() -> None:
    frames = [sample(n, 16, None, None) for n in range(5)]
    assert [s.number for s in complete(frames)] == [0, 1, 2, 3]


@pytest.mark.parametrize("frames", [[], [sample(0, 16, 5)]])
def test_there_may_be_no_frame_to_show(frames: list[FrameSample]) -> None:
    shown = complete(frames)
    assert shown == []
    assert lanes(shown, 16.0).tops.shape == (len(LANES), 0)
    assert summary(shown, 16.0).p99 == 0
    assert latest_overrun(shown, 16.0) is None
    assert mean_overlay_ms(shown) == 0


def test_lanes_of_a_frame_in_time_end_at_the_target() -> None:
    first = sample(7, 15.0, 6.0, 3.0)
    first.overlay_ms = 0.5
    made = lanes([first], 16.0)
    assert dict(zip(LANES, made.tops[:, 0], strict=True)) == {
        "render": 6.5,
        "inference": 9.5,
        "other": 9.5,
        "free": 16.0,
        "over": 16.0,
    }


def test_lanes_of_an_overrun_have_no_free_time() -> None:
    made = lanes([sample(7, 30.0, 6.0, 3.0)], 16.0)
    assert dict(zip(LANES, made.tops[:, 0], strict=True)) == {
        "render": 6.0,
        "inference": 9.0,
        "other": 16.0,
        "free": 16.0,
        "over": 30.0,
    }


def test_lanes_never_go_down() -> None:
    draw = np.random.default_rng(0).uniform(0, 40, (100, 3))
    made = lanes([sample(n, *ms) for n, ms in enumerate(draw.tolist())], 16.0)
    assert (np.diff(made.tops, axis=0) >= 0).all()


def test_summary_and_latest_overrun() -> None:
    frames = [sample(n, 1.0 + n, 1.0) for n in range(100)]
    found = summary(frames, 90.0)
    assert (found.frames, found.p50, found.p95, found.p99, found.over) == (100, 51, 96, 100, 10)
    latest = latest_overrun(frames[:95], 90.0)
    assert latest is not None and latest.number == 94


# --- memory, layout


def stats(budget: int | None, owners: int = 2) -> MemoryStats:
    mib = 1 << 20
    holdings = {(f"net{n}", "weights"): Holding((20 - n) * mib, 1) for n in range(owners)}
    holdings["net1", "staging"] = Holding(mib, 1)
    holdings["net1", "uniform"] = Holding(mib, 2)
    return MemoryStats(30 * mib, 40 * mib, 31 * mib, budget, holdings, (), 0)


def test_memory_rows_have_the_largest_owner_first() -> None:
    found = memory_rows(stats(80 << 20))
    assert found.filled == 0.5
    assert [(r.owner, r.total) for r in found.owners] == [("net1", "21.0"), ("net0", "20.0")]
    assert dict(zip(CATEGORIES, found.owners[0].cells, strict=True)) == {
        "weights": "19.0",
        "activations": "",
        "render": "",
        "other": "2.0",
    }


def test_small_owners_share_a_row() -> None:
    found = memory_rows(stats(None, 9))
    assert found.filled is None
    assert [r.owner for r in found.owners][-1] == "3 more"
    assert found.owners[-1].total == "39.0"  # 14 + 13 + 12


def test_limits_that_a_device_does_not_name_are_left_out() -> None:
    assert limit_lines({}) == []
    assert limit_lines({"max-buffer-size": 1 << 28}) == ["largest buffer 256 MiB"]


@pytest.mark.parametrize("size", [(320, 180), (576, 324), (640, 360), (1280, 720), (3840, 2160)])
def test_the_columns_leave_room_between_them(size: tuple[int, int]) -> None:
    layout = layout_for(*size)
    assert layout.compact == (size < (1280, 720))
    assert layout.left_width + layout.right_width + 2 * layout.margin < 0.86 * size[0]
    assert layout.height <= size[1]
