"""Tensors that are a part of another one's memory: concat's operands, and split's results.

Where the parts follow one another in memory, a concat's producers write into its result and a
split's readers read from its operand; neither needs a dispatch, and no part has memory of its own.
A view keeps the whole tensor alive as long as any part of it, so a node's views are only taken
where they do not raise the least memory that the network needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

from cml_engine.graph import Fact, Graph, Node
from cml_engine.layout import PLAIN, words
from cml_engine.passes.plan_memory import Item, lower_bound


@dataclass(frozen=True, slots=True)
class View:
    """Where a part begins in ``parent``, in 32-bit words; the parent may be a part itself."""

    parent: str
    offset: int


Views = Mapping[str, View]


def whole(views: Views, name: str) -> tuple[str, int]:
    """The tensor that has memory of its own, and where in it ``name`` begins, in words."""
    offset = 0
    while name in views:
        name, offset = views[name].parent, offset + views[name].offset
    return name, offset


def find_views(
    graph: Graph, layouts: Mapping[str, str], alias: Mapping[str, str], alignment: int
) -> dict[str, View]:
    """The parts that need no copy. ``alignment`` is in bytes: that of a part's beginning."""
    views: dict[str, View] = {}
    lifetimes = _lifetimes(graph, alias)
    bound = _bound(graph, layouts, lifetimes, views)
    for node in graph.nodes:
        found = {
            name: view
            for name, view in _parts(graph, node, layouts, alias)
            if name not in views and 4 * view.offset % alignment == 0
        }
        with_them = _bound(graph, layouts, lifetimes, views | found) if found else bound + 1
        if with_them <= bound:
            views |= found
            bound = with_them
    return views


def is_view_copy(
    node: Node, tensors: tuple[str, ...], views: Views, alias: Mapping[str, str]
) -> bool:
    """Whether a dispatch of the node, which binds those tensors, copies what lies there already:
    from a part to its whole, or the other way."""
    if node.op not in ("concat", "split"):
        return False
    source, target = (alias.get(name, name) for name in (tensors[0], tensors[-1]))
    part, parent = (source, target) if node.op == "concat" else (target, source)
    return part in views and views[part].parent == parent


def _parts(
    graph: Graph, node: Node, layouts: Mapping[str, str], alias: Mapping[str, str]
) -> Iterator[tuple[str, View]]:
    if node.op not in ("concat", "split"):
        return
    joined = node.op == "concat"
    parent = node.outputs[0] if joined else node.inputs[0]
    parts = node.inputs if joined else node.outputs
    layout = layouts.get(parent, PLAIN)
    if alias.get(parent, parent) in graph.constants:
        return
    if not _follow_in_memory(graph.facts[parent], int(node.attrs["axis"]), layout):
        return
    fixed = {*graph.inputs, *graph.constants, *graph.roots, *alias}
    # what another name or another reader after the run holds must be a tensor of its own
    fixed.update(alias.get(name, name) for name in graph.roots)
    offset = 0
    for name in parts:
        alike = layouts.get(name, PLAIN) == layout and parts.count(name) == 1
        if alike and name not in fixed and graph.facts[name].size:
            yield name, View(alias.get(parent, parent), offset)
        offset += words(graph.facts[name], layout)


def _follow_in_memory(fact: Fact, axis: int, layout: str) -> bool:
    """Whether parts along the axis are runs of memory: no dimension outside of it has an extent.
    Blocks of four channels lie outside of the positions as channels do."""
    return (layout == PLAIN or axis == 1) and prod(fact.shape[:axis]) == 1


def _lifetimes(graph: Graph, alias: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    """For every tensor with memory the first and last node that needs it."""
    end = len(graph.nodes)
    lives = dict.fromkeys(graph.inputs, (-1, -1))
    for i, node in enumerate(graph.nodes):
        for name in (*node.reads, *node.outputs):
            root = alias.get(name, name)
            if root not in graph.constants:
                lives[root] = (lives.get(root, (i, i))[0], i)
    for name in graph.roots:
        root = alias.get(name, name)
        if root in lives:
            lives[root] = (lives[root][0], end)
    return lives


def _bound(
    graph: Graph,
    layouts: Mapping[str, str],
    lifetimes: Mapping[str, tuple[int, int]],
    views: Views,
) -> int:
    """The least memory with those views, as far as it shows before operators are lowered."""
    lives: dict[str, tuple[int, int]] = {}
    for name, (first, last) in lifetimes.items():
        root, _ = whole(views, name)
        known = lives.get(root, (first, last))
        lives[root] = (min(first, known[0]), max(last, known[1]))
    return lower_bound(_items(graph, layouts, lives.items()))


def _items(
    graph: Graph, layouts: Mapping[str, str], lives: Iterable[tuple[str, tuple[int, int]]]
) -> Iterator[Item]:
    for name, (first, last) in lives:
        yield Item(name, 4 * words(graph.facts[name], layouts.get(name, PLAIN)), first, last)
