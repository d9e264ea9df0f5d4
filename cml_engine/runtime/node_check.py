"""Runs a network on the GPU and checks every operator against NumPy.

NumPy computes each operator from the operands that the GPU had, so an error is reported at the
operator that caused it and not at later ones. A NaN that a GPU may legitimately spread is not an
error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import get_args

import numpy as np

from cml_engine.compiler.planning.decisions import NO_DECISIONS, Decisions
from cml_engine.compiler.planning.dispatches import PlanOptions
from cml_engine.compiler.planning.layouts import Storage
from cml_engine.compiler.planning.plan_graph import plan_graph
from cml_engine.compiler.tuning_tables import table_for
from cml_engine.cpu.compare import Comparison, compare
from cml_engine.cpu.tolerances import cancellation_error, node_tolerance, propagated_error
from cml_engine.gpu.gpu import Gpu
from cml_engine.gpu.program import inspect
from cml_engine.gpu.program.program import GpuProgram
from cml_engine.ir.graph import Array, Graph, Node
from cml_engine.ops.conv.special_values import may_be_nan
from cml_engine.ops.declaration.registry import lookup
from cml_engine.ops.declaration.spec import Tolerance
from cml_engine.runtime.half_storage import (
    StorageError,
    integer_results,
    run_stored,
    storage_error,
    stored_tolerance,
)


@dataclass(frozen=True, slots=True)
class NodeCheck:
    """The check of one operator: its worst output's comparison, or why it was skipped."""

    node: Node
    comparison: Comparison | None
    skipped: str = ""

    @property
    def ok(self) -> bool:
        return self.comparison is None or self.comparison.ok


def check_nodes(
    graph: Graph,
    gpu: Gpu,
    inputs: Mapping[str, Array],
    storage: Storage = "float",
    decide: Decisions = NO_DECISIONS,
    written: Graph | None = None,
) -> Iterator[NodeCheck]:
    """Runs the optimized graph once on the GPU, then yields the check of each node in order.

    The GPU uses the same kernels as a session. If ``storage`` is ``"half"``, NumPy's results are
    rounded as they are stored. ``written`` is the graph before the passes; decisions may use its
    tensor names.
    """
    options = PlanOptions(keep=True, variants=table_for(gpu.name))
    plan = plan_graph(graph, gpu.limits, storage, options, decide, written=written)
    layouts = plan.layouts
    in_steps = integer_results(plan)
    program = GpuProgram(plan, gpu)
    # runs every step but updates no variable, since the checks need the values of this run
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
        if not check.ok and (node.epilogues or lookup(node.op).traits.is_sum):
            arrays = [known[name] for name in node.reads]
            off = (
                propagated_error(node, arrays)
                if node.epilogues
                else cancellation_error(node, arrays)
            )
            check = _check(node, got, wanted, tolerance, off)
        yield check


def measure_errors(graph: Graph, gpu: Gpu, inputs: Mapping[str, Array]) -> Iterator[StorageError]:
    """Yields the error of every scalar output that 16-bit storage causes on the GPU.

    The GPU computes the network with storage in 32 and in 16 bits.
    """
    full, half = (_outputs(graph, gpu, inputs, storage) for storage in get_args(Storage))
    for node in graph.nodes:
        for name in node.outputs:
            if name in graph.outputs and full[name].dtype.kind == "f" and full[name].size:
                yield storage_error(node, name, full[name], half[name])


def _outputs(
    graph: Graph, gpu: Gpu, inputs: Mapping[str, Array], storage: Storage
) -> dict[str, Array]:
    options = PlanOptions(variants=table_for(gpu.name))
    plan = plan_graph(graph, gpu.limits, storage, options)
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
