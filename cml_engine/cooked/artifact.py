"""The contents of a cooked file as a session uses them: plans, kernels and the graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from cml_engine.compiler.passes.infer import infer_facts
from cml_engine.compiler.plan import CookedStep, Plan, Step
from cml_engine.cooked.golden import Golden
from cml_engine.cooked.kernels import Cooked, digest_of
from cml_engine.cooked.plan_in import CookedPlan, choose
from cml_engine.cooked.reader import damaged
from cml_engine.cooked.schema import SUBGROUPS, Totals
from cml_engine.errors import CmlError, StaleArtifact, UnsupportedOp
from cml_engine.gpu.shaders.hlsl import ShaderKey, step_key, step_params
from cml_engine.ir.graph import Graph
from cml_engine.ir.limits import Limits
from cml_engine.ops import is_registered

T = TypeVar("T")


@dataclass(frozen=True)
class Artifact:
    """A cooked network: the plans, kernels, golden pair and graph of a file."""

    name: str
    meta: Mapping[str, Any]
    plans: tuple[CookedPlan, ...]
    kernels: Mapping[str, Cooked]
    golden: Golden | None
    #: the optimized graph; None if the file is for players only
    graph: Graph | None
    nbytes: int
    #: the memory that the unpacked file takes
    totals: Totals
    #: tag, number and bytes of each section
    sections: tuple[tuple[str, int, int], ...] = field(default=(), repr=False)

    @property
    def storage(self) -> str:
        """``"half"`` if the network was cooked with 16 bits, else ``"float"``."""
        return "half" if self.meta.get("half") else "float"

    @property
    def integer_digest(self) -> bytes | None:
        """The digest of the integer network that the file was cooked from, or None if it was a
        float network.

        A run of the cooked file therefore has the same digest as a run of the model.
        """
        stated = self.meta.get("integer")
        return bytes.fromhex(stated) if stated else None

    def plan(self, limits: Limits, storage: str, plain: bool, lower: Callable[[], T]) -> T:
        """Returns the plan for a device with these limits.

        The plan is one of the file's, or the new plan that ``lower()`` returns, restricted to
        the file's kernels. With another ``storage`` than cooked, or if not ``plain`` (other
        options were requested), it is a new plan that compiles missing kernels. Raises
        :class:`StaleArtifact` if no plan is possible.
        """
        as_cooked = plain and storage in ("float", self.storage)
        chosen, why = choose(self.plans, limits, lambda plan: _lacking(plan, limits))
        if as_cooked and chosen is not None:
            return chosen.plan(self.name)  # type: ignore[return-value]
        if self.graph is None:
            raise self._stale(why or ["it was cooked for players, and has its plans only"])
        self._check_graph(self.graph)
        made: Any = lower()
        return self.with_kernels(made, strict=as_cooked, why=why)  # type: ignore[return-value]

    def with_kernels(self, plan: Plan, strict: bool = False, why: list[str] | None = None) -> Plan:
        """Returns the plan with the file's kernels in the steps that the file has a kernel for.

        With ``strict`` raises :class:`StaleArtifact` if a kernel is missing or may not run;
        ``why`` has earlier reasons for its message.
        """
        contents: dict[tuple[str, str], str] = {}
        steps = []
        for step in plan.steps:
            key = step_key(step, contents)
            found = self.kernels.get(digest_of(key))
            refusal = f"it lacks the kernel '{key.label}'" if found is None else found.refusal
            if refusal and strict:
                raise self._stale([*(why or ()), refusal])
            steps.append(step if found is None or refusal else _finished(step, key, found, plan))
        return replace(plan, steps=tuple(steps))

    def check_cpu(self) -> None:
        """Raises an error if the file cannot run on the CPU.

        The error is :class:`StaleArtifact` if the file has no graph, and :class:`UnsupportedOp`
        if a game's operator is not registered.
        """
        if self.graph is None:
            raise self._stale(["it was cooked for players, and has no graph for the CPU"])
        lacking = [name for name in self.meta.get("custom", ()) if not is_registered(name)]
        if lacking:
            raise UnsupportedOp(
                f"'{self.name}' has the kernels of {', '.join(lacking)}, and not their NumPy "
                "functions, which are no part of a cooked file: register the operators (--ops "
                "FILE.py), or run it on a GPU"
            )
        self._check_graph(self.graph)

    def _check_graph(self, graph: Graph) -> None:
        """Raises :class:`CorruptArtifact` if the file's facts differ from those that the
        operators infer."""
        try:
            facts = infer_facts(graph).facts
        except CmlError as error:
            raise damaged(f"its graph: {error.message}") from None
        if dict(facts) != dict(graph.facts):
            raise damaged("its graph has other shapes than its operators give")

    def _stale(self, why: list[str]) -> StaleArtifact:
        cooked = ", ".join(plan.profile for plan in self.plans)
        return StaleArtifact(
            f"the cooked '{self.name}' has no plan for this device (it has {cooked}): "
            f"{'; '.join(why)}. Cook the model again, with --devices portable for any device, "
            "without --player for a graph to plan anew"
        )


def _lacking(plan: CookedPlan, limits: Limits) -> str:
    """Returns the first reason why a device cannot run a plan's kernels, or an empty string if
    it can."""
    if limits.subgroup_size == 0 and any(kernel.flags & SUBGROUPS for kernel in plan.used):
        return "its kernels use subgroups, which the device does not have"
    return next((kernel.refusal for kernel in plan.used if kernel.refusal), "")


def _finished(step: Step, key: ShaderKey, found: Cooked, plan: Plan) -> Step:
    kernel = found.kernel
    cost = replace(plan, steps=(step,)).step_costs()[0]
    return replace(step, cooked=CookedStep(kernel, step_params(step), cost.key))
