"""Fuses elementwise operators that read each other's results into one kernel.

Each fused operator saves a dispatch, and a write and a read of the whole tensor. The kernel
consists of the operators' own expressions (``ops/elementwise/elementwise.py``), in their order and
with their roundings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cml_engine.ir.graph import Attrs, Epilogue, Graph, Node
from cml_engine.ops.declaration.registry import formula_of, lookup
from cml_engine.ops.elementwise.kernels.elementwise import MAX_OPERANDS

#: the most operators in one kernel; a GELU written out is nine. The kernel repeats them sixteen
#: times, so each adds up to 60 ms to its compilation
MAX_CHAIN = 12


@dataclass(frozen=True, slots=True)
class _ChainLink:
    """A node that one of its readers may still absorb.

    ``index`` is its position in execution order. ``names`` are the results of all graph nodes
    that it computes.
    """

    node: Node
    index: int
    names: frozenset[str]


def fuse_elementwise(graph: Graph) -> Graph:
    """Returns the graph with elementwise nodes fused into the last elementwise node that reads
    their results.

    A node is fused if all its readers are in the same kernel and all results have the same fact,
    or a single value, which every thread then computes. Chains are fused, and trees whose branches
    meet.
    """
    readers = {name: {n.outputs[0] for n in nodes} for name, nodes in graph.consumers.items()}
    absorbable: dict[str, _ChainLink] = {}  # keyed by output
    nodes: dict[str, Node] = {}  # in execution order, keyed by first output
    for index, node in enumerate(graph.nodes):
        fused = node
        if _can_chain(node):
            parts = _parts(
                graph, _ChainLink(node, index, frozenset(node.outputs)), absorbable, readers
            )
            fused = _join([part.node for part in parts])
            for part in parts[:-1]:
                del nodes[part.node.outputs[0]], absorbable[part.node.outputs[0]]
            names = frozenset().union(*(part.names for part in parts))
            if fused.outputs[0] not in graph.roots:
                absorbable[fused.outputs[0]] = _ChainLink(fused, index, names)
        nodes[fused.outputs[0]] = fused
    return graph.with_(nodes=tuple(nodes.values()))


def _can_chain(node: Node) -> bool:
    """Returns True if the kernel of elementwise chains can compute the node.

    A node that an operator's own kernel computes cannot pass its first result to other steps.
    """
    return (
        bool(formula_of(node.op))
        and not node.epilogues
        and not lookup(node.op).traits.quantizes_input
    )


def _parts(
    graph: Graph,
    last: _ChainLink,
    absorbable: Mapping[str, _ChainLink],
    readers: Mapping[str, set[str]],
) -> list[_ChainLink]:
    """Returns ``last`` and the nodes before it that one kernel can compute with it, in execution
    order.

    ``absorbable`` has the nodes that may be absorbed, by result; ``readers`` has the results of the
    nodes that read each tensor.
    """
    parts = {last.node.outputs[0]: last}
    result = graph.facts[last.node.outputs[0]]

    def is_alike(name: str) -> bool:
        fact = graph.facts[name]
        is_single = fact.size == 1 and fact.rank <= result.rank and fact.dtype == result.dtype
        return fact == result or is_single

    refused: set[str] = set()
    while True:
        names = frozenset().union(*(part.names for part in parts.values()))
        candidates = {n for part in parts.values() for n in part.node.reads if n in absorbable}
        # the last ones first, because their producers can join only when all readers are in
        for name in sorted(candidates - parts.keys() - refused, key=lambda n: -absorbable[n].index):
            joined_parts = [*parts.values(), absorbable[name]]
            if is_alike(name) and readers[name] <= names and _fit(joined_parts):
                parts[name] = absorbable[name]
                break
            if not is_alike(name) or not _fit(joined_parts):
                refused.add(name)
        else:
            return sorted(parts.values(), key=lambda part: part.index)


def _fit(parts: Sequence[_ChainLink]) -> bool:
    """Returns True if one kernel can hold these nodes and bind the tensors that they read."""
    results = {part.node.outputs[0] for part in parts}
    operands = {name for part in parts for name in part.node.reads} - results
    length = sum(1 + len(part.node.epilogues) for part in parts)
    return length <= MAX_CHAIN and len(operands) <= MAX_OPERANDS


def _join(parts: Sequence[Node]) -> Node:
    """Returns one node that computes all parts: the first one, with the others as its epilogues.

    Its result is the result of the last part.
    """
    first, *followers = parts
    epilogues = list(first.epilogues)
    # the number of the step that computes each result
    step_numbers = {first.outputs[0]: len(epilogues)}
    for node in followers:
        begin = len(epilogues) + 1
        epilogues.append(_epilogue(node.op, node.attrs, node.inputs, step_numbers, begin))
        for step in node.epilogues:
            earlier_steps: list[str | int] = list(range(begin, len(epilogues) + 1))
            operands = step.operands(step.inputs, earlier_steps)
            epilogues.append(
                _epilogue(step.op, step.attrs, operands, step_numbers, len(epilogues) + 1)
            )
        step_numbers[node.outputs[0]] = len(epilogues)
    return replace(first, outputs=parts[-1].outputs, epilogues=tuple(epilogues))


def _epilogue(
    op: str,
    attrs: Attrs,
    operands: Sequence[str | int],
    step_numbers: Mapping[str, int],
    number: int,
) -> Epilogue:
    """Returns step ``number`` of a fused node as an epilogue that computes ``op`` of ``operands``.

    An operand that is computed inside the kernel becomes the number of its step; ``step_numbers``
    has these numbers by tensor.
    """
    links = [step_numbers.get(o, o) if isinstance(o, str) else o for o in operands]
    computed = [(i, link) for i, link in enumerate(links) if isinstance(link, int)]
    position = next((i for i, link in computed if link == number - 1), None)
    return Epilogue(
        op,
        tuple(link for link in links if isinstance(link, str)),
        Attrs(attrs),
        position,
        tuple((i, link) for i, link in computed if i != position),
    )
