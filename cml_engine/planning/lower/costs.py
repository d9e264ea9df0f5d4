"""The costs of operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from types import MappingProxyType
from typing import Any

from cml_engine.graph import Fact, Graph, Node
from cml_engine.layout import PLAIN, block_words
from cml_engine.ops.declaration.checks import fault
from cml_engine.ops.declaration.registry import lookup
from cml_engine.ops.declaration.spec import Cost, OpSpec
from cml_engine.planning.choose_storage import rounded_weights


def node_cost(
    spec: OpSpec, node: Node, graph: Graph, layouts: Mapping[str, str] = MappingProxyType({})
) -> Cost:
    """The operator's cost with its epilogues': their FLOPs, and the operands they read. What is
    stored in fewer bits is fewer bytes."""
    facts = graph.facts
    outputs = [facts[n] for n in node.outputs]
    cost = _own_cost(spec, node, [facts[n] for n in node.inputs], outputs)
    for epilogue in node.epilogues:
        others = [facts[n] for n in epilogue.inputs]
        flops = lookup(epilogue.op).cost(epilogue.attrs, [*outputs, *others], outputs).flops
        cost = cost + Cost(flops, sum(f.nbytes for f in others), 0)
    shares = {n: block_words(layouts.get(n, PLAIN)) / 4 for n in (*node.reads, *node.outputs)}
    shares |= dict.fromkeys(rounded_weights(node, graph, layouts), 0.5)
    read, written = (_stored_share(names, graph, shares) for names in (node.reads, node.outputs))
    return Cost(cost.flops, cost.read * read, cost.written * written)


def _stored_share(names: Sequence[str], graph: Graph, shares: Mapping[str, float]) -> float:
    """Returns the tensors' bytes in memory over their bytes in 32 bits."""
    full = sum(graph.facts[n].nbytes for n in names)
    stored = sum(graph.facts[n].nbytes * shares[n] for n in names)
    return stored / full if full else 1.0


def _own_cost(spec: OpSpec, node: Node, inputs: list[Fact], outputs: list[Fact]) -> Cost:
    try:
        cost: Any = spec.cost(node.attrs, inputs, outputs)
    except Exception as error:
        if not spec.from_game:
            raise
        said = f"its cost function failed: {type(error).__name__}: {error}"
        raise fault(spec, said, node.source) from error
    if not isinstance(cost, Cost) or not all(0 <= n < inf for n in (cost.flops, cost.bytes)):
        raise fault(spec, f"its cost function gave {cost!r}; wanted a cml.Cost", node.source)
    return cost
