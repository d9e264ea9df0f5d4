"""The plan of a session as plain data: steps, memory and weights, without any GPU API.

A :class:`Plan` is made once from a graph and never changes. It prints, it is tested without a GPU,
and every backend or scheduler that runs networks reads the same one.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from cml_engine.errors import Source
from cml_engine.ir.graph import Array, Fact
from cml_engine.ir.reuse import VARIABLES, Sources
from cml_engine.ops.declaration.choice import Choice
from cml_engine.ops.declaration.in_parts import InParts
from cml_engine.ops.declaration.spec import Cost

#: where a job's outputs begin in the buffer that they have together
RESULT_ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class Binding:
    """A range of memory that a step reads or writes: ``space`` is ``"arena"``, ``"weights"`` (what
    plans of one network at several shapes share) or ``"own"``; ``offset`` and ``nbytes`` are bytes
    in it."""

    tensor: str
    space: str
    offset: int
    nbytes: int

    @property
    def end(self) -> int:
        return self.offset + self.nbytes


@dataclass(frozen=True)
class KernelCode:
    """A kernel variant as code, where it comes from a cooked file and not from HLSL. Equal ones are
    the same pipeline: ``content`` is a digest of the code, so that no file can put its own in the
    place of another's."""

    label: str
    tensors: int
    params_bytes: int
    trusted: bool
    content: str
    unpack: Callable[[], bytes | str] = field(compare=False, repr=False)

    def code(self) -> bytes | str:
        """SPIR-V, or the text of WGSL."""
        return self.unpack()


@dataclass(frozen=True, slots=True)
class Finished:
    """The ready form of a step, in the place of HLSL, defines and values: code, bytes, and its
    cost key."""

    kernel: KernelCode
    params: bytes
    cost_key: str


@dataclass(frozen=True)
class Step:
    """One dispatch: a kernel variant, its parameters, its memory, and ``groups`` workgroups.

    Any part ``[first, first + count)`` of the workgroups may be run at any time; when all have
    run, in whatever order, the step is done. ``writes`` are the last bindings that it fills.
    """

    index: int
    op: str
    title: str
    path: str | Path
    params_layout: str
    params: Mapping[str, Any]
    defines: Mapping[str, int | str]
    bindings: tuple[Binding, ...]
    writes: int
    groups: int
    cost: Cost
    trusted: bool
    #: HLSL before the kernel's own: its tensors and entry point, where these are generated
    interface: str = ""
    #: the kernel's HLSL where it is not in a file
    inline: str = ""
    #: the operators that the kernel applies to its result before storing it
    fused: tuple[str, ...] = ()
    source: Source | None = None
    #: the kernel variant and its tile, of an operator that has several
    variant: str = ""
    #: its kernel and parameters as they were cooked
    finished: Finished | None = None

    @property
    def full_op(self) -> str:
        """The operator and those fused to it: ``conv+relu``."""
        return "+".join((self.op, *self.fused))

    @property
    def written(self) -> tuple[Binding, ...]:
        return self.bindings[len(self.bindings) - self.writes :]

    def __str__(self) -> str:
        defines = " ".join(f"{k}={v}" for k, v in sorted(self.defines.items()))
        kernel = f"{self.path} ({self.variant})" if self.variant else str(self.path)
        return f"{self.index:4d}  {self.title:32s} {self.groups:8d} groups  {kernel} {defines}"


@dataclass(frozen=True, slots=True)
class StepWork:
    """A step as a scheduler sees it (``scheduler.executor.StepCost``): ``key`` is equal for steps
    whose workgroups do the same work by the same kernel; FLOPs and bytes are per workgroup."""

    key: str
    op: str
    title: str
    groups: int
    flops: float
    nbytes: float


@dataclass(frozen=True, slots=True)
class Entry:
    """The conversion of an input's real numbers into integers (docs/integer.md, "In and out").

    ``inverse`` is one over their scale; the integers are ``low`` to ``high``.
    """

    inverse: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """The place of a tensor of the graph: its binding, its fact and its layout.

    If an input has an ``entry``, the code that uploads it converts the numbers.
    """

    binding: Binding
    fact: Fact
    layout: str
    entry: Entry | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """The arena: ``peak`` bytes taken, and ``bound``, the largest sum of bytes alive at once,
    which no placement can undercut. Where no buffer of the device is large enough it lies in
    several of ``segment`` bytes, and no tensor in two of them; else that is 0."""

    peak: int
    bound: int
    segment: int = 0

    @property
    def ratio(self) -> float:
        """Peak over bound; 1.0 is perfect."""
        return self.peak / self.bound if self.bound else 1.0


@dataclass(frozen=True, slots=True)
class InBands:
    """Operators, by their titles, that are computed in ``count`` bands of rows, one band after the
    other. ``results`` are joined of their bands. ``again`` is the share of their operations that
    is done twice; ``whole_bytes`` is what they would take at once, ``nbytes`` what they take."""

    operators: tuple[str, ...]
    results: tuple[str, ...]
    count: int
    options: tuple[str, ...]
    again: float
    whole_bytes: int
    nbytes: int

    def __str__(self) -> str:
        names = " to ".join(dict.fromkeys((self.operators[0], self.operators[-1])))
        return f"{names} in {self.count} bands of rows, {100 * self.again:.1f} % computed twice"


@dataclass(frozen=True)
class Reuse:
    """``sources`` are those of every step of a plan; ``held`` are the bytes of each tensor that
    stays in its memory from one run to the next."""

    sources: tuple[Sources, ...]
    held: Mapping[str, int]

    def steps(self, given: Collection[str]) -> tuple[int, ...]:
        """Returns the steps of a run with these inputs if the memory holds the previous run."""
        changed = {*given, VARIABLES}
        return tuple(i for i, own in enumerate(self.sources) if not own.isdisjoint(changed))


@dataclass(frozen=True)
class Plan:
    """A compiled network: what to run, where everything lies, and which weights to upload."""

    name: str
    steps: tuple[Step, ...]
    inputs: Mapping[str, TensorPlace]
    outputs: Mapping[str, TensorPlace]
    #: every tensor that still has memory of its own when the run is over (all, where asked for)
    tensors: Mapping[str, TensorPlace]
    #: tensors that are read after a run though they are no outputs
    taps: Mapping[str, TensorPlace]
    #: where every computed tensor lies from its own step until the last that reads it
    places: Mapping[str, TensorPlace]
    #: packed weights with their byte offsets in the weights buffer
    weights: Mapping[str, tuple[int, Array]]
    weights_bytes: int
    memory: Memory
    #: the same of what is this plan's alone: variables, and constants that hang on the shapes
    own: Mapping[str, tuple[int, Array]] = field(default_factory=dict)
    own_bytes: int = 0
    #: copies (from, to) that give variables their new values after a run, in this order: what
    #: lies in the weights goes by way of the arena, so that all change at once
    updates: tuple[tuple[Binding, Binding], ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    #: what a run may leave as it was, where the memory is planned for that
    reuse: Reuse | None = None
    #: which kernel was taken where there was a choice
    choices: tuple[Choice, ...] = ()
    #: the tensors that are bound in parts, and those of which the caller said in how many
    parts: Mapping[str, InParts] = field(default_factory=dict)
    #: what is computed in bands of rows; and by title of an operator that computes one, that of
    #: which it computes a part
    bands: tuple[InBands, ...] = ()
    bands_of: Mapping[str, str] = field(default_factory=dict)
    #: how tensors lie that are not plain
    layouts: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def results(self) -> dict[str, TensorPlace]:
        """The tensors that can be read when a run is over: outputs and taps."""
        return {**self.outputs, **self.taps}

    @cached_property
    def packed_results(self) -> tuple[dict[str, TensorPlace], int]:
        """The places of the results in a buffer of their own, and its bytes."""
        places: dict[str, TensorPlace] = {}
        end = 0
        for name, place in self.results.items():
            nbytes = place.binding.nbytes
            binding = Binding(name, "outputs", end, nbytes)
            places[name] = TensorPlace(binding, place.fact, place.layout)
            end += -(-nbytes // RESULT_ALIGNMENT) * RESULT_ALIGNMENT
        return places, max(end, RESULT_ALIGNMENT)

    @property
    def cost(self) -> Cost:
        total = Cost(0, 0, 0)
        for step in self.steps:
            total = total + step.cost
        return total

    def step_costs(self) -> list[StepWork]:
        """Every step for a scheduler's cost model."""
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


def _step_cost(step: Step) -> StepWork:
    flops, nbytes = step.cost.flops / step.groups, step.cost.bytes / step.groups
    if step.finished is not None:
        return StepWork(step.finished.cost_key, step.op, step.title, step.groups, flops, nbytes)
    variant = "|".join(f"{k}={v}" for k, v in sorted(step.defines.items()))
    digest = zlib.crc32(variant.encode())
    key = f"{step.full_op} {Path(step.path).stem}-{digest:08x} {flops:.4g}F {nbytes:.4g}B"
    return StepWork(key, step.full_op, step.title, step.groups, flops, nbytes)
