"""Compares arrays within a tolerance, and computes how far correct results of a node may differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cml_engine.cpu.cpu_program import run_node
from cml_engine.ir.graph import Array, Node
from cml_engine.ops.declaration.registry import lookup
from cml_engine.ops.declaration.spec import Tolerance
from cml_engine.ops.declaration.tolerances import sum_of, wider_tolerance


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of comparing two arrays.

    ``worst`` is the largest ``|actual - expected|`` divided by its tolerance, so 1 is the limit.
    ``max_abs`` is the largest ``|actual - expected|``. ``problem`` describes the first difference
    and its position; it is empty if the arrays agree.
    """

    worst: float
    max_abs: float
    problem: str = ""

    @property
    def ok(self) -> bool:
        return not self.problem


def compare(
    actual: Array, expected: Array, tolerance: Tolerance, extra: Array | float = 0.0
) -> Comparison:
    """Compares an array with the expected one, and returns the largest error and the first
    difference.

    The shape is compared first, then the type, NaN and infinities, then the values. Types other
    than floats must be equal. ``extra`` is an additional absolute tolerance, one number or one
    per value.
    """
    actual, expected = np.asarray(actual), np.asarray(expected)
    if actual.shape != expected.shape:
        return _differs(f"shape {list(actual.shape)}, wanted {list(expected.shape)}")
    if actual.dtype.kind != expected.dtype.kind:
        return _differs(f"type {actual.dtype.name}, wanted {expected.dtype.name}")
    if actual.dtype.kind != "f":
        return _compare_exactly(actual, expected)
    for label, test in (("NaN", np.isnan), ("infinity", np.isinf)):
        mismatches = test(actual) != test(expected)
        if mismatches.any():
            return _differs(f"{label} in one only: {_describe_first(mismatches, actual, expected)}")
    with np.errstate(invalid="ignore"):  # a signaling NaN
        values = actual.astype(np.float64), expected.astype(np.float64)
    return _compare_floats(*values, tolerance, extra)


def allowance(values: Array, tolerance: Tolerance) -> Array:
    """Returns the absolute tolerance of each value, as an array of the same shape.

    It depends on the value and on the largest finite magnitude of the array.
    """
    magnitudes = np.where(np.isfinite(values), np.abs(values), 0).astype(np.float64)
    largest = magnitudes.max(initial=0.0)
    return np.asarray(tolerance.atol + tolerance.rtol * magnitudes + tolerance.of_largest * largest)


def _compare_floats(
    actual: Array, expected: Array, tolerance: Tolerance, extra: Array | float
) -> Comparison:
    finite = np.isfinite(expected)
    if not np.array_equal(actual[~finite], expected[~finite], equal_nan=True):
        return _differs("an infinity has the wrong sign")
    if not finite.any():
        return Comparison(0.0, 0.0)
    error = np.abs(np.where(finite, actual, 0) - np.where(finite, expected, 0))
    allowed = allowance(expected, tolerance) + extra
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(error > 0, error / allowed, 0.0)
    worst, largest = float(ratio.max()), float(error.max())
    if worst <= 1:
        return Comparison(worst, largest)
    mismatches = ratio > 1
    first = _describe_first(ratio == worst, actual, expected)
    problem = f"{int(mismatches.sum())} of {mismatches.size} values differ: {first}"
    return Comparison(worst, largest, f"{problem}, allowed {float(allowed[ratio == worst][0]):.3g}")


def _compare_exactly(actual: Array, expected: Array) -> Comparison:
    mismatches = actual != expected
    if not mismatches.any():
        return Comparison(0.0, 0.0)
    first = _describe_first(mismatches, actual, expected)
    return _differs(f"{int(mismatches.sum())} of {mismatches.size} differ: {first}")


def _describe_first(mismatches: Array, actual: Array, expected: Array) -> str:
    index = tuple(int(i) for i in np.argwhere(mismatches)[0])
    return f"at {list(index)} got {_value(actual[index])}, wanted {_value(expected[index])}"


def _value(x: object) -> str:
    return f"{x:.7g}" if isinstance(x, np.floating | float) else str(x)


def _differs(problem: str) -> Comparison:
    return Comparison(np.inf, np.inf, problem)


# -- tolerances -----------------------------------------------------------------------------------


def propagated_error(node: Node, arrays: Sequence[Array]) -> Array:
    """Returns, for each value of a fused node's result, the error that stems from rounding in its
    earlier operators.

    For example, ``exp`` amplifies an error in the last digit of its operand. Each operator's
    result is shifted by its own tolerance in turn, and the effects on the final result are
    added.
    """
    result = _chain(node, arrays).astype(np.float64)
    error = np.zeros(result.shape)
    with np.errstate(all="ignore"):
        for shifted in range(len(node.epilogues)):
            error += np.abs(_chain(node, arrays, shifted) - result)
    return np.where(np.isfinite(error), error, 0.0)


def cancellation_error(node: Node, arrays: Sequence[Array]) -> Array:
    """Returns the rounding error of each value of a sum whose terms may cancel: that of the terms.

    They are the relative tolerance times the sum of the terms' magnitudes.
    """
    with np.errstate(all="ignore"):
        magnitudes = np.asarray(run_node(node, [np.abs(array) for array in arrays])[0], np.float64)
        error = magnitudes * node_tolerance(node).rtol
    return np.where(np.isfinite(error), error, 0.0)


def _chain(node: Node, arrays: Sequence[Array], shifted: int = -1) -> Array:
    """Returns a fused node's result, with the result of operator number ``shifted`` moved by its
    tolerance.

    Operator 0 is the node itself, the others are its epilogues; -1 shifts none.
    """
    count, results = len(node.inputs), list[Array]()

    def add(step: Node, operands: Sequence[Array]) -> None:
        result = np.asarray(run_node(step, operands)[0])
        if len(results) == shifted and result.dtype.kind == "f":
            result = (result + allowance(result, lookup(step.op).allowed_error)).astype(np.float32)
        results.append(result)

    add(replace(node, epilogues=()), arrays[:count])
    for epilogue in node.epilogues:
        operands = epilogue.operands(arrays[count : count + len(epilogue.inputs)], results)
        count += len(epilogue.inputs)
        add(Node(epilogue.op, ("",) * len(operands), node.outputs, epilogue.attrs), operands)
    return results[-1]


def node_tolerance(node: Node) -> Tolerance:
    """Returns the tolerance of a node: that of its operator and its epilogues together."""
    return sum_of(lookup(op).allowed_error for op in node.ops)


def advice(node: Node, tolerance: Tolerance, comparison: Comparison) -> str:
    """Returns the line that declares a wider tolerance for a game's operator that diverges.

    It is "" for the engine's operators, and if the difference is larger than rounding makes.
    """
    custom = [op for op in node.ops if lookup(op).is_custom]
    wider = wider_tolerance(tolerance, comparison.worst)
    if comparison.ok or not custom or wider is None:
        return ""
    return (
        f"if only rounding differs, declare tolerance={wider:g} in the cml.OpSpec of "
        f"'{custom[0]}' (now {tolerance.rtol:g} of the value and {tolerance.atol:g})"
    )
