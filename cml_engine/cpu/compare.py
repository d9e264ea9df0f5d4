"""Compares arrays within a tolerance, and computes how far correct results of a node may differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cml_engine.cpu.cpu_program import run_node
from cml_engine.ir.graph import Array, Node
from cml_engine.ops.declaration.registry import lookup
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
    right = _chain(node, arrays).astype(np.float64)
    off = np.zeros(right.shape)
    with np.errstate(all="ignore"):
        for moved in range(len(node.epilogues)):
            off += np.abs(_chain(node, arrays, moved) - right)
    return np.where(np.isfinite(off), off, 0.0)


def cancellation_error(node: Node, arrays: Sequence[Array]) -> Array:
    """Returns, for each value of a sum whose terms may cancel, the rounding errors of the terms,
    which remain.

    They are the relative tolerance times the sum of the terms' magnitudes.
    """
    with np.errstate(all="ignore"):
        added = np.asarray(run_node(node, [np.abs(array) for array in arrays])[0], np.float64)
        off = added * node_tolerance(node).rtol
    return np.where(np.isfinite(off), off, 0.0)


def _chain(node: Node, arrays: Sequence[Array], moved: int = -1) -> Array:
    """Returns a fused node's result, with the result of operator number ``moved`` shifted by its
    tolerance.

    Operator 0 is the node itself, the others are its epilogues; -1 shifts none.
    """
    count, results = len(node.inputs), list[Array]()

    def add(step: Node, operands: Sequence[Array]) -> None:
        result = np.asarray(run_node(step, operands)[0])
        if len(results) == moved and result.dtype.kind == "f":
            result = (result + allowance(result, lookup(step.op).tolerance)).astype(np.float32)
        results.append(result)

    add(replace(node, epilogues=()), arrays[:count])
    for epilogue in node.epilogues:
        operands = epilogue.operands(arrays[count : count + len(epilogue.inputs)], results)
        count += len(epilogue.inputs)
        add(Node(epilogue.op, ("",) * len(operands), node.outputs, epilogue.attrs), operands)
    return results[-1]


def node_tolerance(node: Node) -> Tolerance:
    """Returns the tolerance of a node: the sums of the absolute and the relative tolerances of its
    operator and its epilogues.

    ``of_largest`` is the largest of theirs.
    """
    tolerances = [lookup(op).tolerance for op in node.ops]
    return Tolerance(
        sum(t.rtol for t in tolerances),
        sum(t.atol for t in tolerances),
        "; ".join(dict.fromkeys(t.why for t in tolerances)),
        max(t.of_largest for t in tolerances),
    )
