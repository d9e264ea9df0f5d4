"""Lowers an integer network to a graph of whole numbers.

An integer network has real numbers, and a line in ``graph.quant`` for each tensor that is
rounded. Every backend runs the lowered graph with bit-identical results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cml_engine.compiler.integer.lowering import data_movement, elementwise, products
from cml_engine.compiler.integer.lowering.custom_operators import lower_exact
from cml_engine.compiler.integer.lowering.float_tail import FloatTail
from cml_engine.compiler.integer.lowering.integer_builder import IntegerGraphBuilder
from cml_engine.compiler.integer.lowering.pending_values import PendingValue, RoundingPoint, Value
from cml_engine.compiler.integer.lowering.rounding import pending_of_words, round_value
from cml_engine.compiler.integer.quant_params import QuantParams, read_quant_params
from cml_engine.compiler.integer.sum_bounds import Range
from cml_engine.compiler.passes.infer import infer_facts
from cml_engine.errors import ModelError
from cml_engine.ir.graph import Graph, Node
from cml_engine.ops.declaration.registry import formula_of, lookup

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
    "clamp": elementwise.clamp,
    "leaky_relu": elementwise.leaky_relu,
    "prelu": elementwise.prelu,
    "add": elementwise.add,
    "sub": elementwise.sub,
    "mul": elementwise.mul,
    "div": elementwise.div,
    "neg": elementwise.neg,
    "abs": elementwise.absolute,
    "pad": data_movement.pad,
    "resize": data_movement.resize,
    **dict.fromkeys(data_movement.MOVES, data_movement.move),
    "reshape": data_movement.reshape,
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


class NoIntegerForm(ModelError):
    """The error for an operator that cannot be lowered to whole numbers; the float tail may
    compute it."""


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
    for name in dict.fromkeys(graph.lasting):
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
        found = elementwise.lower_function(builder, node)
        if found is not None:
            return [found]
    handler = None if spec.is_custom else _HANDLERS.get(node.op)
    elementwise_ = formula_of(node.op) is not None
    pending = any(isinstance(builder.values.get(name), PendingValue) for name in node.inputs)
    as_function = elementwise_ and (handler is None or (pending and node.op not in _TAKES_PENDING))
    if as_function and (found := elementwise.lower_function(builder, node)) is not None:
        return [found]
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
        if _is_same(value.scale, value.range.low, value.range.high, line):
            return value
        value = pending_of_words(builder, node, value)
    return round_value(builder, node, name, value, line)


def _is_same(scale: object, low: int, high: int, line: QuantParams) -> bool:
    return scale == line.scale and line.range.low <= low and high <= line.range.high
