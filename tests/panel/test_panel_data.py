"""Tests of what the host panel shows, of its frame log and of its layout, without drawing."""

from collections import deque

import pytest

from cml_engine import FrameReport
from cml_engine.panel.frames import (
    LANES,
    FrameLog,
    FrameSample,
    OperatorTime,
    bars,
    complete,
    lanes,
    latest_overrun,
    mean_overlay_ms,
    summary,
    times,
    why,
)
from cml_engine.panel.panel import layout_for
from cml_engine.panel.ranking import RecentTimes, ordered, rows
from cml_engine.scheduler.reports import SliceReport

# --- operators


def operator(network, step, total_ms, runs=10.0):
    return OperatorTime(
        network, step, f"conv{step}", "conv", "graph.nnef:1", "conv/conv.hlsl", 4e6, 1e6,
        runs, 2.0 * total_ms, timed=deque([(total_ms / runs, 1.5 * total_ms / runs)]),
    )  # fmt: skip


def keyed(operators):
    return {(o.network, o.step): o for o in operators}


def test_panel_row_states_share_and_average_time():
    found = rows(keyed([operator("upres", 0, 20.0), operator("texture", 1, 60.0)]))
    row = next(r for r in found if r.network == "upres")
    assert row.share == 0.25
    assert row.average_ms == 2.0
    assert row.error == pytest.approx(0.5)
    assert row.gflops == pytest.approx(2.0)  # 4e6 in 2 ms
    assert row.gbytes == pytest.approx(0.5)


def test_an_operator_that_was_never_timed_alone_is_an_estimate():
    one, other = operator("upres", 0, 20.0), operator("upres", 1, 20.0)
    other.timed.clear()
    measured, estimate = rows(keyed([one, other]))
    assert measured.is_measured and not estimate.is_measured
    assert (estimate.average_ms, estimate.total_ms, estimate.error) == (4.0, 40.0, 0.0)


def test_rows_sort_by_every_column_both_ways():
    found = rows(keyed([operator("upres", s, 5.0 * (s + 1), 7.0 - s) for s in range(5)]))
    keys = ("name", "share", "total_ms", "runs", "average_ms", "error", "gflops", "gbytes")
    for key in keys:
        up = [getattr(r, key) for r in ordered(found, key, False)]
        down = [getattr(r, key) for r in ordered(found, key, True)]
        assert up == sorted(up) and down == sorted(down, reverse=True)


def test_last_seconds_are_differences():
    recent, one = RecentTimes(), operator("upres", 0, 1.0, 1.0)
    operators = keyed([one])
    for tick in range(200):  # 20 s, 1 ms of it in each tenth
        one.runs = one.predicted_ms = tick + 1.0
        one.timed.append((1.0, 1.0))
        recent.save(0.1 * tick, operators)
    (row,) = rows(operators, recent.before())
    assert 49 <= row.total_ms <= 56
    assert row.average_ms == pytest.approx(1.0)


# --- slices


def report(frame, measured):
    made = FrameReport(frame, 0.0, 4.0, 3.5, "budget")
    for job, ms in ((3, 1.0), (5, 2.0)):
        made.slices.append(SliceReport(job, 0, "conv", "conv", 0, 9, ms, 2 * ms, f"net {job}"))
    if measured:
        made.measured_ms = 6.0
    else:
        for part in made.slices:
            part.measured_ms = None
    return made


def test_timeline_bars_are_consecutive():
    found = bars(report(0, True))
    assert [(b.network, b.start_ms, b.ms) for b in found] == [
        ("net 3", 0.0, 2.0),
        ("net 5", 2.0, 4.0),
    ]
    assert [b.ms for b in bars(report(0, False))] == [1.0, 2.0]


def test_panel_states_measured_planned_and_budget_times():
    assert times(report(0, True)) == ["measured 6.00", "planned 3.00", "budget 4.00 ms"]
    assert times(report(0, False))[0] == "measured ..."
    idle = FrameReport(0, 0.0, 2.0, 1.8, "nothing to do")
    assert times(idle)[0] == "measured 0.00" and why(idle) == "no work is left"
    # 0.14 of 2.00 ms can be all that fits: the next slice is larger, or a margin is kept
    full = FrameReport(0, 0.0, 2.0, 1.6, "budget")
    assert why(full) == "the next slice does not fit (0.40 ms are kept free)"


def sample(number, frame_ms, render, inference=2.0):
    return FrameSample(number, frame_ms, 1.0, render, inference, 4.0)


# --- frames


def test_frames_are_shown_once_they_are_measured():
    frames = [sample(0, 16, 5), sample(1, 16, 5), sample(2, 16, None), sample(3, 0, None)]
    assert [s.number for s in complete(frames)] == [0, 1]


@pytest.mark.parametrize("frames", [[], [sample(0, 16, 5)]])
def test_empty_frame_log_has_empty_lanes(frames):
    shown = complete(frames)
    assert shown == []
    assert lanes(shown, 16.0).shape == (len(LANES), 0)
    assert summary(shown, 16.0).p99 == 0
    assert latest_overrun(shown, 16.0) is None
    assert mean_overlay_ms(shown) == 0


def test_lanes_of_an_overrun_have_no_free_time():
    tops = lanes([sample(7, 30.0, 6.0, 3.0)], 16.0)
    assert dict(zip(LANES, tops[:, 0], strict=True)) == {
        "render": 6.0,
        "inference": 9.0,
        "other": 16.0,
        "free": 16.0,
        "over": 30.0,
    }


def test_summary_and_latest_overrun():
    frames = [sample(n, 1.0 + n, 1.0) for n in range(100)]
    found = summary(frames, 90.0)
    assert (found.frames, found.p50, found.p95, found.p99, found.over) == (100, 51, 96, 100, 10)
    latest = latest_overrun(frames[:95], 90.0)
    assert latest is not None and latest.number == 94


# --- layout

SIZES = [(480, 320), (640, 360), (960, 540), (1280, 720), (1920, 1080), (3840, 2160)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("em", [12.0, 13.0, 14.0, 18.0, 30.0])
def test_the_columns_fit_into_the_window(size, em):
    layout = layout_for(*size, em)
    width = layout.left_width + (layout.right_width if layout.columns == 2 else 0.0)
    assert width + 2 * em <= size[0] or layout.left_width == 1.0
    assert layout.columns == (2 if size[0] / em >= 30 else 1)
    assert layout.ranking_rows >= 4


@pytest.mark.parametrize("size", [(0, 0), (1, 1), (3, 200)])
def test_tiny_window_has_a_layout(size):
    layout = layout_for(*size, 13.0)
    assert layout.columns == 1 and layout.left_width >= 1.0


# --- causes


def idle_report(frame):
    return FrameReport(frame, 0.0, 4.0, 4.0, "nothing to do")


def test_the_cause_of_a_late_frame_is_what_took_longer_than_usual():
    """The cause of a late frame is the activity that took longer than usual, not the longest."""
    log = FrameLog(10.0, {})
    for number in range(9):
        sample = log.begin(idle_report(number))
        sample.frame_ms, sample.parts = 8.0, {"the picture": 7.0, "selecting tiles": 1.0}
    late = log.begin(idle_report(9))
    late.frame_ms, late.parts = 14.0, {"the picture": 7.5, "selecting tiles": 6.5}
    log.begin(idle_report(10))
    assert late.cause == "selecting tiles"
    assert not any(sample.cause for sample in log.frames if sample is not late)


def test_the_first_frame_and_mostly_late_frames_have_causes():
    log = FrameLog(10.0, {})
    for number in range(12):
        sample = log.begin(idle_report(number))
        held_ms = 9.0 if number % 3 else 0.0
        sample.frame_ms = 7.0 + held_ms
        sample.parts = {"drawing": 1.0, "the picture": 6.0, "the system": held_ms}
    first = FrameLog(10.0, {})
    alone = first.begin(idle_report(0))
    alone.frame_ms, alone.parts = 20.0, {"drawing": 1.0, "the picture": 19.0}
    for each in (log, first):
        each.begin(idle_report(99))
    assert alone.cause == "the picture"
    assert {sample.cause for sample in log.frames if sample.frame_ms > 10.0} == {"the system"}


@pytest.mark.parametrize(
    ("picture_ms", "cpu_ms", "said"),
    [
        (15.0, 2.0, "rendering"),
        (3.0, 15.0, "the game's CPU time"),
        (3.0, 2.0, "outside the game"),
    ],
)
def test_late_frame_has_a_cause_without_timestamps(picture_ms, cpu_ms, said):
    log = FrameLog(10.0, {})
    late = log.begin(idle_report(0), cpu_ms, picture_ms)
    late.frame_ms = 18.0
    assert not late.cause  # the frame's duration is known only after its submit
    in_time = log.begin(idle_report(1), 1.0, 2.0)
    in_time.frame_ms = 9.0
    log.begin(idle_report(2), 1.0, 2.0)
    assert late.cause == said and not in_time.cause


def test_pass_times_replace_the_wait_time():
    log = FrameLog(10.0, {})
    sample = log.begin(idle_report(0), 1.0, 6.0)
    assert sample.render_ms == 6.0
    log.add_passes(0, {"shadows": 1.0, "scene": 3.0, "overlay": 1.5})
    assert (sample.render_ms, sample.overlay_ms) == (4.0, 1.5)
    assert log.add_passes(99, {"scene": 3.0}) is None


def test_the_newest_measured_report_is_shown():
    log = FrameLog(10.0, {})
    assert log.measured_report is None
    first, second = idle_report(0), idle_report(1)
    log.begin(first)
    first.measured_ms = 3.0
    log.begin(second)
    assert (log.measured_report, log.last_report) == (first, second)
    second.measured_ms = 3.0
    assert log.measured_report is second


def test_one_slow_dispatch_does_not_mislead():
    """A kernel's first dispatch may wait for the driver's compiler."""
    one = operator("upres", 0, 10.0)
    one.timed.extend([(90.0, 1.0), (1.0, 1.5), (1.1, 1.5)])
    (row,) = rows(keyed([one]))
    assert row.average_ms == pytest.approx(1.05) and row.error == pytest.approx(0.43, abs=0.1)
