"""Lowers elementwise operators.

Activations join a rounding point, sums and products read two tensors, constants become scales, and
every other operator becomes a function of one tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from cml_engine.compiler.integer.lowering.integer_builder import Making, decimal
from cml_engine.compiler.integer.lowering.pending_values import (
    Function,
    Pending,
    Product,
    Sum,
    Two,
    Value,
    Words,
)
from cml_engine.compiler.integer.sum_bounds import Range
from cml_engine.errors import ModelError
from cml_engine.ir.graph import Node
from cml_engine.ir.integer_rule import round_half_up


def function(making: Making, node: Node) -> Function | None:
    """Returns the node as a function of one tensor of words, or None if it reads several."""
    bases: list[Words | None] = []
    for name in node.inputs:
        if not making.is_constant(name):
            found = making.value(node, name)
            bases.append(found if isinstance(found, Words) else found.base)
    base = bases[0] if bases else None
    if base is None or any(other != base for other in bases):
        return None
    return Function(title=node.title, source=node.source, base=base)


# -- activations --------------------------------------------------------------------------------


def relu(making: Making, node: Node) -> list[Value]:
    found = making.value(node, node.inputs[0])
    if isinstance(found, Pending):
        return [_bounded(node, found, Fraction(0), None)]
    range_ = Range(max(found.range.low, 0), max(found.range.high, 0))
    name = making.add(node, "relu", (found.name,), making.result(node))
    return [replace(found, name=name, range=range_)]


def clamp(making: Making, node: Node) -> list[Value]:
    found = making.value(node, node.inputs[0])
    low, high = (_number(making, node, name) for name in node.inputs[1:3])
    if isinstance(found, Pending):
        return [_bounded(node, found, low, high)]
    ends = [round_half_up(bound / found.scale) for bound in (low, high)]
    ends = [max(found.range.low, min(found.range.high, end)) for end in ends]
    bounds = [making.constant(f"{node.outputs[0]}.bound", end) for end in ends]
    name = making.add(node, "clamp", (found.name, *bounds), making.result(node))
    return [replace(found, name=name, range=Range(ends[0], max(ends)))]


def _bounded(node: Node, found: Pending, low: Fraction | None, high: Fraction | None) -> Pending:
    return replace(found.bounded(low, high), title=f"{found.title}, {node.op}")


def leaky_relu(making: Making, node: Node) -> list[Value]:
    return [_by_sign(making, node, (decimal(node.attrs["alpha"]),))]


def prelu(making: Making, node: Node) -> list[Value]:
    return [_by_sign(making, node, _per_channel(making, node, node.inputs[1]))]


def _by_sign(making: Making, node: Node, slopes: tuple[Fraction, ...]) -> Pending:
    found = making.value(node, node.inputs[0])
    if isinstance(found, Words):
        found = making.scaled(node, found, (Fraction(1),))
    if not isinstance(found, Sum) or found.negative or (found.low, found.high) != (None, None):
        raise ModelError(
            f"{node.title}: {found.title} before it is no plain sum: give '{node.inputs[0]}' a "
            "line in graph.quant",
            node.source,
        )
    if len(slopes) > 1 and found.axis != 1:
        raise ModelError(f"{node.title}: slopes are for axis 1, the sums' channels are not")
    base = found.base if len(slopes) == 1 else None
    return replace(found, negative=slopes, base=base, title=f"{found.title}, {node.op}")


def _number(making: Making, node: Node, name: str) -> Fraction:
    if not making.is_constant(name) or making.graph.facts[name].size != 1:
        raise ModelError(f"{node.title}: '{name}' is no number that is known", node.source)
    return making.real(name)[0]


def _per_channel(making: Making, node: Node, name: str) -> tuple[Fraction, ...]:
    """Returns the values of a constant that has one number, or one for each channel."""
    result = making.graph.facts[node.outputs[0]]
    fact = making.graph.facts[name]
    channels = result.shape[1] if result.rank > 1 else 1
    by_channel = fact.rank > 1 and fact.shape[1] == channels == fact.size
    if not making.is_constant(name) or not (fact.size == 1 or by_channel):
        raise ModelError(
            f"{node.title}: '{name}' is {fact}; wanted a constant, one number or one for each of "
            f"{channels} channels",
            node.source,
        )
    return tuple(making.real(name))


# -- two tensors ----------------------------------------------------------------------------------


def add(making: Making, node: Node) -> list[Value]:
    return [_two(making, node, 1)]


def sub(making: Making, node: Node) -> list[Value]:
    return [_two(making, node, -1)]


def _two(making: Making, node: Node, sign: int) -> Value:
    a, b = (making.words(node, name) for name in node.inputs)
    found = [making.is_constant(name) for name in node.inputs]
    single = [making.graph.facts[name].size == 1 for name in node.inputs]
    base = None
    if found[1] and single[1]:
        base = a
    elif found[0] and single[0]:
        base = b
    return Two(title=node.title, source=node.source, a=a, b=b, sign=sign, base=base)


def mul(making: Making, node: Node) -> list[Value]:
    for position in (1, 0):
        name, other = node.inputs[position], node.inputs[1 - position]
        if making.is_constant(name) and _scales_channels(making, node, name):
            factors = _per_channel(making, node, name)
            return [making.scaled(node, making.words(node, other), factors)]
    a, b = (making.words(node, name) for name in node.inputs)
    base = a if a == b else None
    return [Product(title=node.title, source=node.source, a=a, b=b, base=base)]


def div(making: Making, node: Node) -> list[Value]:
    name = node.inputs[1]
    if not making.is_constant(name) or not _scales_channels(making, node, name):
        raise ModelError(
            f"{node.title}: '{name}' is not known; an integer network divides by constants only",
            node.source,
        )
    divisors = _per_channel(making, node, name)
    if not all(divisors):
        raise ModelError(f"{node.title}: '{name}' has a 0 to divide by", node.source)
    factors = tuple(1 / divisor for divisor in divisors)
    return [making.scaled(node, making.words(node, node.inputs[0]), factors)]


def _scales_channels(making: Making, node: Node, name: str) -> bool:
    """Returns True if a constant has one number or one per channel, and the other operand is not
    broadcast."""
    fact, result = making.graph.facts[name], making.graph.facts[node.outputs[0]]
    others = [n for n in node.inputs if n != name]
    alike = all(making.graph.facts[n] == result for n in others)
    channels = fact.rank > 1 and result.rank > 1 and fact.shape[1] == result.shape[1] == fact.size
    return alike and (fact.size == 1 or channels)


def neg(making: Making, node: Node) -> list[Value]:
    found = making.words(node, node.inputs[0])
    name = making.add(node, "neg", (found.name,), making.result(node))
    range_ = Range(-found.range.high, -found.range.low)
    return [replace(found, name=name, range=range_, signed=True)]


def absolute(making: Making, node: Node) -> list[Value]:
    found = making.words(node, node.inputs[0])
    name = making.add(node, "abs", (found.name,), making.result(node))
    return [replace(found, name=name, range=Range(0, found.range.most))]


def same_scale(node: Node, words: Sequence[Words]) -> Fraction:
    """Returns the common scale of tensors that are joined or compared.

    Raises :class:`ModelError` if their scales differ.
    """
    for other in words[1:]:
        if other.scale != words[0].scale:
            raise ModelError(
                f"{node.title}: its operands have scales {float(words[0].scale):.6g} and "
                f"{float(other.scale):.6g}; what is joined or compared has one (cml quantize "
                "makes it so)",
                node.source,
            )
    return words[0].scale
