"""A planner of whole operators per frame, as in other engines, for comparison."""

from __future__ import annotations

from collections.abc import Sequence

from cml_engine.compiler.plan import Slice
from scheduler.executor import Network
from scheduler.planning.plan import Planner
from scheduler.planning.state import FramePlan, FrameState, JobState, PlannedSlice


def operators_per_frame(count: int | None) -> Planner:
    """Returns a planner that runs ``count`` whole operators per frame, regardless of their time.

    With None it runs the whole network of one job. See :attr:`FrameScheduler.planner`.

    Examples
    --------
    >>> scheduler.planner = cml.operators_per_frame(2)
    """

    def plan(state: FrameState) -> FramePlan:
        if state.budget_ms <= 0:
            return FramePlan((), (), "budget", by_budget=False)
        if state.gpu_behind:
            return FramePlan((), (), "waiting for GPU", by_budget=False)
        slices: list[PlannedSlice] = []
        starts: list[int] = []
        begun: set[int] = set()
        for job in state.in_order()[: None if count else 1]:
            if not job.running and job.exclusive in begun:
                continue
            if count is not None and len(slices) >= count:
                break
            slices += _rest(state, job)[: count and count - len(slices)]
            if not job.running:
                starts.append(job.number)
                begun.add(job.exclusive)
        reason = "budget" if len(slices) == count else state.otherwise
        return FramePlan(tuple(slices), tuple(starts), reason, by_budget=False)

    return plan


def _rest(state: FrameState, job: JobState) -> list[PlannedSlice]:
    """Returns the rest of each remaining operator of the job as one slice, in order."""
    parts = []
    steps = state.networks[job.network]
    for step in range(job.step, len(steps)):
        first = job.group if step == job.step else 0
        left = steps[step].groups - first
        ms = state.costs.predict_ms(steps[step], left)
        parts.append(PlannedSlice(job.number, step, first, left, ms))
    return parts


def whole_operators(network: Network) -> Sequence[Slice]:
    """Returns every operator of the network as one slice, in order."""
    return [Slice(network, i, 0, cost.groups) for i, cost in enumerate(network.step_costs())]
