"""Plans a frame: decides which slices it runs, without a device or a clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cml_engine.compiler.plan import StepCost
from cml_engine.scheduler.clock import check_count
from cml_engine.scheduler.executor import exclusivity_key
from cml_engine.scheduler.planning.cost_model import CostModel
from cml_engine.scheduler.planning.policy import Policy
from cml_engine.scheduler.reports import Reason

if TYPE_CHECKING:
    from cml_engine.scheduler.jobs.job import Job

#: a slice shorter than this share of the budget is not worth its launch at the end of a frame
_MIN_SHARE = 0.02
#: a kernel never measured before gets this share of the time: the guess may be off by its inverse
_PROBE_SHARE = 0.25


@dataclass(slots=True)  # a frozen one takes four times as long to make
class FrameInputs:
    """A frame's time and budget, from which it is planned; a recording has them for every frame.

    ``aim_ms`` is the part of ``budget_ms`` to plan for, without the ``copied_ms`` of copies into
    textures. With ``rests`` the frame runs nothing. ``gpu_behind``: too many frames wait for the
    GPU.
    """

    now_ms: float
    budget_ms: float
    aim_ms: float
    copied_ms: float
    rests: bool
    gpu_behind: bool


@dataclass(slots=True)
class FrameState:
    """The input of a frame's plan: budget, jobs, costs and the state of the device.

    ``budget_ms`` is what is allowed and ``aim_ms`` what is planned for; ``rate`` is GPU
    milliseconds per millisecond of wall time. ``granule``: the number of workgroups that run at
    once; slices are multiples of it. ``most_unsettled``: the most slices whose costs are not
    settled, which is how many can be timed one by one. ``gpu_behind``: too many frames wait for the
    GPU. ``otherwise`` is the reason to report if the jobs end before the budget. A planner
    changes nothing of it.
    """

    now_ms: float
    budget_ms: float
    aim_ms: float
    rate: float
    granule: int
    most_unsettled: int
    gpu_behind: bool
    otherwise: Reason
    policy: Policy
    jobs: Sequence[Job]
    costs: CostModel

    @property
    def prevented_by(self) -> Reason | None:
        """The reason why the frame can run nothing at all, or None."""
        if self.budget_ms <= 0:
            return "budget"
        return "waiting for GPU" if self.gpu_behind else None

    def in_order(self) -> Sequence[Job]:
        """Returns the jobs in the policy's order."""
        return self.policy(self.jobs, self.now_ms, self.rate) if self.jobs else ()


@dataclass(slots=True)
class PlannedSlice:
    """Workgroups ``[first, first + count)`` of a step of a job, and their predicted time.

    ``step`` is an index of :attr:`Job.costs`, and ``samples`` the number of measurements of about
    ``count`` of its workgroups. ``settled`` is True if they were timed often enough.
    """

    job: Job
    step: int
    cost: StepCost
    first: int
    count: int
    predicted_ms: float
    samples: int
    settled: bool


@dataclass(slots=True)
class FramePlan:
    """The plan of a frame: slices in order, the jobs that begin in it, and why it stops.

    ``by_budget`` is False if something else than the budget limited the frame; such a frame says
    nothing about how well budgets are kept.
    """

    slices: Sequence[PlannedSlice]
    starts: Sequence[Job]
    reason: Reason
    by_budget: bool = True


#: decides a frame: :func:`plan_frame`, or an alternative for comparisons
Planner = Callable[[FrameState], FramePlan]


def plan_frame(state: FrameState) -> FramePlan:
    """Returns the plan of a frame: slices in the policy's order, until the planned time is full.

    Examples
    --------
    >>> scheduler.planner = cml.scheduler.plan_frame  # the default
    """
    if reason := state.prevented_by:
        return FramePlan((), (), reason)
    slices: list[PlannedSlice] = []
    starts: list[Job] = []
    started_keys: set[str | int] = set()
    left_ms, reason, unsettled = state.aim_ms, state.otherwise, state.most_unsettled
    for job in state.in_order():
        if unsettled <= 0:
            reason = "budget"
            break
        begins = job.state != "running"
        if begins and exclusivity_key(job.network) in started_keys:
            continue
        n_before = len(slices)
        left_ms, unsettled, is_complete = _add_slices(state, job, left_ms, unsettled, slices)
        if begins and (len(slices) > n_before or is_complete):
            starts.append(job)
            started_keys.add(exclusivity_key(job.network))
        if not is_complete:
            reason = "budget"
            break
    return FramePlan(slices, starts, reason)


def _add_slices(
    state: FrameState, job: Job, left_ms: float, unsettled: int, slices: list[PlannedSlice]
) -> tuple[float, int, bool]:
    """Adds the job's next slices within ``left_ms``, at most ``unsettled`` of them unsettled.

    Returns what is left of both, and True if the slices complete the job, or all of it before a
    step on the CPU. A frame without any other slices gets one even if it does not fit.
    """
    model, costs, step, group = state.costs, job.costs, job.step, job.group
    n_steps, least_ms = len(costs), _MIN_SHARE * state.aim_ms
    added: PlannedSlice | None = None
    while step < n_steps:
        cost = costs[step]
        if not cost.groups:  # a step on the CPU
            return left_ms, unsettled, True
        alone = not slices
        if left_ms <= (0.0 if alone else least_ms):
            break
        count = cost.groups - group
        estimate = model.estimate(cost, count)
        is_measured = estimate[2] or model.is_measured(cost)
        limit_ms = left_ms if is_measured else left_ms * _PROBE_SHARE
        if estimate[0] > limit_ms:  # most steps fit, and one prediction is enough for them
            count = _fitting_groups(state, cost, count, limit_ms, alone)
            if count == 0:
                break
            estimate = model.estimate(cost, count)
        if unsettled <= 0:
            break
        slice_ms, samples, is_settled = estimate
        if added is not None and added.step == step:  # one dispatch for what fits behind a cut
            added.count += count
            added.predicted_ms += slice_ms
        else:
            added = PlannedSlice(job, step, cost, group, count, slice_ms, samples, is_settled)
            slices.append(added)
            unsettled -= not is_settled
        left_ms -= slice_ms
        group += count
        if group == cost.groups:
            step, group = step + 1, 0
        if not is_measured:  # its time must be known before more of it is added
            break
    return left_ms, unsettled, step >= n_steps


def planned_slice(state: FrameState, job: Job, step: int, first: int, count: int) -> PlannedSlice:
    """Returns a slice of a job's step with its estimated cost."""
    cost = job.costs[step]
    return PlannedSlice(job, step, cost, first, count, *state.costs.estimate(cost, count))


def _fitting_groups(
    state: FrameState, cost: StepCost, limit: int, ms: float, at_least_one: bool
) -> int:
    """Returns how many workgroups of a step, up to ``limit``, fit in ``ms``.

    The number is a multiple of the device's granule where possible. With ``at_least_one`` it is
    never 0.
    """
    count = state.costs.groups_within(cost, limit, ms)
    if state.granule > 1 and state.granule < count:
        count -= count % state.granule
    if count == 0 and at_least_one:
        count = min(limit, state.granule)
    return count


def operators_per_frame(count: int | None) -> Planner:
    """Returns a planner that runs ``count`` whole operators per frame, regardless of their time.

    With None it runs the whole network of one job. See :attr:`FrameScheduler.planner`.

    Examples
    --------
    >>> scheduler.planner = cml.scheduler.operators_per_frame(2)
    """

    if count is not None:
        check_count("count", count)

    def plan(state: FrameState) -> FramePlan:
        if reason := state.prevented_by:
            return FramePlan((), (), reason, by_budget=False)
        slices: list[PlannedSlice] = []
        starts: dict[str | int, Job] = {}
        for job in state.in_order()[: None if count else 1]:
            if not job.running and exclusivity_key(job.network) in starts:
                continue
            if count is not None and len(slices) >= count:
                break
            slices += _rest(state, job)[: count and count - len(slices)]
            if not job.running:
                starts[exclusivity_key(job.network)] = job
        reason = "budget" if len(slices) == count else state.otherwise
        return FramePlan(slices, [*starts.values()], reason, by_budget=False)

    return plan


def _rest(state: FrameState, job: Job) -> list[PlannedSlice]:
    """Returns the rest of each remaining operator of the job as one slice, in order.

    They end before a step on the CPU.
    """
    slices = []
    for step in range(job.step, len(job.costs)):
        cost = job.costs[step]
        if cost.on_cpu:
            break
        first = job.group if step == job.step else 0
        n_groups = cost.groups - first
        slices.append(planned_slice(state, job, step, first, n_groups))
    return slices
