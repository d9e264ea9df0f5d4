"""Checks the decisions that a caller makes instead of the engine, and maps them to the optimized
graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from cml_engine.compiler.planning.choose_storage import matrices_in_half
from cml_engine.compiler.planning.origins import made_of, producers
from cml_engine.errors import InputError
from cml_engine.ir.graph import Graph
from cml_engine.ir.layout import C4, PLAIN
from cml_engine.ops.declaration.split_bindings import COUNTS

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


@dataclass(frozen=True, slots=True)
class Overrides:
    """The caller's decisions by tensor of the optimized graph, in one mapping for each kind of
    decision.

    A kernel is listed by the first result of its operator.
    """

    kernel: dict[str, str] = field(default_factory=dict)
    layout: dict[str, str] = field(default_factory=dict)
    storage: dict[str, str] = field(default_factory=dict)
    parts: dict[str, str] = field(default_factory=dict)
    bands: dict[str, str] = field(default_factory=dict)


NO_OVERRIDES = Overrides()


def check_decisions(decide: object) -> Decisions:
    """Returns ``decide`` unchanged; raises :class:`InputError` if it is no valid
    :data:`Decisions`."""
    if not isinstance(decide, Mapping):
        raise InputError(f"decide: wanted decisions by tensor, got {type(decide).__name__}")
    for name, kinds in decide.items():
        if not isinstance(name, str) or not isinstance(kinds, Mapping):
            raise InputError(f"decide: {name!r}: wanted {{'kernel': 'winograd'}}, got {kinds!r}")
        for kind, option in kinds.items():
            if kind not in _OPTIONS:
                known = ", ".join(_OPTIONS)
                raise InputError(f"decide: '{name}': wanted one of {known}, got {kind!r}")
            options = _OPTIONS[kind]
            if not isinstance(option, str) or (options and option not in options):
                wanted = " or ".join(map(repr, options)) or "the name of one"
                if len(options) > 8:
                    wanted = f"a count, {options[0]!r} to {options[-1]!r}"
                raise InputError(f"decide: '{name}': {kind}: wanted {wanted}, got {option!r}")
    return decide


def parse_decisions(data: object) -> Decisions:
    """Returns the decisions in ``data``, the parsed contents of a JSON file.

    The data is a :data:`Decisions`, or a list as ``cml info --decisions`` writes it. Decisions
    on views are ignored, because the plan derives views from the others. Raises
    :class:`InputError` if it is invalid.
    """
    if not isinstance(data, list):
        return check_decisions(data)
    found: dict[str, dict[str, str]] = {}
    for entry in data:
        if not isinstance(entry, Mapping) or not {"subject", "kind", "chosen"} <= set(entry):
            raise InputError(f"decide: wanted a decision with subject, kind, chosen; got {entry!r}")
        if entry["kind"] != "view":
            found.setdefault(entry["subject"], {})[entry["kind"]] = entry["chosen"]
    return check_decisions(found)


def resolve_overrides(decide: Decisions, written: Graph, optimized: Graph) -> Overrides:
    """Returns the decisions with the names of the original graph ``written`` replaced by those of
    the optimized graph.

    A decision on an operator that was fused applies to the fused operator. Raises
    :class:`InputError` if a tensor does not exist, or if two decisions on one operator differ.
    """
    overrides = Overrides()
    for name, kinds in decide.items():
        for kind, option in kinds.items():
            found: dict[str, str] = getattr(overrides, kind)
            of = _resolve_name(kind, name, written, optimized)
            if found.setdefault(of, option) != option:
                raise InputError(
                    f"decide: '{name}': {kind} {option!r} and {found[of]!r} are asked for of what "
                    f"runs as one operator, '{of}'"
                )
    return overrides


def _resolve_name(kind: str, name: str, written: Graph, optimized: Graph) -> str:
    """Returns the tensor of the optimized graph that a decision of this kind on tensor ``name``
    applies to."""
    if kind == "parts" and name not in producers(written):
        return name  # an input, a constant or a packed tensor, which lowering checks
    subject = _find_subject(name, written, optimized)
    return _find_stored(subject, optimized) if kind == "storage" else subject


def _find_subject(name: str, written: Graph, optimized: Graph) -> str:
    computed = producers(optimized)
    if name in computed or name in optimized.constants:
        return name
    origins = producers(written)
    if name in origins:
        for node in optimized.nodes:
            if any(name in inner.outputs for inner in made_of(node, origins, computed)):
                return node.outputs[0]
        raise InputError(f"decide: '{name}' is computed no more: the passes made it superfluous")
    raise InputError(
        f"decide: '{written.name}' computes no tensor '{name}'; `cml info --decisions FILE` lists "
        "what is decided"
    )


def _find_stored(subject: str, optimized: Graph) -> str:
    """Returns the tensor whose storage a decision on ``subject`` sets: the weights if it is a
    matrix product, else ``subject``."""
    node = producers(optimized).get(subject)
    matrices = matrices_in_half(optimized)
    weights = [n for n in node.inputs[1:2] if n in matrices] if node else []
    return weights[0] if weights else subject
