"""Let a producer apply the elementwise operators that follow it, before it stores its result.

Saves a kernel, and a write and a read of the whole tensor, for each. What may be fused is data:
the producer's kernel lists the operators it can apply, :data:`RULES` says on which operands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from cml_engine.graph import Attrs, Epilogue, Fact, Graph, Node
from cml_engine.ops.declaration.epilogue import MAX_STEPS, MAX_TENSORS, WITH_TENSOR, is_by_position
from cml_engine.ops.declaration.spec import is_own, lookup

#: ``rule(graph, result fact, other operands, whether the kernel takes values per channel) ->
#: may it be fused``
Rule = Callable[[Graph, Fact, tuple[str, ...], bool], bool]


def _always(graph: Graph, result: Fact, others: tuple[str, ...], channels: bool) -> bool:
    return True


def per_channel(graph: Graph, result: Fact, name: str) -> bool:
    """One value for all or one per channel: ``[]``, ``[1,C]``, ``[1,C,1…]``."""
    shape = graph.facts[name].shape
    wide = len(shape) >= 2 and shape[1] == result.shape[1]
    ones = all(extent == 1 for axis, extent in enumerate(shape) if axis != 1 or not wide)
    return ones and len(shape) <= result.rank


def _slopes(graph: Graph, result: Fact, others: tuple[str, ...], channels: bool) -> bool:
    return all(graph.is_constant(n) and per_channel(graph, result, n) for n in others)


def _single_constants(graph: Graph, result: Fact, others: tuple[str, ...], channels: bool) -> bool:
    return all(graph.is_constant(n) and graph.facts[n].size == 1 for n in others)


def one_operand(graph: Graph, result: Fact, others: tuple[str, ...], channels: bool) -> bool:
    """One value for all, one per channel, one per position of a single picture, or a computed
    tensor of the result's shape."""
    (name,) = others
    fact = graph.facts[name]
    if fact == result and name not in graph.constants:
        return True
    if not channels:
        return fact.size == 1 and per_channel(graph, result, name)
    return per_channel(graph, result, name) or is_by_position(fact, result)


RULES: Mapping[str, Rule] = {
    "relu": _always,
    "leaky_relu": _always,
    "sigmoid": _always,
    "tanh": _always,
    "silu": _always,
    "prelu": _slopes,
    "clamp": _single_constants,
    "add": one_operand,
    "mul": one_operand,
    "sub": one_operand,
    "div": one_operand,
}
#: operators whose operands may stand in either order
_COMMUTATIVE = frozenset({"add", "mul"})


def fuse_epilogues(graph: Graph) -> Graph:
    """The graph with every fusable elementwise node folded into its producer."""
    consumers = graph.consumers()
    roots = set(graph.roots)
    made: dict[str, Node] = {}  # by output: nodes that may still take an epilogue
    nodes: dict[str, Node] = {}  # in order, by first output
    for node in graph.nodes:
        producer = _fusable_producer(graph, node, made, consumers, roots)
        if producer is None:
            fused = node
        else:
            main, other = producer
            del nodes[main.outputs[0]]
            epilogue = Epilogue(node.op, other, Attrs(node.attrs))
            fused = replace(main, outputs=node.outputs, epilogues=(*main.epilogues, epilogue))
        nodes[fused.outputs[0]] = fused
        if len(fused.outputs) == 1:
            made[fused.outputs[0]] = fused
    return graph.with_(nodes=tuple(nodes.values()))


def has_room(producer: Node, operators: Sequence[str]) -> bool:
    """Whether the node can have these as epilogues too."""
    steps = [*(e.op for e in producer.epilogues), *operators]
    return len(steps) <= MAX_STEPS and sum(op in WITH_TENSOR for op in steps) <= MAX_TENSORS


def _fusable_producer(
    graph: Graph,
    node: Node,
    made: Mapping[str, Node],
    consumers: Mapping[str, list[Node]],
    roots: set[str],
) -> tuple[Node, tuple[str, ...]] | None:
    """The node that can apply ``node``, and the operands other than its own result."""
    rule = RULES.get(node.op)
    if rule is None or node.epilogues or not is_own(node.op):
        return None
    candidates = node.inputs if node.op in _COMMUTATIVE else node.inputs[:1]
    for position, name in enumerate(candidates):
        producer = made.get(name)
        if producer is None or name in roots or len(consumers[name]) != 1:
            continue
        others = node.inputs[:position] + node.inputs[position + 1 :]
        kernel = lookup(producer.op).kernel
        if kernel is None or node.op not in kernel.epilogues or name in others:
            continue
        result = graph.facts[node.outputs[0]]
        fits = has_room(producer, (node.op,)) and graph.facts[name] == result
        # a kernel that takes slopes knows channels
        if fits and rule(graph, result, others, "prelu" in kernel.epilogues):
            return producer, others
    return None
