"""A graph under construction, which NNEF text, converters, programs and passes add nodes to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from cml_engine.errors import Source, located
from cml_engine.ir.graph import (
    Array,
    Attrs,
    AttrValue,
    Fact,
    Graph,
    Node,
    fact_from,
    unused_name,
)

#: ``infer(node, facts)`` returns the facts of a node's outputs.
Infer: TypeAlias = Callable[[Node, Mapping[str, Fact]], Sequence[Fact]]


class GraphConstruction:
    """The nodes, facts and constants of a graph while it is built, operator by operator.

    With ``infer`` the facts of each node's results are inferred when it is added. The subclasses
    differ in how tensors get their names: in NNEF text the assignments name them
    (``NodeBuilder``), a converter or a program requests names (``ImportBuilder``), and what
    rewrites a graph derives names from those in it (:class:`GraphRewriter`).
    """

    def __init__(self, infer: Infer | None) -> None:
        self._infer = infer
        self.nodes: list[Node] = []
        self.facts: dict[str, Fact] = {}
        self.constants: dict[str, Array] = {}
        self.sources: dict[str, Source] = {}

    def append(self, node: Node) -> tuple[str, ...]:
        """Adds a node and returns the names of its results."""
        self.nodes.append(node)
        if self._infer is not None:
            with located(node.source):
                facts = self._infer(node, self.facts)
            self.facts.update(zip(node.outputs, facts, strict=True))
        return node.outputs

    def declare(
        self, name: str, fact: Fact, source: Source | None, array: Array | None = None
    ) -> None:
        """Adds an input or variable, or a constant with the values ``array``, which is frozen."""
        if array is not None:
            array.flags.writeable = False
            self.constants[name] = array
        self.facts[name] = fact
        if source is not None:
            self.sources[name] = source


class GraphRewriter(GraphConstruction):
    """A graph that is rewritten: it has the old facts and constants, and no nodes at first."""

    def __init__(self, graph: Graph, infer: Infer | None = None) -> None:
        super().__init__(infer)
        self.graph = graph
        self.facts, self.constants = dict(graph.facts), dict(graph.constants)
        #: the node of :meth:`append` that computes each tensor, by the tensor's name
        self.producers: dict[str, Node] = {}

    def append(self, node: Node) -> tuple[str, ...]:
        self.producers |= dict.fromkeys(node.outputs, node)
        return super().append(node)

    def unused_name(self, name: str) -> str:
        """Returns the name with underscores appended until no tensor has it, and reserves it."""
        name = unused_name(name, self.facts)
        self.facts[name] = Fact("scalar", ())  # until the tensor is added
        return name

    def add(self, like: Node, op: str, inputs: Sequence[str], out: str, **attrs: AttrValue) -> str:
        """Appends a node with one result at the source position of ``like``, and returns ``out``,
        the name of the result."""
        self.append(Node(op, tuple(inputs), (out,), Attrs(attrs), like.source))
        return out

    def constant(self, name: str, value: object, dtype: DTypeLike = np.float32) -> str:
        """Adds a constant, and returns its name: ``name``, or a similar one that is not used."""
        name, array = self.unused_name(name), np.array(value, dtype)
        self.declare(name, fact_from(array), None, array)
        return name

    def finished(self) -> Graph:
        """Returns the graph with the new nodes, facts and constants."""
        return self.graph.with_(nodes=tuple(self.nodes), facts=self.facts, constants=self.constants)
