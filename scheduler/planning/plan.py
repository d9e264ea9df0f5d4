"""Decides which slices a frame runs, as a pure function of numbers."""

from __future__ import annotations

from collections.abc import Callable

from cml_engine.compiler.plan import StepCost
from scheduler.planning.state import FramePlan, FrameState, JobState, PlannedSlice

#: decides a frame: :func:`plan_frame`, or an alternative for comparisons
Planner = Callable[[FrameState], FramePlan]
#: a slice shorter than this share of the budget is not worth its launch at the end of a frame
_MIN_SHARE = 0.02
#: a kernel never measured before gets this share of the time: the guess may be off by its inverse
_PROBE_SHARE = 0.25


def plan_frame(state: FrameState) -> FramePlan:
    """Returns the plan of a frame: slices in the policy's order, until the planned time is full.

    Examples
    --------
    >>> scheduler.planner = cml.plan_frame  # the default
    """
    if state.budget_ms <= 0:
        return FramePlan((), (), "budget")
    if state.gpu_behind:
        return FramePlan((), (), "waiting for GPU")
    slices: list[PlannedSlice] = []
    starts: list[int] = []
    begun: set[int] = set()
    left, reason = state.aim_ms, state.otherwise
    for job in state.in_order():
        if not job.running and job.exclusive in begun:
            continue
        parts, left, ended = _slices_of(state, job, left, not slices)
        slices += parts
        if not job.running and (parts or ended):
            starts.append(job.number)
            begun.add(job.exclusive)
        if not ended:
            reason = "budget"
            break
    return FramePlan(tuple(slices), tuple(starts), reason)


def _slices_of(
    state: FrameState, job: JobState, left: float, is_first: bool
) -> tuple[list[PlannedSlice], float, bool]:
    """Returns the job's next slices within ``left`` ms, the milliseconds then left, and a flag.

    The flag is True if the slices complete the job. ``is_first`` says that the frame has no
    slice yet; it then gets one even if it does not fit.
    """
    steps, step, group = state.networks[job.network], job.step, job.group
    parts: list[PlannedSlice] = []
    while step < len(steps):
        cost = steps[step]
        alone = is_first and not parts
        if left <= (0.0 if alone else _MIN_SHARE * state.aim_ms):
            break
        probing = state.costs.samples(cost.key) == 0
        within = left * _PROBE_SHARE if probing else left
        count = _count(state, cost, cost.groups - group, within, alone)
        if count == 0:
            break
        spent = state.costs.predict_ms(cost, count)
        parts.append(PlannedSlice(job.number, step, group, count, spent))
        left -= spent
        group += count
        if group == cost.groups:
            step, group = step + 1, 0
        if probing:  # its time must be known before more of it is added
            break
    return parts, left, step >= len(steps)


def _count(state: FrameState, cost: StepCost, limit: int, ms: float, at_least_one: bool) -> int:
    """Returns the number of a step's workgroups that fit in ``ms``, at most ``limit``.

    It is a multiple of the device's granule where possible. With ``at_least_one`` it is never 0.
    """
    count = state.costs.groups_within(cost, limit, ms)
    if state.granule > 1 and state.granule < count < limit:
        count -= count % state.granule
    return min(limit, state.granule) if count == 0 and at_least_one else count
