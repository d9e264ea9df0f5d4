"""A frame's slices as bars on a line of GPU time, and jobs as rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from cml_engine.tools.panel.sources import ShownFrame, ShownJob

#: reports kept until their times arrive
_KEPT = 8
_WHY = {
    "budget": "the budget is used up",
    "nothing to do": "nothing is left to do",
    "waiting for GPU": "the GPU is behind",
    "preparing": "networks are being uploaded",
    "all waiting": "all jobs wait or are paused",
    "frame not ended": "the frame before was not ended",
    "device error": "the device failed",
}


@dataclass(frozen=True, slots=True)
class Bar:
    """A slice that begins at ``start_ms``; ``ms`` is its measured time, or predicted until then."""

    network: str
    title: str
    start_ms: float
    ms: float
    predicted_ms: float
    measured: bool
    groups: int


def bars(report: ShownFrame) -> list[Bar]:
    """Returns the slices of a frame as bars, one after the other."""
    found, at = [], 0.0
    for part in report.slices:
        measured = part.measured_ms is not None
        ms = part.predicted_ms if part.measured_ms is None else part.measured_ms
        found.append(Bar(part.name, part.title, at, ms, part.predicted_ms, measured, part.count))
        at += ms
    return found


def why(report: ShownFrame) -> str:
    """Returns a text with the reason why the frame stopped."""
    return _WHY.get(report.reason, report.reason)


class Reports:
    """The last frames' reports, which arrive before they are measured."""

    def __init__(self) -> None:
        self._kept: deque[ShownFrame] = deque(maxlen=_KEPT)

    def add(self, report: ShownFrame | None) -> None:
        """Adds a frame's report."""
        if report is not None and (not self._kept or self._kept[-1] is not report):
            self._kept.append(report)

    def shown(self) -> ShownFrame | None:
        """Returns the newest measured report, or the newest if none is measured."""
        measured = (r for r in reversed(self._kept) if r.measured_ms is not None)
        return next(measured, self._kept[-1] if self._kept else None)


@dataclass(frozen=True, slots=True)
class JobRow:
    """One job as text; ``late`` is True if its predicted end is after its deadline."""

    name: str
    state: str
    progress: float
    eta: str
    deadline: str
    late: bool


def job_rows(jobs: Sequence[ShownJob], now_ms: float, most: int) -> list[JobRow]:
    """Returns the first ``most`` unfinished jobs, running jobs before waiting ones."""
    alive = [job for job in jobs if not job.ended]
    alive.sort(key=lambda job: (job.state != "running", job.paused, job.number))
    return [_job_row(job, now_ms) for job in alive[:most]]


def _job_row(job: ShownJob, now_ms: float) -> JobRow:
    state = str(job.state)
    if job.paused:
        state = "paused"
    elif [maker for maker in job.makers if not maker.ended]:
        state = "waiting"
    eta_ms = job.eta_ms
    left_ms = None if job.deadline_at_ms is None else job.deadline_at_ms - now_ms
    late = left_ms is not None and not job.paused and eta_ms > left_ms
    deadline = "-" if left_ms is None else duration(left_ms)
    return JobRow(job.name, state, job.progress, duration(eta_ms), deadline, late)


def duration(ms: float) -> str:
    """Returns a duration as text for people; "-0.2 s" is in the past."""
    if abs(ms) < 100:
        return f"{ms:.0f} ms"
    if abs(ms) < 60_000:
        return f"{ms / 1e3:.1f} s"
    return f"{ms / 60e3:.0f} min" if abs(ms) < 3600e3 else "> 1 h" if ms > 0 else "< -1 h"
