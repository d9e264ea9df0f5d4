"""Fuses elementwise operators into their producer, which applies them before it stores its result.

Each fused operator saves a kernel, and a write and a read of the whole tensor. The producer's
kernel declares the operands that it accepts; the operator's formula declares if it can be fused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cml_engine.ir.graph import Epilogue, Fact, Graph, Node
from cml_engine.ops.declaration.epilogue import (
    channel_axis,
    has_room,
    is_by_position,
    is_one_matrix,
)
from cml_engine.ops.declaration.registry import lookup
from cml_engine.ops.declaration.spec import Epilogues


def per_channel(graph: Graph, result: Fact, name: str, channel_axis: int = 1) -> bool:
    """Returns True if tensor ``name`` has one value, or one per channel of ``result``: ``[]``,
    ``[1,C]``, ``[1,C,1…]``."""
    shape = graph.facts[name].shape
    has_channels = len(shape) > channel_axis and shape[channel_axis] == result.shape[channel_axis]
    is_broadcast = all(
        extent == 1 for axis, extent in enumerate(shape) if axis != channel_axis or not has_channels
    )
    return is_broadcast and len(shape) <= result.rank


def takes_operand(graph: Graph, result: Fact, name: str, kind: Epilogues) -> bool:
    """Returns True if an epilogue of a node with this result can read tensor ``name``.

    ``kind`` is that of the node's kernel, as :class:`Kernel` describes it.
    """
    fact = graph.facts[name]
    if fact == result and name not in graph.constants:
        return True
    if kind == "places":
        return fact.size == 1 and per_channel(graph, result, name)
    if kind == "columns":
        by_column = per_channel(graph, result, name, channel_axis(kind, result))
        return by_column or is_one_matrix(fact, result)
    return per_channel(graph, result, name) or is_by_position(fact, result)


def fuse_epilogues(graph: Graph) -> Graph:
    """Returns the graph with every elementwise node that its producer can apply fused to it as
    an epilogue."""
    open_nodes: dict[str, Node] = {}  # nodes that may still take an epilogue, keyed by output
    nodes: dict[str, Node] = {}  # in execution order, keyed by first output
    for node in graph.nodes:
        fusion = _fusable_producer(graph, node, open_nodes)
        fused = node
        if fusion is not None:
            producer, epilogue = fusion
            del nodes[producer.outputs[0]]
            epilogues = (*producer.epilogues, epilogue)
            fused = replace(producer, outputs=node.outputs, epilogues=epilogues)
        nodes[fused.outputs[0]] = fused
        if len(fused.outputs) == 1:
            open_nodes[fused.outputs[0]] = fused
    return graph.with_(nodes=tuple(nodes.values()))


def _fusable_producer(
    graph: Graph, node: Node, open_nodes: Mapping[str, Node]
) -> tuple[Node, Epilogue] | None:
    """Returns the node that can apply ``node`` before storing its result, and ``node`` as its
    epilogue; else None.

    ``open_nodes`` has the nodes that may take an epilogue, by result. A producer whose result has
    other readers, or is an output, cannot.
    """
    formula = lookup(node.op).formula
    if formula is None or not formula.fusable or node.epilogues:
        return None
    candidates = node.inputs[: 2 if formula.commutative else 1]
    for position, name in enumerate(candidates):
        producer = open_nodes.get(name)
        if producer is None or not graph.is_read_once(name):
            continue
        operands = node.inputs[:position] + node.inputs[position + 1 :]
        kernel = lookup(producer.op).kernel
        if kernel is None or kernel.epilogues == "none" or name in operands:
            continue
        result, epilogue = graph.facts[node.outputs[0]], Epilogue(node.op, operands, node.attrs)
        kind = kernel.epilogues
        takes_operands = all(takes_operand(graph, result, n, kind) for n in operands)
        has_bindings = has_room(graph, producer, (*producer.epilogues, epilogue))
        if takes_operands and has_bindings and graph.facts[name] == result:
            return producer, epilogue
    return None
