"""What a caller decides instead of the engine: checked, and by the names of the optimized graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from cml_engine.compiler.planning.choose_storage import matrices_in_half
from cml_engine.compiler.planning.origins import made_of, producers
from cml_engine.errors import InputError
from cml_engine.ir.graph import Graph
from cml_engine.ir.layout import C4, PLAIN
from cml_engine.ops.declaration.in_parts import COUNTS

#: in how many bands of rows a run of operators may be asked for (``planning/bands/``)
BANDS = tuple(str(count) for count in range(1, 129))
#: by tensor: what is decided of it, ``{"conv2": {"kernel": "winograd", "storage": "half"}}``
Decide = Mapping[str, Mapping[str, str]]
NOTHING_DECIDED: Decide = MappingProxyType({})
#: what can be decided; of a kernel the operator knows the options
_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "kernel": (),
    "layout": (PLAIN, C4),
    "storage": ("float", "half"),
    "parts": COUNTS,
    "bands": BANDS,
}


@dataclass(frozen=True, slots=True)
class Asked:
    """Kernels by the first result of their operators, layouts, storage, parts and bands by
    tensor."""

    kernel: dict[str, str] = field(default_factory=dict)
    layout: dict[str, str] = field(default_factory=dict)
    storage: dict[str, str] = field(default_factory=dict)
    parts: dict[str, str] = field(default_factory=dict)
    bands: dict[str, str] = field(default_factory=dict)


NOTHING_ASKED = Asked()


def checked(decide: Any) -> Decide:
    """:class:`InputError` where that is not :data:`Decide`."""
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


def from_file(data: Any) -> Decide:
    """Of a JSON file: :data:`Decide` itself, or what ``cml info --decisions`` writes. Views are
    left to the plan: they follow from the rest."""
    if not isinstance(data, list):
        return checked(data)
    found: dict[str, dict[str, str]] = {}
    for entry in data:
        if not isinstance(entry, Mapping) or not {"subject", "kind", "chosen"} <= set(entry):
            raise InputError(f"decide: wanted a decision with subject, kind, chosen; got {entry!r}")
        if entry["kind"] != "view":
            found.setdefault(entry["subject"], {})[entry["kind"]] = entry["chosen"]
    return checked(found)


def asked_for(decide: Decide, written: Graph, optimized: Graph) -> Asked:
    """The decisions by the names of the optimized graph: what became a part of another operator is
    decided for that. :class:`InputError` where there is no such tensor, or two of them differ."""
    asked = Asked()
    for name, kinds in decide.items():
        for kind, option in kinds.items():
            found: dict[str, str] = getattr(asked, kind)
            of = _of(kind, name, written, optimized)
            if found.setdefault(of, option) != option:
                raise InputError(
                    f"decide: '{name}': {kind} {option!r} and {found[of]!r} are asked for of what "
                    f"runs as one operator, '{of}'"
                )
    return asked


def _of(kind: str, name: str, written: Graph, optimized: Graph) -> str:
    """What is decided, by its name in the optimized graph."""
    if kind == "parts" and name not in producers(written):
        return name  # an input, a constant, or what a kernel packs: lowering knows whether it is
    subject = _subject(name, written, optimized)
    return _stored(subject, optimized) if kind == "storage" else subject


def _subject(name: str, written: Graph, optimized: Graph) -> str:
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


def _stored(subject: str, optimized: Graph) -> str:
    """Of a product with a matrix the storage is that of its weights."""
    node = producers(optimized).get(subject)
    matrices = matrices_in_half(optimized)
    weights = [n for n in node.inputs[1:2] if n in matrices] if node else []
    return weights[0] if weights else subject
