"""Chooses the feature maps and weights that are stored in fewer bits (``cml_engine/ir/layout.py``).

If 16-bit storage is requested, it applies to every map in blocks of four channels whose producer
and readers all support it; ``Kernel.half`` declares that support. Operators that move data without
computing tie their tensors together, and tied tensors get one storage. The filter of a convolution
has 16 bits if the map that it reads or writes has. A matrix of weights has 16 bits if its product
supports it. Arithmetic is in 32 bits.

The maps of integer networks are whole numbers. They are stored in the fewest sufficient bits by the
same kernels, without a request, because that is lossless.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, get_args

from cml_engine.compiler.planning.choose_layout import (
    Ties,
    choose_layout,
    is_feature_map,
    is_one_position,
)
from cml_engine.errors import InputError, located
from cml_engine.errors.arguments import check_choice
from cml_engine.ir.graph import Fact, Graph, Node
from cml_engine.ir.layout import C4, C4H, HALF, whole_layout
from cml_engine.ops.declaration.game_functions import calling, node_fault
from cml_engine.ops.declaration.registry import lookup
from cml_engine.ops.declaration.spec import Half

_NOTHING: Mapping[str, str] = MappingProxyType({})
#: the storage of blocked feature maps and of the weights used with them
Storage = Literal["float", "half"]


def layouts_for(
    graph: Graph,
    storage: Storage = "float",
    overrides: Mapping[str, str] = _NOTHING,
    asked_layouts: Mapping[str, str] = _NOTHING,
) -> dict[str, str]:
    """Returns the layout of every tensor that is not plain, by name, with the storage applied.

    ``storage`` is the default. ``overrides`` has the storage of tensors for which the caller
    decides it; ``asked_layouts`` has the layouts that the caller decides.
    """
    check_choice(get_args(Storage), storage, "storage")
    layouts = choose_layout(graph, asked_layouts)
    if graph.words:
        return _in_words(graph, layouts, overrides)
    if storage == "half" or overrides:
        return choose_storage(graph, layouts, overrides, storage)
    return layouts


def choose_storage(
    graph: Graph,
    layouts: Mapping[str, str],
    overrides: Mapping[str, str] = _NOTHING,
    storage: Storage = "half",
) -> dict[str, str]:
    """Returns the layouts with ``c4h`` instead of ``c4`` for maps that are stored in 16 bits.

    ``overrides`` has the storage that the caller decides by tensor; ``storage`` is the default.
    Raises :class:`InputError` if a requested storage is impossible.
    """
    ties, refused = _stored_alike(graph, layouts)
    wanted = {ties.find(name): stored for name, stored in overrides.items()}

    def in_half(name: str) -> bool:
        root = ties.find(name)
        return wanted.get(root, storage) == "half" and root not in refused

    found = {
        name: C4H if layout == C4 and in_half(name) else layout for name, layout in layouts.items()
    }
    found |= {n: HALF for n in matrices_in_half(graph) if overrides.get(n, storage) == "half"}
    for name, stored in overrides.items():
        if (found.get(name) in (C4H, HALF)) != (stored == "half"):
            raise InputError(
                f"decide: '{name}' cannot be stored as '{stored}': "
                f"{_against(name, layouts, refused.get(ties.find(name)))}"
            )
    return found


def _stored_alike(graph: Graph, layouts: Mapping[str, str]) -> tuple[Ties, dict[str, Node]]:
    """Returns the ties between blocked maps that must have one storage, and the sets of maps that
    must have 32 bits.

    The second result maps the tensor that identifies the set to the node that requires 32 bits.
    """
    ties = Ties()
    full: dict[str, Node] = {}
    for node in graph.nodes:
        results = {n for n in node.outputs if layouts.get(n) == C4}
        read = {n for n in node.reads if layouts.get(n) == C4}
        taken = _packed_of(node, graph.facts) if graph.words else half_of(node, graph.facts)
        if taken == "reads" and graph.words:
            taken = "none"  # such kernels unpack 16-bit numbers themselves and cannot unpack words
        if taken == "none" or _stands_beside_plain(node, graph, layouts):
            full |= dict.fromkeys(read | results, node)
        elif taken == "reads":
            full |= dict.fromkeys(results, node)
        elif taken == "alike":
            ties.join(read | results)
    return ties, {ties.find(name): node for name, node in full.items()}


def _in_words(
    graph: Graph, layouts: Mapping[str, str], overrides: Mapping[str, str] = _NOTHING
) -> dict[str, str]:
    """Returns the layouts of an integer network, with a packed layout for maps of whole numbers.

    A blocked map is packed if it and all maps tied to it hold whole numbers. Raises
    :class:`InputError` if ``overrides`` is not empty.
    """
    if overrides:
        raise InputError(
            f"decide: '{next(iter(overrides))}' is of an integer network, whose maps are stored in "
            "as few bits as hold them: leave it out"
        )
    ties, refused = _stored_alike(graph, layouts)
    tied: dict[str, list[str]] = {}
    for name, layout in layouts.items():
        if layout == C4 and ties.find(name) not in refused:
            tied.setdefault(ties.find(name), []).append(name)
    found = dict(layouts)
    for names in tied.values():
        if all(name in graph.words for name in names):
            ends = [graph.words[name] for name in names]
            packed = whole_layout(min(e[0] for e in ends), max(e[1] for e in ends))
            found |= dict.fromkeys(names, packed or C4)
    return found


def _against(name: str, layouts: Mapping[str, str], full: Node | None) -> str:
    """Returns the reason why a tensor cannot have the requested storage, as the end of a message.

    ``full`` is the node that requires 32 bits, if any.
    """
    if layouts.get(name) != C4:
        return "in 16 bits are only maps in blocks of four channels, and weights of products"
    if full is not None:
        return f"{full.title} takes it, or one that is stored alike, in 32 bits"
    return "another that is stored alike is asked to be otherwise"


def _stands_beside_plain(node: Node, graph: Graph, layouts: Mapping[str, str]) -> bool:
    """Returns True if the node uses blocked maps of one position together with larger plain maps.

    Kernels over plain maps cannot read 16-bit numbers, which are stored in groups of four.
    """
    touched = [n for n in (*node.reads, *node.outputs) if is_feature_map(graph.facts[n])]
    blocked = [n for n in touched if layouts.get(n) == C4]
    wide = [n for n in touched if n not in blocked and not is_one_position(graph.facts[n])]
    return bool(wide) and any(is_one_position(graph.facts[n]) for n in blocked)


def matrices_in_half(graph: Graph) -> set[str]:
    """Returns the names of the constants that are read only as weights of products that support
    16 bits."""
    found: set[str] = set()
    others: set[str] = set(graph.roots)
    for node in graph.nodes:
        weights = {n for n in node.inputs[1:2] if graph.is_constant(n)}
        half = lookup(node.op).traits.matrix_in_half
        taken = weights if half and half(node, graph.facts) else set()
        found |= taken
        others.update(n for n in node.reads if n not in taken or node.reads.count(n) > 1)
    return found - others


def half_of(node: Node, facts: Mapping[str, Fact]) -> Half:
    """Returns which of the node's blocked feature maps may be stored in 16 bits.

    ``"none"``, ``"each"`` independently, ``"alike"`` (all or none), or ``"reads"`` (the
    operands). Operators of integer networks have ``"none"``.
    """
    return "none" if lookup(node.op).traits.is_integer else _packed_of(node, facts)


def _packed_of(node: Node, facts: Mapping[str, Fact]) -> Half:
    """Returns which of the node's blocked feature maps its kernel can read or write in 16 bits.

    The values are those of :func:`half_of`; ``"none"`` without a kernel.
    """
    spec = lookup(node.op)
    if spec.kernel is None:
        return "none"
    if not callable(spec.kernel.half):
        return spec.kernel.half
    with located(node.source), calling(spec.is_custom, "half", node_fault(node)):
        return spec.kernel.half(node, facts)


def rounded_weights(node: Node, graph: Graph, layouts: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the names of the node's constants that are stored in 16 bits."""
    half = lookup(node.op).traits.filter_in_half
    if half and graph.is_constant(node.inputs[1]):
        return (node.inputs[1],) if half(node, layouts) else ()
    return tuple(name for name in node.inputs if layouts.get(name) == HALF)
