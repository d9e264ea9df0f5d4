"""Puts GPU times, which arrive some frames late, where they belong."""

from __future__ import annotations

from collections.abc import Mapping

from cml_engine import FrameReport
from demo_game.reporting.telemetry import FrameSample, Telemetry

#: samples that still wait for GPU times; older ones never get them (a device without timestamps)
_WAITING = 16


class FrameTimes:
    """The samples of the last frames, completed as times arrive. The game, the scheduler and the
    GPU's timer all count the same frames from 0."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._open: dict[int, FrameSample] = {}

    def begin(
        self, report: FrameReport, cpu_ms: float, picture_ms: float | None = None
    ) -> FrameSample:
        """A frame was submitted. Its ``frame_ms`` is set by the loop that waits for it.
        ``picture_ms``: of a host that waited for the picture, how long that took to be drawn."""
        if self._telemetry.frames:
            self._explain(self._telemetry.frames[-1])
        sample = FrameSample(report.frame, cpu_ms, cpu_ms, picture_ms, budget_ms=report.budget_ms)
        if not (report.slices and report.timed):
            sample.inference_ms, sample.inference_timed = report.predicted_ms, False
        self._open[report.frame] = sample
        self._open.pop(report.frame - _WAITING, None)
        self._telemetry.frames.append(sample)
        self._telemetry.last_report = report
        return sample

    def rendered(self, number: int, passes: Mapping[str, float]) -> FrameSample | None:
        """The GPU's own times of a frame's passes, in ms; the sample, if it is still known."""
        sample = self._open.get(number)
        if sample is not None:
            sample.render_ms = passes.get("render", 0.0)
            sample.overlay_ms = passes.get("overlay", 0.0)
            self._explain(sample)
        return sample

    def inferred(self, report: FrameReport) -> None:
        """A frame's inference is measured."""
        sample = self._open.get(report.frame)
        if sample is not None and report.measured_ms is not None:
            sample.inference_ms = report.measured_ms
            self._explain(sample)

    def _explain(self, sample: FrameSample) -> None:
        """Why it took longer than it may, by what took the most beyond its share."""
        target = self._telemetry.target_ms
        if sample.frame_ms <= target:
            return
        parts = {
            "rendering": sample.render_ms or 0.0,
            "the overlay": sample.overlay_ms,
            "the game's own CPU time": sample.cpu_ms,
            "inference": sample.inference_ms or 0.0,
        }
        if parts["inference"] > max(sample.budget_ms, 0.5 * target):
            sample.cause = "inference beyond its budget"
            return
        most = max(parts, key=lambda name: parts[name])
        known = sum(parts.values())
        sample.cause = most if known > 0.7 * sample.frame_ms else "the machine: nothing of ours"
