"""Accumulates the measured cost of every operator of the networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cml_engine.errors import InputError

if TYPE_CHECKING:
    from cml_engine import FrameReport
    from cml_engine.compiler.plan import Plan
    from cml_engine.runtime.session import Session

#: network, and number of the step
Key = tuple[str, int]


@dataclass(slots=True)
class OperatorTime:
    """The accumulated cost of one operator of one network.

    Examples
    --------
    >>> times = OperatorTimes({"net": network})
    >>> times.add(scheduler.encode(encoder))
    """

    network: str
    step: int
    title: str
    op: str
    #: the position in the model: "graph.nnef:12"
    line: str
    kernel: str
    flops: float
    bytes: float
    #: measured GPU time of ``runs`` whole executions, and the predicted time of the same slices
    total_ms: float = 0.0
    predicted_ms: float = 0.0
    slices: int = 0
    runs: float = 0.0

    @property
    def average_ms(self) -> float:
        """The average milliseconds of one whole execution; 0 if it has not run."""
        return self.total_ms / self.runs if self.runs > 0 else 0.0


class OperatorTimes:
    """Accumulates the costs of all operators from the frames' measured slices.

    ``sessions`` has the sessions by the names of their jobs.

    Examples
    --------
    >>> times = OperatorTimes({"net": network})
    >>> times.add(scheduler.encode(encoder))  # in every frame
    """

    def __init__(self, sessions: Mapping[str, Session]) -> None:
        self.sessions = sessions
        self.operators: dict[Key, OperatorTime] = {}
        self._plans: dict[str, Plan] = {}
        for name in sessions:
            self._plan(name)

    def add(self, report: FrameReport) -> None:
        """Adds the measured slices of a frame to their operators' costs; ignores all others."""
        for part in report.slices:
            plan = self._plan(part.name) if part.name in self.sessions else None
            found = self.operators.get((part.name, part.step))
            # a slice of a replaced network may still arrive
            if plan is None or found is None or part.measured_ms is None:
                continue
            if found.title == part.title:
                found.total_ms += part.measured_ms
                found.predicted_ms += part.predicted_ms
                found.slices += 1
                found.runs += part.count / max(1, plan.steps[part.step].groups)

    def _plan(self, name: str) -> Plan:
        """Returns the current plan of session ``name``; resets its costs if the plan is new.

        Raises :class:`InputError` for a session on the CPU.
        """
        plan = self.sessions[name].plan
        if plan is None:
            raise InputError(f"session '{name}' runs on the CPU: it has no GPU times")
        if self._plans.get(name) is not plan:
            self._plans[name] = plan
            for key in [key for key in self.operators if key[0] == name]:
                del self.operators[key]
            for step in plan.steps:
                self.operators[name, step.index] = OperatorTime(
                    network=name,
                    step=step.index,
                    title=step.title,
                    op=step.op,
                    line=str(step.source or ""),
                    kernel=Path(step.path).name,
                    flops=step.cost.flops,
                    bytes=step.cost.bytes,
                )
        return plan
