"""Plans a frame: its input and its slices, as plain numbers and pure functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields

from cml_engine.compiler.plan import Slice, StepCost
from cml_engine.io.json_files import JsonObject
from scheduler.executor import Network
from scheduler.planning.cost_model import CostModel
from scheduler.planning.policy import BUILT_IN, AnyPolicy, Ranked
from scheduler.reports import Reason


@dataclass(frozen=True, slots=True)
class JobState(Ranked):
    """The state of a job that could run in this frame, as numbers for the planner.

    ``network`` is an index of :attr:`FrameState.networks`. Only one of the jobs with the same
    ``exclusive`` may be running.
    """

    number: int
    name: str
    network: int
    exclusive: int
    running: bool
    step: int
    group: int
    priority: float
    deadline_at_ms: float | None
    virtual_ms: float
    last_served_ms: float
    remaining_ms: float


@dataclass(frozen=True, slots=True)
class FrameState:
    """The input of a frame's plan: budget, jobs, step costs and the state of the device.

    ``budget_ms`` is what is allowed and ``aim_ms`` what is planned for; ``rate`` is GPU
    milliseconds per millisecond of wall time. ``granule``: the number of workgroups that run at
    once; slices are multiples of it. ``gpu_behind``: too many frames wait for the GPU.
    ``otherwise`` is the reason to report if the jobs end before the budget.
    """

    now_ms: float
    budget_ms: float
    aim_ms: float
    rate: float
    granule: int
    gpu_behind: bool
    otherwise: Reason
    policy: AnyPolicy
    jobs: tuple[JobState, ...]
    networks: tuple[Sequence[StepCost], ...]
    costs: CostModel

    def in_order(self) -> Sequence[JobState]:
        """Returns the jobs in the policy's order."""
        return self.policy(self.jobs, self.now_ms, self.rate) if self.jobs else ()

    def to_json(self) -> JsonObject:
        """Returns the state as JSON without rounding, for :meth:`from_json`.

        Raises ``ValueError`` if the policy is not a built-in one.
        """
        name = next((name for name, known in BUILT_IN.items() if known is self.policy), None)
        if name is None:
            raise ValueError("a state with a policy of the game's own cannot be written down")
        data = {field.name: getattr(self, field.name) for field in fields(self)}
        keys = {step.key for steps in self.networks for step in steps}
        return data | {
            "policy": name,
            "jobs": [asdict(job) for job in self.jobs],
            "networks": [[_cost_to_json(c) for c in steps] for steps in self.networks],
            "costs": self.costs.state(keys),
        }

    @classmethod
    def from_json(cls, data: JsonObject) -> FrameState:
        """Returns the state that :meth:`to_json` wrote as ``data``."""
        return cls(
            **{
                **data,
                "policy": BUILT_IN[data["policy"]],
                "jobs": tuple(JobState(**job) for job in data["jobs"]),
                "networks": tuple(tuple(StepCost(**s) for s in n) for n in data["networks"]),
                "costs": CostModel.of_state(data["costs"]),
            }
        )


@dataclass(frozen=True, slots=True)
class PlannedSlice:
    """Workgroups ``[first, first + count)`` of a step of a job, and their predicted time."""

    job: int
    step: int
    first: int
    count: int
    predicted_ms: float


@dataclass(frozen=True, slots=True)
class FramePlan:
    """The plan of a frame: slices in order, the numbers of jobs that begin in it, and why it stops.

    ``by_budget`` is False if something else than the budget limited the frame; such a frame says
    nothing about how well budgets are kept.
    """

    slices: tuple[PlannedSlice, ...]
    starts: tuple[int, ...]
    reason: Reason
    by_budget: bool = True

    def to_json(self) -> JsonObject:
        """Returns the plan as a JSON object."""
        return asdict(self)


def _cost_to_json(cost: StepCost) -> dict[str, object]:
    return {field.name: getattr(cost, field.name) for field in fields(StepCost)}


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
