"""Puts the operators without a kernel next to each other, so that a run crosses between GPU and CPU
as rarely as possible.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from cml_engine.ir.graph import Graph, Node
from cml_engine.ops.declaration.registry import derive_by, lookup
from cml_engine.ops.declaration.spec import NO_TRAITS, OpSpec

#: the end of the name of an operator without its kernel
_ON_CPU = " on CPU"


def _derive(name: str) -> OpSpec | None:
    """Returns the operator without its kernel if the name ends with ``on CPU``, otherwise None."""
    if not name.endswith(_ON_CPU):
        return None
    spec = lookup(name.removesuffix(_ON_CPU))
    return replace(spec, name=name, kernel=None, traits=NO_TRAITS)


derive_by(_derive)


def move_to_cpu(graph: Graph, results: Collection[str]) -> Graph:
    """Returns the graph with the nodes that compute ``results`` on the CPU, grouped with others."""
    nodes = (
        replace(node, op=node.op + _ON_CPU) if node.outputs[0] in results else node
        for node in graph.nodes
    )
    return group_cpu_operators(graph.with_(nodes=tuple(nodes)))


def group_cpu_operators(graph: Graph) -> Graph:
    """Returns the graph with its nodes in an order that groups the operators without a kernel.

    All nodes that can run on the GPU come first, then all nodes without a kernel that can run by
    then, and so on. No order has fewer groups: each one contains a node that depends on a kernel
    which depends on the group before. An alias, which moves nothing, stays with its operand.
    """
    specs = {op: lookup(op) for op in graph.ops}
    if not any(specs[node.op].is_cpu_only for node in graph.nodes):
        return graph
    computed = {*graph.inputs, *graph.constants}
    remaining, ordered, on_cpu = list(graph.nodes), list[Node](), False
    while remaining:
        waiting = []
        for node in remaining:
            spec = specs[node.op]
            if (spec.alias or spec.is_cpu_only == on_cpu) and computed.issuperset(node.reads):
                ordered.append(node)
                computed.update(node.outputs)
            else:
                waiting.append(node)
        remaining, on_cpu = waiting, not on_cpu
    return graph.with_(nodes=tuple(ordered))
