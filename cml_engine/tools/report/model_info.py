"""The facts about a model that are known before it runs: ``cml info``."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cml_engine.compiler.optimize import optimize
from cml_engine.compiler.plan import BandedOperators, Plan
from cml_engine.compiler.planning.choose_storage import Storage
from cml_engine.compiler.planning.lower import PlanOptions
from cml_engine.compiler.planning.overrides import NO_DECISIONS, Decisions
from cml_engine.compiler.planning.plan_graph import plan_graph
from cml_engine.compiler.tuning_tables import table_for
from cml_engine.errors import DeviceError
from cml_engine.ir.graph import Graph
from cml_engine.ir.limits import Limits
from cml_engine.ir.memory import mib
from cml_engine.ops.declaration.choice import NO_VARIANTS
from cml_engine.tools.report.reuse_info import ReuseInfo

#: the device of the prediction: a small integrated GPU. A measured table replaces it later.
REFERENCE_FLOPS = 1e12
REFERENCE_BYTES_PER_S = 50e9
_STEP_OVERHEAD_S = 5e-6
_HALF_NOTE = "storage    16 bits for feature maps between operators and the weights that meet them"
#: the limits that WebGPU guarantees, with unlimited memory: a device itself reports a model that is
#: too large for it, and this table must show how large the model is
PORTABLE = Limits(max_binding_bytes=1 << 40, max_buffer_bytes=1 << 40)


@dataclass(frozen=True)
class ModelInfo:
    """Inputs and outputs as text, operator counts, sizes in bytes, and the predicted time in ms."""

    model: str
    inputs: dict[str, str]
    outputs: dict[str, str]
    operators: dict[str, int]
    parameters: int
    weights_bytes: int
    arena_bytes: int
    arena_lower_bound: int
    arena_ratio: float
    steps: int
    variants: int
    gflop: float
    moved_bytes: float
    predicted_ms: float
    storage: str
    layers: tuple[str, ...]
    notes: tuple[str, ...] = ()
    #: set if there are several inputs, or variables
    reuse: ReuseInfo | None = None
    #: the runs that are computed in bands of rows to limit memory
    bands: tuple[BandedOperators, ...] = ()

    def __str__(self) -> str:
        def block(title: str, rows: dict[str, str]) -> list[str]:
            return [title] + [f"  {name:24s} {value}" for name, value in rows.items()]

        counts = ", ".join(f"{name} {n}" for name, n in self.operators.items())
        lines = [f"model {self.model}", *self.notes]
        lines += block("inputs", self.inputs) + block("outputs", self.outputs)
        lines += [
            f"operators  {sum(self.operators.values())}: {counts}",
            f"weights    {self.parameters} values in the model, {mib(self.weights_bytes)} packed",
            f"memory     peak {mib(self.arena_bytes)} for activations, "
            f"{self.arena_ratio:.3f} of the lower bound ({mib(self.arena_lower_bound)})",
            *_bands_lines(self.bands),
            *([_HALF_NOTE] if self.storage == "half" else []),
            *(self.reuse.lines() if self.reuse else []),
            f"work       {self.gflop:.3f} GFLOP, {mib(self.moved_bytes)} moved at least, in "
            f"{self.steps} dispatches of {self.variants} kernel variants",
            f"predicted  {self.predicted_ms:.2f} ms on a reference GPU of "
            f"{REFERENCE_FLOPS / 1e12:.0f} TFLOP/s and {REFERENCE_BYTES_PER_S / 1e9:.0f} GB/s; "
            "`cml rank` measures this one",
        ]
        return "\n".join(lines)

    def json(self, **more: Any) -> str:
        """Returns the facts as a JSON object, with the given additional entries."""
        return json.dumps({**asdict(self), **more}, indent=2)


def model_info(
    graph: Graph,
    limits: Limits | None = None,
    storage: Storage = "float",
    decide: Decisions = NO_DECISIONS,
    arena_limit: int = 0,
) -> ModelInfo:
    """Plans the graph and summarizes it; runs nothing and needs no GPU.

    The limits are :data:`PORTABLE` by default.
    """
    optimized = optimize(graph)
    options = PlanOptions(arena_limit=arena_limit)
    plan = plan_graph(optimized, limits or PORTABLE, storage, options, decide=decide, written=graph)
    operators = Counter(node.op for node in graph.nodes)
    several = len(graph.inputs) + bool(graph.updates) > 1 and graph.ready is None
    return ModelInfo(
        model=graph.name,
        inputs={n: str(graph.facts[n]) for n in graph.inputs},
        outputs={n: str(graph.facts[n]) for n in graph.outputs},
        operators=dict(operators.most_common()),
        parameters=sum(array.size for array in graph.constants.values()),
        weights_bytes=plan.weights_bytes + plan.own_bytes,
        arena_bytes=plan.memory.peak,
        arena_lower_bound=plan.memory.bound,
        arena_ratio=plan.memory.ratio,
        steps=len(plan.steps),
        variants=count_variants(plan),
        gflop=plan.cost.flops / 1e9,
        moved_bytes=plan.cost.bytes,
        predicted_ms=predicted_ms(plan),
        storage=storage,
        layers=tuple(str(step) for step in plan.steps),
        notes=graph.notes,
        bands=plan.bands,
        reuse=ReuseInfo.of(graph, limits or PORTABLE, storage) if several else None,
    )


def make_plan(
    graph: Graph,
    storage: Storage = "float",
    decide: Decisions = NO_DECISIONS,
    arena_limit: int = 0,
) -> tuple[Plan, str]:
    """Returns the plan of a session on this machine's GPU, and the GPU's name.

    Without a GPU the plan is for :data:`PORTABLE` limits and the name is "". Raises
    :class:`DeviceError` if there is no GPU of the name in ``CML_ADAPTER``.
    """
    try:
        from cml_engine.gpu.gpu import Gpu

        gpu = Gpu()
        limits, name = gpu.limits, gpu.name
    except (DeviceError, ImportError):
        if os.environ.get("CML_ADAPTER"):
            raise
        limits, name = PORTABLE, ""
    optimized = optimize(graph)
    variants = table_for(name) if name else NO_VARIANTS

    def lowered() -> Plan:
        options = PlanOptions(variants=variants, arena_limit=arena_limit)
        return plan_graph(optimized, limits, storage, options, decide, written=graph)

    ready, plain = graph.ready, not decide and not arena_limit
    return (lowered() if ready is None else ready.plan(limits, storage, plain, lowered)), name


def predicted_ms(plan: Plan) -> float:
    """Returns the sum of the steps' roofline times on the reference device, in milliseconds."""
    seconds = sum(
        max(s.cost.flops / REFERENCE_FLOPS, s.cost.bytes / REFERENCE_BYTES_PER_S) + _STEP_OVERHEAD_S
        for s in plan.steps
    )
    return 1e3 * seconds


def count_variants(plan: Plan) -> int:
    """Returns the number of pipelines that the plan needs."""
    return len(
        {
            (str(s.path), s.inline, s.interface, len(s.bindings), tuple(sorted(s.defines.items())))
            for s in plan.steps
        }
    )


def _bands_lines(bands: Sequence[BandedOperators]) -> list[str]:
    """Returns a line for each run computed in bands, with its memory with and without bands."""
    return [
        f"bands      {run}: {mib(run.nbytes)} for {mib(run.whole_bytes)} at once" for run in bands
    ]
