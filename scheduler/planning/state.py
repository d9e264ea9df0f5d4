"""The input of a frame's plan and the plan itself, as plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

from cml_engine.compiler.plan import StepCost
from cml_engine.io.json_files import JsonObject
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
