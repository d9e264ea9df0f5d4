"""Decide which feature maps and weights are stored in 16 bits (``cml_engine/layout.py``).

Of those in blocks of four channels it is every one whose producer and readers all take it so:
``Kernel.half`` says what an operator takes. Operators that move memory without looking at it tie
their tensors together, and a tie decides as one. A convolution's filter is where what it reads or
what it writes is, a matrix of weights where its product takes it so. Arithmetic is in 32 bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

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

#: how blocked feature maps and the weights that meet them are stored
Storage = Literal["float", "half"]


def layouts_for(graph: Graph, storage: Storage = "float") -> dict[str, str]:
    """The layout of every tensor that is not plain."""
    one_of(get_args(Storage), storage, "storage")
    layouts = choose_layout(graph)
    return choose_storage(graph, layouts) if storage == "half" else layouts


def choose_storage(graph: Graph, layouts: Mapping[str, str]) -> dict[str, str]:
    """The layouts with ``c4h`` in the place of ``c4`` where that can be."""
    ties = Ties()
    full: set[str] = set()
    for node in graph.nodes:
        results = {n for n in node.outputs if layouts.get(n) == C4}
        read = {n for n in node.reads if layouts.get(n) == C4}
        taken = half_of(node, graph.facts)
        if taken == "none" or _stands_beside_plain(node, graph, layouts):
            full |= read | results
        elif taken == "reads":
            full |= results
        elif taken == "alike":
            ties.join(read | results)
    refused = {ties.find(name) for name in full}
    maps = {
        name: C4H if layout == C4 and ties.find(name) not in refused else layout
        for name, layout in layouts.items()
    }
    return maps | dict.fromkeys(matrices_in_half(graph), HALF)


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
