"""Converts arithmetic on one, two or many tensors, and reductions along axes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import TypeAlias

import numpy as np

from cml_engine.formats.ncnn.conversion import ANY, EXPRESSION, NcnnLayer, NcnnTensor, converts
from cml_engine.formats.ncnn.expressions import Term, parse_terms
from cml_engine.formats.ncnn.files import FORMULA, MISSING

Operand: TypeAlias = NcnnTensor | float

_BINARY = ("add", "sub", "mul", "div", "max", "min", "pow", "rsub", "rdiv", "rpow", "atan2",
           "ratan2", "fmod", "rfmod", "logaddexp", "floordiv", "rfloordiv", "remainder",
           "rremainder")  # fmt: skip
_UNARY = ("abs", "neg", "floor", "ceil", "sqr", "sqrt", "rsqrt", "exp", "log", "sin", "cos", "tan",
          "asin", "acos", "atan", "rcp", "tanh", "log10", "round", "trunc", "sign", "expm1",
          "sinh", "asinh", "cosh", "acosh", "atanh", "log1p")  # fmt: skip


@converts("UnaryOp", params="0")
def _unary_op(layer: NcnnLayer, x: NcnnTensor) -> NcnnTensor:
    op = _choice(layer, _UNARY)
    function = _OF_ONE.get(op)
    return function(x) if function else x.op(op)


def _truncated(x: NcnnTensor) -> NcnnTensor:
    return x.sign() * x.abs().floor()


#: Functions of one operand that are composed of several of NNEF's operators.
_OF_ONE: dict[str, Callable[[NcnnTensor], NcnnTensor]] = {
    "expm1": lambda x: x.exp() - 1.0,
    "log10": lambda x: x.log() * (1 / math.log(10)),
    "log1p": lambda x: (x + 1.0).log(),
    "round": lambda x: x.round_even(),
    "trunc": _truncated,
}


@converts("BinaryOp", params="0-2", inputs=(1, 2))
def _binary_op(layer: NcnnLayer, *inputs: NcnnTensor) -> NcnnTensor:
    op = _choice(layer, _BINARY)
    if len(inputs) != (1 if layer.integer(1) else 2):
        raise layer.damaged_error(f"{len(inputs)} inputs")
    return _computed(layer, op, inputs[0], layer.number(2) if layer.integer(1) else inputs[1])


def _computed(layer: NcnnLayer, op: str, left: Operand, right: Operand) -> NcnnTensor:
    if isinstance(left, NcnnTensor) and isinstance(right, NcnnTensor):
        left, right = _aligned(left, right)
    if op.startswith("r") and op != "remainder":
        op, left, right = op[1:], right, left
    function = _OF_TWO.get(op)
    return function(layer, left, right) if function else layer.op(op, left, right)


def _aligned(left: NcnnTensor, right: NcnnTensor) -> tuple[NcnnTensor, NcnnTensor]:
    """Returns the two operands, one of them reshaped if NNEF would broadcast otherwise than ncnn.

    Both align shapes at the outermost axis, but ncnn aligns a tensor of one axis with the
    innermost axis if it fits only there.
    """

    def moved(x: NcnnTensor, reference: NcnnTensor) -> NcnnTensor:
        missing = len(reference.extents) - len(x.extents)
        if len(x.extents) != 1 or missing <= 0 or x.extents[0] in (1, reference.extents[0]):
            return x
        return x.unsqueeze(axes=list(range(1, missing + 1)))

    return moved(left, right), moved(right, left)


def _atan2(layer: NcnnLayer, y: Operand, x: Operand) -> NcnnTensor:
    """Computes atan2; NNEF has only ``atan``, which covers two of the four quadrants."""
    angle = layer.op("div", y, x).atan()
    left_angle = angle + layer.op("lt", y, 0.0).select(-math.pi, math.pi)
    vertical_angle = layer.op("sign", y) * (math.pi / 2)
    other_angle = layer.op("lt", x, 0.0).select(left_angle, vertical_angle)
    return layer.op("gt", x, 0.0).select(angle, other_angle)


def _log_add_exp(layer: NcnnLayer, x: Operand, y: Operand) -> NcnnTensor:
    """Computes log(exp(x) + exp(y)), shifted by the larger operand to avoid overflow."""
    difference = layer.op("sub", x, y).abs().neg()
    return layer.op("max", x, y) + difference.softplus()


OfTwo: TypeAlias = Callable[[NcnnLayer, Operand, Operand], NcnnTensor]


def _remainder(round_quotient: Callable[[NcnnTensor], NcnnTensor]) -> OfTwo:
    """Returns a function that computes ``x - round_quotient(x / y) * y``."""
    return lambda layer, x, y: layer.op("sub", x, round_quotient(layer.op("div", x, y)) * y)


#: Functions of two operands that are composed of several of NNEF's operators.
_OF_TWO: dict[str, OfTwo] = {
    "atan2": _atan2,
    "floordiv": lambda layer, x, y: layer.op("div", x, y).floor(),
    "fmod": _remainder(_truncated),
    "logaddexp": _log_add_exp,
    "remainder": _remainder(lambda x: x.round_even()),
}


#: pnnx's names of functions where they differ from those above.
_PNNX = {"square": "sqr", "reciprocal": "rcp", "floor_divide": "floordiv", "maximum": "max",
         "minimum": "min"}  # fmt: skip


@converts(EXPRESSION, params=str(FORMULA), inputs=(0, ANY), limits="formulas that pnnx left out")
def _expression(layer: NcnnLayer, *inputs: NcnnTensor) -> NcnnTensor:
    """Converts a formula of tensors such as ``add(@0,mul(@1,2))``."""
    text = layer.text(FORMULA)
    if not text:
        raise layer.unsupported_error(
            "a formula that is not in the file (convert it by a newer pnnx, with inputshape=)"
        )
    try:
        (term,) = parse_terms(text)
    except ValueError as error:
        raise layer.unsupported_error(f"the formula '{text}' ({error})") from None

    def value(term: Term) -> Operand:
        if not term.operands:
            return _atom(layer, term.name, inputs)
        operands = [value(operand) for operand in term.operands]
        op = _PNNX.get(term.name, term.name)
        if not any(isinstance(x, NcnnTensor) for x in operands):
            raise layer.unsupported_error(f"'{term.name}' of numbers in a formula")
        if op in _UNARY and len(operands) == 1 and isinstance(operands[0], NcnnTensor):
            function = _OF_ONE.get(op)
            return function(operands[0]) if function else operands[0].op(op)
        if op in _BINARY and op != "remainder" and len(operands) == 2:
            return _computed(layer, op, *operands)
        raise layer.unsupported_error(f"'{term.name}' of {len(operands)} operands in a formula")

    result = value(term)
    if not isinstance(result, NcnnTensor):
        raise layer.unsupported_error(f"the formula '{text}', which is no tensor,")
    return result


def _atom(layer: NcnnLayer, name: str, inputs: tuple[NcnnTensor, ...]) -> Operand:
    """Returns an operand of a formula: ``@0`` is the first input."""
    if name[:1] == "@" and name[1:].isdecimal() and int(name[1:4]) < len(inputs):
        return inputs[int(name[1:4])]
    try:
        return float(name)
    except ValueError:
        raise layer.unsupported_error(f"'{name}' in a formula") from None


@converts("Eltwise", params="0-1", inputs=(2, ANY))
def _eltwise(layer: NcnnLayer, *inputs: NcnnTensor) -> NcnnTensor:
    op, coefficients = _choice(layer, ("mul", "add", "max")), layer.values(1)
    operands = list(inputs)
    if len({x.extents for x in inputs}) > 1:
        raise layer.damaged_error(f"shapes that differ: {[list(x.extents) for x in inputs]}")
    if op == "add" and coefficients:
        if len(coefficients) != len(inputs):
            raise layer.damaged_error(f"{len(inputs)} inputs, {len(coefficients)} coefficients")
        pairs = zip(inputs, coefficients, strict=True)
        operands = [x if c == 1 else x * float(c) for x, c in pairs]
    return reduce(lambda a, b: a.op(op, b), operands)


@converts("Power", params="0-2")
def _power(layer: NcnnLayer, x: NcnnTensor) -> NcnnTensor:
    power = layer.number(0, 1.0)
    x = _linear(layer, x)
    return x if power == 1 else x.pow(power)


@converts("Exp", params="0-2")
def _exp(layer: NcnnLayer, x: NcnnTensor) -> NcnnTensor:
    base = layer.number(0, -1.0)
    x = _linear(layer, x)
    return x.exp() if base == -1 else layer.op("pow", base, x)


@converts("Log", params="0-2")
def _log(layer: NcnnLayer, x: NcnnTensor) -> NcnnTensor:
    base = layer.number(0, -1.0)
    logarithm = _linear(layer, x).log()
    if base == -1:
        return logarithm
    if base <= 0 or base == 1:
        raise layer.damaged_error(f"the base {base:g}")
    return logarithm * (1 / math.log(base))


def _linear(layer: NcnnLayer, x: NcnnTensor) -> NcnnTensor:
    """Computes ``scale x + shift`` with parameters 1 and 2, the first step of three layer types."""
    scale, shift = layer.number(1, 1.0), layer.number(2)
    x = x if scale == 1 else x * scale
    return x if shift == 0 else x + shift


@converts("Scale", params="0-1", inputs=(1, 2))
def _scale(layer: NcnnLayer, x: NcnnTensor, *computed: NcnnTensor) -> NcnnTensor:
    """Multiplies each channel by a factor and adds a stored bias, if there is one.

    The factors are stored, or are the second input.
    """
    if bool(computed) != (layer.integer(0) == MISSING) or (computed and layer.integer(1)):
        raise layer.damaged_error(f"{1 + len(computed)} inputs and {layer.integer(0)} factors")
    channels = x.extents[0]
    factors = computed[0].reshape([channels]) if computed else _per_channel(layer, x, "scale")
    scaled = x * factors
    return scaled + layer.raw("bias", 1, channels) if layer.integer(1) else scaled


@converts("Bias", params="0")
def _bias(layer: NcnnLayer, x: NcnnTensor) -> NcnnTensor:
    if len(x.extents) != 3:
        raise layer.unsupported_error(f"an input of {len(x.extents)} axes")
    return x + _per_channel(layer, x, "bias")


def _per_channel(layer: NcnnLayer, x: NcnnTensor, suffix: str) -> NcnnTensor:
    """Reads one stored number per channel of ``x`` as a constant."""
    count = layer.integer(0)
    if count != x.extents[0]:
        raise layer.damaged_error(f"{count} numbers for {x.extents[0]} channels")
    return layer.raw(suffix, 1, count)


@converts("CumulativeSum", params="0")
def _cumulative_sum(layer: NcnnLayer, x: NcnnTensor) -> NcnnTensor:
    return x.cumsum(axis=x.axis(layer.integer(0)))


@converts("ArgMax", params="0-1")
def _argmax(layer: NcnnLayer, x: NcnnTensor) -> NcnnTensor:
    """Converts ArgMax: the positions of the largest of all elements, largest first.

    Of equal elements the last is the first, as in ncnn. With parameter 0 the values are the first
    row of the result and the positions the second.
    """
    count, size = layer.integer(1, 1), math.prod(x.extents)
    if not 1 <= count <= size:
        raise layer.damaged_error(f"{count} of {size} elements")
    backwards = x.reshape([-1]).take(np.arange(size)[::-1], 1)
    values, positions = layer.ops("top_k", 2, backwards, k=count, axis=1)
    rows = (positions.cast(dtype="scalar") * -1.0 + (size - 1.0)).reshape([1, count])
    return values.reshape([1, count]).concat(rows, axis=1) if layer.integer(0) else rows


def _choice(layer: NcnnLayer, ops: tuple[str, ...]) -> str:
    number = layer.integer(0)
    if not 0 <= number < len(ops):
        raise layer.unsupported_error(f"operation {number}")
    return ops[number]


# -- reductions --------------------------------------------------------------------------------


def _log_sum_exp(x: NcnnTensor, axes: list[int]) -> NcnnTensor:
    """Computes log(sum(exp(x))) over axes, shifted by the maximum to avoid overflow."""
    maximum = x.max_reduce(axes=axes)
    return (x - maximum).exp().sum_reduce(axes=axes).log() + maximum


#: The reductions by ncnn's numbers: operators in their order; None is :func:`_log_sum_exp`.
_REDUCTIONS = (
    ("sum_reduce",), ("abs", "sum_reduce"), ("sqr", "sum_reduce"), ("mean_reduce",),
    ("max_reduce",), ("min_reduce",), ("prod_reduce",), ("abs", "sum_reduce"),
    ("sqr", "sum_reduce", "sqrt"), ("sum_reduce", "log"), None,
)  # fmt: skip


@converts("Reduction", params="0-5", limits="axes of the old format")
def _reduction(layer: NcnnLayer, x: NcnnTensor) -> NcnnTensor:
    number, extents = layer.integer(0), x.extents
    if not 0 <= number < len(_REDUCTIONS):
        raise layer.unsupported_error(f"operation {number}")
    if layer.integers(3) and not layer.integer(5):
        raise layer.unsupported_error("axes of the old format (parameter 5 is not 1)")
    all_axes = list(range(1, 1 + len(extents)))
    axes = all_axes if layer.integer(1, 1) else sorted({x.axis(a) for a in layer.integers(3)})
    if not axes:
        raise layer.damaged_error("no axes")
    ops = _REDUCTIONS[number]
    if ops is None:
        x = _log_sum_exp(x, axes)
    for op in ops or ():
        x = x.op(op, axes=axes) if op.endswith("_reduce") else x.op(op)
    factor = layer.number(2, 1.0)
    if factor != 1:
        x = x * factor
    if layer.integer(4):
        return x
    return x.reshape([n for axis, n in enumerate(extents, 1) if axis not in axes] or [1])
