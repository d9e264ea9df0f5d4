"""Finds tensors that share another one's memory: operands of concat and stack, and results of
split, unstack and slice.

If the parts are contiguous, a concat's producers write into its result and a split's readers
read from its operand. Neither needs a dispatch, and no part has memory of its own. A view keeps
the whole tensor alive as long as any part of it. A node's views are therefore only used if they
do not raise the least memory that the network needs, including its kernels' scratch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from cml_engine.compiler.planning.plan_memory import Lifetime
from cml_engine.io.frame_gate import yield_to_frame
from cml_engine.ir.graph import Fact, Graph, Node
from cml_engine.ir.layout import PLAIN, words
from cml_engine.ops.declaration.registry import lookup


@dataclass(frozen=True, slots=True)
class PartPlace:
    """The place of a view in the memory of tensor ``parent``: its offset in 32-bit words.

    The parent may be a view itself.
    """

    parent: str
    offset: int


Views = Mapping[str, PartPlace]


def resolve_view(views: Views, name: str) -> tuple[str, int]:
    """Returns the tensor that owns the memory of ``name``, and the offset of ``name`` in it in
    32-bit words.

    A tensor that is no view owns its memory and has offset 0.
    """
    offset = 0
    while name in views:
        name, offset = views[name].parent, offset + views[name].offset
    return name, offset


def merge_lifetimes(items: Iterable[Lifetime], views: Views) -> list[Lifetime]:
    """Returns the tensors that own memory, with lifetimes extended to those of all their views."""
    wholes: dict[str, Lifetime] = {}
    lives: dict[str, tuple[int, int]] = {}
    for item in items:
        root, _ = resolve_view(views, item.name)
        if root == item.name:
            wholes[root] = item
        first, last = lives.get(root, (item.first, item.last))
        lives[root] = (min(first, item.first), max(last, item.last))
    return [Lifetime(name, item.nbytes, *lives[name]) for name, item in wholes.items()]


def find_views(
    graph: Graph,
    layouts: Mapping[str, str],
    alias: Mapping[str, str],
    alignment: int,
    items: Sequence[Lifetime],
) -> dict[str, PartPlace]:
    """Returns the tensors that need no copy, with their places in the tensors that they are parts
    of.

    A view begins at a multiple of ``alignment`` bytes. ``items`` are the lifetimes of all
    tensors in the arena without views.
    """
    views: dict[str, PartPlace] = {}
    alive = _LiveBytes(items)
    for node in graph.nodes:
        yield_to_frame()
        found = {
            name: view
            for name, view in _parts(graph, node, layouts, alias)
            if name not in views and 4 * view.offset % alignment == 0
        }
        together = views | found if found else views
        if found and alive.try_join([(name, resolve_view(together, name)[0]) for name in found]):
            views = together
    return views


class _LiveBytes:
    """The sum of bytes alive at each step, updated while views are moved into their wholes."""

    def __init__(self, items: Sequence[Lifetime]) -> None:
        self._items = {item.name: item for item in items}
        begin = min((item.first for item in items), default=0)
        count = max((item.last for item in items), default=0) - begin + 1
        self._begin, self._bytes = begin, np.zeros(count, np.int64)
        for item in items:
            self._add(item, 1)
        self._most = self._bytes.max(initial=0)

    def _add(self, item: Lifetime, sign: int) -> None:
        self._bytes[item.first - self._begin : item.last + 1 - self._begin] += sign * item.nbytes

    def try_join(self, pairs: Sequence[tuple[str, str]]) -> bool:
        """Moves each part of ``pairs`` (part, whole) into its whole; returns False and moves
        none if the peak would grow."""
        before = {name: self._items[name] for pair in pairs for name in pair if name in self._items}
        after = dict(before)
        for part, root in pairs:
            if part in after and root in after:
                gone, kept = after.pop(part), after[root]
                lives = min(gone.first, kept.first), max(gone.last, kept.last)
                after[root] = replace(kept, first=lives[0], last=lives[1])
        self._replace(before, after)
        if self._bytes.max(initial=0) > self._most:
            self._replace(after, before)
            return False
        self._most = self._bytes.max(initial=0)
        return True

    def _replace(self, before: Mapping[str, Lifetime], after: Mapping[str, Lifetime]) -> None:
        for item in before.values():
            self._add(item, -1)
            del self._items[item.name]
        for item in after.values():
            self._add(item, 1)
            self._items[item.name] = item


def is_view_copy(
    node: Node, tensors: tuple[str, ...], views: Views, alias: Mapping[str, str]
) -> bool:
    """Returns True if a dispatch of the node only copies between a view and its whole, so that it
    is not needed.

    ``tensors`` are the tensors that the dispatch binds.
    """
    kind = lookup(node.op).traits.parts
    if kind is None:
        return False
    source, target = (alias.get(name, name) for name in (tensors[0], tensors[-1]))
    part, parent = (source, target) if kind.joined else (target, source)
    return part in views and views[part].parent == parent


def _parts(
    graph: Graph, node: Node, layouts: Mapping[str, str], alias: Mapping[str, str]
) -> Iterator[tuple[str, PartPlace]]:
    kind = lookup(node.op).traits.parts
    if kind is None:
        return
    parent = node.outputs[0] if kind.joined else node.inputs[0]
    parts = node.inputs if kind.joined else node.outputs
    layout = layouts.get(parent, PLAIN)
    if alias.get(parent, parent) in graph.constants:
        return
    place = kind.place(node.attrs, graph.facts[parent], layout)
    if place is None or not _follow_in_memory(graph.facts[parent], place[0], layout):
        return
    if layout != PLAIN and any(graph.facts[name].shape[1] % 4 for name in parts[:-1]):
        return  # some parts begin inside a block of four channels
    offset = place[1]
    fixed = {*graph.inputs, *graph.constants, *graph.roots, *alias}
    # aliased tensors, inputs and outputs need memory of their own
    fixed.update(alias.get(name, name) for name in (*graph.roots, *graph.inputs))
    # one tensor cannot be two parts of the whole, under any alias
    places = [alias.get(name, name) for name in parts]
    for name in parts:
        alike = layouts.get(name, PLAIN) == layout and places.count(name) == 1
        if alike and name not in fixed and graph.facts[name].size:
            yield name, PartPlace(alias.get(parent, parent), offset)
        offset += words(graph.facts[name], layout)


def _follow_in_memory(fact: Fact, axis: int, layout: str) -> bool:
    """Returns True if parts of a tensor along ``axis`` are contiguous: all outer dimensions have
    extent 1.

    In blocks of four channels only parts along the channels (axis 1) can be contiguous.
    """
    return (layout == PLAIN or axis == 1) and prod(fact.shape[:axis]) == 1
