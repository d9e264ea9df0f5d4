"""Puts the operators without a kernel next to each other, so that a run crosses between GPU and CPU
as rarely as possible.
"""

from __future__ import annotations

from cml_engine.ir.graph import Graph, Node
from cml_engine.ops.declaration.registry import lookup


def group_cpu_operators(graph: Graph) -> Graph:
    """Returns the graph with its nodes in an order that groups the operators without a kernel.

    All nodes that can run on the GPU come first, then all nodes without a kernel that can run by
    then, and so on. No order has fewer groups: each one contains a node that depends on a kernel
    which depends on the group before. An alias, which moves nothing, stays with its operand.
    """
    specs = {op: lookup(op) for op in graph.ops}
    if not any(specs[node.op].is_cpu_only for node in graph.nodes):
        return graph
    known = {*graph.inputs, *graph.constants}
    left, ordered, on_cpu = list(graph.nodes), list[Node](), False
    while left:
        waiting = []
        for node in left:
            spec = specs[node.op]
            if (spec.alias or spec.is_cpu_only == on_cpu) and known.issuperset(node.reads):
                ordered.append(node)
                known.update(node.outputs)
            else:
                waiting.append(node)
        left, on_cpu = waiting, not on_cpu
    return graph.with_(nodes=tuple(ordered))
