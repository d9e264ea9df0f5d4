"""Moves transposes behind operators that ignore the order of axes, until two meet and cancel.

Exporters of channels-last frameworks wrap every convolution in a pair of transposes, with
activations, sums and pads between the pairs. Behind those operators the end of one pair meets the
beginning of the next. The activation then follows its convolution, which takes it as an epilogue.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cml_engine.compiler.passes.bypass import full_order
from cml_engine.compiler.passes.cleanup import eliminate_dead_code
from cml_engine.ir.graph import Attrs, Fact, Graph, Node, unused_name
from cml_engine.ops.declaration.registry import is_builtin, lookup
from cml_engine.ops.declaration.spec import Order


def sink_transposes(graph: Graph) -> Graph:
    """Returns the graph with transposes moved behind the operators that allow it.

    The operators are elementwise ones, concat, pads, slices and reductions. All feature maps
    that an operator reads must come from transposes with one order and no other readers.
    """
    if not is_builtin("transpose"):
        return graph
    sinker = _TransposeSinker(graph)
    for node in graph.nodes:
        sinker.visit(node)
    return sinker.result()


class _TransposeSinker:
    """Moves transposes behind operators in one pass over the nodes, in execution order.

    ``visit`` takes a node of the old graph; ``result`` returns the new graph.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._facts = dict(graph.facts)
        self._constants = dict(graph.constants)
        self._readers = graph.consumers()
        self._roots = set(graph.roots)
        self._nodes: dict[str, Node] = {}  # by first output

    def visit(self, node: Node) -> None:
        order = self._common_order(node)
        if order is None:
            self._nodes[node.outputs[0]] = node
            return
        result = node.outputs[0]
        untransposed = unused_name(f"{result}.before", self._facts)
        inputs = tuple(self._source(name, order) for name in node.inputs)
        transpose = Node(
            "transpose",
            (untransposed,),
            (result,),
            Attrs({"axes": list(order)}),
            source=node.source,
        )
        move_attrs = lookup(node.op).traits.before_transpose
        attrs = move_attrs(node.attrs, order) if move_attrs else node.attrs
        self._facts[untransposed] = _fact_before(self._facts[result], order)
        self._nodes[untransposed] = replace(
            node, inputs=inputs, outputs=(untransposed,), attrs=attrs
        )
        self._nodes[result] = transpose

    def result(self) -> Graph:
        return eliminate_dead_code(
            self._graph.with_(
                nodes=tuple(self._nodes.values()), facts=self._facts, constants=self._constants
            )
        )

    def _common_order(self, node: Node) -> Order | None:
        """Returns the permutation of the transposes that compute all feature maps of the node.

        Returns None if they differ, or if the node cannot be moved before its transposes.
        """
        if len(node.outputs) != 1 or node.epilogues:
            return None
        spec = lookup(node.op)
        if spec.formula is None and spec.traits.before_transpose is None:
            return None
        orders = {self._order_of(n) for n in node.inputs if not self._graph.is_constant(n)}
        order = orders.pop() if len(orders) == 1 else None
        return order if order is not None and self._fits(node, order) else None

    def _order_of(self, name: str) -> Order | None:
        """Returns the full permutation if ``name`` is the result of a transpose that only one
        node reads, else None."""
        node = self._nodes.get(name)
        if node is None or node.op != "transpose" or node.epilogues or name in self._roots:
            return None
        if len(self._readers.get(name, ())) != 1:
            return None
        return tuple(full_order(node, self._facts[name].rank))

    def _fits(self, node: Node, order: Order) -> bool:
        """Returns True if the node can be computed before transposes of this order.

        All feature maps must have the order's rank. An elementwise result must have the shape of
        its first feature map; an operator that is not elementwise must not read constants.
        """
        result = self._facts[node.outputs[0]]
        maps = [self._facts[n] for n in node.inputs if not self._graph.is_constant(n)]
        constants = [self._facts[n] for n in node.inputs if self._graph.is_constant(n)]
        if result.rank != len(order) or any(fact.rank != len(order) for fact in maps):
            return False
        if lookup(node.op).formula is None:
            return not constants
        return result.shape == maps[0].shape and all(f.rank <= len(order) for f in constants)

    def _source(self, name: str, order: Order) -> str:
        """Returns the name of the tensor to read before the transpose in place of operand ``name``.

        It is the operand of the transpose. For a constant it is a new constant with its axes
        permuted back, or the constant itself if it has one value.
        """
        if not self._graph.is_constant(name):
            return self._nodes[name].inputs[0]
        value = self._graph.constants[name]
        if value.size == 1:
            return name
        permuted = unused_name(f"{name}.before", self._facts)
        expanded = value.reshape(*value.shape, *[1] * (len(order) - value.ndim))
        self._constants[permuted] = np.ascontiguousarray(expanded.transpose(np.argsort(order)))
        self._facts[permuted] = Fact(self._facts[name].dtype, self._constants[permuted].shape)
        return permuted


def _fact_before(fact: Fact, order: Order) -> Fact:
    shape = [0] * fact.rank
    for axis, source in enumerate(order):
        shape[source] = fact.shape[axis]
    return Fact(fact.dtype, tuple(shape))
