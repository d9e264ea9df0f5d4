"""Computes the facts about a model on this machine, each once, for the commands that show them.

The predicted times come from the scheduler, which is imported when they are read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from cml_engine.compiler.plan import Plan
from cml_engine.compiler.planning.decisions import (
    Decision,
    Decisions,
    decisions_of,
    resolve_overrides,
)
from cml_engine.compiler.tuning_tables import Record, known
from cml_engine.errors import DeviceError
from cml_engine.io.data_folders import costs_file
from cml_engine.ir.graph import Graph
from cml_engine.ir.limits import Limits
from cml_engine.ops.declaration.choice import Choice
from cml_engine.runtime.session import CompileOptions, make_plan
from cml_engine.runtime.session.compile_graph import optimize_for, why_direct
from cml_engine.tools.report.model_info import PORTABLE, CookedInfo, ModelInfo

if TYPE_CHECKING:
    from cml_engine.scheduler.planning.cost_model import CostModel


@dataclass(frozen=True, slots=True)
class Peak:
    """The peak FLOP and memory rates of a type of device; ``source`` says where they come from."""

    gflops: float
    gbytes_per_s: float
    source: str


@dataclass(frozen=True, slots=True)
class Machine:
    """The limits and the name of a GPU; the name is "" for limits alone."""

    limits: Limits
    name: str


@dataclass(frozen=True)
class ModelFacts:
    """The facts about a model: its graph, its plan for this machine's GPU, and its predicted costs.

    Nothing is computed before it is read, and nothing runs.

    Parameters
    ----------
    graph : from :func:`cml_engine.load` or :func:`cml_engine.load_cooked`.
    options : of a session, and so of the plan.
    """

    graph: Graph
    options: CompileOptions = CompileOptions()

    @cached_property
    def optimized(self) -> Graph:
        """The graph after all optimization passes."""
        return optimize_for(self.graph, self.options)

    @cached_property
    def summary(self) -> ModelInfo | CookedInfo:
        """The facts that ``cml info`` prints, for :data:`PORTABLE` limits or of a cooked file."""
        if self.graph.cooked_form is not None:
            return CookedInfo.of(self.graph)
        plan, options = self._plan(Machine(PORTABLE, "")), self.options
        halves = sum("halves" in node.attrs for node in self.optimized.nodes)
        direct = why_direct(self.graph, options)
        return ModelInfo.of(self.graph, plan, options.storage, direct, halves)

    @cached_property
    def _target(self) -> Machine:
        """The limits and the name of this machine's GPU.

        Without a GPU they are :data:`PORTABLE` and "". Raises :class:`DeviceError` if there is no
        GPU of the name in ``CML_ADAPTER``.
        """
        try:
            from cml_engine.gpu.gpu import Gpu

            gpu = Gpu()
        except (DeviceError, ImportError):
            if os.environ.get("CML_ADAPTER"):
                raise
            return Machine(PORTABLE, "")
        return Machine(gpu.limits, gpu.name)

    @property
    def device(self) -> str:
        """The name of this machine's GPU; "" if it has none."""
        return self._target.name

    @cached_property
    def plan(self) -> Plan:
        """The plan of a session on this machine's GPU; without one, for :data:`PORTABLE` limits."""
        return self._plan(self._target)

    def _plan(self, target: Machine) -> Plan:
        return make_plan(self.optimized, target, self.options, written=self.graph)

    @cached_property
    def decisions(self) -> list[Decision]:
        """The decisions of :attr:`plan`, with their reasons."""
        return decisions_on(self.device, self.graph, self.optimized, self.plan, self.options.decide)

    @cached_property
    def records(self) -> Mapping[str, Record]:
        """The kernel measurements in this device's tuning table, by key; empty without a GPU."""
        return known(self.device) if self.device else {}

    @cached_property
    def costs(self) -> CostModel:
        """The cost model of this device: with the costs learned before, else with assumed ones."""
        from cml_engine.scheduler.tools.commands import known_costs

        return known_costs(self.device, costs_file(self.device) if self.device else None)

    @cached_property
    def predicted_ms(self) -> list[float]:
        """The predicted milliseconds of every step of :attr:`plan`, in order."""
        return [self.costs.predict_ms(cost, cost.groups) for cost in self.plan.step_costs()]

    @cached_property
    def peak(self) -> Peak | None:
        """The shipped peak rates of the device, or None for an unknown device."""
        from cml_engine.scheduler.planning.cost_model import FirstGuess

        guess = self.costs.guess
        if guess == FirstGuess():
            return None
        return Peak(guess.flops_per_ms / 1e6, guess.bytes_per_ms / 1e6, guess.source)


def decisions_on(
    device: str,
    written: Graph,
    optimized: Graph,
    plan: Plan,
    decide: Decisions,
) -> list[Decision]:
    """Returns all decisions of the plan, each with the reason for it.

    ``device`` is "" without a GPU; ``decide`` has the caller's own decisions.
    """
    records = known(device) if device else {}

    def reason(choice: Choice) -> str:
        record = records.get(choice.key)
        if record is None:
            return "a table says so"
        return (
            f"{record.ratio:.2f} of the time of {record.default}, measured {record.rounds} times "
            f"({record.source})"
        )

    return decisions_of(optimized, plan, reason, resolve_overrides(decide, written, optimized))
