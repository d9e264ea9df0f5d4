"""Reductions on the GPU, in one or more stages.

Two kinds of stage share ``reduce.hlsl``. If the reduced elements are neighbours in memory, a
workgroup reduces a chunk of them by a tree; otherwise every thread reduces a short chunk of its
own, and neighbouring threads read neighbouring results' elements. More elements than one chunk
leave partial results, which the next stage reduces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cml_engine.ir.graph import AttrValue
from cml_engine.ir.layout import BLOCKED, C4H, HLSL_TYPE, PLAIN
from cml_engine.ops.common.shapes import (
    Shape,
    StridedWalk,
    broadcast_strides,
    collapse,
    contiguous_strides,
    in_memory_order,
    split_channels,
)
from cml_engine.ops.declaration.choice import about
from cml_engine.ops.declaration.hardware import hardware_table
from cml_engine.ops.declaration.lowering import Lowering
from cml_engine.ops.declaration.spec import Case, Defines, Dispatch, Half, Kernel, engine_kernel
from cml_engine.ops.declaration.variant import KernelFamily, KernelVariant
from cml_engine.ops.elementwise.kernels.elementwise import Operand

_MAX_DIMS = 9
#: elements that a workgroup which reduces by a tree takes at most
_TREE_CHUNK = 8192
#: elements of a thread if several stages are necessary
_ALONE_CHUNK = 128
#: the neutral element of a reduction, as bits
_START = {"SUM": 0, "ANY": 0, "ALL": 1, "PROD": 0x3F800000, "MIN": 0x7F800000, "MAX": 0xFF800000}

_DIMS = "kept kept_in kept_out kept_other reduced reduced_in"
_PARAMS = "outputs:u chunks:u chunk:u total:u chunk_step:u divisor:f start:u " + " ".join(
    f"{name}:u{_MAX_DIMS}" for name in _DIMS.split()
)


KERNEL = engine_kernel(
    "reduction/reduce.hlsl", _PARAMS + " kept_dims:u reduced_dims:u", layouts="each"
)


def base_kernel(lower: Callable[[Lowering], Iterable[Dispatch]], half: Half) -> Kernel:
    """Returns the kernel ``reduce.hlsl`` for an operator that ``lower`` lowers."""
    return replace(KERNEL, lower=lower, half=half)


@dataclass(frozen=True, slots=True)
class Reduction:
    """The operation by which elements are reduced.

    ``kind`` is SUM, PROD, MIN, MAX, ANY or ALL. ``index`` returns the position of the extreme
    instead of its value. ``term`` is the reduced expression of the element ``v`` and of ``m``,
    the value of another tensor at the result's position. ``mean`` divides by the number of
    elements.
    """

    kind: str
    index: bool = False
    term: str = "v"
    mean: bool = False


@dataclass(frozen=True, slots=True)
class Threads:
    """The division of a reduction among threads.

    Each of ``group`` threads in a workgroup reduces at most ``limit`` elements alone. From
    ``tree_from`` neighbours on, workgroups of ``tree`` threads reduce together; with ``apart``
    also elements that are no neighbours.
    """

    limit: int
    group: int
    tree_from: int
    tree: int = 256
    apart: bool = False

    def __str__(self) -> str:
        apart = ", also apart" if self.apart else ""
        return f"of {self.limit} by {self.group}, trees of {self.tree} from {self.tree_from}{apart}"


#: threads on hardware: each alone, or trees of one wave, or of four
_TREES = (Threads(256, 64, 16, 64), Threads(256, 64, 16, 256))
_HARDWARE_THREADS = (Threads(256, 64, 257, 64), *_TREES)
#: the same for few results, whose threads would leave most of a card idle
_APART = replace(_TREES[0], apart=True)
#: on a software driver 8 threads are one vector, which waits for no others at a barrier
_SOFTWARE_THREADS = Threads(1024, 16, 32, 8)
#: the options of the tuner
_OPTIONS = (*_HARDWARE_THREADS, _APART, Threads(1024, 64, 1024), _SOFTWARE_THREADS)
_APART_CASE = Case(((3, 40, 9),), {"axes": [1]}, "apart")
#: threads of a wave in the table of modelled kernels
_WAVE = 64


@dataclass(frozen=True, slots=True)
class _Stage:
    """One stage of a reduction: the kept dimensions, the reduced ones, and the threads.

    ``kept`` has strides in the source, the result and the second tensor; ``reduced`` in the source.
    """

    kept: StridedWalk
    reduced: StridedWalk
    threads: Threads

    @property
    def neighbours(self) -> bool:
        """True if the reduced elements are neighbours in memory."""
        return self.reduced.strides[0][-1] == 1

    @property
    def tree(self) -> bool:
        fits = self.neighbours or self.threads.apart
        return fits and self.reduced.size >= self.threads.tree_from

    @property
    def group(self) -> int:
        """The number of threads of a workgroup."""
        return self.threads.tree if self.tree else self.threads.group

    @property
    def chunks(self) -> int:
        size = self.reduced.size
        if self.tree:
            return -(-size // _TREE_CHUNK)
        return 1 if size <= self.threads.limit else -(-size // _ALONE_CHUNK)

    @property
    def groups(self) -> int:
        items = self.kept.size * self.chunks
        return items if self.tree else -(-items // self.group)

    @property
    def is_line(self) -> bool:
        """True if results and reduced elements are a line each, whose offsets are products."""
        return len(self.kept.extents) == len(self.reduced.extents) == 1

    def partial_strides(self) -> tuple[Shape, int]:
        """Returns the partial results' strides along kept dimensions, and along chunks.

        They let the next stage read in the same way as this one.
        """
        dense = contiguous_strides(self.kept.extents)
        if self.tree:
            return tuple(s * self.chunks for s in dense), 1
        return dense, self.kept.size

    def next(self) -> _Stage:
        """Returns the stage that reduces the partial results of this one."""
        strides, step = self.partial_strides()
        kept = collapse(self.kept.extents, [strides, *self.kept.strides[1:]])
        return _Stage(kept, StridedWalk((self.chunks,), ((step,),)), self.threads)

    @property
    def width(self) -> int:
        """The number of elements read at once: 4 if rows of neighbours are whole vectors."""
        *outer, _ = self.reduced.strides[0]
        extents = (self.reduced.extents[-1], *outer, *self.kept.strides[0])
        return 4 if self.tree and self.neighbours and all(n % 4 == 0 for n in extents) else 1

    def params(self, last: bool, width: int) -> dict[str, AttrValue]:
        """Returns the shader's parameters, with the source counted in vectors of ``width``.

        The ``last`` stage writes to the result, others write partial results.
        """
        dense, step = self.partial_strides()
        target_strides = self.kept.strides[1] if last else dense
        *outer, inner = self.reduced.strides[0]
        *extents, row = self.reduced.extents
        return {
            "outputs": self.kept.size,
            "chunks": self.chunks,
            "chunk": -(-self.reduced.size // width // self.chunks),
            "total": self.reduced.size // width,
            "chunk_step": 0 if last else step,
            "kept_dims": len(self.kept.extents),
            "reduced_dims": len(self.reduced.extents),
            "kept": self.kept.extents[::-1],
            "kept_in": [n // width for n in self.kept.strides[0][::-1]],
            "kept_out": target_strides[::-1],
            "kept_other": self.kept.strides[2][::-1],
            "reduced": [row // width, *extents[::-1]],
            "reduced_in": [inner, *(n // width for n in outer[::-1])],
        }


@dataclass(frozen=True, slots=True)
class Reduced:
    """A node to reduce over ``axes``; ``stage`` is the first stage with the default threads."""

    op: Lowering
    operation: Reduction
    axes: Sequence[int]
    x: Operand
    out: Operand
    second: Operand | None
    stage: _Stage


def reduction(
    op: Lowering, operation: Reduction, axes: Sequence[int], x: Operand, out: Operand,
    second: Operand | None = None,
) -> Iterator[Dispatch]:  # fmt: skip
    """Yields the dispatches that reduce ``x`` over ``axes`` into ``out``; none if it is empty.

    Partial results are in scratch memory. ``second`` is the tensor that ``m`` in the term reads.
    """
    if out.fact.size:
        stage = first_stage(op, axes, x, out, second or out, operation.index)
        yield from REDUCE.lower(Reduced(op, operation, axes, x, out, second, stage))


def _in_stages(node: Reduced, threads: Threads) -> Iterator[Dispatch]:
    operation, x, second = node.operation, node.x, node.second
    stage = replace(node.stage, threads=threads)
    count = stage.reduced.size
    sources, first = (x.name, *([second.name] if second else [])), True
    while True:
        last = stage.chunks == 1
        targets = (node.out.name,) if last else _scratch(node.op, stage, operation.index)
        divisor = (count or float("nan")) if operation.mean and last else 1.0
        width = stage.width if _by_vectors(operation, x) and first else 1
        yield Dispatch(
            groups=stage.groups,
            tensors=sources + targets,
            params={
                **stage.params(last, width),
                "divisor": divisor,
                "start": _START[operation.kind],
            },
            defines=_defines(operation, x, second is not None, stage, first, last, width),
            writes=len(targets),
        )
        if last:
            return
        sources, stage, first, second = targets, stage.next(), False, None


def _scratch(op: Lowering, stage: _Stage, index: bool) -> tuple[str, ...]:
    count = stage.kept.size * stage.chunks
    return tuple(op.scratch(count) for _ in range(2 if index else 1))


def _by_vectors(operation: Reduction, x: Operand) -> bool:
    return x.fact.dtype == "scalar" and x.layout != C4H and not operation.index


def _defines(
    operation: Reduction,
    x: Operand,
    reads_second: bool,
    stage: _Stage,
    first: bool,
    last: bool,
    width: int,
) -> Defines:
    value = HLSL_TYPE[x.fact.dtype]
    half = first and x.layout == C4H
    types = ["uint" if half else "float4" if width == 4 else value]
    if reads_second:
        types.append("float")
    elif operation.index and not first:
        types.append("uint")
    out = len(types)
    types += (
        ["int"] if operation.index and last else [value, *(["uint"] if operation.index else [])]
    )
    return {
        "KIND": operation.kind,
        "VALUE": value,
        "HALF": int(half),
        "WIDTH": width,
        "TERM": operation.term if first else "v",
        "OTHER": int(reads_second),
        "INDEX": int(operation.index),
        "LINE": int(stage.is_line),
        "TREE": int(stage.tree),
        "GROUP": stage.group,
        "FIRST": int(first),
        "LAST": int(last),
        "OUT": f"T{out}",
        "OUT_INDEX": f"T{out + (0 if last else 1)}",
        **{f"T{i}_TYPE": name for i, name in enumerate(types)},
    }


def first_stage(
    op: Lowering, axes: Sequence[int], x: Operand, out: Operand, second: Operand, natural: bool
) -> _Stage:
    """Returns the first stage of a reduction of ``x`` over ``axes``.

    Kept dimensions are in the memory order of the result. Reduced dimensions are in the source's
    memory order, or in NNEF's order if positions are counted (``natural``).
    """
    tensors = (x, out, second)
    rank = x.fact.rank
    if any(t.layout in BLOCKED for t in tensors):
        extents = split_channels(x.fact, x.layout, rank)[0]
        strides = [split_channels(t.fact, t.layout, rank)[1] for t in tensors]
        axis_of: Shape = (0, 1, 1, *range(2, rank))
    else:
        extents, axis_of = x.fact.shape, tuple(range(rank))
        strides = [broadcast_strides(t.fact.shape) for t in tensors]
    positions = tuple(range(len(extents)))
    kept = [p for p in _order(positions, out.layout) if axis_of[p] not in axes]
    order = positions if natural else _order(positions, x.layout)
    reduced = [p for p in order if axis_of[p] in axes]

    def along(dims: list[int], count: int) -> StridedWalk:
        chosen = [tuple(s[d] for d in dims) for s in strides[:count]]
        return collapse(tuple(extents[d] for d in dims), chosen)

    threads = _SOFTWARE_THREADS if op.limits.software else _TREES[-1]
    return _Stage(along(kept, 3), along(reduced, 1), threads)


def reduction_key(node: Reduced) -> str:
    """Returns the key under which a tuning table stores the fastest threads for the reduction.

    It has everything that decides which are fastest: ``sum_reduce ~64 times 1024 side by side``.
    """
    op, stage = node.op, node.stage
    arrangement = "side by side" if stage.neighbours else "apart"
    arrangement += " in 16 bits" if op.layout(op.in_names[0]) == C4H else ""
    return f"{op.node.op} ~{about(stage.kept.size)} times {about(stage.reduced.size)} {arrangement}"


def _order(dims: Shape, layout: str) -> Shape:
    return dims if layout == PLAIN else in_memory_order(dims, layout)


def _default_threads(node: Reduced, kernel: str) -> Threads:
    """Returns the default threads; on hardware those with the least modelled time."""
    if node.op.limits.software:
        return node.stage.threads
    # what neighbours would share of a load is not modelled: trees read apart only where cards idle
    idle = node.stage.kept.size < hardware_table(node.op.limits).simds * _WAVE
    options = (*_HARDWARE_THREADS, *([_APART] if idle else []))
    return min(options, key=lambda threads: _seconds(node, threads, kernel))


def _seconds(node: Reduced, threads: Threads, kernel: str) -> float:
    """Returns the modelled time of the first stage, and of the launch of another one."""
    table, stage = hardware_table(node.op.limits), replace(node.stage, threads=threads)
    lanes = stage.group if stage.tree else 1
    turns = -(-stage.reduced.size // (stage.chunks * stage.width * lanes))
    waves = stage.groups * -(-stage.group // _WAVE)
    name = replace(threads, apart=False) if stage.tree else _HARDWARE_THREADS[0]
    return (
        table.seconds(f"{kernel} threads {name}", waves, [turns])
        + (stage.chunks > 1) * table.launch
    )


def by_threads(
    kernel: Kernel,
    lower: Callable[[Reduced, Threads], Iterator[Dispatch]],
    example: str,
    case: Case = _APART_CASE,
) -> KernelVariant[Reduced, Threads]:
    return KernelVariant(
        name="threads",
        about="so many elements by each thread alone; of more, workgroups reduce by a tree",
        kernel=kernel,
        lower=lower,
        default_tile=lambda node: _default_threads(node, Path(kernel.path).stem),
        tiles=lambda node: _OPTIONS,
        examples=((example, case),),
    )


REDUCE = KernelFamily[Reduced]("reductions", reduction_key)
REDUCE.add(by_threads(KERNEL, _in_stages, "sum_reduce"))
