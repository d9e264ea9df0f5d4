"""Walks over syntax trees, without recursion."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from cml_engine.nnef.text.ast import Argument, Assignment, Call, Expr, Fragment, Literal, Name


def expressions(root: Any) -> Iterator[Any]:
    """Every record of a tree, the root first."""
    waiting = [root]
    while waiting:
        item = waiting.pop()
        if isinstance(item, tuple):
            waiting += item
        elif is_dataclass(item):
            yield item
            waiting += [getattr(item, f.name) for f in fields(item)]


def called_operators(fragment: Fragment) -> list[str]:
    """The operators and fragments that a fragment's body calls by name."""
    return [item.op for item in expressions(fragment.body) if isinstance(item, Call)]


def assigned_names(body: tuple[Assignment, ...]) -> list[str]:
    """Every name that a body assigns to."""
    return [item.id for a in body for item in expressions(a.target) if isinstance(item, Name)]


def is_flat(value: Expr) -> bool:
    """Whether a right-hand side needs no operator expressions: one call of names and literals."""
    if isinstance(value, (Literal, Name)):
        return True
    return isinstance(value, Call) and all(map(_is_flat_argument, value.arguments))


def _is_flat_argument(argument: Argument) -> bool:
    value = argument.value
    if isinstance(value, (Literal, Name)):
        return True
    items = getattr(value, "items", None)
    return items is not None and all(_is_flat_argument(Argument(None, item)) for item in items)
