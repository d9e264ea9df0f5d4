"""Simulates frames on another GPU or under another policy.

Everything runs on a virtual clock and a simulated device (``sim_device.py``), so hours take seconds
and every run is the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from scheduler.clock import VirtualClock
from scheduler.frame_scheduler import FrameScheduler
from scheduler.jobs.job import Job
from scheduler.planning.cost_model import CostModel
from scheduler.planning.plan import Planner, plan_frame
from scheduler.planning.policy import AnyPolicy, by_priority, least_laxity
from scheduler.reports import FrameReport
from scheduler.tools.operators_per_frame import operators_per_frame
from scheduler.tools.sim_device import EXACT, Noise, SimGpu, SimNetwork


@dataclass
class Arrival:
    """A job of a scenario, submitted at ``at_ms`` and every ``period_ms`` after, if that is set."""

    network: SimNetwork
    at_ms: float = 0.0
    period_ms: float | None = None
    deadline_ms: float | None = None
    priority: float = 1.0
    #: a waiting job of the same slot is superseded, see :meth:`FrameScheduler.submit`
    slot: str | None = None


@dataclass
class SimulatedRun:
    """The result of a simulation: times and reports by frame, and the jobs' final states."""

    name: str
    budget_ms: float
    inference_ms: list[float] = field(default_factory=list)
    frame_times_ms: list[float] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    reports: list[FrameReport] = field(default_factory=list)

    @property
    def busy(self) -> list[float]:
        """The inference milliseconds of the frames that ran anything, in order."""
        return [ms for ms in self.inference_ms if ms > 0]

    @property
    def over_share(self) -> float:
        """The share of the busy frames that exceeded the budget."""
        busy = self.busy
        limit = self.budget_ms * (1 + 1e-9)
        return sum(ms > limit for ms in busy) / len(busy) if busy else 0.0

    @property
    def budget_used(self) -> float:
        """The share of the budget that the busy frames used, on average."""
        busy = self.busy
        return sum(busy) / (self.budget_ms * len(busy)) if busy else 0.0

    @property
    def done(self) -> int:
        return sum(job.state == "done" for job in self.jobs)

    @property
    def deadlines_held(self) -> tuple[int, int]:
        """The number of met deadlines, and the number of all ended jobs with a deadline."""
        due = [j for j in self.jobs if j.deadline_at_ms is not None and j.ended]
        held = sum((j.ended_ms or 0) <= (j.deadline_at_ms or 0) for j in due)
        return held, len(due)

    def percentile(self, share: float) -> float:
        """Returns a percentile (``share`` is 0 to 1) of the inference ms of busy frames."""
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
    requests: Sequence[Arrival],
    frames: int,
    *,
    name: str = "milliseconds",
    budget_ms: float = 4.0,
    frame_ms: float = 1000 / 60,
    render_ms: Callable[[int], float] = lambda frame: 8.0,
    noise: Noise = EXACT,
    policy: AnyPolicy = least_laxity,
    planner: Planner = plan_frame,
    cost_model: CostModel | None = None,
    seed: int = 0,
    speed: float = 1.0,
) -> SimulatedRun:
    """Runs the scheduler on a simulated device for ``frames`` frames and returns times and jobs.

    ``requests`` are the jobs to submit. A frame takes ``frame_ms``, or longer if rendering
    (``render_ms`` of its number) and inference need more.
    """
    clock = VirtualClock()
    gpu = SimGpu(noise, seed=seed, speed=speed)
    scheduler = FrameScheduler(
        gpu, frame_ms, budget_ms, policy=policy, clock=clock, cost_model=cost_model
    )
    scheduler.planner = planner
    outcome = SimulatedRun(name, budget_ms)
    due = [request.at_ms for request in requests]
    for frame in range(frames):
        outcome.jobs += _submit_due(requests, due, clock.now_ms(), scheduler)
        report = scheduler.encode(None)
        outcome.inference_ms.append(gpu.frame_ms)
        outcome.reports.append(report)
        outcome.frame_times_ms.append(max(frame_ms, render_ms(frame) + gpu.frame_ms))
        clock.advance(outcome.frame_times_ms[-1])
        scheduler.end_frame()
    return outcome


def _submit_due(
    requests: Sequence[Arrival], due: list[float], now: float, scheduler: FrameScheduler
) -> Iterator[Job]:
    for index, request in enumerate(requests):
        while due[index] <= now:
            yield scheduler.submit(
                request.network,
                {},
                priority=request.priority,
                deadline_ms=request.deadline_ms,
                name=request.network.name,
                slot=request.slot,
            )
            due[index] += request.period_ms if request.period_ms else math.inf


def compare_policies(
    requests: Callable[[], Sequence[Arrival]], frames: int, layers: int = 4, **options: Any
) -> list[SimulatedRun]:
    """Simulates a scenario under this scheduler and three other rules; returns a run for each.

    The others run one operator per frame, ``layers`` operators per frame, and a whole network per
    frame. ``options`` are those of :func:`simulate`.
    """
    usual: list[tuple[str, int | None]] = [
        ("1 operator per frame", 1),
        (f"{layers} operators per frame", layers),
        ("unsliced", None),
    ]
    ours = simulate(requests(), frames, name="milliseconds (ours)", **options)
    return [ours] + [
        simulate(
            requests(), frames, name=name, planner=operators_per_frame(number),
            policy=by_priority, **options,
        )
        for name, number in usual
    ]  # fmt: skip


def table(outcomes: Sequence[SimulatedRun]) -> str:
    """Returns a text table with a header and a line for each simulated run."""
    return "\n".join([HEADER, *(outcome.row() for outcome in outcomes)])
