"""Runs a network on the GPU and checks every operator against NumPy.

Each operator is checked on the inputs that the GPU itself had, so that an error is charged to the
operator that made it and not to those after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from cml_engine.backends.gpu import GpuProgram
from cml_engine.backends.half import (
    StorageError,
    counted_in_steps,
    difference,
    run_stored,
    stored_tolerance,
)
from cml_engine.gpu.device import Gpu
from cml_engine.graph import Graph, Node
from cml_engine.ops.spec import Tolerance, lookup
from cml_engine.passes.choose_storage import Storage, layouts_for
from cml_engine.passes.lower import PlanOptions, lower
from cml_engine.report.compare import Comparison, compare
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
    program.run_ranges(inputs, [(step.index, 0, step.groups) for step in plan.steps])
    known: dict[str, Array] = {**graph.constants, **inputs}
    for node in graph.nodes:
        got = [program.read_tensor(plan.tensors[name]) for name in node.outputs]
        known.update(zip(node.outputs, got, strict=True))
        if lookup(node.op).cpu is None:
            why = "the operator has no CPU function to check against"
            yield NodeCheck(node, None, why)
            continue
        tolerance = stored_tolerance(node, node_tolerance(node), layouts, node.title in in_steps)
        yield _check(node, got, run_stored(node, graph, layouts, known), tolerance)


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


def _check(node: Node, got: list[Array], wanted: list[Array], tolerance: Tolerance) -> NodeCheck:
    compared = [compare(g, w, tolerance) for g, w in zip(got, wanted, strict=True)]
    return NodeCheck(node, max(compared, key=lambda c: (not c.ok, c.worst)))


def node_tolerance(node: Node) -> Tolerance:
    """The operator's own tolerance, widened by those of its epilogues."""
    tolerances = [lookup(op).tolerance for op in (node.op, *(e.op for e in node.epilogues))]
    return Tolerance(
        sum(t.rtol for t in tolerances),
        sum(t.atol for t in tolerances),
        "; ".join(dict.fromkeys(t.why for t in tolerances)),
        max(t.of_largest for t in tolerances),
    )
