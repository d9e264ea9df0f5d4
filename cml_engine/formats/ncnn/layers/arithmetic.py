"""Arithmetic on one, two or many tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import TypeAlias

from cml_engine.formats.ncnn.conversion import Conversion
from cml_engine.formats.ncnn.layer_types import ANY, layer
from cml_engine.formats.ncnn.param import MISSING, NcnnLayer

Operand: TypeAlias = str | float
OfTwo: TypeAlias = Callable[[Conversion, Operand, Operand], str]

_BINARY = ("add", "sub", "mul", "div", "max", "min", "pow", "rsub", "rdiv", "rpow", "atan2",
           "ratan2", "fmod", "rfmod", "logaddexp", "floordiv", "rfloordiv", "remainder",
           "rremainder")  # fmt: skip
_UNARY = ("abs", "neg", "floor", "ceil", "sqr", "sqrt", "rsqrt", "exp", "log", "sin", "cos", "tan",
          "asin", "acos", "atan", "rcp", "tanh", "log10", "round", "trunc", "sign", "expm1",
          "sinh", "asinh", "cosh", "acosh", "atanh", "log1p")  # fmt: skip


@layer("UnaryOp", params="0")
def _unary_op(one: NcnnLayer, to: Conversion, x: str) -> str:
    op = _choice(one, _UNARY)
    make = _COMPOSED.get(op)
    return make(to, x) if make else to.op(op, x)


def _half_to_even(to: Conversion, x: str) -> str:
    """Rounds halves to the even neighbour; NNEF's ``round`` takes halves up."""
    is_half = to.op("eq", to.op("sub", x, to.op("floor", x)), 0.5)
    even = to.op("mul", to.op("round", to.op("mul", x, 0.5)), 2.0)
    return to.op("select", is_half, even, to.op("round", x))


def _truncated(to: Conversion, x: str) -> str:
    return to.op("mul", to.op("sign", x), to.op("floor", to.op("abs", x)))


#: Functions of one operand that are composed of several of NNEF's operators.
_COMPOSED: dict[str, Callable[[Conversion, str], str]] = {
    "expm1": lambda to, x: to.op("sub", to.op("exp", x), 1.0),
    "log10": lambda to, x: to.op("mul", to.op("log", x), 1 / math.log(10)),
    "log1p": lambda to, x: to.op("log", to.op("add", x, 1.0)),
    "round": _half_to_even,
    "trunc": _truncated,
}


@layer("BinaryOp", params="0-2", inputs=(1, 2))
def _binary_op(one: NcnnLayer, to: Conversion, *inputs: str) -> str:
    op = _choice(one, _BINARY)
    if len(inputs) != (1 if one.whole(1) else 2):
        raise one.damaged(f"{len(inputs)} inputs")
    left: Operand = inputs[0]
    right: Operand = one.number(2)
    if not one.whole(1):
        left, right = _matched(to, *inputs)
    if op.startswith("r") and op != "remainder":
        op, left, right = op[1:], right, left
    make = _OF_TWO.get(op)
    return make(to, left, right) if make else to.op(op, left, right)


def _matched(to: Conversion, left: str, right: str) -> tuple[str, str]:
    """Reshapes two operands so that NNEF broadcasts them as ncnn does.

    Both align shapes at the outermost axis, but ncnn aligns a tensor of one axis with the
    innermost axis if it fits only there.
    """
    facts = [to.extents(left), to.extents(right)]
    ranks = [len(extents) for extents in facts]
    for i, x in enumerate((left, right)):
        missing = ranks[1 - i] - ranks[i]
        if ranks[i] == 1 and missing > 0 and facts[i][0] not in (1, facts[1 - i][0]):
            moved = to.op("unsqueeze", x, axes=list(range(1, missing + 1)))
            return (moved, right) if i == 0 else (left, moved)
    return left, right


def _atan2(to: Conversion, y: Operand, x: Operand) -> str:
    """Computes atan2 by quadrants from NNEF's ``atan``, which covers two of them."""
    angle = to.op("atan", to.op("div", y, x))
    turned = to.op("select", to.op("lt", y, 0.0), -math.pi, math.pi)
    behind = to.op("add", angle, turned)
    upright = to.op("mul", to.op("sign", y), math.pi / 2)
    side = to.op("select", to.op("lt", x, 0.0), behind, upright)
    return to.op("select", to.op("gt", x, 0.0), angle, side)


def _log_add_exp(to: Conversion, x: Operand, y: Operand) -> str:
    """Computes log(exp(x) + exp(y)), shifted by the larger operand to avoid overflow."""
    apart = to.op("neg", to.op("abs", to.op("sub", x, y)))
    return to.op("add", to.op("max", x, y), to.op("softplus", apart))


def _rest(whole: Callable[[Conversion, str], str]) -> OfTwo:
    """Returns a converter of the remainder of a division whose quotient ``whole`` rounds."""

    def make(to: Conversion, x: Operand, y: Operand) -> str:
        return to.op("sub", x, to.op("mul", whole(to, to.op("div", x, y)), y))

    return make


#: Functions of two operands that are composed of several of NNEF's operators.
_OF_TWO: dict[str, OfTwo] = {
    "atan2": _atan2,
    "floordiv": lambda to, x, y: to.op("floor", to.op("div", x, y)),
    "fmod": _rest(_truncated),
    "logaddexp": _log_add_exp,
    "remainder": _rest(_half_to_even),
}


@layer("Eltwise", params="0-1", inputs=(2, ANY))
def _eltwise(one: NcnnLayer, to: Conversion, *inputs: str) -> str:
    op, coefficients = _choice(one, ("mul", "add", "max")), one.values(1)
    operands = list(inputs)
    if len({to.extents(x) for x in inputs}) > 1:
        raise one.damaged(f"shapes that differ: {[list(to.extents(x)) for x in inputs]}")
    if op == "add" and coefficients:
        if len(coefficients) != len(inputs):
            raise one.damaged(f"{len(inputs)} inputs, {len(coefficients)} coefficients")
        pairs = zip(inputs, coefficients, strict=True)
        operands = [x if c == 1 else to.op("mul", x, float(c)) for x, c in pairs]
    return reduce(lambda a, b: to.op(op, a, b), operands)


@layer("Power", params="0-2")
def _power(one: NcnnLayer, to: Conversion, x: str) -> str:
    power = one.number(0, 1.0)
    x = _linear(one, to, x)
    return x if power == 1 else to.op("pow", x, power)


@layer("Exp", params="0-2")
def _exp(one: NcnnLayer, to: Conversion, x: str) -> str:
    base = one.number(0, -1.0)
    x = _linear(one, to, x)
    return to.op("exp", x) if base == -1 else to.op("pow", base, x)


@layer("Log", params="0-2")
def _log(one: NcnnLayer, to: Conversion, x: str) -> str:
    base = one.number(0, -1.0)
    found = to.op("log", _linear(one, to, x))
    if base == -1:
        return found
    if base <= 0 or base == 1:
        raise one.damaged(f"the base {base:g}")
    return to.op("mul", found, 1 / math.log(base))


def _linear(one: NcnnLayer, to: Conversion, x: str) -> str:
    """Computes ``shift + scale x``, the first step of three layers."""
    scale, shift = one.number(1, 1.0), one.number(2)
    x = x if scale == 1 else to.op("mul", x, scale)
    return x if shift == 0 else to.op("add", x, shift)


@layer("Scale", params="0-1", inputs=(1, 2))
def _scale(one: NcnnLayer, to: Conversion, x: str, *computed: str) -> str:
    """Multiplies each channel by a stored factor, or by one of the second input; adds a stored
    bias, if any."""
    if bool(computed) != (one.whole(0) == MISSING) or (computed and one.whole(1)):
        raise one.damaged(f"{1 + len(computed)} inputs and {one.whole(0)} factors")
    channels = to.extents(x)[0]
    factors = to.reshaped(computed[0], [channels]) if computed else _each(one, to, x, "scale")
    scaled = to.op("mul", x, factors)
    if not one.whole(1):
        return scaled
    return to.op("add", scaled, to.raw(channels, "bias"))


@layer("Bias", params="0")
def _bias(one: NcnnLayer, to: Conversion, x: str) -> str:
    if len(to.extents(x)) != 3:
        raise one.unsupported(f"an input of {len(to.extents(x))} axes")
    return to.op("add", x, _each(one, to, x, "bias"))


def _each(one: NcnnLayer, to: Conversion, x: str, what: str) -> str:
    """Reads one stored number per channel."""
    count = one.whole(0)
    if count != to.extents(x)[0]:
        raise one.damaged(f"{count} numbers for {to.extents(x)[0]} channels")
    return to.raw(count, what)


@layer("CumulativeSum", params="0")
def _cumulative_sum(one: NcnnLayer, to: Conversion, x: str) -> str:
    return to.op("cumsum", x, axis=to.axis(x, one.whole(0)))


def _choice(one: NcnnLayer, ops: tuple[str, ...]) -> str:
    kind = one.whole(0)
    if not 0 <= kind < len(ops):
        raise one.unsupported(f"operation {kind}")
    return ops[kind]
