"""The decisions of a plan: the caller's, which replace the engine's, and the list of all."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from cml_engine.compiler.plan import BandedOperators, Plan
from cml_engine.compiler.planning.draft import NO_OVERRIDES, Overrides
from cml_engine.compiler.planning.layouts import (
    half_of,
    is_feature_map,
    matrices_in_half,
    why_plain,
)
from cml_engine.errors import InputError
from cml_engine.ir.graph import Graph, Node
from cml_engine.ir.layout import BLOCKED, C4, C4H, HALF, PLAIN, WHOLE
from cml_engine.ops.declaration.choice import Choice
from cml_engine.ops.declaration.registry import lookup
from cml_engine.ops.declaration.split_bindings import COUNTS, SplitBinding


def computed_operators(
    node: Node, written: Mapping[str, Node], computed: Collection[str]
) -> list[Node]:
    """Returns the model's operators that a node of the optimized graph computes, in execution
    order.

    ``written`` has the model's :meth:`Graph.producers`; ``computed`` has the results of the
    optimized graph. Returns an empty list if a pass renamed the result.
    """
    ids: set[int] = set()
    pending = list(node.outputs)
    while pending:
        inner = written.get(pending.pop())
        if inner is not None and id(inner) not in ids:
            ids.add(id(inner))
            pending += [n for n in inner.reads if n not in computed and n not in node.reads]
    return list({id(n): n for n in written.values() if id(n) in ids}.values())


# -- overrides ------------------------------------------------------------------------------------
# Checks the decisions that a caller makes instead of the engine, and maps them to the optimized
# graph.

#: the numbers of bands of rows that a caller may request (``planning/bands/``)
BANDS = tuple(str(count) for count in range(1, 129))
#: decisions by tensor: ``{"conv2": {"kernel": "winograd", "storage": "half"}}``
Decisions = Mapping[str, Mapping[str, str]]
NO_DECISIONS: Decisions = MappingProxyType({})
#: the options of each type of decision; those of a kernel depend on the operator
_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "kernel": (),
    "layout": (PLAIN, C4),
    "storage": ("float", "half"),
    "parts": COUNTS,
    "bands": BANDS,
}


def check_decisions(decide: object) -> Decisions:
    """Returns ``decide`` unchanged; raises :class:`InputError` if it is no valid
    :data:`Decisions`."""
    if not isinstance(decide, Mapping):
        raise InputError(f"decide: wanted decisions by tensor, got {type(decide).__name__}")
    for name, decisions in decide.items():
        if not isinstance(name, str) or not isinstance(decisions, Mapping):
            raise InputError(
                f"decide: {name!r}: wanted {{'kernel': 'winograd'}}, got {decisions!r}"
            )
        for kind, option in decisions.items():
            if kind not in _OPTIONS:
                kinds = ", ".join(_OPTIONS)
                raise InputError(f"decide: '{name}': wanted one of {kinds}, got {kind!r}")
            options = _OPTIONS[kind]
            if not isinstance(option, str) or (options and option not in options):
                expected = " or ".join(map(repr, options)) or "the name of one"
                if len(options) > 8:
                    expected = f"a count, {options[0]!r} to {options[-1]!r}"
                raise InputError(f"decide: '{name}': {kind}: wanted {expected}, got {option!r}")
    return decide


def parse_decisions(data: object) -> Decisions:
    """Returns the decisions in ``data``, the parsed contents of a JSON file.

    The data is a :data:`Decisions`, or a list as ``cml info --decisions`` writes it. Decisions
    on views are ignored, because the plan derives views from the others. Raises
    :class:`InputError` if it is invalid.
    """
    if not isinstance(data, list):
        return check_decisions(data)
    decisions: dict[str, dict[str, str]] = {}
    for entry in data:
        if not isinstance(entry, Mapping) or not {"subject", "kind", "chosen"} <= set(entry):
            raise InputError(f"decide: wanted a decision with subject, kind, chosen; got {entry!r}")
        if entry["kind"] != "view":
            decisions.setdefault(entry["subject"], {})[entry["kind"]] = entry["chosen"]
    return check_decisions(decisions)


def resolve_overrides(decide: Decisions, written: Graph, optimized: Graph) -> Overrides:
    """Returns the decisions by kind, then by tensor.

    Names of the original graph ``written`` are replaced by those of the optimized graph.
    A decision on an operator that was fused applies to the fused operator. Raises
    :class:`InputError` if a tensor does not exist, or if two decisions on one operator differ.
    """
    overrides: dict[str, dict[str, str]] = {kind: {} for kind in _OPTIONS}
    for name, decisions in decide.items():
        for kind, option in decisions.items():
            options = overrides[kind]
            tensor = _resolve_name(kind, name, written, optimized)
            if options.setdefault(tensor, option) != option:
                raise InputError(
                    f"decide: '{name}': {kind} {option!r} and {options[tensor]!r} are asked for of "
                    f"what runs as one operator, '{tensor}'"
                )
    return overrides


def _resolve_name(kind: str, name: str, written: Graph, optimized: Graph) -> str:
    """Returns the tensor of the optimized graph that a decision of this kind on tensor ``name``
    applies to."""
    if kind == "parts" and name not in written.producers:
        return name  # an input, a constant or a packed tensor, which lowering checks
    subject = _find_subject(name, written, optimized)
    return _find_stored(subject, optimized) if kind == "storage" else subject


def _find_subject(name: str, written: Graph, optimized: Graph) -> str:
    computed = optimized.producers
    if name in computed or name in optimized.constants:
        return name
    origins = written.producers
    if name in origins:
        for node in optimized.nodes:
            if any(name in inner.outputs for inner in computed_operators(node, origins, computed)):
                return node.outputs[0]
        raise InputError(f"decide: '{name}' is computed no more: the passes made it superfluous")
    raise InputError(
        f"decide: '{written.name}' computes no tensor '{name}'; `cml info --decisions FILE` lists "
        "what is decided"
    )


def _find_stored(subject: str, optimized: Graph) -> str:
    """Returns the tensor whose storage a decision on ``subject`` sets: the weights if it is a
    matrix product, else ``subject``."""
    node = optimized.producers.get(subject)
    matrices = matrices_in_half(optimized)
    weights = [n for n in node.inputs[1:2] if n in matrices] if node else []
    return weights[0] if weights else subject


# -- decisions ------------------------------------------------------------------------------------
# Lists the decisions of a plan as data: the options, the choice, and who made it for which reason.

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
        alternatives = ", ".join(option for option in self.options if option != self.chosen)
        return (
            f"{self.subject}: {self.kind} {self.chosen} ({self.by}: {self.why}); not {alternatives}"
        )


_BY_CALLER = "the caller decided it"
_MEASURED = "measured to be faster on this device"


def decisions_of(
    graph: Graph,
    plan: Plan,
    reason: Reason = lambda _: _MEASURED,
    overrides: Overrides = NO_OVERRIDES,
) -> list[Decision]:
    """Returns all decisions of an optimized graph's plan: those on operators in execution order,
    then parts and bands.

    ``overrides`` has the decisions that the caller made. ``reason`` returns the reason of a
    kernel that a tuning table chose.
    """
    by_node: dict[str, list[Choice]] = {}
    for choice in plan.choices:
        by_node.setdefault(choice.node, []).append(choice)
    readers = graph.consumers
    titles = {plan.bands_of.get(step.title, step.title) for step in plan.steps}
    half = any(layout in (C4H, HALF) for layout in plan.layouts.values())
    decisions: list[Decision] = []
    for node in graph.nodes:
        decisions += (_kernel(node, choice, reason) for choice in by_node.get(node.title, ()))
        decisions += _weight_decisions(node, plan)
        for name in node.outputs:
            if is_feature_map(graph.facts[name]):
                decisions += _map_decisions(name, node, readers.get(name, []), graph, plan, half)
        decisions += _view(node, titles)
    decisions += (_parts(name, parts) for name, parts in plan.parts.items())
    decisions += map(_bands, plan.bands)
    return [_by_user(decision, overrides) for decision in decisions]


def _by_user(decision: Decision, overrides: Overrides) -> Decision:
    if decision.kind == "kernel" or decision.subject not in overrides.get(decision.kind, {}):
        return decision
    return replace(decision, by="user", why=_BY_CALLER)


def _kernel(node: Node, choice: Choice, reason: Reason) -> Decision:
    by: By = "user" if choice.requested else "table" if choice.tuned else "rule"
    why = {
        "user": _BY_CALLER,
        "table": reason(choice) if choice.tuned else "",
        "rule": f"the first that gains for: {choice.key}",
    }[by]
    return Decision(node.outputs[0], "kernel", choice.options, choice.chosen, by, why)


def _map_decisions(
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


def _why_float(nodes: list[Node], graph: Graph) -> str:
    for node in nodes:
        if half_of(node, graph.facts) == "none":
            return f"{node.title} takes 32 bits"
    return "it is tied to a map that stays in 32 bits"


def _weight_decisions(node: Node, plan: Plan) -> Iterator[Decision]:
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


def _view(node: Node, titles: set[str]) -> Iterator[Decision]:
    """Yields the decision on copies or views for a node that joins or splits tensors; nothing for
    other nodes.

    ``titles`` has the titles of the nodes that have steps.
    """
    if lookup(node.op).traits.parts is None:
        return
    if node.title in titles:
        chosen, why = "copied", "not all parts can be runs of the whole's memory, or memory grows"
    else:
        chosen, why = "in place", "its parts lie in the whole, and memory does not grow"
    yield Decision(node.outputs[0], "view", ("copied", "in place"), chosen, "rule", why)
