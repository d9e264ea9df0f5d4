"""Computes how far two correct results of a node may differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cml_engine.cpu.compare import allowance
from cml_engine.cpu.cpu_program import run_node
from cml_engine.ir.graph import Array, Node
from cml_engine.ops.declaration.registry import lookup
from cml_engine.ops.declaration.spec import Tolerance


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
