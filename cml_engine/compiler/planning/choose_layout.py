"""Chooses the feature maps that are stored in blocks of four channels
(``cml_engine/ir/layout.py``).

A tensor is blocked if its producer can write blocks and all its readers can read them. Operators
that need one layout for all their feature maps (elementwise ones) tie those tensors together, and
tied tensors get one layout. Inputs and outputs of the graph stay plain, because the host accesses
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from cml_engine.errors import InputError
from cml_engine.ir.graph import Fact, Graph, Node
from cml_engine.ir.layout import C4, PLAIN, block_words, whole_layout
from cml_engine.ops.declaration.epilogue import reads_blocks
from cml_engine.ops.declaration.registry import lookup


def choose_layout(
    graph: Graph, overrides: Mapping[str, str] = MappingProxyType({})
) -> dict[str, str]:
    """Returns the layout of every tensor that is not plain, by name.

    ``overrides`` has the layouts that the caller decides, by tensor. Raises :class:`InputError`
    if one is impossible.
    """
    ties = Ties()
    plain: set[str] = {*graph.inputs, *graph.lasting, *graph.constants}
    plain.update(name for name, layout in overrides.items() if layout == PLAIN)
    wanted = {name for name, layout in overrides.items() if layout == C4}
    for node in graph.nodes:
        _visit(graph, node, ties, plain, wanted)
    refused = {ties.find(name) for name in plain}
    gaining = {ties.find(name) for name in wanted}
    chosen = {}
    for node in graph.nodes:
        for name in node.outputs:
            tie = ties.find(name)
            if tie in gaining and tie not in refused:
                chosen[name] = C4
    for name, layout in overrides.items():
        if layout == C4 and name not in chosen:
            raise InputError(
                f"decide: '{name}' cannot lie in blocks of four channels: {why_plain(name, graph)}"
            )
    return chosen


def why_plain(name: str, graph: Graph) -> str:
    """Returns the reason why a plain tensor is not stored in blocks, for a list of decisions."""
    if name in graph.lasting or name in graph.constants:
        return "what the host gives or reads is plain"
    if not is_feature_map(graph.facts[name]):
        return "it is no feature map"
    if not _fills_blocks(graph, name):
        return "it has fewer than four channels"
    for node in graph.nodes:
        kernel = lookup(node.op).kernel
        touches = name in node.outputs or name in node.reads
        if touches and (kernel is None or kernel.layouts == "plain"):
            return f"{node.title} works on plain maps"
    return "nothing gains by blocks, or it is tied to a map that is plain"


def _visit(graph: Graph, node: Node, ties: Ties, plain: set[str], wanted: set[str]) -> None:
    """Adds the layout constraints of one node to ``ties``, ``plain`` and ``wanted``.

    ``ties`` gets the tensors that must have one layout, ``plain`` those that must be plain, and
    ``wanted`` those that gain by blocks.
    """
    kernel = lookup(node.op).kernel
    layouts = kernel.layouts if kernel else "plain"
    touched = (*node.reads, *node.outputs)
    result = graph.facts[node.outputs[0]]
    maps = [n for n in touched if is_feature_map(graph.facts[n])]
    if layouts == "plain" or result.rank < 3:
        plain.update(touched)
        return
    if layouts == "each" and any(not is_one_position(graph.facts[n]) for n in maps):
        maps = [n for n in maps if not is_one_position(graph.facts[n])]
    plain.update(n for n in touched if not is_feature_map(graph.facts[n]))
    if layouts in ("same", "copies", "each"):
        partial = layouts == "copies" and all(n in graph.words for n in maps)
        _tie_same(graph, maps, result, ties, plain, partial)
        return
    if layouts in ("blocks", "joins"):
        partial = layouts == "joins" and all(n in graph.words for n in maps)
        ties.join(maps)
        if any(graph.facts[n].shape[1] % 4 for n in maps) and not partial:
            plain.update(maps)
        return
    ends = [node.inputs[0], node.outputs[0]]
    wanted.update(n for n in ends if _fills_blocks(graph, n))
    plain.update(n for n in ends if not _fills_blocks(graph, n))
    # an epilogue reads an operand of the result's shape in the result's layout, and per-channel
    # values in plain layout; filters are packed at load
    operands = [n for e in node.epilogues for n in e.inputs if n in maps]
    if not _reads_either(graph, node):
        ties.join([node.outputs[0], *(n for n in operands if graph.facts[n] == result)])
    plain.update(n for n in operands if graph.facts[n] != result)
    plain.update(n for n in node.inputs[1:] if n in maps)


def _reads_either(graph: Graph, node: Node) -> bool:
    """Returns True if the node's epilogues can read maps of the result's shape in blocks although
    the result is plain.

    They can if the result is an output of an integer network and its shape allows it.
    """
    result = node.outputs[0]
    return bool(graph.words) and result in graph.lasting and reads_blocks(graph.facts[result])


def _tie_same(
    graph: Graph, maps: list[str], result: Fact, ties: Ties, plain: set[str], partial: bool
) -> None:
    """Adds the constraints of an elementwise node to ``ties`` and ``plain``: one layout for its
    feature maps.

    Maps with other channels than the result are plain. Maps with a partial last block are plain
    unless the node only copies (``partial``), because lanes past the last channel would not stay
    zero.
    """
    blocked = [n for n in maps if _has_result_channels(graph.facts[n], result)]
    ties.join(blocked)
    if result.shape[1] % 4 and not partial:
        plain.update(blocked)
    plain.update(n for n in maps if n not in blocked)


def _fills_blocks(graph: Graph, name: str) -> bool:
    """Returns True if the channels of map ``name`` fill at least one block.

    A block has four channels, or more for the packed words of an integer network.
    """
    packed = whole_layout(*graph.words[name]) if name in graph.words else None
    return graph.facts[name].shape[1] >= (block_words(packed) if packed else 4)


def is_feature_map(fact: Fact) -> bool:
    """Returns True for float tensors of rank 3 or more, which may be stored in blocks of
    channels."""
    return fact.rank >= 3 and fact.dtype == "scalar"


def is_one_position(fact: Fact) -> bool:
    """Returns True if a map has one position and fills its blocks, so that its blocked and plain
    layouts are the same."""
    return fact.rank >= 3 and fact.shape[1] % 4 == 0 and fact.size == fact.shape[0] * fact.shape[1]


def _has_result_channels(fact: Fact, result: Fact) -> bool:
    return fact.rank == result.rank and fact.shape[1] == result.shape[1]


class Ties:
    """Sets of tensors that must have one layout (union-find): ``join`` merges the sets of
    tensors, ``find`` returns the tensor that identifies a set."""

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}

    def find(self, name: str) -> str:
        root = name
        while (above := self._parent.get(root, root)) != root:
            root = above
        while name != root:  # path compression
            self._parent[name], name = root, self._parent.get(name, name)
        return root

    def join(self, names: Iterable[str]) -> None:
        roots = [self.find(name) for name in names]
        for root in roots[1:]:
            self._parent[root] = roots[0]
