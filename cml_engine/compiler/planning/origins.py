"""Maps operators of an optimized graph to the operators of the model."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from cml_engine.ir.graph import Graph, Node


def producers(graph: Graph) -> dict[str, Node]:
    """Returns the node that computes each tensor, by the tensor's name, in execution order."""
    return {name: node for node in graph.nodes for name in node.outputs}


def made_of(node: Node, written: Mapping[str, Node], computed: Collection[str]) -> list[Node]:
    """Returns the model's operators that a node of the optimized graph computes, in execution
    order.

    ``written`` has the model's :func:`producers`; ``computed`` has the results of the optimized
    graph. Returns an empty list if a pass renamed the result.
    """
    found: dict[int, Node] = {}
    pending = list(node.outputs)
    while pending:
        inner = written.get(pending.pop())
        if inner is not None and id(inner) not in found:
            found[id(inner)] = inner
            pending += [n for n in inner.reads if n not in computed and n not in node.reads]
    order = {id(n): i for i, n in enumerate(written.values())}
    return sorted(found.values(), key=lambda n: order[id(n)])
