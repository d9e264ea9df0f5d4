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
from cml_engine.ir.construction import GraphRewriter
from cml_engine.ir.graph import Fact, Graph, Node
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
    return eliminate_dead_code(sinker.finished())


class _TransposeSinker(GraphRewriter):
    """Moves transposes behind operators in one pass over the nodes, in execution order.

    ``visit`` takes a node of the old graph.
    """

    def visit(self, node: Node) -> None:
        order = self._common_order(node)
        if order is None:
            self.append(node)
            return
        result = node.outputs[0]
        untransposed = self.unused_name(f"{result}.before")
        inputs = tuple(self._source(name, order) for name in node.inputs)
        move_attrs = lookup(node.op).traits.before_transpose
        attrs = move_attrs(node.attrs, order) if move_attrs else node.attrs
        self.facts[untransposed] = _fact_before(self.facts[result], order)
        self.append(replace(node, inputs=inputs, outputs=(untransposed,), attrs=attrs))
        self.add(node, "transpose", (untransposed,), result, axes=list(order))

    def _common_order(self, node: Node) -> Order | None:
        """Returns the permutation of the transposes that compute all feature maps of the node.

        Returns None if they differ, or if the node cannot be moved before its transposes.
        """
        if len(node.outputs) != 1 or node.epilogues:
            return None
        spec = lookup(node.op)
        if spec.formula is None and spec.traits.before_transpose is None:
            return None
        orders = {self._order_of(n) for n in node.inputs if not self.graph.is_constant(n)}
        order = orders.pop() if len(orders) == 1 else None
        return order if order is not None and self._fits(node, order) else None

    def _order_of(self, name: str) -> Order | None:
        """Returns the full permutation if ``name`` is the result of a transpose that only one
        node reads, else None."""
        node = self.producers.get(name)
        if node is None or node.op != "transpose" or node.epilogues:
            return None
        if not self.graph.is_read_once(name):
            return None
        return tuple(full_order(node, self.facts[name].rank))

    def _fits(self, node: Node, order: Order) -> bool:
        """Returns True if the node can be computed before transposes of this order.

        All feature maps must have the order's rank. An elementwise result must have the shape of
        its first feature map; an operator that is not elementwise must not read constants.
        """
        result = self.facts[node.outputs[0]]
        maps = [self.facts[n] for n in node.inputs if not self.graph.is_constant(n)]
        constants = [self.facts[n] for n in node.inputs if self.graph.is_constant(n)]
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
        if not self.graph.is_constant(name):
            return self.producers[name].inputs[0]
        value = self.graph.constants[name]
        if value.size == 1:
            return name
        expanded = value.reshape(*value.shape, *[1] * (len(order) - value.ndim))
        permuted = np.ascontiguousarray(expanded.transpose(np.argsort(order)))
        return self.constant(f"{name}.before", permuted, value.dtype)


def _fact_before(fact: Fact, order: Order) -> Fact:
    shape = [0] * fact.rank
    for axis, source in enumerate(order):
        shape[source] = fact.shape[axis]
    return Fact(fact.dtype, tuple(shape))
