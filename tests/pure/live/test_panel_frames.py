"""Tests of the frame log behind a panel, and of the panel's layout, without drawing."""

import pytest

from cml_engine import FrameReport
from cml_engine.tools.panel.frames import (
    LANES,
    FrameLog,
    FrameSample,
    complete,
    lanes,
    latest_overrun,
    mean_overlay_ms,
    summary,
)
from cml_engine.tools.panel.panel import layout_for


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


def report(frame):
    return FrameReport(frame, 0.0, 4.0, 4.0, "nothing to do")


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
    late = log.begin(report(0), cpu_ms, picture_ms)
    late.frame_ms = 18.0
    assert not late.cause  # the frame's duration is known only after its submit
    in_time = log.begin(report(1), 1.0, 2.0)
    in_time.frame_ms = 9.0
    log.begin(report(2), 1.0, 2.0)
    assert late.cause == said and not in_time.cause


def test_pass_times_replace_the_wait_time():
    log = FrameLog(10.0, {})
    sample = log.begin(report(0), 1.0, 6.0)
    assert sample.render_ms == 6.0
    log.add_passes(0, {"shadows": 1.0, "scene": 3.0, "overlay": 1.5})
    assert (sample.render_ms, sample.overlay_ms) == (4.0, 1.5)
    assert log.add_passes(99, {"scene": 3.0}) is None


def test_the_newest_measured_report_is_shown():
    log = FrameLog(10.0, {})
    assert log.measured_report is None
    first, second = report(0), report(1)
    log.begin(first)
    first.measured_ms = 3.0
    log.begin(second)
    assert (log.measured_report, log.last_report) == (first, second)
    second.measured_ms = 3.0
    assert log.measured_report is second
