"""The memory and work of a session that retains its inputs, for ``cml info``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cml_engine.compiler.optimize import optimize
from cml_engine.compiler.planning.dispatches import PlanOptions
from cml_engine.compiler.planning.layouts import Storage, layouts_for
from cml_engine.compiler.planning.lower import lower
from cml_engine.ir.graph import Graph
from cml_engine.ir.limits import Limits

#: the most inputs to show
_SHOWN = 6


@dataclass(frozen=True, slots=True)
class ReuseInfo:
    """The memory that a session with retained inputs keeps, and the work that it saves.

    ``held_bytes`` stay in memory between runs, in ``tensors``, ``inputs`` of which are inputs.
    ``peak`` is the arena's. ``shares`` has for each input the dispatches of a run in which only
    this input is new, and their share of the FLOPs.
    """

    tensors: int
    inputs: int
    held_bytes: int
    peak: int
    steps: int
    shares: Mapping[str, tuple[int, float]]

    @classmethod
    def of(cls, graph: Graph, limits: Limits, storage: Storage) -> ReuseInfo:
        optimized = optimize(graph, retain=True)
        plan = lower(optimized, limits, layouts_for(optimized, storage), PlanOptions(retain=True))
        assert plan.reuse is not None
        total = plan.cost.flops or 1.0
        shares = {}
        for name in graph.inputs:
            steps = plan.reuse.steps([name])
            shares[name] = len(steps), sum(plan.steps[i].cost.flops for i in steps) / total
        held = plan.reuse.retained
        return cls(
            len(held),
            len(graph.inputs),
            sum(held.values()),
            plan.memory.peak,
            len(plan.steps),
            shares,
        )

    def lines(self) -> list[str]:
        """Returns lines of text: the retained memory, and the work if only one input is new."""
        kept = f"{self.inputs} inputs and {self.tensors - self.inputs} other tensors"
        size = f"{self.held_bytes / 2**10:.2f} KiB"
        peak = f"{self.peak / 2**10:.2f} KiB"
        lines = [f"retain     {kept} ({size}) stay where a session retains them, peak {peak}"]
        for name, (steps, share) in list(self.shares.items())[:_SHOWN]:
            what = f"{steps} of {self.steps} dispatches, {100 * share:.1f} % of the operations"
            lines.append(f"           given '{name}' alone: {what}")
        return lines
