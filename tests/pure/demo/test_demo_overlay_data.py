"""What the overlay shows, before it is drawn."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from cml_engine.memory import Holding, MemoryStats
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
from demo_game.overlay.palette import NETWORKS, OTHER_NETWORK, network_colour
from demo_game.overlay.ranking import Best, RecentSums, ordered, rows
from demo_game.overlay.slices import Reports, bars, duration, why
from demo_game.reporting.telemetry import FrameSample, OperatorTime
from scheduler import FrameReport
from scheduler.reports import SliceReport

ROOT = Path(__file__).resolve().parents[3]


def sample(number: int, frame_ms: float, render: float | None, inference: float | None = 2.0):
    return FrameSample(number, frame_ms, 1.0, render, inference, 4.0)


def test_the_package_needs_no_imgui_until_it_draws() -> None:
    code = (
        "import sys, demo_game.overlay, demo_game.overlay.ranking, demo_game.overlay.slices\n"
        "assert 'imgui_bundle' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


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


# --- operators


def operator(network: str, step: int, total_ms: float, runs: float = 10.0) -> OperatorTime:
    return OperatorTime(
        network, step, f"conv{step}", "conv", "graph.nnef:1", "conv/conv.hlsl", 4e6, 1e6,
        total_ms, 1.5 * total_ms, 3, runs,
    )  # fmt: skip


def keyed(operators: Iterable[OperatorTime]) -> dict[tuple[str, int], OperatorTime]:
    return {(o.network, o.step): o for o in operators}


def test_a_row_says_what_an_operator_costs() -> None:
    found = rows(keyed([operator("upres", 0, 20.0), operator("texture", 1, 60.0)]))
    row = next(r for r in found if r.network == "upres")
    assert row.share == 0.25
    assert row.average_ms == 2.0
    assert row.error == pytest.approx(0.5)
    assert row.gflops == pytest.approx(2.0)  # 4e6 in 2 ms
    assert row.gbytes == pytest.approx(0.5)


def test_what_has_not_run_has_no_row() -> None:
    assert rows(keyed([operator("upres", 0, 0.0, 0.0)])) == []


def test_part_of_a_run_has_a_time_but_no_average() -> None:
    (row,) = rows(keyed([operator("upres", 0, 3.0, 0.0)]))
    assert (row.total_ms, row.average_ms, row.gflops) == (3.0, 0.0, 0.0)


def test_rows_sort_by_every_column_both_ways() -> None:
    found = rows(keyed([operator("upres", s, 5.0 * (s + 1), 7.0 - s) for s in range(5)]))
    keys = ("name", "share", "total_ms", "runs", "average_ms", "error", "gflops", "gbytes")
    for column, key in enumerate(keys):
        up = [getattr(r, key) for r in ordered(found, column, False)]
        down = [getattr(r, key) for r in ordered(found, column, True)]
        assert up == sorted(up) and down == sorted(down, reverse=True)


def test_the_best_rates_only_rise() -> None:
    best = Best().raised(rows(keyed([operator("upres", 0, 10.0)])))
    assert best.gflops == pytest.approx(4.0)
    assert best.raised(rows(keyed([operator("upres", 0, 20.0)]))) == best
    assert best.raised([]) == best


def test_last_seconds_are_differences() -> None:
    recent, one = RecentSums(), operator("upres", 0, 0.0, 0.0)
    operators = keyed([one])
    for tick in range(200):  # 20 s, 1 ms of it in each tenth
        one.total_ms, one.predicted_ms, one.runs = tick + 1.0, tick + 1.0, tick + 1.0
        recent.keep(0.1 * tick, operators)
    (row,) = rows(operators, recent.before())
    assert 49 <= row.total_ms <= 56
    assert row.average_ms == pytest.approx(1.0)


# --- slices


def report(frame: int, measured: bool) -> FrameReport:
    made = FrameReport(frame, 0.0, 4.0, 3.5, "budget")
    for job, ms in ((3, 1.0), (5, 2.0)):
        made.slices.append(SliceReport(job, 0, "conv", "conv", 0, 9, ms, 2 * ms))
    if measured:
        made.measured_ms = 6.0
    else:
        for part in made.slices:
            part.measured_ms = None
    return made


def test_slices_follow_one_another() -> None:
    found = bars(report(0, True), {3: "upres"})
    assert [(b.network, b.start_ms, b.ms) for b in found] == [
        ("upres", 0.0, 2.0),
        ("job 5", 2.0, 4.0),
    ]
    assert [b.ms for b in bars(report(0, False), {})] == [1.0, 2.0]
    assert "budget" in why(report(0, True))


def test_the_newest_measured_frame_is_shown() -> None:
    reports = Reports()
    assert reports.shown() is None
    late = report(1, False)
    reports.add(report(0, True), [])
    reports.add(late, [])
    reports.add(late, [])
    shown = reports.shown()
    assert shown is not None and shown.frame == 0
    late.measured_ms = 3.0
    assert reports.shown() is late


def test_durations() -> None:
    assert [duration(ms) for ms in (3.4, 250.0, -1500.0)] == ["3 ms", "0.2 s", "-1.5 s"]
    assert [duration(ms) for ms in (150e3, 9e9, -9e9)] == ["2 min", "> 1 h", "< -1 h"]


# --- memory, layout, colours


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


def test_every_trained_network_has_a_colour_of_its_own() -> None:
    assert len({*NETWORKS.values(), OTHER_NETWORK}) == 4
    assert network_colour("terrain") == OTHER_NETWORK
