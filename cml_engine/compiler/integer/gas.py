"""Gas: what a network costs, as a whole number of its graph alone, equal on every machine.

For games that run models of players: a model that costs too much is refused before it runs. A unit
is an operation on a number, or a number that is read or written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil

from cml_engine.compiler.planning.lower import node_cost
from cml_engine.errors import InputError, ModelError
from cml_engine.errors.arguments import GAS
from cml_engine.ir.graph import Graph, Shapes
from cml_engine.ops.declaration.registry import lookup


def gas_by_node(graph: Graph) -> Mapping[str, int]:
    """The gas of each operator of a graph, as its model has them, by title."""
    if graph.ready is not None:
        raise InputError(f"'{graph.name}' is cooked: gas is of the model itself, give that")
    found = {}
    for node in graph.nodes:
        cost = node_cost(lookup(node.op), node, graph)
        found[node.title] = ceil(cost.flops) + ceil(cost.bytes / 4)
    return found


def gas_of(graph: Graph) -> int:
    """The gas of one run."""
    return sum(gas_by_node(graph).values())


def within(limit: int | None, make: Callable[[Shapes], Graph]) -> Callable[[Shapes], Graph]:
    """What makes a graph, but refuses one of more gas than the limit."""
    if limit is None:
        return make
    most = GAS.check(limit, "gas_limit")

    def checked(shapes: Shapes) -> Graph:
        graph = make(shapes)
        costs = gas_by_node(graph)
        total = sum(costs.values())
        if total > most:
            dearest = max(costs, key=lambda title: costs[title])
            raise ModelError(
                f"'{graph.name}' costs {total:,} gas, wanted at most {most:,}; the dearest "
                f"operator is {dearest} with {costs[dearest]:,}. Make it smaller, or its inputs"
            )
        return graph

    return checked
