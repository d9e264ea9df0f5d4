"""Builds the integer network (integer weights, lines of ``graph.quant`` and lookup tables) for
given scales."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cml_engine.compiler.integer.quant_params import nest_scales, quant_attrs, word_range
from cml_engine.compiler.integer.quantizer.lookup_tables import table_words, tabulate
from cml_engine.compiler.integer.quantizer.placement import Placement
from cml_engine.compiler.integer.quantizer.ranges import QuantScale
from cml_engine.compiler.integer.quantizer.weights import quantize_bias, quantize_weights
from cml_engine.errors import ModelError
from cml_engine.ir.graph import Array, Attrs, AttrValue, Fact, Graph, Node, unused_name
from cml_engine.ir.integer_rule import RULE_VERSION
from cml_engine.ops.conv.shapes import deconv_shape


@dataclass
class QuantizedGraphBuilder:
    """Builds the integer network of ``graph`` from the placement of its rounding points and their
    scales.

    ``nodes``, ``constants`` and ``lines`` (of ``graph.quant``) are those of the integer network
    so far.
    """

    graph: Graph
    placement: Placement
    #: the scale of each group of tensors, by the group's root
    scales: Mapping[str, QuantScale]
    #: the bits of each node's weights, by the node's first result
    weight_bits: Mapping[str, int]
    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    lines: dict[str, Attrs] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    def scale(self, name: str) -> QuantScale:
        return self.scales[self.placement.root(name)]

    def build(self) -> Graph:
        graph = self.graph
        self.constants = dict(graph.constants)
        floats = [node for node in graph.nodes if node.outputs[0] in self.placement.floats]
        self.used.update(name for node in floats for name in node.inputs)
        for node in graph.nodes:
            self.nodes.append(node if node in floats else self._quantize_weights(node))
        for name, role in self.placement.points.items():
            table = self._table(name) if role == "function" else {}
            of = self.scale(name)
            self.lines[name] = quant_attrs(of.scale, of.bits, of.signed, **table)
        read = {name for node in self.nodes for name in node.inputs}
        kept = {n: a for n, a in self.constants.items() if n in read}
        facts = {n: f for n, f in graph.facts.items() if n not in graph.constants or n in kept}
        facts |= {n: Fact("scalar", kept[n].shape) for n in self.lines if n in kept}
        labels = {n: graph.labels.get(n, n) for n in self.lines if n in kept}
        return graph.with_(
            nodes=tuple(self.nodes),
            constants=kept,
            facts=facts,
            labels={**{n: v for n, v in graph.labels.items() if n in kept}, **labels},
            quantization=self.lines,
            integer=RULE_VERSION,
            float_tail=bool(floats),
        )

    def _table(self, name: str) -> dict[str, AttrValue]:
        base = self.placement.bases[name]
        of, to = self.scale(base), self.scale(name)
        numbers = table_words(of.bits, of.signed) * of.scale
        return {"table": tabulate(self.graph, base, name, numbers, to)}

    # -- weights --------------------------------------------------------------------------------

    def _quantize_weights(self, node: Node) -> Node:
        if node.op in ("conv", "linear"):
            return self._quantize_product(node, lambda w: w, lambda w: w, 0)
        if node.op == "deconv":
            facts = [self.graph.facts[n] for n in node.inputs]
            shape = deconv_shape(node.attrs, *facts)
            if shape.groups == 1:
                return self._quantize_product(node, _swap_axes, _swap_axes, 1)
            return self._quantize_product(node, lambda w: w[None], lambda w: w[0], None)
        if node.op == "matmul" and node.inputs[1] in self.graph.constants:
            axis = -2 if node.attrs["transposeB"] else -1
            return self._quantize_product(
                node, lambda w: np.moveaxis(w, axis, 0), lambda w: np.moveaxis(w, 0, axis), axis
            )
        return node

    def _quantize_product(self, node: Node, rows: Any, back: Any, axis: int | None) -> Node:
        """Returns the node with integer weights and an integer bias, and adds these with their
        lines.

        The weights have one scale for each index of ``axis``, or one scale if ``axis`` is None.
        ``rows`` permutes the weights so that output channels come first; ``back`` is the
        inverse.
        """
        weights = self._weight_constant(node, node.inputs[1])
        bias = self._weight_constant(node, node.inputs[2]) if len(node.inputs) > 2 else np.zeros(1)
        given = self.scale(node.inputs[0])
        words = word_range(given.bits, given.signed)
        lying = rows(weights)
        flat = bias.reshape(-1)
        per_row = flat if axis is not None else np.abs(flat).max(keepdims=True)
        per_row = np.broadcast_to(per_row, (len(lying),))
        bits = self.weight_bits.get(node.outputs[0], 8)
        whole, scales = quantize_weights(lying, per_row, words, given.scale, bits)
        filter_ = self._add_constant(node.inputs[1], back(whole))
        self.lines[filter_] = quant_attrs(
            scales[0] if axis is None else nest_scales(scales, axis, weights.ndim), bits
        )
        inputs = [node.inputs[0], filter_, *node.inputs[2:]]
        if bias.any():
            if axis is None:
                scales = scales * self.graph.facts[node.outputs[0]].shape[1]
            integers, products = quantize_bias(bias, given.scale, scales)
            inputs[2] = self._add_constant(node.inputs[2], integers)
            self.lines[inputs[2]] = quant_attrs([products], 32)
        return replace(node, inputs=tuple(inputs))

    def _weight_constant(self, node: Node, name: str) -> Array:
        found = self.graph.constants.get(name)
        if found is None:
            raise ModelError(
                f"{node.title}: its weights '{name}' are computed; an integer network's are known",
                node.source,
            )
        if not np.isfinite(found).all():
            raise ModelError(f"{node.title}: its weights '{name}' are not finite", node.source)
        return found

    def _add_constant(self, name: str, value: Array) -> str:
        """Stores a constant under ``name``, and returns the name that it got.

        It gets another, unused name if ``name`` is taken or is no identifier.
        """
        if not (name[0].isalpha() or name[0] == "_") or name in self.used:
            base = name if name[0].isalpha() or name[0] == "_" else "bias"
            name = unused_name(f"{base}_", self.constants, self.graph.facts)
        self.used.add(name)
        self.constants[name] = value
        return name


def _swap_axes(weights: Array) -> Array:
    return weights.swapaxes(0, 1)
