"""Decide which feature maps and weights are stored in 16 bits (``cml_engine/layout.py``).

Of those in blocks of four channels it is every one whose producer and readers all take it so:
``Kernel.half`` says what an operator takes. Operators that move memory without looking at it tie
their tensors together, and a tie decides as one. A convolution's filter is where what it reads or
what it writes is, a matrix of weights where its product takes it so. Arithmetic is in 32 bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, get_args

from cml_engine.errors import InputError
from cml_engine.graph import Fact, Graph, Node
from cml_engine.layout import C4, C4H, HALF
from cml_engine.ops.declaration.registry import lookup
from cml_engine.ops.declaration.spec import Half
from cml_engine.planning.choose_layout import (
    Ties,
    choose_layout,
    is_feature_map,
    is_one_position,
)
from cml_engine.ranges import one_of

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
    ties = Ties()
    full: dict[str, Node] = {}
    for node in graph.nodes:
        results = {n for n in node.outputs if layouts.get(n) == C4}
        read = {n for n in node.reads if layouts.get(n) == C4}
        taken = half_of(node, graph.facts)
        if taken == "none" or _stands_beside_plain(node, graph, layouts):
            full |= dict.fromkeys(read | results, node)
        elif taken == "reads":
            full |= dict.fromkeys(results, node)
        elif taken == "alike":
            ties.join(read | results)
    refused = {ties.find(name): node for name, node in full.items()}
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
