"""The values of NNEF expressions: numbers, logicals, strings, lists, tuples, tensors by name."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from cml_engine.errors import ShapeError
from cml_engine.io.load_limits import current_budget

#: A bool, int, float, str or :class:`TensorRef`, or nested lists and tuples of them.
Value: TypeAlias = Any
Number: TypeAlias = int | float

#: The deepest nesting of arrays.
MAX_NESTING = 8


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A reference to a tensor of the graph under construction, by name, with its type."""

    name: str
    dtype: str


def describe(value: Value, depth: int = 0) -> str:
    """Returns a value's type and, shortened, the value itself, for messages: ``integer 3``."""
    if isinstance(value, TensorRef):
        return f"tensor<{value.dtype}> '{value.name}'"
    if isinstance(value, (list, tuple)):
        return _describe_items(value, depth)
    type_name = kind_of(value)
    text = repr(value) if type_name == "string" else str(value).lower()
    return f"{type_name} {text[:40]}"


def kind_of(value: Value) -> str:
    """Returns the NNEF type of a literal, or ``tensor``, ``array`` or ``tuple``."""
    if isinstance(value, bool):
        return "logical"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "scalar"
    if isinstance(value, str):
        return "string"
    if isinstance(value, TensorRef):
        return "tensor"
    return "array" if isinstance(value, list) else "tuple"


def element_count(value: Value, depth: int = 0) -> int:
    """Returns the number of leaves of a nested array; a string has one per character.

    A plain value counts as one. An empty inner array counts as one too, so that an array of them
    is charged to the budget. Raises :class:`ShapeError` if the nesting is too deep, because
    the count could take exponential time.
    """
    if isinstance(value, str):
        return len(value)
    if not isinstance(value, (list, tuple)):
        return 1
    if depth >= MAX_NESTING:
        raise ShapeError(f"an array of more than {MAX_NESTING} levels: store it in a .dat")
    if not any(isinstance(item, (list, tuple, str)) for item in value):
        return len(value) or 1
    return sum(element_count(item, depth + 1) for item in value) or 1


def leaves(value: Value) -> list[Value]:
    """Returns the plain values in nested lists and tuples, in order."""
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]


def has_tensor(value: Value) -> bool:
    return any(isinstance(leaf, TensorRef) for leaf in leaves(value))


def _describe_items(value: list[Value] | tuple[Value, ...], depth: int) -> str:
    type_name = "array" if isinstance(value, list) else "tuple"
    if not value:
        return f"empty {type_name}"
    if depth > 1:
        return type_name
    return f"{type_name} of {len(value)} ({describe(value[0], depth + 1)}, ...)"


_COMPARE: dict[str, Callable[[Value, Value], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


def binary(op: str, left: Value, right: Value) -> Value:
    """Returns ``left op right`` for values other than tensors.

    Raises :class:`ShapeError` if the types do not fit the operator.
    """
    if op in ("&&", "||"):
        return _logical(op, left, right)
    if op == "in":
        return _contains(left, right)
    if op in ("==", "!="):
        return _COMPARE[op](left, right)
    if isinstance(left, list) or (op == "+" and isinstance(left, str)):
        return _sequence(op, left, right)
    left, right = _numbers(op, left, right)
    if op in _COMPARE:
        return _COMPARE[op](left, right)
    return _arithmetic(op, left, right)


def unary(op: str, value: Value) -> Value:
    """Returns ``op value`` for values other than tensors; ``op`` is ``!``, ``-`` or ``+``.

    Raises :class:`ShapeError` if the type does not fit the operator.
    """
    if op == "!":
        if not isinstance(value, bool):
            raise ShapeError(f"'!' wants a logical, got {kind_of(value)}")
        return not value
    if kind_of(value) not in ("integer", "scalar"):
        raise ShapeError(f"'{op}' wants a number, got {kind_of(value)}")
    return -value if op == "-" else value


def convert(type_name: str, value: Value) -> Value:
    """Returns a value converted by the built-in function that ``type_name`` names.

    They are ``integer()``, ``scalar()``, ``logical()`` and ``string()``. Raises
    :class:`ShapeError` if the value cannot be converted.
    """
    if kind_of(value) not in ("integer", "scalar", "logical", "string"):
        raise ShapeError(f"{type_name}() wants a number, logical or string, got {kind_of(value)}")
    try:
        return _CONVERT[type_name](value)
    except (ValueError, OverflowError):
        raise ShapeError(f"{type_name}() cannot convert {str(value)[:40]!r}") from None


def charge_elements(value: Value) -> None:
    """Charges the number of a value's elements to the load budget."""
    _charge(element_count(value))


def _charge(count: int) -> None:
    current_budget().charge_steps(
        count, f"an array of {count:,} elements (larger ones belong in a .dat)"
    )


def _string(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _to_logical(value: Value) -> bool:
    if isinstance(value, str):
        if value not in ("true", "false"):
            raise ValueError
        return value == "true"
    return bool(value)


def _to_integer(value: Value) -> int:
    return _bounded(int(value[:40] if isinstance(value, str) else value))


_CONVERT: dict[str, Callable[[Value], Value]] = {
    "integer": _to_integer,
    "scalar": float,
    "logical": _to_logical,
    "string": _string,
}


def _logical(op: str, left: Value, right: Value) -> bool:
    if not (isinstance(left, bool) and isinstance(right, bool)):
        raise ShapeError(f"'{op}' wants two logicals, got {kind_of(left)} and {kind_of(right)}")
    return (left and right) if op == "&&" else (left or right)


def _contains(item: Value, values: Value) -> bool:
    if not isinstance(values, list):
        raise ShapeError(f"'in' wants an array on its right, got {kind_of(values)}")
    return item in values


def _sequence(op: str, left: Value, right: Value) -> Value:
    if op == "+" and type(left) is type(right):
        _charge(element_count(left) + element_count(right))
        return left + right
    if op == "*" and isinstance(left, list) and kind_of(right) == "integer":
        return _repeat(left, right)
    raise ShapeError(f"'{op}' cannot take {kind_of(left)} and {kind_of(right)}")


def _repeat(items: list[Value], times: int) -> list[Value]:
    if times < 0:
        raise ShapeError(f"an array cannot be repeated {times} times")
    _charge(element_count(items) * times)
    return items * times


def _numbers(op: str, left: Value, right: Value) -> tuple[Number, Number]:
    types = kind_of(left), kind_of(right)
    if not set(types) <= {"integer", "scalar"}:
        raise ShapeError(f"'{op}' cannot take {types[0]} and {types[1]}")
    return (left, right) if types[0] == types[1] else (float(left), float(right))


def _arithmetic(op: str, left: Number, right: Number) -> Number:
    try:
        value = _ARITHMETIC[op](left, right)
    except ZeroDivisionError:
        raise ShapeError("division by zero") from None
    except (OverflowError, ValueError):
        raise ShapeError(f"{left} {op} {right} has no value") from None
    return _bounded(value) if isinstance(value, int) else value


def _divide(left: Number, right: Number) -> Number:
    """Returns the quotient; two integers give an integer, rounded towards zero."""
    if isinstance(left, float):
        return left / float(right)
    quotient = abs(left) // abs(right)
    return int(quotient if (left < 0) == (right < 0) else -quotient)


def _power(left: Number, right: Number) -> Number:
    if isinstance(left, float):
        return math.pow(left, right)
    if right < 0 or (abs(left) > 1 and right > 64):
        raise OverflowError
    return int(left ** min(right, 64 + right % 2))


_ARITHMETIC: dict[str, Callable[[Value, Value], Number]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divide,
    "^": _power,
}


def _bounded(value: int) -> int:
    if not -(2**63) <= value < 2**63:
        raise ShapeError(f"an integer beyond 64 bits: 2^{value.bit_length()}")
    return value
