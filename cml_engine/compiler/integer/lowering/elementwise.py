"""Lowers elementwise operators.

Activations join a rounding point, sums and products read two tensors, constants become scales, and
every other operator becomes a function of one tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from cml_engine.compiler.integer.lowering.integer_builder import IntegerGraphBuilder, exact_fraction
from cml_engine.compiler.integer.lowering.pending_values import (
    PendingAddition,
    PendingFunction,
    PendingProduct,
    PendingSum,
    PendingValue,
    QuantizedTensor,
    Value,
)
from cml_engine.compiler.integer.sum_bounds import Range
from cml_engine.errors import ModelError
from cml_engine.ir.graph import Node
from cml_engine.ir.integer_rule import round_half_up


def lower_function(builder: IntegerGraphBuilder, node: Node) -> PendingFunction | None:
    """Returns an elementwise node as a pending function of one tensor of words, to be tabulated.

    Returns None if the node's computed operands are not all functions of the same tensor.
    """
    bases: list[QuantizedTensor | None] = []
    for name in node.inputs:
        if not builder.is_constant(name):
            found = builder.value(node, name)
            bases.append(found if isinstance(found, QuantizedTensor) else found.base)
    base = bases[0] if bases else None
    if base is None or any(other != base for other in bases):
        return None
    return PendingFunction(title=node.title, source=node.source, base=base)


# -- activations --------------------------------------------------------------------------------


def relu(builder: IntegerGraphBuilder, node: Node) -> list[Value]:
    found = builder.value(node, node.inputs[0])
    if isinstance(found, PendingValue):
        return [_clamp_value(node, found, Fraction(0), None)]
    range_ = Range(max(found.range.low, 0), max(found.range.high, 0))
    name = builder.add(node, "relu", (found.name,), builder.result_name(node))
    return [replace(found, name=name, range=range_)]


def clamp(builder: IntegerGraphBuilder, node: Node) -> list[Value]:
    found = builder.value(node, node.inputs[0])
    low, high = (_number(builder, node, name) for name in node.inputs[1:3])
    if isinstance(found, PendingValue):
        return [_clamp_value(node, found, low, high)]
    ends = [round_half_up(bound / found.scale) for bound in (low, high)]
    ends = [max(found.range.low, min(found.range.high, end)) for end in ends]
    bounds = [builder.constant(f"{node.outputs[0]}.bound", end) for end in ends]
    name = builder.add(node, "clamp", (found.name, *bounds), builder.result_name(node))
    return [replace(found, name=name, range=Range(ends[0], max(ends)))]


def _clamp_value(
    node: Node, found: PendingValue, low: Fraction | None, high: Fraction | None
) -> PendingValue:
    return replace(found.with_bounds(low, high), title=f"{found.title}, {node.op}")


def leaky_relu(builder: IntegerGraphBuilder, node: Node) -> list[Value]:
    return [_by_sign(builder, node, (exact_fraction(node.attrs["alpha"]),))]


def prelu(builder: IntegerGraphBuilder, node: Node) -> list[Value]:
    return [_by_sign(builder, node, _per_channel(builder, node, node.inputs[1]))]


def _by_sign(
    builder: IntegerGraphBuilder, node: Node, slopes: tuple[Fraction, ...]
) -> PendingValue:
    found = builder.value(node, node.inputs[0])
    if isinstance(found, QuantizedTensor):
        found = builder.scale_words(node, found, (Fraction(1),))
    if (
        not isinstance(found, PendingSum)
        or found.negative
        or (found.low, found.high) != (None, None)
    ):
        raise ModelError(
            f"{node.title}: {found.title} before it is no plain sum: give '{node.inputs[0]}' a "
            "line in graph.quant",
            node.source,
        )
    if len(slopes) > 1 and found.axis != 1:
        raise ModelError(f"{node.title}: slopes are for axis 1, the sums' channels are not")
    base = found.base if len(slopes) == 1 else None
    return replace(found, negative=slopes, base=base, title=f"{found.title}, {node.op}")


def _number(builder: IntegerGraphBuilder, node: Node, name: str) -> Fraction:
    if not builder.is_constant(name) or builder.graph.facts[name].size != 1:
        raise ModelError(f"{node.title}: '{name}' is no number that is known", node.source)
    return builder.exact_values(name)[0]


def _per_channel(builder: IntegerGraphBuilder, node: Node, name: str) -> tuple[Fraction, ...]:
    """Returns the exact values of the constant ``name``: one number, or one for each channel.

    Raises :class:`ModelError` if the tensor is computed or has another shape.
    """
    result = builder.graph.facts[node.outputs[0]]
    fact = builder.graph.facts[name]
    channels = result.shape[1] if result.rank > 1 else 1
    by_channel = fact.rank > 1 and fact.shape[1] == channels == fact.size
    if not builder.is_constant(name) or not (fact.size == 1 or by_channel):
        raise ModelError(
            f"{node.title}: '{name}' is {fact}; wanted a constant, one number or one for each of "
            f"{channels} channels",
            node.source,
        )
    return tuple(builder.exact_values(name))


# -- two tensors ----------------------------------------------------------------------------------


def add(builder: IntegerGraphBuilder, node: Node) -> list[Value]:
    return [_add_or_subtract(builder, node, 1)]


def sub(builder: IntegerGraphBuilder, node: Node) -> list[Value]:
    return [_add_or_subtract(builder, node, -1)]


def _add_or_subtract(builder: IntegerGraphBuilder, node: Node, sign: int) -> Value:
    a, b = (builder.words(node, name) for name in node.inputs)
    found = [builder.is_constant(name) for name in node.inputs]
    single = [builder.graph.facts[name].size == 1 for name in node.inputs]
    base = None
    if found[1] and single[1]:
        base = a
    elif found[0] and single[0]:
        base = b
    return PendingAddition(title=node.title, source=node.source, a=a, b=b, sign=sign, base=base)


def mul(builder: IntegerGraphBuilder, node: Node) -> list[Value]:
    for position in (1, 0):
        name, other = node.inputs[position], node.inputs[1 - position]
        if builder.is_constant(name) and _scales_channels(builder, node, name):
            factors = _per_channel(builder, node, name)
            return [builder.scale_words(node, builder.words(node, other), factors)]
    a, b = (builder.words(node, name) for name in node.inputs)
    base = a if a == b else None
    return [PendingProduct(title=node.title, source=node.source, a=a, b=b, base=base)]


def div(builder: IntegerGraphBuilder, node: Node) -> list[Value]:
    name = node.inputs[1]
    if not builder.is_constant(name) or not _scales_channels(builder, node, name):
        raise ModelError(
            f"{node.title}: '{name}' is not known; an integer network divides by constants only",
            node.source,
        )
    divisors = _per_channel(builder, node, name)
    if not all(divisors):
        raise ModelError(f"{node.title}: '{name}' has a 0 to divide by", node.source)
    factors = tuple(1 / divisor for divisor in divisors)
    return [builder.scale_words(node, builder.words(node, node.inputs[0]), factors)]


def _scales_channels(builder: IntegerGraphBuilder, node: Node, name: str) -> bool:
    """Returns True if the constant ``name`` has one number or one per channel, and all other
    operands have the shape of the result."""
    fact, result = builder.graph.facts[name], builder.graph.facts[node.outputs[0]]
    others = [n for n in node.inputs if n != name]
    alike = all(builder.graph.facts[n] == result for n in others)
    channels = fact.rank > 1 and result.rank > 1 and fact.shape[1] == result.shape[1] == fact.size
    return alike and (fact.size == 1 or channels)


def neg(builder: IntegerGraphBuilder, node: Node) -> list[Value]:
    found = builder.words(node, node.inputs[0])
    name = builder.add(node, "neg", (found.name,), builder.result_name(node))
    range_ = Range(-found.range.high, -found.range.low)
    return [replace(found, name=name, range=range_, signed=True)]


def absolute(builder: IntegerGraphBuilder, node: Node) -> list[Value]:
    found = builder.words(node, node.inputs[0])
    name = builder.add(node, "abs", (found.name,), builder.result_name(node))
    return [replace(found, name=name, range=Range(0, found.range.magnitude))]


def common_scale(node: Node, words: Sequence[QuantizedTensor]) -> Fraction:
    """Returns the scale that all of ``words`` have; raises :class:`ModelError` if their scales
    differ."""
    for other in words[1:]:
        if other.scale != words[0].scale:
            raise ModelError(
                f"{node.title}: its operands have scales {float(words[0].scale):.6g} and "
                f"{float(other.scale):.6g}; what is joined or compared has one (cml quantize "
                "makes it so)",
                node.source,
            )
    return words[0].scale
