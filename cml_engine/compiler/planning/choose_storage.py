"""Decide which feature maps and weights are stored in fewer bits (``cml_engine/ir/layout.py``).

In 16 bits, where that is asked for: of those in blocks of four channels it is every one whose
producer and readers all take it so: ``Kernel.half`` says what an operator takes. Operators that
move memory without looking at it tie their tensors together, and a tie decides as one. A
convolution's filter is where what it reads or what it writes is, a matrix of weights where its
product takes it so. Arithmetic is in 32 bits.

The maps of integer networks are whole numbers, and lie in as few bits as hold them, by the same
kernels; nobody needs to ask for it, for nothing is lost.
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
from cml_engine.errors import InputError
from cml_engine.errors.arguments import one_of
from cml_engine.ir.graph import Fact, Graph, Node
from cml_engine.ir.layout import C4, C4H, HALF, whole_layout
from cml_engine.ops.declaration.registry import lookup
from cml_engine.ops.declaration.spec import Half

_NOTHING: Mapping[str, str] = MappingProxyType({})
#: how blocked feature maps and the weights that meet them are stored
Storage = Literal["float", "half"]


def layouts_for(
    graph: Graph,
    storage: Storage = "float",
    asked: Mapping[str, str] = _NOTHING,
    asked_layouts: Mapping[str, str] = _NOTHING,
) -> dict[str, str]:
    """The layout of every tensor that is not plain; ``asked`` is the storage of tensors for which
    the caller decides it, ``asked_layouts`` are their layouts."""
    one_of(get_args(Storage), storage, "storage")
    layouts = choose_layout(graph, asked_layouts)
    if graph.words:
        return _in_words(graph, layouts, asked)
    if storage == "half" or asked:
        return choose_storage(graph, layouts, asked, storage)
    return layouts


def choose_storage(
    graph: Graph,
    layouts: Mapping[str, str],
    asked: Mapping[str, str] = _NOTHING,
    storage: Storage = "half",
) -> dict[str, str]:
    """The layouts with ``c4h`` in the place of ``c4`` where that can be and is ``asked`` for, or
    is the ``storage`` of what nobody asks for. :class:`InputError` where it cannot be."""
    ties, refused = _stored_alike(graph, layouts)
    wanted = {ties.find(name): stored for name, stored in asked.items()}

    def in_half(name: str) -> bool:
        root = ties.find(name)
        return wanted.get(root, storage) == "half" and root not in refused

    found = {
        name: C4H if layout == C4 and in_half(name) else layout for name, layout in layouts.items()
    }
    found |= {n: HALF for n in matrices_in_half(graph) if asked.get(n, storage) == "half"}
    for name, stored in asked.items():
        if (found.get(name) in (C4H, HALF)) != (stored == "half"):
            raise InputError(
                f"decide: '{name}' cannot be stored as '{stored}': "
                f"{_against(name, layouts, refused.get(ties.find(name)))}"
            )
    return found


def _stored_alike(graph: Graph, layouts: Mapping[str, str]) -> tuple[Ties, dict[str, Node]]:
    """Which blocked maps are stored alike, and those (by their tie) that an operator takes in 32
    bits only."""
    ties = Ties()
    full: dict[str, Node] = {}
    for node in graph.nodes:
        results = {n for n in node.outputs if layouts.get(n) == C4}
        read = {n for n in node.reads if layouts.get(n) == C4}
        taken = _packed_of(node, graph.facts) if graph.words else half_of(node, graph.facts)
        if taken == "reads" and graph.words:
            taken = "none"  # such kernels take numbers out of words themselves, in 16 bits
        if taken == "none" or _stands_beside_plain(node, graph, layouts):
            full |= dict.fromkeys(read | results, node)
        elif taken == "reads":
            full |= dict.fromkeys(results, node)
        elif taken == "alike":
            ties.join(read | results)
    return ties, {ties.find(name): node for name, node in full.items()}


def _in_words(
    graph: Graph, layouts: Mapping[str, str], asked: Mapping[str, str] = _NOTHING
) -> dict[str, str]:
    """The layouts of an integer network: packed where a blocked map, and all that are stored
    alike, are whole numbers."""
    if asked:
        raise InputError(
            f"decide: '{next(iter(asked))}' is of an integer network, whose maps are stored in as "
            "few bits as hold them: leave it out"
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
    """What stands against how a tensor is asked to be stored."""
    if layouts.get(name) != C4:
        return "in 16 bits are only maps in blocks of four channels, and weights of products"
    if full is not None:
        return f"{full.title} takes it, or one that is stored alike, in 32 bits"
    return "another that is stored alike is asked to be otherwise"


def _stands_beside_plain(node: Node, graph: Graph, layouts: Mapping[str, str]) -> bool:
    """Whether maps of one position meet larger ones that are plain: numbers in 16 bits lie in
    fours, which a kernel over a plain map does not read."""
    touched = [n for n in (*node.reads, *node.outputs) if is_feature_map(graph.facts[n])]
    blocked = [n for n in touched if layouts.get(n) == C4]
    wide = [n for n in touched if n not in blocked and not is_one_position(graph.facts[n])]
    return bool(wide) and any(is_one_position(graph.facts[n]) for n in blocked)


def matrices_in_half(graph: Graph) -> set[str]:
    """Constants that are nothing but weights of products that take them in 16 bits."""
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
    """Which of the node's blocked feature maps may be stored in 16 bits."""
    return "none" if lookup(node.op).traits.whole else _packed_of(node, facts)


def _packed_of(node: Node, facts: Mapping[str, Fact]) -> Half:
    """Which of them its kernel takes packed."""
    kernel = lookup(node.op).kernel
    if kernel is None:
        return "none"
    return kernel.half(node, facts) if callable(kernel.half) else kernel.half


def rounded_weights(node: Node, graph: Graph, layouts: Mapping[str, str]) -> tuple[str, ...]:
    """The constants that the node's kernel stores in 16 bits."""
    half = lookup(node.op).traits.filter_in_half
    if half and graph.is_constant(node.inputs[1]):
        return (node.inputs[1],) if half(node, layouts) else ()
    return tuple(name for name in node.inputs if layouts.get(name) == HALF)
