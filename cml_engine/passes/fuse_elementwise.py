"""Let one kernel do a chain of elementwise operators.

Each that is fused saves a dispatch, and a write and a read of the whole tensor. The kernel is made
of the operators' own expressions (``ops/pointwise.py``), in their order and with their roundings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cml_engine.graph import Attrs, Epilogue, Graph, Node
from cml_engine.ops.pointwise import MAX_OPERANDS, ROWS

#: operators in one kernel; it has them sixteen times, so longer ones take long to build
MAX_CHAIN = 8


def fuse_elementwise(graph: Graph) -> Graph:
    """The graph with elementwise nodes done by the elementwise node whose result they read, where
    nothing else reads it and both results are alike."""
    consumers = graph.consumers()
    roots = set(graph.roots)
    made: dict[str, Node] = {}  # by output: nodes that may still take an operator
    nodes: dict[str, Node] = {}  # in order, by first output
    for node in graph.nodes:
        fused = node
        if node.op in ROWS and not node.epilogues:
            alone = {n: made[n] for n in node.inputs if n in made and n not in roots}
            alone = {n: m for n, m in alone.items() if len(consumers[n]) == 1}
            found = _fused(graph, node, alone)
            if found is not None:
                name, fused = found
                del nodes[name], made[name]
            made[fused.outputs[0]] = fused
        nodes[fused.outputs[0]] = fused
    return graph.with_(nodes=tuple(nodes.values()))


def _fused(graph: Graph, node: Node, candidates: Mapping[str, Node]) -> tuple[str, Node] | None:
    """The operand that is not stored any more, and the node that does both; the longest chain
    goes on, for what it reads is bound already."""
    by_length = sorted(candidates.items(), key=lambda c: -len(c[1].epilogues))
    for name, producer in by_length:
        once = node.inputs.count(name) == 1
        alike = graph.facts[name] == graph.facts[node.outputs[0]]
        if not (once and alike and len(producer.epilogues) + 2 <= MAX_CHAIN):
            continue
        position = node.inputs.index(name)
        others = node.inputs[:position] + node.inputs[position + 1 :]
        if len({*producer.reads, *others}) > MAX_OPERANDS:
            continue
        epilogue = Epilogue(node.op, others, Attrs(node.attrs), position)
        epilogues = (*producer.epilogues, epilogue)
        return name, replace(producer, outputs=node.outputs, epilogues=epilogues)
    return None
