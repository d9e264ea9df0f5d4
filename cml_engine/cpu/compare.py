"""Compares arrays within a tolerance and describes where they differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cml_engine.ir.graph import Array
from cml_engine.ops.declaration.spec import Tolerance


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of comparing two arrays.

    ``worst`` is the largest ``|got - wanted|`` divided by its tolerance, so 1 is the limit.
    ``max_abs`` is the largest ``|got - wanted|``. ``problem`` describes the first difference and
    its position; it is empty if the arrays agree.
    """

    worst: float
    max_abs: float
    problem: str = ""

    @property
    def ok(self) -> bool:
        return not self.problem


def compare(
    got: Array, wanted: Array, tolerance: Tolerance, more: Array | float = 0.0
) -> Comparison:
    """Compares an array with the wanted one, and returns the largest error and the first
    difference.

    The shape is compared first, then the type, NaN and infinities, then the values. Types other
    than floats must be equal. ``more`` is an additional absolute tolerance, one number or one
    per value.
    """
    got, wanted = np.asarray(got), np.asarray(wanted)
    if got.shape != wanted.shape:
        return _differs(f"shape {list(got.shape)}, wanted {list(wanted.shape)}")
    if got.dtype.kind != wanted.dtype.kind:
        return _differs(f"type {got.dtype.name}, wanted {wanted.dtype.name}")
    if got.dtype.kind != "f":
        return _exact(got, wanted)
    for what, test in (("NaN", np.isnan), ("infinity", np.isinf)):
        odd = test(got) != test(wanted)
        if odd.any():
            return _differs(f"{what} in one only: {_shown(odd, got, wanted)}")
    with np.errstate(invalid="ignore"):  # a signaling NaN
        exact = got.astype(np.float64), wanted.astype(np.float64)
    return _close(*exact, tolerance, more)


def allowance(values: Array, tolerance: Tolerance) -> Array:
    """Returns the absolute tolerance of each value, as an array of the same shape.

    It depends on the value and on the largest finite magnitude of the array.
    """
    size = np.where(np.isfinite(values), np.abs(values), 0).astype(np.float64)
    largest = size.max(initial=0.0)
    return np.asarray(tolerance.atol + tolerance.rtol * size + tolerance.of_largest * largest)


def _close(got: Array, wanted: Array, tolerance: Tolerance, more: Array | float) -> Comparison:
    finite = np.isfinite(wanted)
    if not np.array_equal(got[~finite], wanted[~finite], equal_nan=True):
        return _differs("an infinity has the wrong sign")
    if not finite.any():
        return Comparison(0.0, 0.0)
    error = np.abs(np.where(finite, got, 0) - np.where(finite, wanted, 0))
    allowed = allowance(wanted, tolerance) + more
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(error > 0, error / allowed, 0.0)
    worst, largest = float(ratio.max()), float(error.max())
    if worst <= 1:
        return Comparison(worst, largest)
    bad = ratio > 1
    why = f"{int(bad.sum())} of {bad.size} values differ: {_shown(ratio == worst, got, wanted)}"
    return Comparison(worst, largest, f"{why}, allowed {float(allowed[ratio == worst][0]):.3g}")


def _exact(got: Array, wanted: Array) -> Comparison:
    wrong = got != wanted
    if not wrong.any():
        return Comparison(0.0, 0.0)
    return _differs(f"{int(wrong.sum())} of {wrong.size} differ: {_shown(wrong, got, wanted)}")


def _shown(where: Array, got: Array, wanted: Array) -> str:
    index = tuple(int(i) for i in np.argwhere(where)[0])
    return f"at {list(index)} got {_value(got[index])}, wanted {_value(wanted[index])}"


def _value(x: Any) -> str:
    return f"{x:.7g}" if isinstance(x, np.floating | float) else str(x)


def _differs(problem: str) -> Comparison:
    return Comparison(np.inf, np.inf, problem)
