"""Summarizes a model before it runs, for ``cml info``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cml_engine.compiler.plan import BandedOperators, Plan
from cml_engine.compiler.planning.layouts import Storage
from cml_engine.ir.graph import Graph
from cml_engine.ir.limits import Limits
from cml_engine.ir.memory import mib
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
    """The facts of ``cml info``: inputs and outputs, operator counts, bytes, and predicted ms."""

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

    @classmethod
    def of(cls, graph: Graph, plan: Plan, storage: Storage = "float") -> ModelInfo:
        """Returns the facts about a graph and its plan for :data:`PORTABLE` limits.

        Nothing is run.
        """
        operators = Counter(node.op for node in graph.nodes)
        several = len(graph.inputs) + bool(graph.updates) > 1 and graph.ready is None
        return cls(
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
            reuse=ReuseInfo.of(graph, PORTABLE, storage) if several else None,
        )

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
        """Returns the facts as the text of a JSON object, with the additional entries ``more``."""
        return json.dumps({**asdict(self), **more}, indent=2)


def predicted_ms(plan: Plan) -> float:
    """Returns the milliseconds of a run on the reference device: its steps' roofline times."""
    seconds = sum(
        max(s.cost.flops / REFERENCE_FLOPS, s.cost.bytes / REFERENCE_BYTES_PER_S) + _STEP_OVERHEAD_S
        for s in plan.steps
    )
    return 1e3 * seconds


def count_variants(plan: Plan) -> int:
    """Returns the number of different pipelines that the plan's steps need."""
    return len(
        {
            (str(s.path), s.inline, s.interface, len(s.bindings), tuple(sorted(s.defines.items())))
            for s in plan.steps
        }
    )


def _bands_lines(bands: Sequence[BandedOperators]) -> list[str]:
    """Returns a line of text for each group of operators that is computed in bands.

    It has the memory with bands and without.
    """
    return [
        f"bands      {run}: {mib(run.nbytes)} for {mib(run.whole_bytes)} at once" for run in bands
    ]
