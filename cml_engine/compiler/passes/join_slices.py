"""Joins a ``concat`` with the slices that it reads, so that they are copied in one dispatch.

Each slice of spatial axes was a dispatch, and so was each part of the concat that could not be
written in place.
"""

from __future__ import annotations

from dataclasses import replace

from cml_engine.compiler.passes.cleanup import eliminate_dead_code
from cml_engine.compiler.passes.replacement import private_producer
from cml_engine.ir.graph import Attrs, Graph, Node
from cml_engine.ops.declaration.registry import is_builtin
from cml_engine.ops.movement.slicing import ranges
from cml_engine.ops.movement.windows import MAX_PARTS


def join_slices(graph: Graph) -> Graph:
    """Returns the graph with every concat of slices that nothing else reads as one operator.

    The slices have at least half of the result, because the other parts are copied as well. Maps
    that may lie in blocks of channels are left alone.
    """
    if not any(n.op == "concat" for n in graph.nodes) or not is_builtin("concat", "slice"):
        return graph

    def slice_of(name: str) -> Node | None:
        node = private_producer(graph, name, "slice")
        if node is None:
            return None
        steps = {step for _, _, step in ranges(node.attrs, graph.facts[node.inputs[0]])}
        return node if steps <= {1} else None

    def joined(node: Node) -> Node:
        if node.op != "concat" or node.epilogues or _may_be_blocked(graph, node):
            return node
        slices = [slice_of(name) for name in node.inputs]
        if len(set(node.inputs)) < len(slices) or len(slices) > MAX_PARTS:
            return node
        sources = [s.inputs[0] if s else n for s, n in zip(slices, node.inputs, strict=True)]
        sizes = [graph.facts[n].size for s, n in zip(slices, node.inputs, strict=True) if s]
        if 2 * sum(sizes) < graph.facts[node.outputs[0]].size or not sizes:
            return node
        if len(set(sources)) < len(sources):
            return node
        axis, result = node.attrs["axis"], graph.facts[node.outputs[0]]
        attrs = Attrs(
            axis=axis,
            begins=[_begins(graph, s, n) for s, n in zip(slices, node.inputs, strict=True)],
            counts=[graph.facts[name].shape[axis] for name in node.inputs],
            extents=list(result.shape),
        )
        return replace(node, op="concat_windows", inputs=tuple(sources), attrs=attrs)

    nodes = tuple(map(joined, graph.nodes))
    return graph if nodes == graph.nodes else eliminate_dead_code(graph.with_(nodes=nodes))


def _begins(graph: Graph, node: Node | None, name: str) -> list[int]:
    """Returns the first index of each axis of a part: a slice's, or zeros."""
    if node is None:
        return [0] * graph.facts[name].rank
    return [first for first, _, _ in ranges(node.attrs, graph.facts[node.inputs[0]])]


def _may_be_blocked(graph: Graph, node: Node) -> bool:
    """Returns True if a concat's maps may lie in blocks of four channels."""
    facts = graph.facts_of(node.inputs)
    is_map = facts[0].rank > 2 and facts[0].dtype == "scalar"
    return is_map and (bool(graph.words) or all(fact.shape[1] % 4 == 0 for fact in facts))
