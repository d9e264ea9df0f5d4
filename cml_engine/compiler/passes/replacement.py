"""Replaces the nodes that a pass finds by those that it adds in their place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from cml_engine.compiler.passes.cleanup import eliminate_dead_code
from cml_engine.compiler.passes.infer import infer_node
from cml_engine.ir.construction import GraphRewriter
from cml_engine.ir.graph import Graph, Node

Found = TypeVar("Found")


def replace_nodes(
    graph: Graph,
    found: Mapping[str, Found],
    add: Callable[[GraphRewriter, Node, Found], None],
) -> Graph:
    """Returns the graph with other nodes in place of those whose first results ``found`` names,
    without dead code; the same graph if it names none.

    ``add(rewriter, node, found)`` adds what replaces a node, in which ``found`` was found.
    """
    if not found:
        return graph
    rewriter = GraphRewriter(graph, infer_node)
    for node in graph.nodes:
        if node.outputs[0] in found:
            add(rewriter, node, found[node.outputs[0]])
        else:
            rewriter.nodes.append(node)
    return eliminate_dead_code(rewriter.finished())


def mark_nodes(graph: Graph, attribute: str, should_mark: Callable[[Node], bool]) -> Graph:
    """Returns the graph with an attribute that is True added to the nodes that ``should_mark``
    accepts; the same graph if it accepts none."""
    if not any(map(should_mark, graph.nodes)):
        return graph
    nodes = tuple(
        replace(node, attrs=node.attrs.with_(**{attribute: True})) if should_mark(node) else node
        for node in graph.nodes
    )
    return graph.with_(nodes=nodes, cooked_form=graph.cooked_form)


def private_producer(graph: Graph, name: str, *ops: str) -> Node | None:
    """Returns the node that computes a tensor for one reader alone, if it is one of these
    operators without epilogues; otherwise None."""
    node = graph.producers.get(name)
    is_plain = node is not None and node.op in ops and not node.epilogues
    return node if is_plain and graph.is_read_once(name) else None
