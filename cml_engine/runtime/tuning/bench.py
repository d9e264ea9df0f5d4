"""The choices of a plan as small networks of one node each, with one plan for every option."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cml_engine.compiler import tuning_tables as tables
from cml_engine.compiler.plan import Plan
from cml_engine.compiler.planning.dispatches import PlanOptions
from cml_engine.compiler.planning.lower import lower
from cml_engine.compiler.tuning_tables import Record
from cml_engine.errors import InputError
from cml_engine.ir.graph import Array, Graph, Node
from cml_engine.ir.limits import Limits
from cml_engine.ops.declaration.choice import Choice, VariantTable
from cml_engine.runtime.tuning.trial import Trial

if TYPE_CHECKING:
    from pathlib import Path

    from cml_engine.gpu.program.program import GpuProgram
    from cml_engine.runtime.session import Session


@dataclass(frozen=True)
class TrialNode:
    """A choice of a plan, and a node that represents all ``count`` nodes with the same key.

    ``graph`` contains that node alone; ``layouts`` are the plan's layouts of its tensors.

    Examples
    --------
    >>> keys = [node.key for node in Bench(network).candidates]
    """

    choice: Choice
    count: int
    graph: Graph
    layouts: Mapping[str, str]

    @property
    def key(self) -> str:
        """The key under which tables store the choice; see :class:`Choice`."""
        return self.choice.key

    def plans(self, limits: Limits) -> dict[str, Plan]:
        """Returns the node's plan by option, the default first.

        Options whose kernels equal those of an earlier option are left out. The function is
        pure; it may be slow because it packs filters.
        """
        names = dict.fromkeys([self.choice.default, *self.choice.options])
        plans: dict[str, Plan] = {}
        seen = set()
        for name in names:
            table = VariantTable.forcing(self.key, name)
            # with all tensors kept, no step overwrites the inputs, which the next run needs
            plan = lower(self.graph, limits, self.layouts, PlanOptions(keep=True, variants=table))
            work = tuple(
                (str(s.path), repr(s.defines), repr(s.params), s.groups) for s in plan.steps
            )
            if work not in seen:
                seen.add(work)
                plans[name] = plan
        return plans


class Bench:
    """The choices of a session's plan, ready to be measured: :attr:`candidates`.

    :func:`cml_engine.runtime.tuning.tune` measures all at once, ``scheduler.Tuning`` measures
    them in the frames of a game. With ``again``, choices that are already in the device's table
    are measured too.

    Examples
    --------
    >>> bench = Bench(network)
    >>> nodes = bench.plans
    """

    def __init__(self, session: Session, *, again: bool = True) -> None:
        if session.gpu is None or session.plan is None:
            raise InputError(
                "there is nothing to tune on the CPU: kernels are chosen on a GPU only"
            )
        self.gpu = session.gpu
        self.model = session.graph.name
        self.device = self.gpu.name
        known = {} if again else tables.measured(self.device)
        self.candidates = [
            c for c in _candidates(session.graph, session.plan)
            if c.key not in known or known[c.key].default != c.choice.default
        ]  # fmt: skip

    def plans(self, candidate: TrialNode) -> dict[str, Plan]:
        """Returns the plans of :meth:`TrialNode.plans` by option; may be called from any thread."""
        return candidate.plans(self.gpu.limits)

    def trial(self, candidate: TrialNode, plans: Mapping[str, Plan], rounds: int) -> Trial:
        """Returns a new trial that compares the options of these plans in ``rounds`` rounds."""
        return Trial(candidate.choice.default, tuple(plans), rounds)

    def program(self, plan: Plan, *, deferred: bool = False) -> GpuProgram:
        """Returns a new program of the plan on the session's GPU."""
        from cml_engine.gpu.program.program import GpuProgram

        return GpuProgram(plan, self.gpu, deferred=deferred)

    def inputs(self, plan: Plan) -> dict[str, Array]:
        """Returns a random array for each input of the plan, by name."""
        from cml_engine.runtime.session import random_inputs

        return random_inputs({name: place.fact for name, place in plan.inputs.items()})

    def record(self, candidate: TrialNode, trial: Trial) -> Record | None:
        """Returns the table's entry for a finished trial; None if no option could be timed."""
        ms = trial.ms()
        if not ms:
            return None
        chosen = trial.winner
        source = f"{self.model}, {candidate.choice.node}"
        ratio = trial.ratio(chosen)
        return Record(candidate.key, trial.default, chosen, ms, ratio, trial.rounds, source)

    def save(self, records: list[Record]) -> Path:
        """Writes the records to the device's table of variants and returns the table's path."""
        return tables.save(self.device, records)


def _candidates(graph: Graph, plan: Plan) -> list[TrialNode]:
    """Returns one trial node per distinct choice of the plan, in the plan's order.

    Choices with a single option, and choices that the caller decided, are left out.
    """
    nodes = {node.title: node for node in graph.nodes}
    users: dict[str, dict[str, Choice]] = {}
    for choice in plan.choices:
        if len(choice.options) > 1 and not choice.requested:
            users.setdefault(choice.key, {})[choice.node] = choice
    found = []
    for by_node in users.values():
        first = next(iter(by_node.values()))
        node = nodes[first.node]
        layouts = {name: plan.layouts[name] for name in _names(node) if name in plan.layouts}
        found.append(TrialNode(first, len(by_node), _isolate_node(graph, node), layouts))
    return found


def _names(node: Node) -> dict[str, None]:
    return dict.fromkeys((*node.reads, *node.outputs))


def _isolate_node(graph: Graph, node: Node) -> Graph:
    """Returns a graph of that node only; its operands are inputs or constants."""
    constants: dict[str, Any] = {n: graph.constants[n] for n in node.reads if graph.is_constant(n)}
    return Graph(
        name=f"{graph.name} {node.title}",
        inputs=tuple(n for n in dict.fromkeys(node.reads) if n not in constants),
        outputs=node.outputs,
        nodes=(node,),
        facts={name: graph.facts[name] for name in _names(node)},
        constants=constants,
    )
