"""Lowers an integer network to a graph of whole numbers.

An integer network has real numbers, and a line in ``graph.quant`` for each tensor that is
rounded. Every backend runs the lowered graph with bit-identical results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np

from cml_engine.compiler.integer.lowering import elementwise, products
from cml_engine.compiler.integer.lowering.builder import (
    IntegerGraphBuilder,
    NoIntegerForm,
    PendingAddition,
    PendingProduct,
    PendingSum,
    PendingValue,
    QuantizedTensor,
    RoundingPoint,
    Value,
)
from cml_engine.compiler.integer.lowering.elementwise import lower_exact
from cml_engine.compiler.integer.quant_params import (
    QuantParams,
    Range,
    check_scale,
    check_shift,
    read_quant_params,
)
from cml_engine.compiler.passes.infer import infer_facts
from cml_engine.errors import ModelError, RangeError, located
from cml_engine.ir.graph import Attrs, Epilogue, Graph, Node
from cml_engine.ir.integer_rule import (
    INT_BOUND,
    LARGE_TABLE,
    multiplier,
    pair,
    round_half_up,
)
from cml_engine.ops.declaration.registry import formula_of, lookup


def round_value(
    builder: IntegerGraphBuilder, node: Node, name: str, pending: PendingValue, line: QuantParams
) -> QuantizedTensor:
    """Adds the rounding point of tensor ``name`` to the new graph, and returns the words of
    ``pending``.

    ``line`` is the tensor's line in ``graph.quant``. Raises :class:`ModelError` if its bits or
    its scale are invalid.
    """
    with located(line.source):
        check_scale(name, line.scale)
    if line.bits == 32:
        raise line.error("bits 32 are for a bias; wanted 8 or 16")
    low, high = _word_limits(pending, line)
    quantized = QuantizedTensor(
        builder.words_name(name), line.scale, line.bits, line.signed, Range(low, high)
    )
    ends = {"low": float(low), "high": float(high)}
    if line.table:
        bound, carrier = _round_by_table(builder, node, pending, line, quantized), "table"
    elif isinstance(pending, PendingSum):
        bound, carrier = _round_sum(builder, node, pending, quantized, ends), pending.carrier
    elif isinstance(pending, PendingAddition):
        bound, carrier = _round_addition(builder, node, pending, quantized, ends), "int32"
    elif isinstance(pending, PendingProduct):
        bound, carrier = _round_product(builder, node, pending, quantized, ends), "int32"
    else:
        raise ModelError(
            f"{pending.title}: a function of one tensor wants a table, and the line of '{name}' in "
            "graph.quant has none (cml quantize makes one)",
            pending.source,
        )
    builder.add_point(name, pending.title, quantized, carrier, bound)
    return quantized


def _word_limits(pending: PendingValue, line: QuantParams) -> tuple[int, int]:
    """Returns the least and the largest word of a rounding point, within the word type and the
    value's bounds."""
    low, high = line.range.low, line.range.high
    if pending.low is not None:
        low = min(max(low, round_half_up(pending.low / line.scale)), high)
    if pending.high is not None:
        high = max(min(high, round_half_up(pending.high / line.scale)), low)
    return low, high


def _round_sum(
    builder: IntegerGraphBuilder,
    node: Node,
    pending: PendingSum,
    quantized: QuantizedTensor,
    ends: dict[str, float],
) -> int:
    factors = [[scale / quantized.scale for scale in pending.scales]]
    if pending.negative:
        count = max(len(pending.scales), len(pending.negative))
        scales, slopes = (_repeat(v, count) for v in (pending.scales, pending.negative))
        factors = [
            [scale / quantized.scale for scale in scales],
            [s * slope / quantized.scale for s, slope in zip(scales, slopes, strict=True)],
        ]
    codes = [_codes(builder, pending, quantized, ratios) for ratios in factors]
    if pending.made_by is not None:
        op = "requantize" + "_signed" * bool(pending.negative)
        rounding = Epilogue(op, tuple(codes), Attrs(ends))
        maker = replace(pending.made_by, outputs=(quantized.name,), epilogues=(rounding,))
        builder.nodes.append(maker)
        return pending.bound
    is_split = len(pending.names) == 2
    op = "requantize" + "_wide" * is_split + "_signed" * bool(pending.negative)
    split_attrs = {"factor": float(1 << pending.bits)} if is_split else {}
    builder.add(node, op, (*pending.names, *codes), quantized.name, **split_attrs, **ends)
    return pending.bound


def _repeat(values: Sequence[Fraction], count: int) -> list[Fraction]:
    return list(values) * count if len(values) == 1 else list(values)


def _codes(
    builder: IntegerGraphBuilder,
    pending: PendingSum,
    quantized: QuantizedTensor,
    ratios: Sequence[Fraction],
) -> str:
    """Adds the encoded multipliers of ``ratios`` as a constant to the new graph, and returns its
    name.

    The constant has a single value if all are equal, else one per index of the sum's axis.
    Raises :class:`RangeError` if a sum does not fit after the multiplier's left shift.
    """
    with _range_errors_of(pending):
        multipliers = [multiplier(ratio) for ratio in ratios]
    before = max(m.before for m in multipliers)
    check_shift(pending.title, pending.bound, before, quantized.range, pending.source)
    codes = np.array([m.code for m in multipliers], np.float32)
    if len(set(multipliers)) == 1:
        return builder.constant(f"{quantized.name}.multiplier", codes[0])
    leading = (1,) * pending.axis
    return builder.constant(f"{quantized.name}.multipliers", codes.reshape(*leading, -1))


@contextmanager
def _range_errors_of(pending: PendingValue) -> Iterator[None]:
    """Adds the value's title and place in the model to a :class:`RangeError` of the block."""
    try:
        yield
    except RangeError as error:
        raise RangeError(f"{pending.title}: {error.message}", pending.source) from None


def _round_addition(
    builder: IntegerGraphBuilder,
    node: Node,
    pending: PendingAddition,
    quantized: QuantizedTensor,
    ends: dict[str, float],
) -> int:
    a, b = pending.a, pending.b
    ratios = a.scale / quantized.scale, pending.sign * b.scale / quantized.scale
    with _range_errors_of(pending):
        multipliers = pair(*ratios, (a.range.magnitude, b.range.magnitude))
    numbers = [
        builder.constant(f"{quantized.name}.{role}", value)
        for role, value in (
            ("first", multipliers.first),
            ("second", multipliers.second),
            ("shift", multipliers.shift),
        )
    ]
    builder.add(node, "requantize_pair", (a.name, b.name, *numbers), quantized.name, **ends)
    largest = (
        abs(multipliers.first) * a.range.magnitude + abs(multipliers.second) * b.range.magnitude
    )
    return largest + (1 << (multipliers.shift - 1))


def _round_product(
    builder: IntegerGraphBuilder,
    node: Node,
    pending: PendingProduct,
    quantized: QuantizedTensor,
    ends: dict[str, float],
) -> int:
    a, b = pending.a, pending.b
    bound = a.range.magnitude * b.range.magnitude
    if bound >= INT_BOUND:
        raise RangeError(
            f"{pending.title}: products of words up to {a.range.magnitude} and {b.range.magnitude} "
            "do not fit into 32 bits: quantize one of them as signed, or with 8 bits",
            pending.source,
        )
    with _range_errors_of(pending):
        factor = multiplier(a.scale * b.scale / quantized.scale)
    check_shift(pending.title, bound, factor.before, quantized.range, pending.source)
    code = builder.constant(f"{quantized.name}.multiplier", factor.code)
    builder.add(node, "requantize_product", (a.name, b.name, code), quantized.name, **ends)
    return bound


def _round_by_table(
    builder: IntegerGraphBuilder,
    node: Node,
    pending: PendingValue,
    line: QuantParams,
    quantized: QuantizedTensor,
) -> int:
    base = pending.base
    if base is None:
        raise ModelError(
            f"{pending.title}: the line of '{line.name}' in graph.quant has a table, which is for "
            "a function of one tensor",
            pending.source,
        )
    table_bits = 16 if len(line.table) == LARGE_TABLE else 8
    if base.bits != table_bits:
        raise ModelError(
            f"{pending.title}: the table of '{line.name}' has {len(line.table)} entries, for words "
            f"of {table_bits} bits; those of '{base.name}' have {base.bits}",
            pending.source,
        )
    last = base.first + (1 << base.bits) - 1
    if not base.first <= base.range.low <= base.range.high <= last:
        raise ModelError(
            f"{pending.title}: '{base.name}' has words of {base.range.low} to {base.range.high}, "
            f"the table of '{line.name}' is for {base.first} to {last}: give '{base.name}' a line",
            pending.source,
        )
    if not all(line.range.low <= entry <= line.range.high for entry in line.table):
        raise line.error(
            f"its table has {min(line.table)} to {max(line.table)}; wanted words of "
            f"{line.range.low} to {line.range.high}"
        )
    table = builder.constant(f"{quantized.name}.table", line.table)
    builder.add(node, "integer_table", (base.name, table), quantized.name, first=base.first)
    return max(map(abs, line.table))


# -- float tail -----------------------------------------------------------------------------------
# The float tail: the operators without an integer form at the end of a network, and their readers.
#
# Results of the tail may differ between machines.


@dataclass
class FloatTail:
    """The operators at the end of a network that are computed in floats.

    ``floats`` has the names of their results. ``first`` is the title of the first operator,
    empty if there is none. :meth:`add` appends their nodes to ``builder``.
    """

    builder: IntegerGraphBuilder
    floats: set[str] = field(default_factory=set)
    first: str = ""
    _numbers: dict[str, str] = field(default_factory=dict)

    def reaches(self, node: Node) -> bool:
        """Returns True if the node reads a tensor that is computed in floats."""
        return not self.floats.isdisjoint(node.inputs)

    def add(self, node: Node) -> None:
        """Appends the node to the new graph as part of the float tail; its operands become real
        numbers.

        Raises :class:`ModelError` if one of its results has a line in ``graph.quant``.
        """
        self.first = self.first or node.title
        for name in node.outputs:
            if name in self.builder.quant_params:
                raise ModelError(
                    f"{node.title} is computed in floats, and graph.quant has a line for '{name}': "
                    "what is behind the float tail is not rounded, take the line out",
                    node.source,
                )
        inputs = tuple(self._read(node, name) for name in node.inputs)
        self.builder.nodes.append(replace(node, inputs=inputs))
        self.floats.update(node.outputs)

    def _read(self, node: Node, name: str) -> str:
        """Returns the name of the tensor that holds the real numbers of ``name``.

        Words get a node that converts them, added once. An integer constant gets a new constant
        of real numbers. Any other tensor is returned as it is.
        """
        builder = self.builder
        if name in builder.values:
            if name not in self._numbers:
                quantized = builder.words(node, name)
                numbers = builder.unused_name(f"{name}.numbers")
                scale = float(quantized.scale)
                builder.add(node, "integer_numbers", (quantized.name,), numbers, scale=scale)
                self._numbers[name] = numbers
            return self._numbers[name]
        array = builder.graph.constants.get(name)
        if array is not None and name in builder.quant_params and array.dtype.kind in "iu":
            values = np.array([float(v) for v in builder.exact_values(name)]).reshape(array.shape)
            return builder.constant(f"{name}.numbers", values)
        return name


# -- lower network --------------------------------------------------------------------------------

Handler = Callable[[IntegerGraphBuilder, Node], list[Value]]

_HANDLERS: Mapping[str, Handler] = {
    "conv": products.conv,
    "deconv": products.deconv,
    "linear": products.linear,
    "matmul": products.matmul,
    "sum_reduce": products.reduce_sum,
    "mean_reduce": products.reduce_sum,
    "box": products.box,
    "avg_pool": products.box,
    "area_downsample": products.area_downsample,
    "multilinear_upsample": products.multilinear_upsample,
    "relu": elementwise.relu,
    "clamp": elementwise.lower_clamp,
    "leaky_relu": elementwise.leaky_relu,
    "prelu": elementwise.prelu,
    "add": elementwise.add,
    "sub": elementwise.sub,
    "mul": elementwise.mul,
    "div": elementwise.div,
    "neg": elementwise.neg,
    "abs": elementwise.absolute,
    "pad": elementwise.pad,
    "resize": elementwise.resize,
    **dict.fromkeys(elementwise.MOVES, elementwise.move),
    "reshape": elementwise.reshape,
}
#: operators that may follow a sum before it is rounded
_TAKES_PENDING = frozenset("relu clamp leaky_relu prelu".split())
#: operators that have an integer form
INTEGER_OPERATORS = frozenset(_HANDLERS)


@dataclass(frozen=True, slots=True)
class LoweredNetwork:
    """The graph of whole numbers that an integer network was lowered to, and its rounding points
    in execution order."""

    graph: Graph
    points: tuple[RoundingPoint, ...]
    #: tensors of the float tail, and the title of its first operator
    floats: frozenset[str] = frozenset()
    first_float: str = ""
    #: the result ranges that a game's operators declare
    declared_ranges: Mapping[str, Range] = field(default_factory=dict)

    @property
    def not_identical(self) -> tuple[str, ...]:
        """The names of the outputs that may differ between machines because they are computed in
        floats."""
        return tuple(name for name in self.graph.outputs if name in self.floats)


def lower_to_integers(graph: Graph) -> LoweredNetwork:
    """Returns an integer network lowered to engine operators on whole numbers, and proves that
    every sum fits.

    Raises :class:`RangeError` if a sum does not fit. Raises :class:`ModelError` if an operator
    has no integer form, a tensor lacks its line in ``graph.quant``, or the graph updates a
    variable.
    """
    if graph.updates:
        raise ModelError(
            f"'{graph.name}' updates the variable '{graph.updates[0][0]}', which integer networks "
            "cannot: keep it outside, as an input and an output"
        )
    graph = infer_facts(graph)
    builder = IntegerGraphBuilder(graph, read_quant_params(graph))
    for name in graph.inputs:
        if graph.facts[name].dtype == "scalar":
            builder.values[name] = builder.add_input(name)
    tail = FloatTail(builder)
    for node in graph.nodes:
        if tail.reaches(node):
            tail.add(node)
            continue
        try:
            values = _lower_node(builder, node)
        except NoIntegerForm:
            if not graph.float_tail:
                raise
            tail.add(node)
            continue
        for name, value in zip(node.outputs, values, strict=True):
            builder.values[name] = _round_if_point(builder, node, name, value)
    for name in dict.fromkeys(graph.persistent):
        if name in tail.floats:
            continue
        if name not in builder.values:
            raise ModelError(f"'{name}' is read after a run, and is no tensor of words")
        builder.add_output(name)
    _check_custom_operators(builder, tail)
    return LoweredNetwork(
        infer_facts(builder.build()),
        tuple(builder.points),
        frozenset(tail.floats),
        tail.first,
        builder.declared_ranges,
    )


def _check_custom_operators(builder: IntegerGraphBuilder, tail: FloatTail) -> None:
    """Raises :class:`NoIntegerForm` if a game's operator outside the float tail is not exact."""
    for node in builder.nodes:
        spec = lookup(node.op)
        if spec.is_custom and not spec.exact and tail.floats.isdisjoint(node.outputs):
            raise _not_exact_error(node)


def _not_exact_error(node: Node) -> NoIntegerForm:
    return NoIntegerForm(
        f"{node.title} has no integer form: it is a game's own operator, and does not say that of "
        "whole numbers it computes whole numbers. Register it with exact=True if it does "
        "(cml docs custom_operators), leave it outside of the network, or let the network end in "
        "floats (cml quantize --float-tail)",
        node.source,
    )


def _lower_node(builder: IntegerGraphBuilder, node: Node) -> list[Value]:
    spec = lookup(node.op)
    if spec.exact:
        return lower_exact(builder, node, spec)
    line = builder.quant_params.get(node.outputs[0])
    if line is not None and line.table and formula_of(node.op) is not None:
        function = elementwise.lower_function(builder, node)
        if function is not None:
            return [function]
    handler = None if spec.is_custom else _HANDLERS.get(node.op)
    is_elementwise = formula_of(node.op) is not None
    pending = any(isinstance(builder.values.get(name), PendingValue) for name in node.inputs)
    as_function = is_elementwise and (
        handler is None or (pending and node.op not in _TAKES_PENDING)
    )
    if as_function and (function := elementwise.lower_function(builder, node)) is not None:
        return [function]
    if handler is None:
        for name in node.inputs:  # an operand that is not rounded is reported first
            builder.words(node, name)
        if spec.is_custom:
            raise _not_exact_error(node)
        raise NoIntegerForm(
            f"{node.title} has no integer form: it is a function of more than one tensor or of "
            "more than one place. Leave it outside of the network, write it with operators "
            "that quantize (cml docs your_model), or let the network end in floats (--float-tail)",
            node.source,
        )
    return handler(builder, node)


def _round_if_point(builder: IntegerGraphBuilder, node: Node, name: str, value: Value) -> Value:
    """Returns the value that readers of tensor ``name`` use.

    It is ``value`` rounded to words if the tensor has a line in ``graph.quant`` that differs
    from it, else ``value`` itself.
    """
    line = builder.quant_params.get(name)
    if line is None:
        return value
    if not isinstance(value, PendingValue):
        value_range, line_range = value.range, line.range
        if (
            value.scale == line.scale
            and line_range.low <= value_range.low
            and value_range.high <= line_range.high
        ):
            return value
        value = builder.scale_words(node, value)
    return round_value(builder, node, name, value, line)
