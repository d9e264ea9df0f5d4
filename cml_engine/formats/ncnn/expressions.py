"""Formulas in a ``.param``: ncnn's of sizes and positions, and those of ``pnnx.Expression``.

Both are terms in prefix notation: ``/(0w,2),*(0h,2)`` is two numbers, ``add(@0,mul(@1,2))`` one
tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

#: The deepest nesting of terms.
_DEEPEST = 32
#: Integers of formulas have 32 bits.
_LIMIT = 2**31

#: ncnn's integers and floats of 32 bits.
Number: TypeAlias = "int | float"


class FormulaError(ValueError):
    """A formula that cannot be read or computed; the message is for a layer's error."""


@dataclass(frozen=True, slots=True)
class Term:
    """A call of a function, or without ``operands`` a number or a name."""

    name: str
    operands: tuple[Term, ...] = ()


def parse_terms(text: str) -> list[Term]:
    """Parses terms with commas between them; raises :class:`FormulaError` if they are damaged."""
    terms, at = _terms(text, 0, 0)
    if at < len(text):
        raise FormulaError(f"the formula '{text}' has a parenthesis too many")
    return terms


def _terms(text: str, at: int, depth: int) -> tuple[list[Term], int]:
    """Parses terms up to the end or a closing parenthesis; returns them and that position."""
    if depth > _DEEPEST:
        raise FormulaError(f"a formula that nests more than {_DEEPEST} deep")
    terms: list[Term] = []
    while True:
        end = at
        while end < len(text) and text[end] not in "(),":
            end += 1
        name, operands = text[at:end], list[Term]()
        if not name:
            raise FormulaError(f"the formula '{text}' lacks a term")
        if text[end : end + 1] == "(":
            operands, end = _terms(text, end + 1, depth + 1)
            if text[end : end + 1] != ")":
                raise FormulaError(f"the formula '{text}' lacks a parenthesis")
            end += 1
        terms.append(Term(name, tuple(operands)))
        if text[end : end + 1] != ",":
            return terms, end
        at = end + 1


def evaluate_sizes(text: str, shapes: Sequence[Mapping[str, int]]) -> list[int]:
    """Returns the numbers that a list of ncnn's formulas gives, cut off to integers.

    ``shapes`` are the extents of the layer's inputs by ncnn's letters: ``0w`` is the width of the
    first. Raises :class:`FormulaError` for a formula that cannot be computed.
    """
    try:
        return [_checked(int(_evaluate(term, shapes))) for term in parse_terms(text)]
    except (ArithmeticError, TypeError, ValueError) as error:
        if isinstance(error, FormulaError):
            raise
        raise FormulaError(f"the formula '{text}' has no value") from None


def _evaluate(term: Term, shapes: Sequence[Mapping[str, int]]) -> Number:
    if not term.operands:
        return _atom(term.name, shapes)
    function, count = _FUNCTIONS.get(term.name, (None, 0))
    if function is None or len(term.operands) != count:
        raise FormulaError(f"the function '{term.name}' of {len(term.operands)} numbers")
    value = function(*(_evaluate(operand, shapes) for operand in term.operands))
    return _checked(value) if isinstance(value, int) else _float32(value)


def _atom(name: str, shapes: Sequence[Mapping[str, int]]) -> Number:
    if len(name) == 2 and name[0] in "0123456789" and name[1] in "whdcn":
        if int(name[0]) >= len(shapes):
            raise FormulaError(f"'{name}' of {len(shapes)} inputs")
        return shapes[int(name[0])][name[1]]
    try:
        value = float(name)
    except ValueError:
        raise FormulaError(f"'{name}' is no number and no size") from None
    return _checked(int(value)) if value == int(value) else _float32(value)


def _float32(value: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(value))


def _checked(value: int) -> int:
    if abs(value) >= _LIMIT:
        raise FormulaError(f"the number {value:g} has more than 32 bits")
    return value


def _divided(a: Number, b: Number) -> Number:
    """Returns ncnn's ``//``: cut off for integers, rounded down for floats."""
    if isinstance(a, int) and isinstance(b, int):
        return int(a / b)
    return math.floor(_float32(a / b))


def _remainder(a: float, b: float) -> float:
    rest = math.fmod(a, b)
    return rest + b if a * b < 0 else rest


def _rounded(a: Number) -> int:
    """Returns the nearest integer; halves are rounded away from zero."""
    return int(math.copysign(math.floor(abs(a) + 0.5), a))


def _of_floats(function: Callable[..., float]) -> Callable[..., float]:
    return lambda *values: float(function(*map(float, values)))


#: The functions of ncnn's formulas, each with its number of operands.
_FUNCTIONS: dict[str, tuple[Callable[..., Number], int]] = {
    "+": (lambda a, b: a + b, 2),
    "-": (lambda a, b: a - b, 2),
    "*": (lambda a, b: a * b, 2),
    "//": (_divided, 2),
    "max": (max, 2),
    "min": (min, 2),
    "abs": (abs, 1),
    "neg": (lambda a: -a, 1),
    "sign": (lambda a: (a > 0) - (a < 0), 1),
    "square": (lambda a: a * a, 1),
    "trunc": (int, 1),
    "ceil": (math.ceil, 1),
    "floor": (math.floor, 1),
    "round": (_rounded, 1),
    "and": (lambda a, b: a & b, 2),
    "or": (lambda a, b: a | b, 2),
    "xor": (lambda a, b: a ^ b, 2),
    "lshift": (lambda a, b: a << min(b, 32), 2),
    "rshift": (lambda a, b: a >> b, 2),
    "/": (_of_floats(lambda a, b: a / b), 2),
    "atan2": (_of_floats(math.atan2), 2),
    "fmod": (_of_floats(math.fmod), 2),
    "pow": (_of_floats(math.pow), 2),
    "remainder": (_of_floats(_remainder), 2),
    "logaddexp": (_of_floats(np.logaddexp), 2),
    "erf": (_of_floats(math.erf), 1),
    "reciprocal": (_of_floats(lambda a: 1 / a), 1),
    "rsqrt": (_of_floats(lambda a: 1 / math.sqrt(a)), 1),
    **{
        name: (_of_floats(getattr(math, name)), 1)
        for name in ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "exp",
                     "log", "log10", "sin", "sinh", "sqrt", "tan", "tanh")
    },
}  # fmt: skip
