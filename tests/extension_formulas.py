"""Formulas of the extensions that exchange formats beside NNEF ask for; see tests/formulas.py.

Where an index decides, they are loops over single elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

# ---------------------------------------------------------------- one element at a time


def _wrapped(function: Callable[..., Any]) -> Callable[..., Array]:
    """Whole numbers of any size, cut to 32 bits."""

    def formula(*arrays: Array) -> Array:
        wide = [a.astype(object) for a in arrays]
        low = np.asarray(np.frompyfunc(function, len(wide), 1)(*wide)) & 0xFFFFFFFF
        return np.asarray(low, object).astype(np.uint32).astype(np.int32)

    return formula


def _quotient(a: int, b: int) -> int:
    """C's: towards zero."""
    return (abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1) if b else 0


def _shift(a: int, by: int, left: bool) -> int:
    if not 0 <= by < 32:
        return 0
    return a << by if left else (a & 0xFFFFFFFF) >> by


INTEGERS: dict[str, Callable[..., Array]] = {
    "int_add": _wrapped(lambda a, b: a + b), "int_sub": _wrapped(lambda a, b: a - b),
    "int_mul": _wrapped(lambda a, b: a * b), "int_div": _wrapped(_quotient),
    "int_rem": _wrapped(lambda a, b: a - _quotient(a, b) * b if b else 0),
    "int_mod": _wrapped(lambda a, b: a % b if b else 0),
    "int_min": np.minimum, "int_max": np.maximum, "int_neg": _wrapped(lambda a: -a),
    "int_abs": _wrapped(abs), "int_sign": np.sign,
    "int_lt": np.less, "int_gt": np.greater, "int_le": np.less_equal,
    "int_ge": np.greater_equal, "int_eq": np.equal, "int_ne": np.not_equal,
    "bit_and": _wrapped(lambda a, b: a & b), "bit_or": _wrapped(lambda a, b: a | b),
    "bit_xor": _wrapped(lambda a, b: a ^ b), "bit_not": _wrapped(lambda a: ~a),
    "shift_left": _wrapped(lambda a, by: _shift(a, by, True)),
    "shift_right": _wrapped(lambda a, by: _shift(a, by, False)),
}  # fmt: skip

ELEMENTWISE: dict[str, Callable[..., Array]] = {
    **INTEGERS,
    "is_nan": lambda x: x != x,
    "is_inf": lambda x: np.abs(x) == np.inf,
    "round_even": np.round,
    "fmod": np.vectorize(
        lambda x, y: math.nan if y == 0 or math.isinf(x) else math.fmod(x, y), [np.float64]
    ),
}


# ---------------------------------------------------------------- by index


def _gather_elements(x: Array, indices: Array, axis: int) -> list[Array]:
    y = np.zeros(indices.shape, x.dtype)
    for at in np.ndindex(*indices.shape):
        place = list(at)
        place[axis] = indices[at]
        y[at] = x[tuple(place)]
    return [y]


_MEET: dict[str, Callable[[Any, Any], Any]] = {
    "none": lambda a, b: b, "add": lambda a, b: a + b, "mul": lambda a, b: a * b,
    "min": min, "max": max,
}  # fmt: skip


def _wide(x: Array) -> Array:
    return np.array(x, np.float64 if x.dtype.kind == "f" else x.dtype)


def _is_in(place: Any, shape: Any) -> bool:
    return all(-e <= i < e for i, e in zip(place, shape, strict=False))


def _scatter_elements(x: Array, indices: Array, updates: Array, axis: int,
                      reduction: str = "none") -> list[Array]:  # fmt: skip
    y = _wide(x)
    for at in np.ndindex(*indices.shape):
        place = list(at)
        place[axis] = indices[at]
        if _is_in(place, x.shape):
            y[tuple(place)] = _MEET[reduction](y[tuple(place)], updates[at])
    return [y]


def _scatter_nd(x: Array, indices: Array, updates: Array, reduction: str = "none") -> list[Array]:
    y = _wide(x)
    for at in np.ndindex(*indices.shape[:-1]):
        place = tuple(indices[at])
        if _is_in(place, x.shape):
            old, new = np.asarray(y[place]), np.asarray(updates[at])
            met = [_MEET[reduction](a, b) for a, b in zip(old.flat, new.flat, strict=True)]
            y[place] = np.array(met, y.dtype).reshape(old.shape)
    return [y]


FORMULAS: dict[str, Callable[..., list[Array]]] = {
    "gather_elements": _gather_elements,
    "scatter_elements": _scatter_elements,
    "scatter_nd": _scatter_nd,
}
