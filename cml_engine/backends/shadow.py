"""Runs a network on the GPU and checks every operator against NumPy.

Each operator is checked on the inputs that the GPU itself had, so that an error is charged to the
operator that made it and not to those after it. Where a GPU may spread a NaN, that is
no error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np

from cml_engine.backends.cpu import run_node
from cml_engine.backends.half import (
    StorageError,
    counted_in_steps,
    difference,
    run_stored,
    stored_tolerance,
)
from cml_engine.gpu.gpu import Gpu
from cml_engine.gpu.program import inspect
from cml_engine.gpu.program.program import GpuProgram
from cml_engine.graph import Graph, Node
from cml_engine.ops.conv.special_values import may_be_nan
from cml_engine.ops.declaration.registry import lookup
from cml_engine.ops.declaration.spec import Tolerance
from cml_engine.planning.choose_storage import Storage, layouts_for
from cml_engine.planning.lower import PlanOptions, lower
from cml_engine.report.compare import Comparison, allowance, compare
from cml_engine.tuning.tables import table_for

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class NodeCheck:
    """One operator's verdict: the worst of its outputs, or why it could not be checked."""

    node: Node
    comparison: Comparison | None
    skipped: str = ""

    @property
    def ok(self) -> bool:
        return self.comparison is None or self.comparison.ok


def shadow_run(
    graph: Graph, gpu: Gpu, inputs: Mapping[str, Array], storage: Storage = "float"
) -> Iterator[NodeCheck]:
    """Run the (optimized) graph once on the GPU, by the kernels that sessions on it have, then
    check its nodes in order. With ``"half"`` NumPy's results are rounded as they are stored."""
    layouts = layouts_for(graph, storage)
    options = PlanOptions(keep=True, variants=table_for(gpu.name))
    plan = lower(graph, gpu.limits, layouts, options)
    in_steps = counted_in_steps(plan)
    program = GpuProgram(plan, gpu)
    # every step, and no variable gets its new value: what is checked are the values of this run
    inspect.run_ranges(program, inputs, [(step.index, 0, step.groups) for step in plan.steps])
    known: dict[str, Array] = {**graph.constants, **inputs}
    for node in graph.nodes:
        got = [inspect.read_tensor(program, plan.tensors[name]) for name in node.outputs]
        known.update(zip(node.outputs, got, strict=True))
        if lookup(node.op).cpu is None:
            why = "the operator has no CPU function to check against"
            yield NodeCheck(node, None, why)
            continue
        tolerance = stored_tolerance(node, node_tolerance(node), layouts, node.title in in_steps)
        wanted = run_stored(node, graph, layouts, known)
        nan = may_be_nan(node, graph, [known[name] for name in node.reads])
        if nan is not None:
            got = [np.where(nan & np.isnan(got[0]), wanted[0], got[0])]
        check = _check(node, got, wanted, tolerance)
        if not check.ok and (node.epilogues or lookup(node.op).traits.adds):
            arrays = [known[name] for name in node.reads]
            off = propagated(node, arrays) if node.epilogues else cancelled(node, arrays)
            check = _check(node, got, wanted, tolerance, off)
        yield check


def measured_errors(graph: Graph, gpu: Gpu, inputs: Mapping[str, Array]) -> Iterator[StorageError]:
    """The error of every scalar output in 16 bits against 32, both as the GPU computes them."""
    full, half = (_outputs(graph, gpu, inputs, storage) for storage in get_args(Storage))
    for node in graph.nodes:
        for name in node.outputs:
            if name in graph.outputs and full[name].dtype.kind == "f" and full[name].size:
                yield difference(node, name, full[name], half[name])


def _outputs(
    graph: Graph, gpu: Gpu, inputs: Mapping[str, Array], storage: Storage
) -> dict[str, Array]:
    options = PlanOptions(variants=table_for(gpu.name))
    plan = lower(graph, gpu.limits, layouts_for(graph, storage), options)
    return GpuProgram(plan, gpu).run(inputs)


def _check(
    node: Node,
    got: list[Array],
    wanted: list[Array],
    tolerance: Tolerance,
    more: Array | float = 0.0,
) -> NodeCheck:
    compared = [compare(g, w, tolerance, more) for g, w in zip(got, wanted, strict=True)]
    return NodeCheck(node, max(compared, key=lambda c: (not c.ok, c.worst)))


def propagated(node: Node, arrays: Sequence[Array]) -> Array:
    """How far the result of fused operators may be off because of what those before it were: an
    ``exp`` makes much of the last digit of what it is given. Each in turn is moved by its own
    tolerance, and what that does to the result is added up."""
    right = _chain(node, arrays).astype(np.float64)
    off = np.zeros(right.shape)
    with np.errstate(all="ignore"):
        for moved in range(len(node.epilogues)):
            off += np.abs(_chain(node, arrays, moved) - right)
    return np.where(np.isfinite(off), off, 0.0)


def cancelled(node: Node, arrays: Sequence[Array]) -> Array:
    """How far a sum may be off because its terms cancel: their roundings stay."""
    with np.errstate(all="ignore"):
        added = np.asarray(run_node(node, [np.abs(array) for array in arrays])[0], np.float64)
        off = added * node_tolerance(node).rtol
    return np.where(np.isfinite(off), off, 0.0)


def _chain(node: Node, arrays: Sequence[Array], moved: int = -1) -> Array:
    """The result, where that of the operator of that number is moved by its tolerance."""
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
    """The operator's own tolerance, widened by those of its epilogues."""
    tolerances = [lookup(op).tolerance for op in (node.op, *(e.op for e in node.epilogues))]
    return Tolerance(
        sum(t.rtol for t in tolerances),
        sum(t.atol for t in tolerances),
        "; ".join(dict.fromkeys(t.why for t in tolerances)),
        max(t.of_largest for t in tolerances),
    )
