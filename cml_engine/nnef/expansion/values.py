"""What an NNEF expression evaluates to: numbers, strings, lists, tuples, and tensors by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

#: bool, int, float, str, list, tuple or :class:`TensorRef`, nested.
Value: TypeAlias = Any

#: Arrays within arrays.
MAX_NESTING = 8


class ValueProblem(Exception):
    """An operation on values that has no result; the evaluator adds the place."""


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A tensor of the graph being built."""

    name: str
    dtype: str


def describe(value: Value, depth: int = 0) -> str:
    """A value's type, as messages show it."""
    if isinstance(value, TensorRef):
        return f"tensor<{value.dtype}> '{value.name}'"
    if isinstance(value, (list, tuple)):
        return _describe_items(value, depth)
    kind = kind_of(value)
    shown = repr(value) if kind == "string" else str(value).lower()
    return f"{kind} {shown[:40]}"


def kind_of(value: Value) -> str:
    """The NNEF type of a plain value, or ``tensor``, ``array``, ``tuple``."""
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
    """How many leaves a nested array has; a plain value counts as one, a string as its characters.

    An empty inner array counts as one too, so that an array of them is not free. One that is
    nested too deep is refused, because counting it could take for ever.
    """
    if isinstance(value, str):
        return len(value)
    if not isinstance(value, (list, tuple)):
        return 1
    if depth >= MAX_NESTING:
        raise ValueProblem(f"an array of more than {MAX_NESTING} levels: store it in a .dat")
    if not any(isinstance(item, (list, tuple, str)) for item in value):
        return len(value) or 1
    return sum(element_count(item, depth + 1) for item in value) or 1


def has_tensor(value: Value) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(has_tensor, value))
    return isinstance(value, TensorRef)


def _describe_items(value: Any, depth: int) -> str:
    what = "array" if isinstance(value, list) else "tuple"
    if not value:
        return f"empty {what}"
    if depth > 1:
        return what
    return f"{what} of {len(value)} ({describe(value[0], depth + 1)}, ...)"
