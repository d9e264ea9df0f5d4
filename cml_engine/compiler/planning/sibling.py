"""A network at other shapes of its inputs: what a plan of it takes over from the first one."""

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
    """The first plan of a network, and the optimized graph that it was made of. Where a node may
    have its kernel, a plan at other shapes takes that, and so the weights as they are packed for
    it: these lie on the device already."""

    graph: Graph
    plan: Plan

    @cached_property
    def _chosen(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for choice in self.plan.choices:
            found.setdefault(choice.node, []).append(choice.chosen)
        return found

    def chosen(self, node: Node) -> list[str]:
        """Which kernels the node has, in the order in which it chose them."""
        return list(self._chosen.get(node.title, ()))

    def packed(self, node: Node, graph: Graph) -> Mapping[str, Array]:
        """What was packed, by key, if the node reads the very constants that it read."""
        read = [name for name in node.reads if name in graph.constants]
        same = all(graph.constants[n] is self.graph.constants.get(n) for n in read)
        return self._packed if same else _NOTHING

    @cached_property
    def _packed(self) -> dict[str, Array]:
        return {name: array for name, (_, array) in self.plan.weights.items()}

    def has(self, name: str, array: Array) -> bool:
        """Whether the value is on the device under that name."""
        found = self.plan.weights.get(name)
        return found is not None and is_same(array, found[1])


def share_constants(graph: Graph, first: Graph) -> Graph:
    """The graph with the arrays of ``first`` where a constant of its name is equal."""
    constants = {
        name: first.constants[name] if is_same(array, first.constants.get(name)) else array
        for name, array in graph.constants.items()
    }
    return graph.with_(constants=constants)


def is_same(a: Array, b: Array | None) -> bool:
    """Whether two arrays have the same type, shape and bits."""
    if a is b:
        return True
    if b is None or (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    one, other = (np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (a, b))
    return bool(np.array_equal(one, other))
