"""The plan of a session as plain data: steps, memory and weights, without any GPU API.

A :class:`Plan` is compiled once from a graph and never changes. It can be printed and tested
without a GPU. All backends and schedulers read the same plan.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from cml_engine.errors import Source
from cml_engine.ir.graph import Array, Attrs, Fact, Graph
from cml_engine.ir.memory import mib
from cml_engine.ir.reuse import VARIABLES, Sources
from cml_engine.ops.declaration.choice import Choice
from cml_engine.ops.declaration.spec import Cost, LiveParams
from cml_engine.ops.declaration.split_bindings import SplitBinding

#: the alignment in bytes of a job's outputs in their common buffer
RESULT_ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class Binding:
    """A range of memory that a step reads or writes.

    ``space`` is ``"arena"``, ``"weights"`` (shared by the plans of one network at several
    shapes) or ``"own"``. ``offset`` and ``nbytes`` are bytes in that space.
    """

    tensor: str
    space: str
    offset: int
    nbytes: int

    @property
    def end(self) -> int:
        return self.offset + self.nbytes


@dataclass(frozen=True)
class KernelCode:
    """A kernel variant as compiled code from a cooked file, instead of HLSL; :meth:`code` unpacks
    it.

    Equal variants share one pipeline. ``content`` is a digest of the code, so that a file cannot
    replace the code of another file. ``trusted`` kernels may run without run-time checks.
    """

    label: str
    tensors: int
    params_bytes: int
    trusted: bool
    content: str
    unpack: Callable[[], bytes | str] = field(compare=False, repr=False)

    def code(self) -> bytes | str:
        """Returns the kernel's SPIR-V as bytes, or its WGSL as text; unpacks it at each call."""
        return self.unpack()


@dataclass(frozen=True, slots=True)
class CookedStep:
    """The parts of a step that come from a cooked file.

    ``kernel`` replaces the step's HLSL and defines, ``params`` its parameter values,
    ``cost_key`` its computed cost key.
    """

    kernel: KernelCode
    params: bytes
    cost_key: str


@dataclass(frozen=True)
class CpuPart:
    """The operators of a step without a kernel, which a GPU session computes in NumPy.

    ``graph`` has the operators. ``reads`` are the places of its inputs, which are copied to the
    host before, ``writes`` those of its outputs, which are copied to the device after.
    ``refusals`` are the messages of kernels that refused one of the operators.
    """

    graph: Graph
    reads: Mapping[str, TensorPlace]
    writes: Mapping[str, TensorPlace]
    refusals: tuple[str, ...] = ()

    @property
    def read_bytes(self) -> int:
        """The bytes that a run copies to the host."""
        return sum(place.fact.nbytes for place in self.reads.values())

    @property
    def written_bytes(self) -> int:
        """The bytes that a run copies to the device."""
        return sum(place.fact.nbytes for place in self.writes.values())

    def __str__(self) -> str:
        why = f" ({'; '.join(self.refusals)})" if self.refusals else ""
        return (
            f"{', '.join(node.title for node in self.graph.nodes)}: {mib(self.read_bytes)} to the "
            f"host, {mib(self.written_bytes)} back{why}"
        )


@dataclass(frozen=True)
class Step:
    """One dispatch: a kernel variant, its parameters, its memory, and ``groups`` workgroups.

    Any range ``[first, first + count)`` of the workgroups may run at any time. The step is done
    when all workgroups have run, in any order. The last ``writes`` bindings are its results. A
    step with a ``cpu_part`` has no kernel and no workgroups.
    """

    index: int
    op: str
    title: str
    path: str | Path
    params_layout: str
    params: Mapping[str, object]
    defines: Mapping[str, int | str]
    bindings: tuple[Binding, ...]
    writes: int
    groups: int
    cost: Cost
    trusted: bool
    #: generated HLSL before the kernel's own: its tensors and entry point
    interface: str = ""
    #: the kernel's HLSL if it is not in a file
    inline: str = ""
    #: the operators that the kernel applies to its result before storing it
    fused: tuple[str, ...] = ()
    source: Source | None = None
    #: the kernel variant and its tile, if the operator has several
    variant: str = ""
    #: the cooked kernel and parameters
    cooked: CookedStep | None = None
    #: how ``params`` follow from the network's sliders
    live: LiveParams | None = field(default=None, compare=False)
    #: the operators without a kernel that are the step
    cpu_part: CpuPart | None = None

    @property
    def full_op(self) -> str:
        """The operator and the operators fused to it: ``conv+relu``."""
        return "+".join((self.op, *self.fused))

    @property
    def full_title(self) -> str:
        """The title, and the operators fused to it: ``conv 'conv1'+relu``."""
        return "+".join((self.title, *self.fused))

    @property
    def kernel(self) -> str:
        """The kernel's file and its variant, or the label of a cooked kernel."""
        if self.cooked is not None:
            return self.cooked.kernel.label
        return f"{self.path} ({self.variant})" if self.variant else str(self.path)

    @property
    def written(self) -> tuple[Binding, ...]:
        return self.bindings[len(self.bindings) - self.writes :]

    def __str__(self) -> str:
        text = f"{self.index:4d}  {self.full_title:32s} {self.groups:8d} groups  {self.kernel}"
        defines = variant_words(self.defines)
        return f"{text}: {defines}" if defines else text


@dataclass(frozen=True, slots=True)
class BoundTensor:
    """A tensor as a step's kernel binds it: type, layout (``ir/layout.py``) and range of memory.

    The layout is "" for data that only kernels read: packed constants and scratch.
    """

    slot: str
    tensor: str
    written: bool
    type: str
    layout: str
    space: str
    offset: int
    nbytes: int


def variant_words(defines: Mapping[str, int | str]) -> str:
    """Returns the defines of a kernel in words: ``border constant, rows 8, t0 type float4``.

    Generated statements are left out; the operators that they compute are in ``Step.fused``.
    """
    texts = [(name, str(value)) for name, value in sorted(defines.items())]
    return ", ".join(
        " ".join(part.replace("_", " ").lower() for part in name.split("_is_"))
        + ("" if "_is_" in name else f" {value}")
        for name, value in texts
        if value.replace("_", "").isalnum()
    )


@dataclass(frozen=True, slots=True)
class StepCost:
    """The cost of a step, known before the step has ever run.

    ``key`` is equal for steps whose workgroups cost the same (same kernel variant, same work per
    workgroup), in every process on every machine. FLOPs and bytes are per workgroup. A step
    without workgroups is computed on the CPU, where it takes no GPU time.

    Examples
    --------
    >>> step = network.program.step_costs()[0]
    >>> step.groups > 0 and step.flops > 0
    True
    """

    key: str
    op: str
    title: str
    groups: int
    flops: float
    nbytes: float

    @property
    def on_cpu(self) -> bool:
        """True if the step has no kernel: the CPU computes it between two slices."""
        return not self.groups


class Slice(NamedTuple):
    """A range of workgroups, ``[first, first + count)``, of one step of a network.

    Steps count the loads of the job's texture inputs first, if there are any.

    Examples
    --------
    >>> part = cml.scheduler.Slice(network.program, step=0, first=0, count=2)
    """

    network: Any
    step: int
    first: int
    count: int  # type: ignore[assignment]  # tuple.count: nobody counts values of a slice


@dataclass(frozen=True, slots=True)
class Timing:
    """The measured GPU time of one timed group of slices, in milliseconds.

    ``frame`` is the number of the frame, ``group`` the number of the group in that frame.

    Examples
    --------
    >>> def mean_ms(timings: list[cml.scheduler.Timing]) -> float:
    ...     return sum(timing.ms for timing in timings) / len(timings)
    """

    frame: int
    group: int
    ms: float


@dataclass(frozen=True, slots=True)
class InputConversion:
    """The conversion of an input's real numbers into integers (docs/integer.md, "In and out").

    A number is multiplied by ``inverse``, one over the scale of the integers; the integers are
    ``low`` to ``high``.
    """

    inverse: float
    low: float
    high: float

    @classmethod
    def of(cls, attrs: Attrs) -> InputConversion:
        """Returns the conversion that a node with these attributes computes."""
        return cls(*(float(attrs[name]) for name in ("inverse", "low", "high")))


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """The place of a tensor of the graph: its binding, its fact and its layout.

    If an input has a ``conversion``, the code that uploads it converts the numbers.
    """

    binding: Binding
    fact: Fact
    layout: str
    conversion: InputConversion | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """The size of the arena, the memory that holds the activations of a plan.

    ``peak`` is its size in bytes. ``bound`` is the largest sum of bytes alive at once, a lower
    bound for every placement. If no buffer of the device is large enough, the arena consists of
    several buffers of ``segment`` bytes and no tensor crosses two of them; otherwise ``segment``
    is 0.
    """

    peak: int
    bound: int
    segment: int = 0

    @property
    def ratio(self) -> float:
        """The peak over the bound; 1.0 is optimal."""
        return self.peak / self.bound if self.bound else 1.0


@dataclass(frozen=True, slots=True)
class BandedOperators:
    """Operators, by title, that are computed in ``count`` bands of rows, one band after another.

    ``results`` are the tensors joined from their bands. ``recomputed`` is the share of
    operations that is computed twice. ``whole_bytes`` is the memory without bands, ``nbytes`` the
    memory with them.
    """

    operators: tuple[str, ...]
    results: tuple[str, ...]
    count: int
    options: tuple[str, ...]
    recomputed: float
    whole_bytes: int
    nbytes: int

    def __str__(self) -> str:
        names = " to ".join(dict.fromkeys((self.operators[0], self.operators[-1])))
        twice = f"{100 * self.recomputed:.1f} % computed twice"
        return f"{names} in {self.count} bands of rows, {twice}"


@dataclass(frozen=True)
class Reuse:
    """The dependencies by which a run skips the steps whose inputs have not changed since the last.

    ``sources`` has, for every step, the names of the inputs that its result depends on.
    ``retained`` has the bytes of each tensor that stays in memory between runs.
    """

    sources: tuple[Sources, ...]
    retained: Mapping[str, int]

    def steps(self, changed_inputs: Collection[str]) -> tuple[int, ...]:
        """Returns the indices of the steps to run, in order, if only the inputs ``changed_inputs``
        changed since the previous run.

        Steps that depend on variables always run.
        """
        changed = {*changed_inputs, VARIABLES}
        return tuple(i for i, names in enumerate(self.sources) if not names.isdisjoint(changed))


@dataclass(frozen=True)
class Plan:
    """A compiled network: its steps in execution order, the place of every tensor, and the
    weights to upload."""

    name: str
    steps: tuple[Step, ...]
    inputs: Mapping[str, TensorPlace]
    outputs: Mapping[str, TensorPlace]
    #: every tensor that is still in memory after a run (all tensors, if requested)
    tensors: Mapping[str, TensorPlace]
    #: tensors other than outputs that are read after a run
    taps: Mapping[str, TensorPlace]
    #: the place of every tensor that can change, from its own step until its last reader
    places: Mapping[str, TensorPlace]
    #: packed weights with their byte offsets in the weights buffer
    weights: Mapping[str, tuple[int, Array]]
    weights_bytes: int
    memory: Memory
    #: the same for data of this plan alone: variables, and constants that depend on the shapes
    own: Mapping[str, tuple[int, Array]] = field(default_factory=dict)
    own_bytes: int = 0
    #: copies (from, to) that update variables after a run, in this order; values in the weights
    #: are copied to the arena first, so that all variables change at once
    updates: tuple[tuple[Binding, Binding], ...] = ()
    options: Mapping[str, int] = field(default_factory=dict)
    #: the steps that a run may skip, if the memory is planned for that
    reuse: Reuse | None = None
    #: the chosen kernel of each operator that has several
    choices: tuple[Choice, ...] = ()
    #: the tensors that are bound in parts, including those that the caller requested
    parts: Mapping[str, SplitBinding] = field(default_factory=dict)
    #: the operators computed in bands of rows; ``bands_of`` maps the title of an operator that
    #: computes one band to the title of the whole operator
    bands: tuple[BandedOperators, ...] = ()
    bands_of: Mapping[str, str] = field(default_factory=dict)
    #: the layouts of tensors that are not plain
    layouts: Mapping[str, str] = field(default_factory=dict)
    #: the stages that made the plan, in order: the name, the description, and the numbers that the
    #: stage changed, by what they count; empty for a plan from a cooked file
    stages: tuple[tuple[str, str, Mapping[str, int]], ...] = field(default=(), compare=False)

    @cached_property
    def live_steps(self) -> tuple[Step, ...]:
        """The steps whose parameters depend on sliders."""
        return tuple(step for step in self.steps if step.live is not None)

    @cached_property
    def live_sliders(self) -> tuple[str, ...]:
        """The sliders that parameters of steps depend on."""
        return tuple(name for step in self.live_steps if step.live for name in step.live.sliders)

    @cached_property
    def results(self) -> dict[str, TensorPlace]:
        """The places of the tensors that can be read after a run, by name: outputs and taps."""
        return {**self.outputs, **self.taps}

    @cached_property
    def packed_results(self) -> tuple[dict[str, TensorPlace], int]:
        """The places of the results in a separate buffer, by name, and the size of that buffer
        in bytes."""
        return pack_places(self.results)

    @property
    def cpu_parts(self) -> list[CpuPart]:
        """The groups of operators without a kernel, in execution order."""
        return [step.cpu_part for step in self.steps if step.cpu_part is not None]

    def bound_tensors(self, step: Step) -> list[BoundTensor]:
        """Returns the tensors of a step in the order of its kernel's slots: ``T0``, ``T1``, …"""
        places = {**self.inputs, **self.outputs, **self.places}
        constants = {**self.weights, **self.own}
        tensors = []
        for slot, binding in enumerate(step.bindings):
            name, type, layout = binding.tensor, "words", ""
            if name in places:
                type, layout = str(places[name].fact), places[name].layout
            elif name in constants:
                array = constants[name][1]
                type = f"{array.dtype}{list(array.shape)}"
            written = slot >= len(step.bindings) - step.writes
            range = binding.space, binding.offset, binding.nbytes
            tensors.append(BoundTensor(f"T{slot}", name, written, type, layout, *range))
        return tensors

    @property
    def cost(self) -> Cost:
        total = Cost(0, 0, 0)
        for step in self.steps:
            total = total + step.cost
        return total

    def step_costs(self) -> list[StepCost]:
        """Returns the cost of every step, in order, for a scheduler's cost model."""
        return [_step_cost(step) for step in self.steps]

    def __str__(self) -> str:
        lines = [f"plan {self.name}: {len(self.steps)} steps"]
        lines += [str(step) for step in self.steps]
        lines.append(
            f"arena {self.memory.peak} bytes (lower bound {self.memory.bound}, "
            f"ratio {self.memory.ratio:.3f}), weights {self.weights_bytes} bytes"
            + (f", its own {self.own_bytes} bytes" if self.own_bytes else "")
        )
        lines.append(f"{len(self.choices)} choices, {sum(c.tuned for c in self.choices)} tuned")
        lines += [f"      {choice}" for choice in self.choices]
        return "\n".join(lines)


def pack_places(tensors: Mapping[str, TensorPlace]) -> tuple[dict[str, TensorPlace], int]:
    """Returns places for the tensors side by side in a buffer of their own, and its bytes."""
    places: dict[str, TensorPlace] = {}
    end = 0
    for name, place in tensors.items():
        nbytes = place.binding.nbytes
        binding = Binding(name, "outputs", end, nbytes)
        places[name] = TensorPlace(binding, place.fact, place.layout)
        end += -(-nbytes // RESULT_ALIGNMENT) * RESULT_ALIGNMENT
    return places, max(end, RESULT_ALIGNMENT)


def _step_cost(step: Step) -> StepCost:
    if step.cpu_part is not None:
        return StepCost(f"{step.title} on the CPU", step.op, step.title, 0, 0.0, 0.0)
    flops, nbytes = step.cost.flops / step.groups, step.cost.bytes / step.groups
    if step.cooked is not None:
        return StepCost(step.cooked.cost_key, step.op, step.title, step.groups, flops, nbytes)
    variant = "|".join(f"{k}={v}" for k, v in sorted(step.defines.items()))
    digest = zlib.crc32(variant.encode())
    key = f"{step.full_op} {Path(step.path).stem}-{digest:08x} {flops:.4g}F {nbytes:.4g}B"
    return StepCost(key, step.full_op, step.title, step.groups, flops, nbytes)
