"""The report of a frame: the slices that it ran, their times, and why it stopped."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Reason = Literal[
    "budget",
    "nothing to do",
    "waiting for GPU",
    "preparing",
    "all waiting",
    "frame not ended",
    "device error",
]


@dataclass(slots=True)
class SliceReport:
    """One slice that ran in a frame: workgroups ``[first, first + count)`` of a step of a job.

    ``step`` is the step's number in the network; numbers below 0 are loads of the job's
    textures. ``own`` is the step's number among the steps that this job runs, which are fewer
    than the network's if the network retains its inputs.

    ``measured_ms`` arrives with the frame's time. It is the slice's own time if the slice was
    timed alone, else its predicted share of the group of neighbouring slices that was timed as
    one (in most frames one group per job, once all steps are known). It stays None without
    timestamps.

    Examples
    --------
    >>> for part in scheduler.encode(encoder).slices:
    ...     line = f"{part.title}: {part.predicted_ms:.2f} ms"
    """

    job: int
    step: int
    op: str
    title: str
    first: int
    count: int
    predicted_ms: float
    measured_ms: float | None = None
    #: the name of the job
    name: str = ""
    own: int = 0


@dataclass
class FrameReport:
    """The report of a frame: the slices that ran and why it stopped.

    ``measured_ms`` arrives some frames later. ``budget_ms`` is the allowed time; ``aim_ms`` is the
    planned time, which leaves a margin for the spread of the device's times.

    Examples
    --------
    >>> report = scheduler.encode(encoder)
    >>> report.predicted_ms <= report.aim_ms
    True
    """

    frame: int
    now_ms: float
    budget_ms: float
    aim_ms: float
    reason: Reason = "nothing to do"
    slices: list[SliceReport] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)
    predicted_ms: float = 0.0
    measured_ms: float | None = None
    #: True if the budget decided which slices ran (False with ``operators_per_frame``)
    planned: bool = True
    #: True if the slices are timed; otherwise ``measured_ms`` stays None
    timed: bool = True
    #: True if no two jobs share a timing, so that each has its own time
    jobs_apart: bool = True
    #: predicted time of the copies into textures since the previous frame
    copied_ms: float = 0.0
    #: CPU time of :meth:`FrameScheduler.encode`, and the part of it that encoded dispatches
    cpu_ms: float = 0.0
    encode_ms: float = 0.0

    @property
    def over_budget(self) -> bool:
        """True if the measured time exceeded the budget (False until it is measured)."""
        return self.measured_ms is not None and self.measured_ms > self.budget_ms
