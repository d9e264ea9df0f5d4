"""Moves what is computed from a single value to the kernels that apply it, instead of launches.

A quotient by ``4 s`` behind weights becomes one by 4, which goes into them, and one by ``s``. A
quotient by ``s`` before convolutions becomes an epilogue of each. A convolution of one value is
a product.
"""

from __future__ import annotations

from dataclasses import replace
from math import frexp, prod

import numpy as np

from cml_engine.compiler.passes.cleanup import eliminate_dead_code
from cml_engine.compiler.passes.infer import infer_node
from cml_engine.ir.construction import GraphRewriter
from cml_engine.ir.graph import Attrs, Graph, Node
from cml_engine.ops.conv.shapes import conv_shape
from cml_engine.ops.declaration.registry import is_builtin, lookup

_FACTORS = ("mul", "div")


def move_single_factors(graph: Graph) -> Graph:
    """Returns the graph with products and quotients by single values where kernels apply them."""
    if not is_builtin("conv", "add", *_FACTORS):
        return graph
    mover = _Mover(graph)
    for node in graph.nodes:
        mover.visit(node)
    return eliminate_dead_code(mover.finished()) if mover.has_changed else graph


class _Mover(GraphRewriter):
    """Rewrites a graph node by node, in execution order."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph, infer_node)
        self.has_changed = False

    def visit(self, node: Node) -> None:
        changed = self._split(node) if node.op in _FACTORS else None
        if node.op == "conv" and not node.epilogues:
            changed = self._product(node) or self._behind(node)
        self.has_changed |= changed is not None
        for step in changed or [node]:
            self.append(step)

    def _split(self, node: Node) -> list[Node] | None:
        """Returns two nodes for ``x * (k * s)`` or ``x / (k * s)``, for k and for s, or None.

        x is the result of an operator with weights, which can take in the constant k. k is a
        power of two, so no bit changes.
        """
        x, factor = node.inputs
        inner, producer = self.graph.producers.get(factor), self.graph.producers.get(x)
        if node.epilogues or inner is None or inner.op != "mul" or inner.epilogues:
            return None
        has_weights = producer is not None and lookup(producer.op).traits.scaled_weights is not None
        if not has_weights or not self.graph.is_read_once(x):
            return None
        is_read_once = self.graph.is_read_once(factor)
        single = self.facts[factor].size == 1 and self.facts[x].size > 1
        for value, other in (inner.inputs, inner.inputs[::-1]):
            constant = self.graph.constant(other)
            if constant is not None and self._is_computed(value) and is_read_once and single:
                if constant.size != 1 or abs(frexp(float(constant.reshape(())))[0]) != 0.5:
                    return None
                scaled = self.unused_name(f"{node.outputs[0]}.scaled")
                return [
                    replace(node, inputs=(x, other), outputs=(scaled,)),
                    replace(node, inputs=(scaled, value)),
                ]
        return None

    def _is_computed(self, name: str) -> bool:
        return name not in self.graph.constants

    def _behind(self, node: Node) -> list[Node] | None:
        """Returns a convolution of a product or quotient by a single value as one before it, if
        nothing but such convolutions read that."""
        if not self._is_linear(node):
            return None
        inner = self.graph.producers.get(node.inputs[0])
        if inner is None or inner.op not in _FACTORS or inner.epilogues:
            return None
        (name,), (x, factor) = inner.outputs, inner.inputs
        is_single = self._is_computed(factor) and self.facts[factor].size == 1
        if (
            not is_single
            or self.facts[factor].rank > self.facts[x].rank
            or name in self.graph.roots
        ):
            return None
        are_linear = all(
            reader.op == "conv" and self._is_linear(reader) and reader.reads.count(name) == 1
            for reader in self.graph.consumers[name]
        )
        if not are_linear or self.facts[x] != self.facts[name] or not self._is_computed(x):
            return None
        plain = self.unused_name(f"{node.outputs[0]}.unscaled")
        return [
            replace(node, inputs=(x, *node.inputs[1:]), outputs=(plain,)),
            replace(inner, inputs=(plain, factor), outputs=node.outputs),
        ]

    def _is_linear(self, node: Node) -> bool:
        """Returns True for a convolution by a constant filter, with zeros around and no bias."""
        bias = self.graph.constant(node.inputs[2])
        has_zeros = bias is not None and not np.any(bias) and node.attrs["border"] == "constant"
        return has_zeros and self.graph.is_constant(node.inputs[1]) and not node.epilogues

    def _product(self, node: Node) -> list[Node] | None:
        """Returns a convolution of one value as its product with the filter, and the bias."""
        x, weights, offset = node.inputs
        filter_value, bias = self.graph.constant(weights), self.graph.constant(offset)
        result = self.graph.facts[node.outputs[0]]
        if filter_value is None or bias is None or not self._is_computed(x):
            return None
        if self.facts[x].size != 1 or prod(filter_value.shape[1:]) != 1:
            return None
        shape = conv_shape(node.attrs, *(self.facts[n] for n in node.inputs))
        if any(axis.before or axis.after for axis in shape.axes):
            return None
        channels = (1, result.shape[1], *[1] * (result.rank - 2))
        column = self.constant(f"{node.outputs[0]}.column", filter_value.reshape(channels))
        product = self.unused_name(f"{node.outputs[0]}.product")
        values = np.broadcast_to(bias.reshape(-1), (result.shape[1],)).reshape(channels)
        moved = self.constant(f"{node.outputs[0]}.offset", np.array(values))
        return [
            replace(node, op="mul", inputs=(x, column), outputs=(product,), attrs=Attrs()),
            replace(node, op="add", inputs=(product, moved), attrs=Attrs()),
        ]
