"""Collects the costs of the last frames and of every operator, for the panel's sections."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cml_engine.errors import InputError
from cml_engine.errors.arguments import FRAME_MS, FloatRange, check_instance, check_mapping
from cml_engine.runtime.session import Session

if TYPE_CHECKING:
    from cml_engine import FrameReport
    from cml_engine.compiler.plan import Plan

#: network, and number of the step
Key = tuple[str, int]
Values = npt.NDArray[np.float64]
#: the last times of an operator of which the median counts
_TIMED = 15
#: frames that the graph shows
HISTORY = 240
#: the lanes of the graph, from the bottom
LANES = ("render", "inference", "other", "free", "over")
#: samples that still wait for GPU times; older ones never get them (a device without timestamps)
_WAITING = 16
#: reports kept until the times of one arrive: a software driver times few frames
_REPORTS = 32
#: the last frames with which a late one is compared
_USUAL = 32
#: the reasons why a frame runs no more slices, in words
_REASONS = {
    "budget": "the next slice does not fit",
    "nothing to do": "no work is left",
    "waiting for GPU": "the GPU is behind",
    "preparing": "networks are being uploaded",
    "all waiting": "all jobs wait or are paused",
    "frame not ended": "the frame before was not ended",
    "device error": "the device failed",
}


@dataclass(slots=True)
class FrameSample:
    """The times of one frame in ms.

    ``render_ms`` and ``inference_ms`` are GPU time and None until they arrive, some frames later.
    ``cause`` is the reason why the frame missed its target, one of ``parts`` if there are any.

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
    #: the milliseconds of the frame by activity, from a host that accounts for its time
    parts: dict[str, float] = field(default_factory=dict)
    #: False: ``inference_ms`` is predicted, because nothing ran or it was not timed
    inference_timed: bool = True


@dataclass(slots=True)
class OperatorTime:
    """The accumulated cost of one operator of one network.

    Examples
    --------
    >>> times = OperatorTimes({"net": network})
    >>> times.add(scheduler.encode(encoder))
    """

    network: str
    step: int
    title: str
    op: str
    #: the position in the model: "graph.nnef:12"
    line: str
    kernel: str
    flops: float
    bytes: float
    #: whole executions, and the predicted time of their slices
    runs: float = 0.0
    predicted_ms: float = 0.0
    #: the last measured and predicted ms of a whole execution, by slices that were timed alone
    timed: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_TIMED))
    #: "2/3" for the second of three steps that compute the operator; "" for the only one
    part: str = ""

    @property
    def is_measured(self) -> bool:
        """True if slices were timed alone; all times are estimates otherwise."""
        return bool(self.timed)

    @property
    def average_ms(self) -> float:
        """The usual milliseconds of one whole execution, a median; 0 if it has not run.

        A kernel's first dispatch may take a hundred times as long, so a mean would mislead.
        """
        if self.is_measured:
            return median(ms for ms, _ in self.timed)
        return self.predicted_ms / self.runs if self.runs > 0 else 0.0

    @property
    def error(self) -> float:
        """The usual predicted over the measured time, minus 1; 0 if it is not measured."""
        return median(predicted / ms for ms, predicted in self.timed) - 1 if self.timed else 0.0

    @property
    def total_ms(self) -> float:
        """The milliseconds of all executions, from the average of those that were timed."""
        return self.average_ms * self.runs

    def since(self, earlier: OperatorTime | None) -> OperatorTime:
        """Returns the executions since ``earlier``, with the usual time of the last ones."""
        if earlier is None:
            return self
        recent = copy(self)
        recent.runs -= earlier.runs
        recent.predicted_ms -= earlier.predicted_ms
        return recent


class OperatorTimes:
    """Accumulates the costs of all operators from the frames' slices.

    The time of an operator is that of its slices that were timed alone. The time of a group of
    slices is not divided among them: that would show the prediction, not the cost.

    ``sessions`` has the sessions by the names of their jobs.

    Examples
    --------
    >>> times = OperatorTimes({"net": network})
    >>> times.add(scheduler.encode(encoder))  # in every frame
    """

    def __init__(self, sessions: Mapping[str, Session]) -> None:
        self.sessions: Mapping[str, Session] = check_mapping(
            "sessions by name", sessions, "sessions"
        )
        self.operators: dict[Key, OperatorTime] = {}
        self._plans: dict[str, Plan] = {}
        for name, session in sessions.items():
            check_instance(Session, session, f"session '{name}'")
            self._plan(name)

    def add(self, report: FrameReport) -> None:
        """Adds the slices of a frame whose times have arrived to their operators' costs."""
        for part in report.slices:
            plan = self._plan(part.name) if part.name in self.sessions else None
            if plan is None or part.step is None:  # texture loads are no operators
                continue
            operator = self.operators.get((part.name, part.step))
            # a slice of a replaced network may still arrive
            if operator is None or operator.title != part.title:
                continue
            runs = part.count / max(1, plan.steps[part.step].groups)
            operator.runs += runs
            operator.predicted_ms += part.predicted_ms
            if part.measured_ms and runs:
                operator.timed.append((part.measured_ms / runs, part.predicted_ms / runs))

    def _plan(self, name: str) -> Plan:
        """Returns the current plan of session ``name``; resets its costs if the plan is new.

        Raises :class:`InputError` for a session on the CPU.
        """
        plan = self.sessions[name].plan
        if plan is None:
            raise InputError(f"session '{name}' runs on the CPU: it has no GPU times")
        if self._plans.get(name) is not plan:
            self._plans[name] = plan
            for key in [key for key in self.operators if key[0] == name]:
                del self.operators[key]
            count = Counter(step.title for step in plan.steps)
            seen = Counter[str]()
            for step in plan.steps:
                seen[step.title] += 1
                parts = count[step.title]
                self.operators[name, step.index] = OperatorTime(
                    network=name,
                    step=step.index,
                    title=step.title,
                    op=step.op,
                    line=str(step.source or ""),
                    kernel=Path(step.path).name,
                    flops=step.cost.flops,
                    bytes=step.cost.bytes,
                    part=f"{seen[step.title]}/{parts}" if parts > 1 else "",
                )
        return plan


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
        self.target_ms = FRAME_MS.check(target_ms, "target_ms")
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
        if sample.parts:
            sample.cause = _find_cause(sample, list(self.frames)[-_USUAL:])
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
        is_explained = sum(parts.values()) > 0.7 * sample.frame_ms
        sample.cause = max(parts, key=parts.__getitem__) if is_explained else "outside the game"


def _find_cause(late: FrameSample, frames: Iterable[FrameSample]) -> str:
    """Returns the activity that took the most milliseconds beyond its usual ones.

    One frame in four takes less: on a busy machine most of the frames may be late.
    """
    accounts = [sample.parts for sample in frames if sample.parts and sample is not late]

    def beyond_ms(name: str) -> float:
        times_ms = sorted(account.get(name, 0.0) for account in accounts)
        return late.parts[name] - (times_ms[len(times_ms) // 4] if times_ms else 0.0)

    return max(late.parts, key=beyond_ms)


def complete(frames: Iterable[FrameSample]) -> list[FrameSample]:
    """Returns the frames without the newest ones, whose GPU times have not arrived.

    If the device measures nothing, only the last frame is left out.
    """
    finished = list(frames)[:-1]
    for back in range(len(finished)):
        sample = finished[-1 - back]
        if sample.render_ms is not None and sample.inference_ms is not None:
            return finished[: len(finished) - back]
    return finished


def lanes(frames: Sequence[FrameSample], target_ms: float) -> Values:
    """Returns the stacked lanes of these frames' times: the tops in ms, by lane and frame.

    Lanes are in the order of ``LANES``. "other" is the part of a missed frame, up to the target,
    that was neither rendering nor inference; "over" is the part beyond the target.
    """
    count = len(frames)
    render = np.fromiter(((s.render_ms or 0.0) + s.overlay_ms for s in frames), float, count)
    inference = np.fromiter((s.inference_ms or 0.0 for s in frames), float, count)
    frame_ms = np.fromiter((s.frame_ms for s in frames), float, count)
    used = render + inference
    is_over = frame_ms > target_ms
    filled = np.maximum(used, target_ms)
    tops = [render, used, np.where(is_over, filled, used), filled, np.maximum(filled, frame_ms)]
    return np.stack(tops)


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
    FloatRange(0, 1).check(share, "share")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def latest_overrun(frames: Sequence[FrameSample], target_ms: float) -> FrameSample | None:
    """Returns the newest frame that took longer than the target; None if none did."""
    return next((s for s in reversed(frames) if s.frame_ms > target_ms), None)


def mean_overlay_ms(frames: Iterable[FrameSample]) -> float:
    """Returns the mean GPU ms of the pass "overlay" where it was timed; 0 if it never was."""
    timed = [s.overlay_ms for s in frames if s.overlay_ms > 0]
    return sum(timed) / len(timed) if timed else 0.0


@dataclass(frozen=True, slots=True)
class Bar:
    """A slice as a bar: its start, and its length in ms, measured or predicted until then."""

    network: str
    title: str
    start_ms: float
    ms: float
    predicted_ms: float
    measured: bool
    groups: int


def bars(report: FrameReport) -> list[Bar]:
    """Returns the slices of a frame as bars, each beginning where the last one ends."""
    slices, start_ms = [], 0.0
    for part in report.slices:
        measured = part.measured_ms is not None
        ms = part.predicted_ms if part.measured_ms is None else part.measured_ms
        planned = part.predicted_ms
        slices.append(Bar(part.name, part.title, start_ms, ms, planned, measured, part.count))
        start_ms += ms
    return slices


def why(report: FrameReport) -> str:
    """Returns a text with the reason why the frame runs no more slices."""
    margin_ms = report.budget_ms - report.aim_ms
    margin = f" ({margin_ms:.2f} ms are kept free)" if margin_ms >= 0.005 else ""
    return _REASONS.get(report.reason, report.reason) + (
        margin if report.reason == "budget" else ""
    )


def times(report: FrameReport) -> list[str]:
    """Returns three texts with the ms of the frame's networks: measured, planned, budget."""
    measured = report.measured_ms if report.slices else 0.0
    measured_text = "..." if measured is None else f"{measured:.2f}"
    planned = sum(part.predicted_ms for part in report.slices)
    budget = f"budget {report.budget_ms:.2f} ms"
    return [f"measured {measured_text}", f"planned {planned:.2f}", budget]
