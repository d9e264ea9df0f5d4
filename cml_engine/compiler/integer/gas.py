"""Gas: the cost of a network as a whole number, computed from its graph alone and equal everywhere.

A game that runs models of its players refuses a model that costs too much before running it. One
unit is one operation on a number, or one number read or written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil

from cml_engine.compiler.planning.dispatches import node_cost
from cml_engine.errors import InputError, ModelError
from cml_engine.errors.arguments import GAS
from cml_engine.ir.graph import Graph, Shapes
from cml_engine.ops.declaration.registry import lookup


def gas_by_node(graph: Graph) -> Mapping[str, int]:
    """Returns the gas of each operator of a graph by the operator's title, in execution order.

    Gas is the number of operations plus the number of 32-bit words read and written. Raises
    :class:`InputError` if the graph is cooked.
    """
    if graph.ready is not None:
        raise InputError(f"'{graph.name}' is cooked: gas is of the model itself, give that")
    found = {}
    for node in graph.nodes:
        cost = node_cost(lookup(node.op), node, graph)
        found[node.title] = ceil(cost.flops) + ceil(cost.bytes / 4)
    return found


def gas_of(graph: Graph) -> int:
    """Returns the gas of one run of a graph; raises :class:`InputError` if the graph is cooked."""
    return sum(gas_by_node(graph).values())


def limit_gas(limit: int | None, make: Callable[[Shapes], Graph]) -> Callable[[Shapes], Graph]:
    """Returns a function like ``make``, which builds a graph from input shapes, that raises
    :class:`ModelError` for graphs that cost more than ``limit`` gas.

    Returns ``make`` itself if ``limit`` is None.
    """
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
