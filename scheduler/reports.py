"""What a frame ran, and why it stopped."""

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
    """A part of a frame: workgroups ``[first, first + count)`` of ``step`` of a job's network;
    steps below 0 are the loads of its textures. ``own`` counts the job's own steps: of a network
    that retains its inputs it may do some only.

    ``measured_ms`` comes with the frame's: the slice's own time where it was timed alone, else its
    predicted share of the group of neighbours that was timed as one (a job's, in most frames where
    all steps are known). It stays None without
    timestamps.
    """

    job: int
    step: int
    op: str
    title: str
    first: int
    count: int
    predicted_ms: float
    measured_ms: float | None = None
    #: the job's
    name: str = ""
    own: int = 0


@dataclass
class FrameReport:
    """What a frame ran and why it stopped; ``measured_ms`` comes some frames later.

    ``budget_ms`` is what was allowed, ``aim_ms`` what was planned for, after the margin for the
    device's own spread.
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
    #: whether the budget decided what ran (False with ``operators_per_frame``)
    planned: bool = True
    #: whether the slices are timed; where not, ``measured_ms`` stays None
    timed: bool = True
    #: whether no two jobs share a timing, so that each has its own time
    jobs_apart: bool = True
    #: what copies of outputs into textures, since the frame before, take of the budget
    copied_ms: float = 0.0
    #: CPU time of :meth:`FrameScheduler.encode`, and of it the part that encoded dispatches
    cpu_ms: float = 0.0
    encode_ms: float = 0.0

    @property
    def over_budget(self) -> bool:
        """Whether the measured time exceeded the budget (False until it is measured)."""
        return self.measured_ms is not None and self.measured_ms > self.budget_ms
