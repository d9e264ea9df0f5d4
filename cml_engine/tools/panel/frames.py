"""Collects the costs of the last frames: samples, lanes of a graph, percentiles, causes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cml_engine.tools.panel.operators import Key, OperatorTime, OperatorTimes

if TYPE_CHECKING:
    from cml_engine import FrameReport, Session

Values = npt.NDArray[np.float64]
#: frames that the graph shows
HISTORY = 240
#: the lanes of the graph, from the bottom
LANES = ("render", "inference", "other", "free", "over")
#: samples that still wait for GPU times; older ones never get them (a device without timestamps)
_WAITING = 16
#: reports kept until the times of one arrive: a software driver times few frames
_REPORTS = 32


@dataclass(slots=True)
class FrameSample:
    """The times of one frame in ms.

    ``render_ms`` and ``inference_ms`` are GPU time and None until they arrive, some frames later.
    ``cause`` is the reason why the frame missed its target.

    Examples
    --------
    >>> sample = FrameSample(number=0, frame_ms=15.2, inference_ms=3.9, budget_ms=4.0)
    """

    number: int
    frame_ms: float
    cpu_ms: float = 0.0
    render_ms: float | None = None
    inference_ms: float | None = None
    budget_ms: float = 0.0
    overlay_ms: float = 0.0
    cause: str = ""
    #: False: ``inference_ms`` is predicted, because nothing ran or it was not timed
    inference_timed: bool = True


class FrameLog:
    """Collects the costs of the last frames and of every operator.

    A :class:`Panel` keeps one for a host. A host with a frame loop of its own calls :meth:`begin`
    in every frame, sets ``frame_ms`` of the sample when the frame has ended, and passes GPU times
    on as they arrive. The host, the scheduler and a :class:`FrameTimer` count frames alike.

    Examples
    --------
    >>> log = FrameLog(1000 / 60, {"net": network})
    >>> log.frames.append(FrameSample(0, frame_ms=15.2))
    """

    def __init__(self, target_ms: float, sessions: Mapping[str, Session]) -> None:
        self.target_ms = target_ms
        self.frames: deque[FrameSample] = deque(maxlen=HISTORY)
        self._reports: deque[FrameReport] = deque(maxlen=_REPORTS)
        self._times = OperatorTimes(sessions)
        self._waiting: dict[int, FrameSample] = {}

    @property
    def operators(self) -> Mapping[Key, OperatorTime]:
        """The accumulated cost of every operator, by network name and step number."""
        return self._times.operators

    @property
    def last_report(self) -> FrameReport | None:
        """The report of the newest frame; None before the first."""
        return self._reports[-1] if self._reports else None

    @property
    def measured_report(self) -> FrameReport | None:
        """The report of the newest frame with measured slices; without one, :attr:`last_report`."""
        measured = (r for r in reversed(self._reports) if r.measured_ms is not None)
        return next(measured, self.last_report)

    def begin(
        self, report: FrameReport, cpu_ms: float = 0.0, render_ms: float | None = None
    ) -> FrameSample:
        """Adds a submitted frame to the log and returns its sample, to be completed later.

        ``render_ms`` is the time of the picture, where the host has waited for it.
        """
        if self.frames:
            self._explain(self.frames[-1])
        sample = FrameSample(report.frame, cpu_ms, cpu_ms, render_ms, budget_ms=report.budget_ms)
        if not (report.slices and report.timed):
            sample.inference_ms, sample.inference_timed = report.predicted_ms, False
        self._waiting[report.frame] = sample
        self._waiting.pop(report.frame - _WAITING, None)
        self.frames.append(sample)
        self._reports.append(report)
        return sample

    def add_passes(self, number: int, passes: Mapping[str, float]) -> FrameSample | None:
        """Adds the GPU milliseconds of the render passes of frame ``number``, by pass name.

        The pass "overlay" is counted apart; all others are rendering. Returns the frame's
        sample, or None if the frame is too old.
        """
        sample = self._waiting.get(number)
        if sample is not None:
            sample.overlay_ms = passes.get("overlay", 0.0)
            sample.render_ms = sum(passes.values()) - sample.overlay_ms
            self._explain(sample)
        return sample

    def add_inference(self, report: FrameReport) -> None:
        """Adds the measured slices of a frame to its sample and to the costs of the operators."""
        self._times.add(report)
        sample = self._waiting.get(report.frame)
        if sample is not None and report.measured_ms is not None:
            sample.inference_ms = report.measured_ms
            self._explain(sample)

    def _explain(self, sample: FrameSample) -> None:
        """Sets the cause of a sample that missed the target: the part that took the longest."""
        if sample.frame_ms <= self.target_ms:
            return
        parts = {
            "rendering": sample.render_ms or 0.0,
            "the overlay": sample.overlay_ms,
            "the game's CPU time": sample.cpu_ms,
            "inference": sample.inference_ms or 0.0,
        }
        if parts["inference"] > max(sample.budget_ms, 0.5 * self.target_ms):
            sample.cause = "inference over budget"
            return
        known = sum(parts.values()) > 0.7 * sample.frame_ms
        sample.cause = max(parts, key=lambda name: parts[name]) if known else "outside the game"


@dataclass(frozen=True)
class Lanes:
    """The stacked lanes of the frame graph, as arrays.

    ``tops[lane][i]`` is the top in ms of frame ``numbers[i]``. ``other`` is the part of a missed
    frame, up to the target, that was neither rendering nor inference; ``over`` is the part beyond
    the target.
    """

    numbers: Values
    tops: Values


def complete(frames: Iterable[FrameSample]) -> list[FrameSample]:
    """Returns the frames without the newest ones, whose GPU times have not arrived.

    If the device measures nothing, only the last frame is left out.
    """
    found = list(frames)[:-1]
    for back in range(len(found)):
        sample = found[-1 - back]
        if sample.render_ms is not None and sample.inference_ms is not None:
            return found[: len(found) - back]
    return found


def lanes(frames: Sequence[FrameSample], target_ms: float) -> Lanes:
    """Returns the stacked lanes of these frames' times, in the order of ``LANES``."""
    count = len(frames)
    render = np.fromiter(((s.render_ms or 0.0) + s.overlay_ms for s in frames), float, count)
    inference = np.fromiter((s.inference_ms or 0.0 for s in frames), float, count)
    whole = np.fromiter((s.frame_ms for s in frames), float, count)
    numbers = np.fromiter((s.number for s in frames), float, count)
    used = render + inference
    late = whole > target_ms
    filled = np.maximum(used, target_ms)
    tops = [render, used, np.where(late, filled, used), filled, np.maximum(filled, whole)]
    return Lanes(numbers, np.stack(tops))


@dataclass(frozen=True, slots=True)
class FrameSummary:
    """The number of frames, P50, P95 and P99 of their times in ms, and the number of late ones."""

    frames: int
    p50: float
    p95: float
    p99: float
    over: int


def summary(frames: Sequence[FrameSample], target_ms: float) -> FrameSummary:
    """Returns the percentiles of the frame times and the number of frames over the target."""
    times = [s.frame_ms for s in frames]
    p50, p95, p99 = (percentile(times, share) for share in (0.5, 0.95, 0.99))
    return FrameSummary(len(times), p50, p95, p99, sum(t > target_ms for t in times))


def percentile(values: Iterable[float], share: float) -> float:
    """Returns the value below which ``share`` of the values lie; 0 without values.

    Examples
    --------
    >>> percentile([15.2, 14.8, 31.0], 0.5)
    15.2
    """
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def latest_overrun(frames: Sequence[FrameSample], target_ms: float) -> FrameSample | None:
    """Returns the newest frame that took longer than the target; None if none did."""
    return next((s for s in reversed(frames) if s.frame_ms > target_ms), None)


def mean_overlay_ms(frames: Iterable[FrameSample]) -> float:
    """Returns the mean GPU ms of the pass "overlay" where it was timed; 0 if it never was."""
    known = [s.overlay_ms for s in frames if s.overlay_ms > 0]
    return sum(known) / len(known) if known else 0.0
