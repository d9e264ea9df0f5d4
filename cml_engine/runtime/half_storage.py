"""Measures the rounding error of 16-bit storage, in NumPy alone.

The network runs twice: in 32 bits throughout, and with every tensor and weight rounded that a
GPU would store in 16 bits. The difference is the error of the storage. The rounding of a
device's arithmetic, about a thousand times smaller, is not included.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from cml_engine.compiler.plan import Plan
from cml_engine.compiler.planning.layouts import rounded_weights
from cml_engine.cpu.cpu_program import convert_to_fact, run_node
from cml_engine.ir.graph import Array, Graph, Node
from cml_engine.ir.layout import C4H, FIXED4, to_half
from cml_engine.ops.declaration.registry import lookup
from cml_engine.ops.declaration.spec import Tolerance


@dataclass(frozen=True, slots=True)
class StorageError:
    """The error of a tensor that is stored in 16 bits.

    ``largest`` is the largest difference and ``rms`` the root mean square of the differences,
    both relative to the largest value of the tensor. ``overflow`` is the largest value if it
    exceeds the range of 16 bits, else 0.
    """

    node: Node
    tensor: str
    largest: float
    rms: float
    overflow: float = 0.0


def storage_errors(
    graph: Graph, layouts: Mapping[str, str], inputs: Mapping[str, Array]
) -> Iterator[StorageError]:
    """Yields the error of 16-bit storage of every scalar result, in execution order.

    The network runs twice in NumPy, with and without rounding (module text). Stops at the first
    operator that has no CPU function.
    """
    exact: dict[str, Array] = {**graph.constants, **inputs}
    stored = dict(exact)
    readers = Counter(name for node in graph.nodes for name in node.reads)
    readers.update(graph.roots)
    for node in graph.nodes:
        if lookup(node.op).cpu is None:
            return
        wanted = run_node(node, [exact[name] for name in node.reads])
        got = run_stored(node, graph, layouts, stored)
        for name, value, other in zip(node.outputs, wanted, got, strict=True):
            exact[name] = convert_to_fact(node, graph.facts[name], value)
            stored[name] = other
            if graph.facts[name].dtype == "scalar" and exact[name].size:
                yield storage_error(node, name, exact[name], other)
        readers.subtract(node.reads)
        for name in node.reads:
            if not readers[name]:
                exact.pop(name, None)
                stored.pop(name, None)


def run_stored(
    node: Node, graph: Graph, layouts: Mapping[str, str], values: Mapping[str, Array]
) -> list[Array]:
    """Runs a node on operands as stored and returns its results rounded as they are stored.

    ``layouts`` says which tensors are stored in 16 bits. Weights in 16 bits are rounded before.
    """
    weights = rounded_weights(node, graph, layouts)
    arrays = [round_to_half(values[n]) if n in weights else values[n] for n in node.reads]
    results = []
    for name, value in zip(node.outputs, run_node(node, arrays), strict=True):
        array = convert_to_fact(node, graph.facts[name], value)
        results.append(round_to_half(array) if layouts.get(name) == C4H else array)
    return results


def round_to_half(array: Array) -> Array:
    """Returns the array rounded to 16 bits, as float32."""
    return to_half(array).astype(np.float32)


def storage_error(node: Node, name: str, wanted: Array, got: Array) -> StorageError:
    """Returns the error of a tensor in 16 bits, ``got``, against the same tensor in 32 bits."""
    both = np.isfinite(wanted) & np.isfinite(got)
    size = float(np.abs(wanted, where=np.isfinite(wanted), out=np.zeros_like(wanted)).max())
    lost = bool((np.isfinite(wanted) & ~np.isfinite(got)).any())
    error = np.where(both, got.astype(np.float64) - wanted, 0.0) / (size or 1.0)
    return StorageError(
        node,
        name,
        float(np.abs(error).max()),
        float(np.sqrt(np.mean(np.square(error)))),
        size if lost else 0.0,
    )


def stored_tolerance(
    node: Node, tolerance: Tolerance, layouts: Mapping[str, str], in_steps: bool
) -> Tolerance:
    """Returns ``tolerance``, widened for results that are stored in 16 bits.

    The results are compared with :func:`run_stored`. The tolerance does not change if they are
    stored in 32 bits or must be exact. ``in_steps`` is True if the node's weights are rounded to
    steps, as Winograd's are.
    """
    if not any(layouts.get(name) == C4H for name in node.outputs) and not in_steps:
        return tolerance
    if not (tolerance.rtol or tolerance.atol or tolerance.of_largest):
        return tolerance  # storing a value that is already rounded does not round it again
    return Tolerance(
        tolerance.rtol + 2**-10,
        tolerance.atol + 2**-24,
        f"{tolerance.why}; what lies near the middle may be stored as either neighbour",
        tolerance.of_largest + (4e-4 if in_steps else 0.0),
    )


def integer_results(plan: Plan) -> frozenset[str]:
    """Returns the set of titles of the nodes whose weights are stored as fixed-point steps."""
    return frozenset(s.title for s in plan.steps if FIXED4 in s.defines.values())
