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

    ``step`` is the step's number in the network; None for a load of one of the job's textures.
    ``index`` is the number among all that the job runs: its loads, then its steps, which are fewer
    than the network's if the network retains its inputs.

    ``measured_ms`` arrives with the frame's time if the slice was timed alone. It stays None in
    frames without timestamps, and for slices that were timed as a group (:class:`GroupTime`).
    ``settled`` is True if the cost of the slice was measured often enough before; its
    ``predicted_ms`` is otherwise an estimate.

    Examples
    --------
    >>> for part in scheduler.encode(encoder).slices:
    ...     line = f"{part.title}: {part.predicted_ms:.2f} ms"
    """

    job: int
    step: int | None
    op: str
    title: str
    first: int
    count: int
    predicted_ms: float
    measured_ms: float | None = None
    #: the name of the job
    name: str = ""
    index: int = 0
    settled: bool = False


@dataclass(frozen=True, slots=True)
class GroupTime:
    """The measured ms of ``count`` neighbouring slices of a frame, from number ``first`` on.

    Examples
    --------
    >>> for report in scheduler.end_frame():
    ...     total_ms = sum(group.ms for group in report.group_times)
    """

    first: int
    count: int
    ms: float


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
    #: the measured times of groups of slices; they arrive with ``measured_ms``
    group_times: list[GroupTime] = field(default_factory=list)
    #: predicted time of the copies into textures since the previous frame
    copied_ms: float = 0.0
    #: CPU time of :meth:`FrameScheduler.encode`, and the part of it that encoded dispatches
    cpu_ms: float = 0.0
    encode_ms: float = 0.0

    @property
    def over_budget(self) -> bool:
        """True if the measured time exceeded the budget (False until it is measured)."""
        return self.measured_ms is not None and self.measured_ms > self.budget_ms
