"""Converts a quantized model's graph, with its rounding points marked, to an integer network.

Zero points are folded: a stored integer is ONNX's integer minus its zero point. If the
difference does not fit into 8 bits, 16 bits are stored and clamped to the range of ONNX's
integers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np

from cml_engine.compiler.integer.lowering.lower_network import lower_to_integers
from cml_engine.compiler.integer.quant_params import (
    assemble_integer_graph,
    nest_scales,
    quant_attrs,
)
from cml_engine.compiler.integer.quantizer.placement import Placement, ValueKind, kind_of
from cml_engine.compiler.integer.quantizer.scales import (
    QuantScale,
    nodes_between,
    round_digits,
    table_words,
    tabulate,
)
from cml_engine.errors import ModelError
from cml_engine.formats.builder import rename_tensors
from cml_engine.formats.onnx.qdq_reader import (
    WORDS,
    NotIntegerError,
    QuantizedConstant,
    QuantizedType,
)
from cml_engine.ir.construction import GraphRewriter
from cml_engine.ir.graph import Array, Attrs, Graph, Node, unused_name
from cml_engine.ir.integer_rule import INT_BOUND, round_half_up
from cml_engine.nnef.expansion.nodes import literal_name
from cml_engine.ops.declaration.registry import formula_of, lookup

#: the relative difference of scales that count as equal: the file's have 24 bits
_NEAR = 1e-5


@dataclass
class WordConstants:
    """The constants of a graph that become integers: collects values and lines of ``graph.quant``.

    ``stored`` has the integers of the file. ``values`` and ``lines`` are filled by the methods.
    """

    graph: Graph
    stored: Mapping[str, QuantizedConstant]
    values: dict[str, Array] = field(default_factory=dict)
    lines: dict[str, Attrs] = field(default_factory=dict)

    def weights(self, node: Node, axis: int) -> list[float]:
        """Records a node's weights as integers and returns their scales: one, or one per output.

        Raises :class:`NotIntegerError` if the file has no integers for them.
        """
        name = node.inputs[1]
        constant = self._find(name)
        if constant is None:
            raise NotIntegerError(
                f"{node.title}: its weights '{name}' are numbers: no DequantizeLinear gives them, "
                "or blocks of them have scales of their own",
                node.source,
            )
        integers = self._scale_integers(name, constant, axis)
        if integers is None:
            raise NotIntegerError(
                f"{node.title}: its weights '{name}' are changed before they are used, or have "
                f"{len(constant.scales)} scales that are not those of its outputs",
                node.source,
            )
        scales = [round_digits(scale) for scale in constant.scales]
        self._keep(name, integers, nest_scales(scales, axis, integers.ndim))
        return scales

    def bias(self, node: Node, input_scale: float, scales: Sequence[float], channels: int) -> str:
        """Records a node's bias as 32-bit integers and returns its name.

        The scale of the integers is that of the node's sums: ``input_scale`` times the weights'
        ``scales``.
        """
        name = node.inputs[2]
        numbers = self.graph.constants.get(name)
        if numbers is None:
            raise NotIntegerError(f"{node.title}: its bias '{name}' is computed", node.source)
        if not numbers.any():
            return name
        sum_scales = [Fraction(repr(input_scale)) * Fraction(repr(scale)) for scale in scales]
        sum_scales = sum_scales * (channels // len(sum_scales))
        constant = self._find(name)
        if constant is None or constant.whole.size not in (1, channels):
            constant = QuantizedConstant(numbers.astype(np.float64), (1.0,))
        steps = np.broadcast_to(np.array(constant.scales), channels)
        stored = np.broadcast_to(constant.whole.reshape(-1), channels)
        integers = [
            _in_steps(value, float(step), sum_scale)
            for value, step, sum_scale in zip(stored, steps, sum_scales, strict=True)
        ]
        if max(map(abs, integers)) >= INT_BOUND:
            raise NotIntegerError(f"{node.title}: its bias does not fit into 32 bits", node.source)
        bias_name = unused_name(f"{node.outputs[0]}_bias", self.graph.facts, self.values)
        self.values[bias_name] = np.array(integers, np.int32).reshape(1, -1)
        self.lines[bias_name] = quant_attrs([[float(sum_scale) for sum_scale in sum_scales]], 32)
        return bias_name

    def operand(self, name: str) -> None:
        """Records a constant operand as integers, if the file has them with one scale."""
        constant = self._find(name)
        if constant is not None and len(constant.scales) == 1 and name not in self.values:
            integers = self._scale_integers(name, constant, 0)
            if integers is not None:
                self._keep(name, integers, round_digits(constant.scales[0]))

    def _find(self, name: str) -> QuantizedConstant | None:
        """Returns the integers that the file has for a constant, or None.

        The constant's name may have a number appended that made it unique.
        """
        return self.stored.get(name) or self.stored.get(re.sub(r"_\d+$", "", name))

    def _scale_integers(self, name: str, constant: QuantizedConstant, axis: int) -> Array | None:
        """Returns a constant divided by its scales, as integers of at most 16 bits.

        Returns None if its values are not such multiples of the scales. ``axis`` has a scale per
        element.
        """
        numbers = self.graph.constants[name].astype(np.float64)
        shape = [1] * numbers.ndim
        if len(constant.scales) > 1:
            if not numbers.ndim or numbers.shape[axis] != len(constant.scales):
                return None
            shape[axis] = -1
        steps = np.array(constant.scales).reshape(shape)
        integers = np.rint(numbers / steps)
        if not np.allclose(integers * steps, numbers, rtol=_NEAR, atol=0):
            return None
        return integers if np.abs(integers).max(initial=0) <= 32767 else None

    def _keep(self, name: str, integers: Array, scale: object) -> None:
        is_small = np.abs(integers).max(initial=0) <= 127
        self.values[name] = integers.astype(np.int8 if is_small else np.int16)
        self.lines[name] = quant_attrs(scale, 8 if is_small else 16)


def _in_steps(value: float, step: float, sum_scale: Fraction) -> int:
    """Returns a bias value, ``value`` in steps of ``step``, as an integer in the scale of its sums.

    If the scales are equal, the stored integer stays.
    """
    if abs(step / float(sum_scale) - 1) < _NEAR:
        return int(value)
    return round_half_up(Fraction(float(value)) * Fraction(step) / sum_scale)


#: the channel axis of weights, by operator
_AXES = {"conv": 0, "linear": 0, "deconv": 1}
_JOINS = frozenset("concat stack min max".split())


def build_integer_graph(graph: Graph, stored: Mapping[str, QuantizedConstant]) -> Graph:
    """Returns the integer network of a quantized model.

    ``graph`` is the imported graph in floats, and ``stored`` has the file's integers of its
    constants. Raises :class:`ModelError` that names the node without an integer form and the
    reason.
    """
    graph = _round_before_views(graph)
    conversion = _IntegerGraphImport(graph, WordConstants(graph, stored))
    for node in graph.nodes:
        conversion.convert(rename_tensors(node, conversion.names))
    integer_graph = conversion.build()
    points = lower_to_integers(integer_graph).points  # raises if a sum could overflow
    note = (
        f"integer    {len(points)} rounding points, by the model's own scales (cml docs your_model)"
    )
    return integer_graph.with_(notes=(*integer_graph.notes, note))


def _round_before_views(graph: Graph) -> Graph:
    """Returns the graph with each result rounded before it is reshaped, and not after."""
    consumers, facts = graph.consumers, dict(graph.facts)
    nodes = {node.outputs[0]: node for node in graph.nodes}
    for point in graph.nodes:
        while WORDS in point.attrs:
            (name,) = point.inputs
            view = nodes.get(name)
            if view is None or not lookup(view.op).alias:
                break
            if any(len(consumers[n]) > 1 or n in graph.outputs for n in (name, view.inputs[0])):
                break
            nodes[point.outputs[0]] = replace(view, inputs=point.inputs, outputs=point.outputs)
            point = nodes[name] = replace(point, inputs=view.inputs, outputs=(name,))
            facts[name] = facts[view.inputs[0]]
    return graph.with_(nodes=tuple(nodes.values()), facts=facts)


@dataclass
class _IntegerGraphImport(GraphRewriter):
    graph: Graph
    integers: WordConstants
    placement: Placement = field(default_factory=Placement)
    lines: dict[str, Attrs] = field(default_factory=dict)
    #: the scale and range of each tensor of integers
    words: dict[str, QuantizedType] = field(default_factory=dict)
    #: the name of the rounded tensor, by the name of the sums
    names: dict[str, str] = field(default_factory=dict)
    #: by tensor: the copy that was stored in 8 bits, starting at 0, and shifted back
    shifted: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__(self.graph)

    def convert(self, node: Node) -> None:
        """Converts one node and appends it to the integer network.

        Nodes come in execution order.
        """
        if WORDS in node.attrs:
            self._point(node, node.attrs[WORDS])
            return
        kind = self._kind(node)
        if node.op in _AXES:
            node = self._quantize_weights(node, _AXES[node.op])
        elif node.op == "matmul" and node.inputs[1] in self.graph.constants:
            node = self._quantize_weights(node, -2 if node.attrs["transposeB"] else -1)
        elif not kind.pending:
            node = self._join(node)
        for name in node.inputs:
            if name in self.graph.constants and name not in self.integers.values:
                self.integers.operand(name)
        self.nodes.append(node)
        for name in node.outputs:
            self.placement.kinds[name] = kind if kind.pending else ValueKind("words", name)
            if not kind.pending:
                self.words[name] = next(self.words[n] for n in node.inputs if n in self.words)

    # -- operators --------------------------------------------------------------------------------

    def _kind(self, node: Node) -> ValueKind:
        kinds = self.placement.kinds
        for name in node.inputs:
            if name in self.graph.inputs and name not in kinds:
                raise self._unrounded_error(node, name)
        pending = [n for n in node.inputs if n in kinds and kinds[n].pending]
        if pending and formula_of(node.op) is None:
            raise self._unrounded_error(node, pending[0])
        try:
            return kind_of(self.graph, node, self.placement)
        except ModelError:
            if pending:
                raise self._unrounded_error(node, pending[0]) from None
            raise NotIntegerError(f"{node.title} has no integer form", node.source) from None

    def _unrounded_error(self, node: Node, name: str) -> NotIntegerError:
        return NotIntegerError(
            f"{node.title} reads '{name}', which no QuantizeLinear rounds: quantize that too",
            node.source,
        )

    def _quantize_weights(self, node: Node, axis: int) -> Node:
        """Returns the node with integer weights and an integer bias.

        ``axis`` is the axis of the weights whose extent is the number of outputs.
        """
        input_scale = self.words[node.inputs[0]].scale
        scales = self.integers.weights(node, axis)
        if len(node.inputs) < 3:
            return node
        channels = self.graph.facts[node.inputs[1]].shape[axis]
        if node.op == "deconv":
            channels *= int(node.attrs["groups"] or 1)
        bias = self.integers.bias(node, input_scale, scales, channels)
        return replace(node, inputs=(*node.inputs[:2], bias))

    def _join(self, node: Node) -> Node:
        """Returns the node with all operands at one scale, that of the rounding of its result.

        Operands of other scales are requantized first. Raises :class:`NotIntegerError` if the
        scale of the result is not known.
        """
        scales = {self.words[n].scale for n in node.inputs if n in self.words}
        if len(scales) < 2:
            return node
        readers = self.graph.consumers.get(node.outputs[0], [])
        result_types = {reader.attrs.get(WORDS) for reader in readers}
        result_type = result_types.pop() if len(result_types) == 1 else None
        if node.op not in _JOINS or result_type is None:
            raise NotIntegerError(
                f"{node.title} joins tensors of the scales {sorted(scales)}, and no QuantizeLinear "
                "behind it says which one they get",
                node.source,
            )
        inputs = []
        for name in node.inputs:
            if name in self.words and self.words[name] != result_type:
                inputs.append(self._unique_name(f"{name}_again", name))
                self._round_words(node, name, inputs[-1], result_type)
            else:
                inputs.append(name)
        return replace(node, inputs=tuple(inputs))

    # -- rounding points --------------------------------------------------------------------------

    def _point(self, node: Node, target: QuantizedType) -> None:
        (name,), (out,) = node.inputs, node.outputs
        if name in self.graph.inputs and name not in self.words:
            self._refuse_early_reads(node, name, target)
            self.lines[name] = _line(target)
            self._record_words(name, target)
        kind = self.placement.kinds.get(name)
        if kind is None:
            raise NotIntegerError(f"{node.title}: '{name}' is no tensor of numbers", node.source)
        if kind.pending:
            self._refuse_early_reads(node, name, target)
            self._round_sums(node, kind, name, out, target)
        else:
            self._round_words(node, name, out, target)

    def _refuse_early_reads(self, node: Node, name: str, target: QuantizedType) -> None:
        """Raises :class:`NotIntegerError` if a tensor is read before its rounding to ``target``."""
        readers = self.graph.consumers.get(name, [])
        early_readers = [r for r in readers if r.attrs.get(WORDS) != target]
        if early_readers or name in self.graph.outputs:
            reader = early_readers[0] if early_readers else node
            reader_text = reader.title if early_readers else "the graph's output"
            raise NotIntegerError(
                f"{reader_text} reads '{name}' before it is rounded, or by another scale",
                reader.source,
            )

    def _round_words(self, node: Node, name: str, out: str, target: QuantizedType) -> None:
        """Adds the node ``out`` that requantizes a tensor of integers to ``target``.

        The scale may stay the same.
        """
        is_changed = self.words[name] != target or name in self.graph.inputs
        if is_changed:
            self.lines[out] = _line(target)
        if is_changed and target.is_cut:
            wide_name = self._unique_name(f"{out}_wide", name)
            self.lines[wide_name] = _line(target)
            self.add(node, "copy", (name,), wide_name)
            self._clamp(wide_name, out, target, node)
        else:
            self.add(node, "copy", (name,), out)
        self._record_words(out, target)

    def _round_sums(
        self, node: Node, kind: ValueKind, name: str, out: str, target: QuantizedType
    ) -> None:
        """Makes ``out`` the tensor ``name``, sums that are not rounded yet, rounded to ``target``.

        A function of rounded integers gets a table of its values.
        """
        table = {}
        if kind.role == "function" and kind.base is not None:
            table = {"table": self._table(kind.base, name, target)}
        if target.is_cut and not table:
            self._clamp(name, out, target, node)
        else:
            self.nodes = [rename_tensors(node_before, {name: out}) for node_before in self.nodes]
            self.names[name] = out
        self.lines[out] = _line(target, **table)
        self._record_words(out, target)

    def _table(self, base: str, name: str, target: QuantizedType) -> list[int]:
        base_type = self.words[base]
        graph_so_far = self.graph.with_(nodes=tuple(self.nodes))
        inner_outputs = {n.outputs[0] for n in nodes_between(graph_so_far, base, name)}
        if base_type.bits == 16 and base_type.high - base_type.low < 256:
            numbers = (np.arange(256) + base_type.low) * base_type.scale
            shifted_back = self._from_zero(base, base_type, inner_outputs)
            self.nodes = [
                rename_tensors(n, {base: shifted_back}) if n.outputs[0] in inner_outputs else n
                for n in self.nodes
            ]
        else:
            numbers = table_words(base_type.bits, base_type.signed) * base_type.scale
        target_scale = QuantScale(target.scale, target.bits, target.signed)
        entries = tabulate(graph_so_far, base, name, numbers, target_scale)
        return [max(target.low, min(target.high, entry)) for entry in entries]

    def _from_zero(self, base: str, base_type: QuantizedType, readers: set[str]) -> str:
        """Adds nodes that store a 16-bit tensor in 8 bits, so that it can index a table.

        The first node subtracts the lowest of at most 256 possible values, the second adds it
        again. Returns the name of the second node's result, which has the original values.
        """
        if base not in self.shifted:
            index = next(i for i, n in enumerate(self.nodes) if n.outputs[0] in readers)
            moved, back = (
                self._unique_name(f"{base}_{suffix}", base) for suffix in ("moved", "back")
            )
            start = self._literal(-base_type.low * base_type.scale)
            self.nodes[index:index] = [
                Node("add", (base, start), (moved,), source=self.nodes[index].source),
                Node("sub", (moved, start), (back,), source=self.nodes[index].source),
            ]
            self.lines[moved] = quant_attrs(base_type.scale, 8, False)
            self.shifted[base] = back
        return self.shifted[base]

    # -- parts ------------------------------------------------------------------------------------

    def _record_words(self, name: str, quantized: QuantizedType) -> None:
        self.words[name] = quantized
        self.placement.kinds[name] = ValueKind("words", name)

    def _clamp(self, name: str, out: str, quantized: QuantizedType, node: Node) -> None:
        bounds = [
            self._literal(bound * quantized.scale) for bound in (quantized.low, quantized.high)
        ]
        self.add(node, "clamp", (name, *bounds), out)

    def _unique_name(self, name: str, template: str) -> str:
        name = self.unused_name(name)
        self.facts[name] = self.facts[template]
        return name

    def _literal(self, value: float) -> str:
        number = np.array(value, np.float32)
        name = literal_name(number)
        self.constants[name] = number
        return name

    def build(self) -> Graph:
        arrays = {**self.constants, **self.integers.values}
        lines = {**self.lines, **self.integers.lines}
        return assemble_integer_graph(self.graph, self.nodes, arrays, lines, facts=self.facts)


def _line(quantized: QuantizedType, **more: Any) -> Attrs:
    return quant_attrs(quantized.scale, quantized.bits, quantized.signed, **more)
