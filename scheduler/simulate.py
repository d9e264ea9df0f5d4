"""What would happen on another GPU, or under another policy.

Everything runs on a virtual clock and on a device on paper (``sim_device.py``), so hours take
seconds and every run is the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from scheduler.clock import VirtualClock
from scheduler.cost_model import CostModel
from scheduler.executor import Slice
from scheduler.frame_scheduler import FrameScheduler
from scheduler.job import Job
from scheduler.policy import Policy, least_laxity
from scheduler.reports import FrameReport
from scheduler.sim_device import EXACT, Noise, SimGpu, SimNetwork


class LayersPerFrame:
    """The usual way, to compare with: so many whole operators in every frame, the jobs one after
    the other. ``layers=None`` runs a whole network in one frame."""

    def __init__(
        self, gpu: SimGpu, clock: VirtualClock, budget_ms: float, layers: int | None
    ) -> None:
        self._inner = FrameScheduler(gpu, budget_ms=budget_ms, clock=clock)
        self._gpu, self._layers = gpu, layers
        self.frame = 0

    def submit(self, network: SimNetwork, **options: Any) -> Job:
        return self._inner.submit(network, {}, **options)

    def encode(self) -> FrameReport:
        inner = self._inner
        report = FrameReport(self.frame, inner.clock.now_ms(), inner.budget.next_ms(), 0.0)
        jobs = inner.jobs
        parts: list[Slice] = []
        if jobs:
            job = jobs[0]
            last = len(job.costs) if self._layers is None else job.step + self._layers
            for step in range(job.step, min(last, len(job.costs))):
                parts.append(Slice(job.network, step, 0, job.costs[step].groups))
            job.step = min(last, len(job.costs))
            if job.all_encoded:
                inner.end(job, "done")
                report.finished.append(job.number)
        self._gpu.encode(None, self.frame, [parts] if parts else [])
        report.measured_ms = self._gpu.frame_ms
        return report

    def end_frame(self) -> None:
        self._gpu.end_frame(self.frame)
        self.frame += 1


@dataclass
class Request:
    """A job of a scenario: submitted at ``at_ms``, and every ``period_ms`` from then on."""

    network: SimNetwork
    at_ms: float = 0.0
    period_ms: float | None = None
    deadline_ms: float | None = None
    priority: float = 1.0
    #: a waiting job of the same slot is superseded, see :meth:`FrameScheduler.submit`
    slot: str | None = None


@dataclass
class Outcome:
    """A simulated run. ``inference_ms`` per frame; jobs as they ended."""

    name: str
    budget_ms: float
    inference_ms: list[float] = field(default_factory=list)
    frame_times_ms: list[float] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    reports: list[FrameReport] = field(default_factory=list)

    @property
    def busy(self) -> list[float]:
        """The frames that ran anything."""
        return [ms for ms in self.inference_ms if ms > 0]

    @property
    def over_share(self) -> float:
        """Part of the busy frames over budget."""
        busy = self.busy
        limit = self.budget_ms * (1 + 1e-9)
        return sum(ms > limit for ms in busy) / len(busy) if busy else 0.0

    @property
    def budget_used(self) -> float:
        """Inference time over budget, in the busy frames."""
        busy = self.busy
        return sum(busy) / (self.budget_ms * len(busy)) if busy else 0.0

    @property
    def done(self) -> int:
        return sum(job.state == "done" for job in self.jobs)

    @property
    def deadlines_held(self) -> tuple[int, int]:
        """(held, all that were due)."""
        due = [j for j in self.jobs if j.deadline_at_ms is not None and j.ended]
        held = sum((j.ended_ms or 0) <= (j.deadline_at_ms or 0) for j in due)
        return held, len(due)

    def percentile(self, share: float) -> float:
        """Of the inference time of busy frames."""
        busy = sorted(self.busy)
        return busy[min(len(busy) - 1, math.floor(share * len(busy)))] if busy else 0.0

    def row(self) -> str:
        held, due = self.deadlines_held
        return (
            f"{self.name:24s} {self.percentile(0.5):8.2f} {self.percentile(0.95):8.2f} "
            f"{self.percentile(0.99):8.2f} {self.percentile(1.0):8.2f} "
            f"{100 * self.over_share:7.2f} % {100 * self.budget_used:6.1f} % "
            f"{self.done:6d} {held:5d}/{due}"
        )


HEADER = (
    f"{'policy':24s} {'P50 ms':>8s} {'P95 ms':>8s} {'P99 ms':>8s} {'max ms':>8s} {'over':>9s} "
    f"{'used':>8s} {'done':>6s} {'deadlines':>9s}"
)


def simulate(
    requests: Sequence[Request],
    frames: int,
    *,
    name: str = "milliseconds",
    budget_ms: float = 4.0,
    frame_ms: float = 1000 / 60,
    render_ms: Callable[[int], float] = lambda frame: 8.0,
    noise: Noise = EXACT,
    policy: Policy = least_laxity,
    layers: int | None | str = "ours",
    cost_model: CostModel | None = None,
    seed: int = 0,
    speed: float = 1.0,
) -> Outcome:
    """Run a scenario for so many frames. ``layers`` is ``"ours"``, a number of whole operators per
    frame, or None for a whole network per frame. A frame takes ``frame_ms``, or longer where
    rendering and inference need more."""
    clock = VirtualClock()
    gpu = SimGpu(noise, seed=seed, speed=speed)
    ours = FrameScheduler(
        gpu, frame_ms, budget_ms, policy=policy, clock=clock, cost_model=cost_model
    )
    usual = None if layers == "ours" else LayersPerFrame(gpu, clock, budget_ms, layers)  # type: ignore[arg-type]
    outcome = Outcome(name, budget_ms)
    due = [request.at_ms for request in requests]
    for frame in range(frames):
        _submit_due(requests, due, clock.now_ms(), ours, usual, outcome)
        report = usual.encode() if usual else ours.encode(None)
        took = gpu.frame_ms
        outcome.inference_ms.append(took)
        outcome.reports.append(report)
        outcome.frame_times_ms.append(max(frame_ms, render_ms(frame) + took))
        clock.advance(outcome.frame_times_ms[-1])
        if usual:
            usual.end_frame()
        else:
            ours.end_frame()
    return outcome


def _submit_due(
    requests: Sequence[Request],
    due: list[float],
    now: float,
    ours: FrameScheduler,
    usual: LayersPerFrame | None,
    outcome: Outcome,
) -> None:
    for index, request in enumerate(requests):
        while due[index] <= now:
            options: dict[str, Any] = {
                "priority": request.priority,
                "deadline_ms": request.deadline_ms,
                "name": request.network.name,
                "slot": request.slot,
            }
            if usual:
                job = usual.submit(request.network, **options)
            else:
                job = ours.submit(request.network, {}, **options)
            outcome.jobs.append(job)
            due[index] += request.period_ms if request.period_ms else math.inf


def compare_policies(
    requests: Callable[[], Sequence[Request]], frames: int, layers: int = 4, **options: Any
) -> list[Outcome]:
    """The same scenario under ours, one operator per frame, ``layers`` operators per frame, and
    a whole network per frame."""
    kinds: list[tuple[str, Any]] = [
        ("milliseconds (ours)", "ours"),
        ("1 operator per frame", 1),
        (f"{layers} operators per frame", layers),
        ("unsliced", None),
    ]
    return [simulate(requests(), frames, name=name, layers=kind, **options) for name, kind in kinds]


def table(outcomes: Sequence[Outcome]) -> str:
    """The outcomes, a line each."""
    return "\n".join([HEADER, *(outcome.row() for outcome in outcomes)])
