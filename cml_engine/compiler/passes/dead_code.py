"""Removes nodes, constants and facts that no output and no update of a variable needs."""

from __future__ import annotations

from cml_engine.ir.graph import Graph


def eliminate_dead_code(graph: Graph) -> Graph:
    """Returns the graph without the nodes, constants and facts that no output and no update needs.

    Inputs are kept.
    """
    needed = set(graph.roots)
    kept = []
    for node in reversed(graph.nodes):
        if needed.intersection(node.outputs):
            needed.update(node.reads)
            kept.append(node)
    kept.reverse()
    alive = needed.union(graph.inputs, *(node.outputs for node in kept))
    alive.update(variable for variable, _ in graph.updates)
    return graph.with_(
        nodes=tuple(kept),
        constants={k: v for k, v in graph.constants.items() if k in alive},
        labels={k: v for k, v in graph.labels.items() if k in alive},
        facts={k: v for k, v in graph.facts.items() if k in alive},
    )
