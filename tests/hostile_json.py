"""Texts that a JSON file of ours may hold when it is not ours any more."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

VALUES = (None, True, -1, 0, 1e999, float("nan"), 10**400, 1e308, "text", "", [], {}, [[]], [1, 2])


def texts(good: Any) -> Iterator[str]:
    """Damaged, of another kind, or with any of its values replaced."""
    whole = json.dumps(good)
    yield from ("", "{}", "[1]", "null", "3", "nonsense", "\0\0", whole[: len(whole) // 2])
    yield from ("[" * 100_000, '{"a":' * 100_000, "9" * 5000, '{"format": "other"}')
    for path in _paths(good):
        for value in VALUES:
            yield json.dumps(_replaced(good, path, value))
        yield json.dumps(_replaced(good, path, _GONE))


_GONE = object()


def _paths(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in items:
        yield (*path, key)
        if isinstance(value, (dict, list)):
            yield from _paths(value, (*path, key))


def _replaced(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    data = copy.deepcopy(data)
    place = data
    for key in path[:-1]:
        place = place[key]
    if value is _GONE:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return data
