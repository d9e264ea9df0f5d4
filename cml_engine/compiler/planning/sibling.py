"""Lets a network's plans at other shapes reuse the kernels and packed weights of its first plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np

from cml_engine.compiler.plan import Plan
from cml_engine.ir.graph import Array, Graph, Node

_NOTHING: Mapping[str, Array] = MappingProxyType({})


@dataclass(frozen=True)
class Sibling:
    """The first plan of a network, and the optimized graph that it was made from.

    A plan of the network at other shapes uses the same kernel for a node if that is valid. It
    can then share the packed weights, which are on the device already.
    """

    graph: Graph
    plan: Plan

    @cached_property
    def _chosen(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for choice in self.plan.choices:
            found.setdefault(choice.node, []).append(choice.chosen)
        return found

    def chosen(self, node: Node) -> list[str]:
        """Returns the names of the kernels that the first plan chose for the node, in the order
        of the choices."""
        return list(self._chosen.get(node.title, ()))

    def packed(self, node: Node, graph: Graph) -> Mapping[str, Array]:
        """Returns the first plan's packed weights by name.

        The mapping is empty if a constant that the node reads in ``graph`` is not the same array
        in the first graph.
        """
        read = [name for name in node.reads if name in graph.constants]
        same = all(graph.constants[n] is self.graph.constants.get(n) for n in read)
        return self._packed if same else _NOTHING

    @cached_property
    def _packed(self) -> dict[str, Array]:
        return {name: array for name, (_, array) in self.plan.weights.items()}

    def has(self, name: str, array: Array) -> bool:
        """Returns True if the first plan has an equal array under this name in its weights,
        which are on the device."""
        found = self.plan.weights.get(name)
        return found is not None and is_same(array, found[1])


def share_constants(graph: Graph, first: Graph) -> Graph:
    """Returns the graph with constants replaced by the equal arrays of the same name in
    ``first``."""
    constants = {
        name: first.constants[name] if is_same(array, first.constants.get(name)) else array
        for name, array in graph.constants.items()
    }
    return graph.with_(constants=constants)


def is_same(a: Array, b: Array | None) -> bool:
    """Returns True if two arrays have the same type, shape and bits."""
    if a is b:
        return True
    if b is None or (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    one, other = (np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (a, b))
    return bool(np.array_equal(one, other))
