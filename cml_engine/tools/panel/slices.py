"""Converts a frame's slices to bars on a line of GPU time, and jobs to rows of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cml_engine import FrameReport, Job

_WHY = {
    "budget": "the next slice does not fit",
    "nothing to do": "no work is left",
    "waiting for GPU": "the GPU is behind",
    "preparing": "networks are being uploaded",
    "all waiting": "all jobs wait or are paused",
    "frame not ended": "the frame before was not ended",
    "device error": "the device failed",
}


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
    found, at = [], 0.0
    for part in report.slices:
        measured = part.measured_ms is not None
        ms = part.predicted_ms if part.measured_ms is None else part.measured_ms
        found.append(Bar(part.name, part.title, at, ms, part.predicted_ms, measured, part.count))
        at += ms
    return found


def why(report: FrameReport) -> str:
    """Returns a text with the reason why the frame runs no more slices."""
    kept_ms = report.budget_ms - report.aim_ms
    margin = f" ({kept_ms:.2f} ms are kept free)" if kept_ms >= 0.005 else ""
    return _WHY.get(report.reason, report.reason) + (margin if report.reason == "budget" else "")


def times(report: FrameReport) -> list[str]:
    """Returns three texts with the ms of the frame's networks: measured, planned, budget."""
    measured = report.measured_ms if report.slices else 0.0
    known = "..." if measured is None else f"{measured:.2f}"
    planned = sum(part.predicted_ms for part in report.slices)
    return [f"measured {known}", f"planned {planned:.2f}", f"budget {report.budget_ms:.2f} ms"]


@dataclass(frozen=True, slots=True)
class JobRow:
    """The cells of one job in the table; ``late`` is True if it is predicted to end too late."""

    name: str
    state: str
    progress: float
    eta: str
    deadline: str
    late: bool


def job_rows(jobs: Sequence[Job], now_ms: float, most: int) -> list[JobRow]:
    """Returns rows of the first ``most`` unfinished jobs, running before waiting."""
    alive = [job for job in jobs if not job.ended]
    alive.sort(key=lambda job: (job.state != "running", job.paused, job.number))
    return [_job_row(job, now_ms) for job in alive[:most]]


def _job_row(job: Job, now_ms: float) -> JobRow:
    state = str(job.state)
    if job.paused:
        state = "paused"
    elif [maker for maker in job.producers if not maker.ended]:
        state = "waiting"
    eta_ms = job.eta_ms
    left_ms = None if job.deadline_at_ms is None else job.deadline_at_ms - now_ms
    late = left_ms is not None and not job.paused and eta_ms > left_ms
    deadline = "-" if left_ms is None else duration(left_ms)
    return JobRow(job.name, state, job.progress, duration(eta_ms), deadline, late)


def duration(ms: float) -> str:
    """Returns milliseconds as text with a unit, such as "12 ms"; "-0.2 s" is in the past."""
    if abs(ms) < 100:
        return f"{ms:.0f} ms"
    if abs(ms) < 60_000:
        return f"{ms / 1e3:.1f} s"
    return f"{ms / 60e3:.0f} min" if abs(ms) < 3600e3 else "> 1 h" if ms > 0 else "< -1 h"
