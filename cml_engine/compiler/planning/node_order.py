"""Orders a graph's nodes so that few activations are in use at once."""

from __future__ import annotations

from cml_engine.ir.graph import Graph, Node


def order_for_memory(graph: Graph) -> Graph:
    """Returns the graph in an order in which the next node adds the fewest bytes in use.

    That is usually a branch to its end before the next one begins. It is no optimum: the caller
    compares the arenas of both orders.
    """
    facts, permanent = graph.facts, {*graph.roots, *graph.constants}
    producers, consumers = graph.producers, graph.consumers
    readers = {name: len(nodes) for name, nodes in consumers.items()}
    missing = {n.outputs[0]: len(producers.keys() & set(n.reads)) for n in graph.nodes}
    position = {node.outputs[0]: i for i, node in enumerate(graph.nodes)}
    ready, ordered = [n for n in graph.nodes if not missing[n.outputs[0]]], list[Node]()

    def growth(node: Node) -> tuple[int, int]:
        freed = (name for name in set(node.reads) - permanent if readers[name] == 1)
        added = sum(facts[name].nbytes for name in node.outputs)
        return added - sum(facts[name].nbytes for name in freed), position[node.outputs[0]]

    while ready:
        node = min(ready, key=growth)
        ready.remove(node)
        ordered.append(node)
        for name in set(node.reads):
            readers[name] -= 1
        for name in node.outputs:
            for reader in consumers.get(name, ()):
                missing[reader.outputs[0]] -= 1
                if not missing[reader.outputs[0]]:
                    ready.append(reader)
    return graph.with_(nodes=tuple(ordered))
