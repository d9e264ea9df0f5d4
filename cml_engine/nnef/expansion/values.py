"""The values of NNEF expressions: numbers, logicals, strings, lists, tuples, tensors by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

#: A bool, int, float, str or :class:`TensorRef`, or nested lists and tuples of them.
Value: TypeAlias = Any

#: The deepest nesting of arrays.
MAX_NESTING = 8


class ValueProblem(Exception):
    """The error that an operation on values has no result.

    The evaluator adds the source position.
    """


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
    kind = kind_of(value)
    shown = repr(value) if kind == "string" else str(value).lower()
    return f"{kind} {shown[:40]}"


def kind_of(value: Value) -> str:
    """Returns the NNEF type of a plain value, or ``tensor``, ``array``, ``tuple``."""
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
    is charged to the budget. Raises :class:`ValueProblem` if the nesting is too deep, because
    the count could take exponential time.
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
