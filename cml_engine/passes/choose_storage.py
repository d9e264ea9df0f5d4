"""Decide which feature maps are stored in 16 bits (``c4h`` of ``cml_engine/layout.py``).

Of those in blocks of four channels it is every one whose producer and readers all take it so:
``Kernel.half`` says what an operator takes. Operators that move memory without looking at it tie
their tensors together, and a tie decides as one. Arithmetic is in 32 bits in any case.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from cml_engine.graph import Fact, Graph, Node
from cml_engine.layout import C4, C4H
from cml_engine.ops.conv_tile import takes_half
from cml_engine.ops.spec import Half, lookup
from cml_engine.passes.choose_layout import Ties, choose_layout

#: how blocked feature maps and the weights that meet them are stored
Storage = Literal["float", "half"]


def layouts_for(graph: Graph, storage: Storage = "float") -> dict[str, str]:
    """The layout of every tensor that is not plain."""
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
        if taken == "none":
            full |= read | results
        elif taken == "reads":
            full |= results
        elif taken == "alike":
            ties.join(read | results)
    refused = {ties.find(name) for name in full}
    return {
        name: C4H if layout == C4 and ties.find(name) not in refused else layout
        for name, layout in layouts.items()
    }


def half_of(node: Node, facts: Mapping[str, Fact]) -> Half:
    """Which of the node's blocked feature maps may be stored in 16 bits."""
    kernel = lookup(node.op).kernel
    if kernel is None:
        return "none"
    return kernel.half(node, facts) if callable(kernel.half) else kernel.half


def rounded_weights(node: Node, graph: Graph, layouts: Mapping[str, str]) -> tuple[str, ...]:
    """The constants that the node's kernel stores in 16 bits: a convolution's filter, where what
    it reads or what it writes is stored so."""
    if node.op not in ("conv", "deconv") or not graph.is_constant(node.inputs[1]):
        return ()
    return (node.inputs[1],) if takes_half(node, layouts) else ()
