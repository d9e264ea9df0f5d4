"""Which operators of a model became one of its optimized graph."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from cml_engine.ir.graph import Graph, Node


def producers(graph: Graph) -> dict[str, Node]:
    """The operator of every result, in their order."""
    return {name: node for node in graph.nodes for name in node.outputs}


def made_of(node: Node, written: Mapping[str, Node], computed: Collection[str]) -> list[Node]:
    """The model's operators between what the node of an optimized graph reads and what it gives,
    in their order. ``written`` are the model's :func:`producers`, ``computed`` the results of the
    optimized graph. None where a pass gave the result a name of its own."""
    found: dict[int, Node] = {}
    pending = list(node.outputs)
    while pending:
        inner = written.get(pending.pop())
        if inner is not None and id(inner) not in found:
            found[id(inner)] = inner
            pending += [n for n in inner.reads if n not in computed and n not in node.reads]
    order = {id(n): i for i, n in enumerate(written.values())}
    return sorted(found.values(), key=lambda n: order[id(n)])
