"""Random calls of the extensions in tests/extension_formulas.py; see tests/generate.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.calls import Call

if TYPE_CHECKING:
    from tests.generate import Draw

Array = np.ndarray[Any, Any]
_REDUCTIONS = ["none", "add", "mul", "min", "max"]


def _like(d: Draw, x: Array, shape: Any) -> Array:
    """Values of the same type."""
    if x.dtype.kind == "f":
        return d.scalars(shape)
    return d.logicals(shape) if x.dtype.kind == "b" else d.integers(shape, 9, -9)


def _elements_of(op: str, d: Draw) -> Call:
    shape = [max(e, 1) for e in d.shape(d.integer(1, 4), 5)]
    x, axis = d.any(shape), d.integer(0, len(shape) - 1)
    beside = [d.integer(0, 6) if a == axis else d.integer(1, e) for a, e in enumerate(shape)]
    indices = d.integers(beside, shape[axis], -shape[axis])
    if op == "gather_elements":
        return Call(op, (x, indices), {"axis": axis})
    reduction = "none" if x.dtype.kind == "b" else d.choice(_REDUCTIONS)
    attrs = {"axis": axis, "reduction": reduction}
    return Call(op, (x, indices, _like(d, x, beside)), attrs)


def _scatter_nd_of(op: str, d: Draw) -> Call:
    shape = [max(e, 1) for e in d.shape(d.integer(1, 4), 4)]
    x, places = d.any(shape), d.integer(1, len(shape))
    rows = d.shape(d.integer(0, 2), 4)
    parts = [d.integers([*rows, 1], shape[i], -shape[i]) for i in range(places)]
    updates = _like(d, x, [*rows, *shape[places:]])
    reduction = "none" if x.dtype.kind == "b" else d.choice(_REDUCTIONS)
    return Call(op, (x, np.concatenate(parts, -1), updates), {"reduction": reduction})


FAMILIES: tuple[tuple[Callable[[str, Draw], Call], str], ...] = (
    (_elements_of, "gather_elements scatter_elements"),
    (_scatter_nd_of, "scatter_nd"),
)
