"""Summarizes a model, or a cooked file, before it runs: the tables of ``cml info``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from cml_engine.compiler.optimize import optimize
from cml_engine.compiler.plan import BandedOperators, Plan
from cml_engine.compiler.planning.draft import PlanOptions, Storage
from cml_engine.compiler.planning.layouts import layouts_for
from cml_engine.compiler.planning.plan_graph import lower
from cml_engine.cooked.load import Artifact
from cml_engine.cooked.plan_section import CookedPlan
from cml_engine.cooked.schema import F16
from cml_engine.io.json_files import JsonObject
from cml_engine.ir.block_weights import weight_blocks
from cml_engine.ir.graph import Graph
from cml_engine.ir.limits import Limits
from cml_engine.ir.memory import mib

#: the device of the prediction: a small integrated GPU. A measured table replaces it later.
REFERENCE_FLOPS = 1e12
REFERENCE_BYTES_PER_S = 50e9
_STEP_OVERHEAD_S = 5e-6
_HALF_NOTE = "storage    16 bits for feature maps between operators and the weights that meet them"
_PRODUCTS_NOTE = (
    "arithmetic up to {} convolutions multiply in 16 bits on hardware with shader-f16, where that "
    "is faster; in 32 bits on other devices"
)
_DIRECT_NOTE = "3x3 convs  by their windows, without Winograd"
#: the limits that WebGPU guarantees, with unlimited memory: a device itself reports a model that is
#: too large for it, and this table must show how large the model is
PORTABLE = Limits(max_binding_bytes=1 << 40, max_buffer_bytes=1 << 40)
#: the most inputs whose saved work is shown
_SHOWN_INPUTS = 6


@dataclass(frozen=True, slots=True)
class ReuseInfo:
    """The memory that a session with retained inputs keeps, and the work that it saves.

    ``held_bytes`` stay in memory between runs, in ``tensors``, ``inputs`` of which are inputs.
    ``peak`` is the arena's. ``shares`` has for each input the dispatches of a run in which only
    this input is new, and their share of the FLOPs.
    """

    tensors: int
    inputs: int
    held_bytes: int
    peak: int
    steps: int
    shares: Mapping[str, tuple[int, float]]

    @classmethod
    def of(cls, graph: Graph, limits: Limits, storage: Storage) -> ReuseInfo:
        optimized = optimize(graph, retain=True)
        plan = lower(optimized, limits, layouts_for(optimized, storage), PlanOptions(retain=True))
        assert plan.reuse is not None
        total = plan.cost.flops or 1.0
        shares = {}
        for name in graph.inputs:
            steps = plan.reuse.steps([name])
            shares[name] = len(steps), sum(plan.steps[i].cost.flops for i in steps) / total
        retained = plan.reuse.retained
        return cls(
            len(retained),
            len(graph.inputs),
            sum(retained.values()),
            plan.memory.peak,
            len(plan.steps),
            shares,
        )

    def lines(self) -> list[str]:
        """Returns lines of text: the retained memory, and the work if only one input is new."""
        counts = f"{self.inputs} inputs and {self.tensors - self.inputs} other tensors"
        size = f"{self.held_bytes / 2**10:.2f} KiB"
        peak = f"{self.peak / 2**10:.2f} KiB"
        lines = [f"retain     {counts} ({size}) stay where a session retains them, peak {peak}"]
        for name, (steps, share) in list(self.shares.items())[:_SHOWN_INPUTS]:
            work = f"{steps} of {self.steps} dispatches, {100 * share:.1f} % of the operations"
            lines.append(f"           given '{name}' alone: {work}")
        return lines


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
    #: for each operator with weights in 8 or 4 bits: True if its kernel reads them as they are
    few_bits: Mapping[str, bool] = field(default_factory=dict)
    #: the operators without a kernel, and the bytes that are copied for them
    on_cpu: tuple[str, ...] = ()
    #: the reason why convolutions are computed without Winograd's tiles, or ""
    direct: str = ""
    #: the convolutions that may multiply in 16 bits
    half_products: int = 0

    @classmethod
    def of(
        cls,
        graph: Graph,
        plan: Plan,
        storage: Storage = "float",
        direct: str = "",
        half_products: int = 0,
    ) -> ModelInfo:
        """Returns the facts about a graph and its plan for :data:`PORTABLE` limits.

        Nothing is run.
        """
        operators = Counter(node.op for node in graph.nodes)
        several = len(graph.inputs) + bool(graph.updates) > 1 and graph.cooked_form is None
        return cls(
            model=graph.name,
            inputs=_facts(graph, graph.inputs),
            outputs=_facts(graph, graph.outputs),
            operators=dict(operators.most_common()),
            parameters=sum(array.size for array in graph.constants.values()),
            weights_bytes=plan.weights_bytes + plan.own_bytes,
            arena_bytes=plan.memory.peak,
            arena_lower_bound=plan.memory.bound,
            arena_ratio=plan.memory.ratio,
            steps=len(plan.steps) - len(plan.cpu_parts),
            variants=count_variants(plan),
            gflop=plan.cost.flops / 1e9,
            moved_bytes=plan.cost.bytes,
            predicted_ms=predicted_ms(plan),
            storage=storage,
            layers=tuple(str(step) for step in plan.steps),
            notes=graph.notes,
            bands=plan.bands,
            few_bits=_few_bits(graph, plan),
            on_cpu=tuple(map(str, plan.cpu_parts)),
            reuse=ReuseInfo.of(graph, PORTABLE, storage) if several else None,
            direct=direct,
            half_products=half_products,
        )

    def __str__(self) -> str:
        counts = ", ".join(f"{name} {n}" for name, n in self.operators.items())
        lines = [f"model {self.model}", *self.notes]
        lines += _ends(self.inputs, self.outputs)
        lines += [
            f"operators  {sum(self.operators.values())}: {counts}",
            f"weights    {self.parameters} values in the model, {mib(self.weights_bytes)} packed",
            f"memory     peak {mib(self.arena_bytes)} for activations, "
            f"{self.arena_ratio:.3f} of the lower bound ({mib(self.arena_lower_bound)})",
            *(
                f"bands      {run}: {mib(run.nbytes)} for {mib(run.whole_bytes)} at once"
                for run in self.bands
            ),
            *(f"no kernel  on the CPU: {part}" for part in self.on_cpu),
            *([_HALF_NOTE] if self.storage == "half" else []),
            *([_PRODUCTS_NOTE.format(self.half_products)] if self.half_products else []),
            *([f"{_DIRECT_NOTE}: {self.direct}"] if self.direct else []),
            *self._few_bits_lines(),
            *(self.reuse.lines() if self.reuse else []),
            f"work       {self.gflop:.3f} GFLOP, {mib(self.moved_bytes)} moved at least, in "
            f"{self.steps} dispatches of {self.variants} kernel variants",
            f"predicted  {self.predicted_ms:.2f} ms on a reference GPU of "
            f"{REFERENCE_FLOPS / 1e12:.0f} TFLOP/s and {REFERENCE_BYTES_PER_S / 1e9:.0f} GB/s; "
            "`cml rank` measures this one",
        ]
        return "\n".join(lines)

    def _few_bits_lines(self) -> Iterator[str]:
        if self.few_bits:
            count = sum(self.few_bits.values())
            floats = [title for title, is_read in self.few_bits.items() if not is_read]
            rest = f"; unpacked when loaded: {', '.join(floats)}" if floats else ""
            share = f"{count} of {len(self.few_bits)} operators"
            yield f"few bits   {share} read their weights in 8 or 4 bits{rest}"


def _few_bits(graph: Graph, plan: Plan) -> dict[str, bool]:
    """Returns the operators with weights in 8 or 4 bits by title, and True for each whose kernel
    reads them as they are."""
    if not any(map(weight_blocks, graph.constants.values())):
        return {}
    read = {step.title for step in plan.steps if "WEIGHT_BITS" in step.defines}
    optimized = optimize(graph)
    return {
        node.title: node.title in read
        for node in optimized.nodes
        if any(weight_blocks(optimized.constants.get(name)) for name in node.inputs)
    }


def predicted_ms(plan: Plan) -> float:
    """Returns the milliseconds of a run on the reference device: its steps' roofline times.

    Operators on the CPU are left out.
    """
    seconds = sum(
        max(s.cost.flops / REFERENCE_FLOPS, s.cost.bytes / REFERENCE_BYTES_PER_S) + _STEP_OVERHEAD_S
        for s in plan.steps
        if s.cpu_part is None
    )
    return 1e3 * seconds


def count_variants(plan: Plan) -> int:
    """Returns the number of different pipelines that the plan's steps need."""
    return len(
        {
            (str(s.path), s.inline, s.interface, len(s.bindings), tuple(sorted(s.defines.items())))
            for s in plan.steps
            if s.cpu_part is None
        }
    )


def _facts(graph: Graph, names: Sequence[str]) -> dict[str, str]:
    return {name: str(graph.facts[name]) for name in names}


def _ends(inputs: Mapping[str, str], outputs: Mapping[str, str]) -> list[str]:
    """Returns lines of text with the facts of the inputs and the outputs."""
    lines = []
    for title, rows in (("inputs", inputs), ("outputs", outputs)):
        lines += [title, *(f"  {name:24s} {fact}" for name, fact in rows.items())]
    return lines


@dataclass(frozen=True)
class ProfileInfo:
    """The facts about one plan of a cooked file; ``needs`` are the limits that it requires."""

    profile: str
    steps: int
    kernels: int
    arena_bytes: int
    weights_bytes: int
    own_bytes: int
    gflop: float
    gas: int
    needs: dict[str, int]
    #: True if it needs a device with ``shader-f16``
    half_arithmetic: bool
    layers: tuple[str, ...]

    @classmethod
    def of(cls, cooked: CookedPlan) -> ProfileInfo:
        plan = cooked.plan(cooked.profile)
        return cls(
            profile=cooked.profile,
            steps=len(plan.steps),
            kernels=len(cooked.used),
            arena_bytes=plan.memory.peak,
            weights_bytes=plan.weights_bytes,
            own_bytes=plan.own_bytes,
            gflop=plan.cost.flops / 1e9,
            gas=cooked.gas,
            needs=asdict(cooked.needs),
            half_arithmetic=any(kernel.flags & F16 for kernel in cooked.used),
            layers=tuple(str(step) for step in plan.steps),
        )

    def __str__(self) -> str:
        needs = self.needs
        lanes = f", subgroups of {needs['lanes']} lanes" if needs["lanes"] else ""
        half = ", shader-f16" if self.half_arithmetic else ""
        return (
            f"  {self.profile:17s} {self.steps} steps of {self.kernels} kernels, "
            f"{self.gflop:.3f} GFLOP; arena {mib(self.arena_bytes)}, weights "
            f"{mib(self.weights_bytes + self.own_bytes)}; needs offsets of at most "
            f"{needs['storage_alignment']}, bindings of {mib(needs['binding_bytes'])}, "
            f"{needs['bindings']} storage buffers{lanes}{half}"
        )


@dataclass(frozen=True)
class CookedInfo:
    """The facts about a cooked file: inputs, outputs, plans, kernels and sizes.

    ``sections`` has bytes by tag, summed over equal tags.
    """

    model: str
    nbytes: int
    inputs: dict[str, str]
    outputs: dict[str, str]
    meta: JsonObject
    profiles: tuple[ProfileInfo, ...]
    sections: dict[str, int]
    kernels: int
    spirv: int
    wgsl: int
    has_graph: bool
    golden: float | None

    @classmethod
    def of(cls, graph: Graph) -> CookedInfo:
        """Returns the facts about a graph that :func:`cml_engine.load_cooked` returned."""
        cooked = graph.cooked_form
        assert isinstance(cooked, Artifact)
        sections: dict[str, int] = {}
        for tag, _, nbytes in cooked.sections:
            sections[tag] = sections.get(tag, 0) + nbytes
        kernels = cooked.kernels.values()
        return cls(
            model=graph.name,
            nbytes=cooked.nbytes,
            inputs=_facts(graph, graph.inputs),
            outputs=_facts(graph, graph.outputs),
            meta=dict(cooked.meta),
            profiles=tuple(ProfileInfo.of(plan) for plan in cooked.plans),
            sections=sections,
            kernels=len(kernels),
            spirv=sum(kernel.has_spirv for kernel in kernels),
            wgsl=sum(kernel.has_wgsl for kernel in kernels),
            has_graph=cooked.graph is not None,
            golden=cooked.golden.tolerance if cooked.golden else None,
        )

    def __str__(self) -> str:
        meta = self.meta
        bits = "16 bits where they may be" if meta["half"] else "32 bits"
        lines = [
            f"cooked {self.model}: {mib(self.nbytes)}, {bits}, by version {meta['engine']} "
            f"(rules {meta['rules']})"
        ]
        lines += [*_ends(self.inputs, self.outputs), "devices", *map(str, self.profiles)]
        lines.append(f"kernels    {self.kernels}: {self.spirv} SPIR-V, {self.wgsl} WGSL")
        lines += [f"  not in WGSL: {label}" for label in meta.get("without_wgsl", ())]
        if meta.get("direct"):
            lines.append(f"{_DIRECT_NOTE}: {meta['direct']}")
        if meta["custom"]:
            lines.append(f"of a game  {', '.join(meta['custom'])}: without their NumPy functions")
        lines.append(f"graph      {'for the CPU and other devices' if self.has_graph else 'none'}")
        golden = "none" if self.golden is None else f"tolerance {self.golden:.3g}"
        lines.append(f"golden     {golden}")
        sizes = ", ".join(f"{tag} {mib(n)}" for tag, n in self.sections.items())
        lines.append(f"sections   {sizes}")
        return "\n".join(lines)

    @property
    def layers(self) -> tuple[str, ...]:
        """A line of text for every dispatch of every plan, below a heading for each plan."""
        return tuple(line for p in self.profiles for line in (f"plan for {p.profile}", *p.layers))
