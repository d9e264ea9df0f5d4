"""Tests of the reported cause of a late frame, for every set of known times."""

from __future__ import annotations

import pytest

from cml_engine import FrameReport
from demo_game.reporting.measure import FrameTimes
from demo_game.reporting.telemetry import Telemetry


def report(frame: int) -> FrameReport:
    return FrameReport(frame, 0.0, 4.0, 4.0, "nothing to do")


@pytest.mark.parametrize(
    ("picture_ms", "cpu_ms", "said"),
    [
        (15.0, 2.0, "rendering"),
        (3.0, 15.0, "the game's own CPU time"),
        (3.0, 2.0, "the machine: nothing of ours"),
    ],
)
def test_a_late_frame_is_explained_where_nothing_is_timed(
    picture_ms: float, cpu_ms: float, said: str
) -> None:
    times = FrameTimes(Telemetry(10.0))
    late = times.begin(report(0), cpu_ms, picture_ms)
    late.frame_ms = 18.0
    assert not late.cause  # the frame's duration is known only after its submit
    in_time = times.begin(report(1), 1.0, 2.0)
    in_time.frame_ms = 9.0
    times.begin(report(2), 1.0, 2.0)
    assert late.cause == said and not in_time.cause


def test_times_of_its_passes_take_the_place_of_the_wait() -> None:
    times = FrameTimes(Telemetry(10.0))
    sample = times.begin(report(0), 1.0, 6.0)
    assert sample.render_ms == 6.0
    times.rendered(0, {"render": 4.0, "overlay": 1.5})
    assert (sample.render_ms, sample.overlay_ms) == (4.0, 1.5)
