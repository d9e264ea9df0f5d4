"""Lists the decisions of a plan as data: the options, the choice, and who made it for which
reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from cml_engine.compiler.plan import BandedOperators, Plan
from cml_engine.compiler.planning.choose_layout import is_feature_map, why_plain
from cml_engine.compiler.planning.choose_storage import half_of
from cml_engine.compiler.planning.overrides import NO_OVERRIDES, Overrides
from cml_engine.ir.graph import Graph, Node
from cml_engine.ir.layout import BLOCKED, C4, C4H, HALF, PLAIN, WHOLE
from cml_engine.ops.declaration.choice import Choice
from cml_engine.ops.declaration.registry import lookup
from cml_engine.ops.declaration.split_bindings import SplitBinding

#: the types of decisions
Kind = Literal["kernel", "layout", "storage", "parts", "bands", "view"]
#: the deciders in order of precedence: the caller, measurements, the engine's rules
By = Literal["user", "table", "rule"]
#: returns the reason why a table's kernel was chosen
Reason = Callable[[Choice], str]


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision of a plan on one tensor: ``chosen`` of ``options``, made ``by`` a rule, a tuning
    table or the user.

    ``subject`` is the tensor; a kernel is listed by the first result of its operator.
    """

    subject: str
    kind: Kind
    options: tuple[str, ...]
    chosen: str
    by: By
    why: str

    def __str__(self) -> str:
        others = ", ".join(option for option in self.options if option != self.chosen)
        return f"{self.subject}: {self.kind} {self.chosen} ({self.by}: {self.why}); not {others}"


_ASKED = "the caller decided it"


def _measured(_: Choice) -> str:
    return "measured to be faster on this device"


def decisions_of(
    graph: Graph, plan: Plan, reason: Reason = _measured, overrides: Overrides = NO_OVERRIDES
) -> list[Decision]:
    """Returns all decisions of an optimized graph's plan: those on operators in execution order,
    then parts and bands.

    ``overrides`` has the decisions that the caller made. ``reason`` returns the reason of a
    kernel that a tuning table chose.
    """
    by_node: dict[str, list[Choice]] = {}
    for choice in plan.choices:
        by_node.setdefault(choice.node, []).append(choice)
    readers = graph.consumers()
    made = {plan.bands_of.get(step.title, step.title) for step in plan.steps}
    half = any(layout in (C4H, HALF) for layout in plan.layouts.values())
    found: list[Decision] = []
    for node in graph.nodes:
        found += (_kernel(node, choice, reason) for choice in by_node.get(node.title, ()))
        found += _of_weights(node, plan)
        for name in node.outputs:
            if is_feature_map(graph.facts[name]):
                found += _of_map(name, node, readers.get(name, []), graph, plan, half)
        found += _view(node, made)
    found += (_parts(name, parts) for name, parts in plan.parts.items())
    found += map(_bands, plan.bands)
    return [_by_user(decision, overrides) for decision in found]


def _by_user(decision: Decision, overrides: Overrides) -> Decision:
    kinds = {"layout": overrides.layout, "storage": overrides.storage, "parts": overrides.parts}
    kinds["bands"] = overrides.bands
    if decision.subject not in kinds.get(decision.kind, {}):
        return decision
    return replace(decision, by="user", why=_ASKED)


def _kernel(node: Node, choice: Choice, reason: Reason) -> Decision:
    by: By = "user" if choice.requested else "table" if choice.tuned else "rule"
    why = {
        "user": _ASKED,
        "table": reason(choice) if choice.tuned else "",
        "rule": f"the first that gains for: {choice.key}",
    }[by]
    return Decision(node.outputs[0], "kernel", choice.options, choice.chosen, by, why)


def _of_map(
    name: str, node: Node, readers: list[Node], graph: Graph, plan: Plan, half: bool
) -> Iterator[Decision]:
    layout = plan.layouts.get(name, PLAIN)
    if layout not in BLOCKED:
        why = why_plain(name, graph)
        yield Decision(name, "layout", (PLAIN, C4), PLAIN, "rule", why)
        return
    why = "what makes it and what reads it work on blocks of four channels"
    yield Decision(name, "layout", (PLAIN, C4), C4, "rule", why)
    if layout in WHOLE:
        return  # there is no choice
    stored = "half" if layout == C4H else "float"
    why = "32 bits, unless 16 are asked for"
    if half:
        why = "what makes it and what reads it take 16 bits"
        if stored == "float":
            why = _why_float([node, *readers], graph)
    yield Decision(name, "storage", ("float", "half"), stored, "rule", why)


def _why_float(touching: list[Node], graph: Graph) -> str:
    for node in touching:
        if half_of(node, graph.facts) == "none":
            return f"{node.title} takes 32 bits"
    return "it is tied to a map that stays in 32 bits"


def _of_weights(node: Node, plan: Plan) -> Iterator[Decision]:
    for name in node.inputs[1:2]:
        if plan.layouts.get(name) == HALF:
            why = f"{node.title} takes its weights in 16 bits"
            yield Decision(name, "storage", ("float", "half"), "half", "rule", why)


def _parts(name: str, parts: SplitBinding) -> Decision:
    why = (
        f"it takes {parts.total} bytes, this device binds at most {parts.limit} at once: the "
        "fewest parts"
    )
    return Decision(name, "parts", parts.options, str(parts.count), "rule", why)


def _bands(run: BandedOperators) -> Decision:
    why = (
        f"at once they would take {run.whole_bytes} bytes, more than the arena may; "
        f"{run}, takes {run.nbytes}"
    )
    return Decision(run.results[-1], "bands", run.options, str(run.count), "rule", why)


def _view(node: Node, made: set[str]) -> Iterator[Decision]:
    """Yields the decision on copies or views for a node that joins or splits tensors; nothing for
    other nodes.

    ``made`` has the titles of the nodes that have steps.
    """
    if lookup(node.op).traits.parts is None:
        return
    if node.title in made:
        chosen, why = "copied", "not all parts can be runs of the whole's memory, or memory grows"
    else:
        chosen, why = "in place", "its parts lie in the whole, and memory does not grow"
    yield Decision(node.outputs[0], "view", ("copied", "in place"), chosen, "rule", why)
