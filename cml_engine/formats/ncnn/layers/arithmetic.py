"""Converts arithmetic on one, two or many tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import TypeAlias

from cml_engine.formats.ncnn.conversion import Conversion
from cml_engine.formats.ncnn.layer_types import ANY, converts
from cml_engine.formats.ncnn.param import MISSING, NcnnLayer

Operand: TypeAlias = str | float
OfTwo: TypeAlias = Callable[[Conversion, Operand, Operand], str]

_BINARY = ("add", "sub", "mul", "div", "max", "min", "pow", "rsub", "rdiv", "rpow", "atan2",
           "ratan2", "fmod", "rfmod", "logaddexp", "floordiv", "rfloordiv", "remainder",
           "rremainder")  # fmt: skip
_UNARY = ("abs", "neg", "floor", "ceil", "sqr", "sqrt", "rsqrt", "exp", "log", "sin", "cos", "tan",
          "asin", "acos", "atan", "rcp", "tanh", "log10", "round", "trunc", "sign", "expm1",
          "sinh", "asinh", "cosh", "acosh", "atanh", "log1p")  # fmt: skip


@converts("UnaryOp", params="0")
def _unary_op(layer: NcnnLayer, graph: Conversion, x: str) -> str:
    op = _choice(layer, _UNARY)
    make = _COMPOSED.get(op)
    return make(graph, x) if make else graph.op(op, x)


def _half_to_even(graph: Conversion, x: str) -> str:
    """Adds operators that round to integers, halves to the even neighbour.

    Returns the result's name.

    NNEF's ``round`` takes halves up.
    """
    is_half = graph.op("eq", graph.op("sub", x, graph.op("floor", x)), 0.5)
    even = graph.op("mul", graph.op("round", graph.op("mul", x, 0.5)), 2.0)
    return graph.op("select", is_half, even, graph.op("round", x))


def _truncated(graph: Conversion, x: str) -> str:
    return graph.op("mul", graph.op("sign", x), graph.op("floor", graph.op("abs", x)))


#: Functions of one operand that are composed of several of NNEF's operators.
_COMPOSED: dict[str, Callable[[Conversion, str], str]] = {
    "expm1": lambda graph, x: graph.op("sub", graph.op("exp", x), 1.0),
    "log10": lambda graph, x: graph.op("mul", graph.op("log", x), 1 / math.log(10)),
    "log1p": lambda graph, x: graph.op("log", graph.op("add", x, 1.0)),
    "round": _half_to_even,
    "trunc": _truncated,
}


@converts("BinaryOp", params="0-2", inputs=(1, 2))
def _binary_op(layer: NcnnLayer, graph: Conversion, *inputs: str) -> str:
    op = _choice(layer, _BINARY)
    if len(inputs) != (1 if layer.integer(1) else 2):
        raise layer.damaged_error(f"{len(inputs)} inputs")
    left: Operand = inputs[0]
    right: Operand = layer.number(2)
    if not layer.integer(1):
        left, right = _matched(graph, *inputs)
    if op.startswith("r") and op != "remainder":
        op, left, right = op[1:], right, left
    make = _OF_TWO.get(op)
    return make(graph, left, right) if make else graph.op(op, left, right)


def _matched(graph: Conversion, left: str, right: str) -> tuple[str, str]:
    """Returns the two operands, one of them reshaped if NNEF would broadcast otherwise than ncnn.

    Both align shapes at the outermost axis, but ncnn aligns a tensor of one axis with the
    innermost axis if it fits only there.
    """
    facts = [graph.extents(left), graph.extents(right)]
    ranks = [len(extents) for extents in facts]
    for i, x in enumerate((left, right)):
        missing = ranks[1 - i] - ranks[i]
        if ranks[i] == 1 and missing > 0 and facts[i][0] not in (1, facts[1 - i][0]):
            moved = graph.op("unsqueeze", x, axes=list(range(1, missing + 1)))
            return (moved, right) if i == 0 else (left, moved)
    return left, right


def _atan2(graph: Conversion, y: Operand, x: Operand) -> str:
    """Adds operators that compute atan2 and returns the result's name.

    NNEF has only ``atan``, which covers two of the four quadrants.
    """
    angle = graph.op("atan", graph.op("div", y, x))
    turned = graph.op("select", graph.op("lt", y, 0.0), -math.pi, math.pi)
    behind = graph.op("add", angle, turned)
    upright = graph.op("mul", graph.op("sign", y), math.pi / 2)
    side = graph.op("select", graph.op("lt", x, 0.0), behind, upright)
    return graph.op("select", graph.op("gt", x, 0.0), angle, side)


def _log_add_exp(graph: Conversion, x: Operand, y: Operand) -> str:
    """Adds operators that compute log(exp(x) + exp(y)) and returns the result's name.

    The operands are shifted by the larger one to avoid overflow.
    """
    apart = graph.op("neg", graph.op("abs", graph.op("sub", x, y)))
    return graph.op("add", graph.op("max", x, y), graph.op("softplus", apart))


def _rest(whole: Callable[[Conversion, str], str]) -> OfTwo:
    """Returns a function that adds a remainder ``x - whole(x / y) * y``.

    ``whole`` rounds the quotient.
    """

    def make(graph: Conversion, x: Operand, y: Operand) -> str:
        return graph.op("sub", x, graph.op("mul", whole(graph, graph.op("div", x, y)), y))

    return make


#: Functions of two operands that are composed of several of NNEF's operators.
_OF_TWO: dict[str, OfTwo] = {
    "atan2": _atan2,
    "floordiv": lambda graph, x, y: graph.op("floor", graph.op("div", x, y)),
    "fmod": _rest(_truncated),
    "logaddexp": _log_add_exp,
    "remainder": _rest(_half_to_even),
}


@converts("Eltwise", params="0-1", inputs=(2, ANY))
def _eltwise(layer: NcnnLayer, graph: Conversion, *inputs: str) -> str:
    op, coefficients = _choice(layer, ("mul", "add", "max")), layer.values(1)
    operands = list(inputs)
    if len({graph.extents(x) for x in inputs}) > 1:
        raise layer.damaged_error(f"shapes that differ: {[list(graph.extents(x)) for x in inputs]}")
    if op == "add" and coefficients:
        if len(coefficients) != len(inputs):
            raise layer.damaged_error(f"{len(inputs)} inputs, {len(coefficients)} coefficients")
        pairs = zip(inputs, coefficients, strict=True)
        operands = [x if c == 1 else graph.op("mul", x, float(c)) for x, c in pairs]
    return reduce(lambda a, b: graph.op(op, a, b), operands)


@converts("Power", params="0-2")
def _power(layer: NcnnLayer, graph: Conversion, x: str) -> str:
    power = layer.number(0, 1.0)
    x = _linear(layer, graph, x)
    return x if power == 1 else graph.op("pow", x, power)


@converts("Exp", params="0-2")
def _exp(layer: NcnnLayer, graph: Conversion, x: str) -> str:
    base = layer.number(0, -1.0)
    x = _linear(layer, graph, x)
    return graph.op("exp", x) if base == -1 else graph.op("pow", base, x)


@converts("Log", params="0-2")
def _log(layer: NcnnLayer, graph: Conversion, x: str) -> str:
    base = layer.number(0, -1.0)
    found = graph.op("log", _linear(layer, graph, x))
    if base == -1:
        return found
    if base <= 0 or base == 1:
        raise layer.damaged_error(f"the base {base:g}")
    return graph.op("mul", found, 1 / math.log(base))


def _linear(layer: NcnnLayer, graph: Conversion, x: str) -> str:
    """Adds operators for ``scale x + shift`` with parameters 1 and 2; returns the result's name.

    It is the first step of three layer types.
    """
    scale, shift = layer.number(1, 1.0), layer.number(2)
    x = x if scale == 1 else graph.op("mul", x, scale)
    return x if shift == 0 else graph.op("add", x, shift)


@converts("Scale", params="0-1", inputs=(1, 2))
def _scale(layer: NcnnLayer, graph: Conversion, x: str, *computed: str) -> str:
    """Converts Scale: multiplies each channel by a factor and adds a stored bias, if there is one.

    The factors are stored, or are the second input.
    """
    if bool(computed) != (layer.integer(0) == MISSING) or (computed and layer.integer(1)):
        raise layer.damaged_error(f"{1 + len(computed)} inputs and {layer.integer(0)} factors")
    channels = graph.extents(x)[0]
    factors = (
        graph.reshape(computed[0], [channels]) if computed else _each(layer, graph, x, "scale")
    )
    scaled = graph.op("mul", x, factors)
    if not layer.integer(1):
        return scaled
    return graph.op("add", scaled, graph.raw(channels, "bias"))


@converts("Bias", params="0")
def _bias(layer: NcnnLayer, graph: Conversion, x: str) -> str:
    if len(graph.extents(x)) != 3:
        raise layer.unsupported_error(f"an input of {len(graph.extents(x))} axes")
    return graph.op("add", x, _each(layer, graph, x, "bias"))


def _each(layer: NcnnLayer, graph: Conversion, x: str, what: str) -> str:
    """Reads one stored number per channel of ``x`` as a constant and returns its name."""
    count = layer.integer(0)
    if count != graph.extents(x)[0]:
        raise layer.damaged_error(f"{count} numbers for {graph.extents(x)[0]} channels")
    return graph.raw(count, what)


@converts("CumulativeSum", params="0")
def _cumulative_sum(layer: NcnnLayer, graph: Conversion, x: str) -> str:
    return graph.op("cumsum", x, axis=graph.axis(x, layer.integer(0)))


def _choice(layer: NcnnLayer, ops: tuple[str, ...]) -> str:
    kind = layer.integer(0)
    if not 0 <= kind < len(ops):
        raise layer.unsupported_error(f"operation {kind}")
    return ops[kind]
