"""Folds slices before convolutions into the convolutions' own padding, which may be negative."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from cml_engine.compiler.passes.cleanup import eliminate_dead_code
from cml_engine.ir.graph import Fact, Graph, Node
from cml_engine.ops.conv.shapes import conv_shape
from cml_engine.ops.declaration.registry import is_builtin, lookup
from cml_engine.ops.movement.slicing import ranges

#: the most elements that an elementwise operator may compute for each one that is read: a launch
#: costs as much as some 100 000 elements
_MOST_GROWTH = 4
#: the elements that a slice removes before and after each spatial axis
Crop = tuple[tuple[int, int], ...]


def fold_slices(graph: Graph) -> Graph:
    """Returns the graph without the slices of spatial axes that only convolutions read.

    Elementwise operators with single values may stand between; they are computed before the slice.
    """
    if not is_builtin("slice", "conv"):
        return graph
    facts, replaced = dict(graph.facts), dict[str, Node]()
    for node in graph.nodes:
        node = replaced.get(node.outputs[0], node)
        crop = _crop_of(node, facts[node.inputs[0]]) if node.op == "slice" else None
        if crop is None:
            continue
        found = _Readers(graph, crop, facts[node.inputs[0]].shape)
        if found.follow(node.outputs[0], node.inputs[0]):
            replaced |= found.nodes
            facts |= found.facts
    nodes = tuple(replaced.get(node.outputs[0], node) for node in graph.nodes)
    return eliminate_dead_code(graph.with_(nodes=nodes, facts=facts)) if replaced else graph


def _crop_of(node: Node, x: Fact) -> Crop | None:
    """Returns what a slice removes from each spatial axis, or None if it is not only these."""
    axis_ranges = ranges(node.attrs, x)
    outer = [(0, extent, 1) for extent in x.shape[:2]]
    if x.rank < 3 or axis_ranges[:2] != outer or any(step != 1 for _, _, step in axis_ranges):
        return None
    spatial = zip(axis_ranges[2:], x.shape[2:], strict=True)
    return tuple((first, extent - first - count) for (first, count, _), extent in spatial)


class _Readers:
    """The readers of a slice, rewritten to read the map that is sliced."""

    def __init__(self, graph: Graph, crop: Crop, shape: tuple[int, ...]) -> None:
        self._graph = graph
        self._crop = crop
        self._shape = shape
        self.nodes: dict[str, Node] = {}  # by first output
        self.facts: dict[str, Fact] = {}

    def follow(self, name: str, source: str) -> bool:
        """Rewrites all readers of ``name`` to read ``source``; returns False if one cannot."""
        readers = self._graph.consumers.get(name)
        if name in self._graph.roots or not readers:
            return False
        return all(self._rewrite(node, name, source) for node in readers)

    def _rewrite(self, node: Node, name: str, source: str) -> bool:
        others = [operand for operand in node.reads if operand != name]
        if len(others) != len(node.reads) - 1 or node.epilogues:
            return False
        if node.op == "conv":
            return node.inputs[0] == name and self._rewrite_conv(node, source)
        formula, result = lookup(node.op).formula, self._graph.facts[node.outputs[0]]
        is_elementwise = formula is not None and result == self._graph.facts[name]
        single = all(self._graph.facts[operand].size == 1 for operand in others)
        small = prod(self._shape) <= _MOST_GROWTH * result.size
        if not (is_elementwise and single and small):
            return False
        inputs = tuple(source if operand == name else operand for operand in node.inputs)
        self.nodes[node.outputs[0]] = replace(node, inputs=inputs)
        self.facts[node.outputs[0]] = Fact(result.dtype, self._shape)
        return self.follow(node.outputs[0], node.outputs[0])

    def _rewrite_conv(self, node: Node, source: str) -> bool:
        shape = conv_shape(node.attrs, *self._graph.facts_of(node.inputs))
        padding = []
        for axis, (before, after) in zip(shape.axes, self._crop, strict=True):
            # a border's values would come from beyond the slice
            if (before and axis.before > 0) or (after and axis.after > 0):
                return False
            padding.append((axis.before - before, axis.after - after))
        attrs = node.attrs.with_(padding=padding)
        inputs = (source, *node.inputs[1:])
        self.nodes[node.outputs[0]] = replace(node, inputs=inputs, attrs=attrs)
        return True
