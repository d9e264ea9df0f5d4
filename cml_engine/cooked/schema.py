"""The format of a cooked file: its records, sections and limits.

``python generate.py`` writes the C header, the JavaScript module and the tables of
docs/cooked.md from this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from cml_engine.cooked.records import (
    PackedRow,
    f32,
    f64,
    nested,
    nested_list,
    raw,
    u32,
    u32s,
    u64,
    u64s,
)
from cml_engine.io.load_limits import OverBudget, check_limits
from cml_engine.io.model_source import Bytes
from cml_engine.ir.limits import Limits

MAGIC = b"\x89CML\r\n\x1a\n"
FORMAT = 2
MOST_SECTIONS = 256
#: alignments in bytes of sections, and of tables within a plan
SECTION_ALIGNMENT, TABLE_ALIGNMENT = 64, 8
MOST_DIMENSIONS = 8
#: limits: bytes of a string and of a kernel's parameters, tensors of a kernel, inputs of a network
MOST_TEXT, MOST_PARAMS, MOST_TENSORS, MOST_INPUTS = 4096, 65536, 64, 64
#: the largest FLOPs, bytes and rates
MOST_AMOUNT = 1e300
#: the most devices and factors of first guesses
MOST_DEVICES, MOST_FACTORS = 64, 4096
#: the largest compression ratio of deflate
MOST_SMALLER = 1040
#: stands for an offset that does not exist
NONE64 = 0xFFFFFFFF_FFFFFFFF
#: the alignment of constants, the axes of a stored constant, and the largest size in bytes
VALUE_ALIGNMENT, SOURCE_AXES, MOST_BYTES = 16, 4, 1 << 48
#: the version of the planner: another version may plan the same graph differently
RULES = 1

STRINGS, KERNELS, CODE, PLAN, VALUES = "strings", "kernels", "code", "plan", "values"
GUESS, GOLDEN, META, GRAPH = "guess", "golden", "meta", "graph"
#: the least and the most sections of each tag
COUNTS = {
    STRINGS: (1, 1),
    KERNELS: (1, 1),
    CODE: (1, 1),
    PLAN: (1, MOST_SECTIONS),
    VALUES: (1, 1),
    GUESS: (0, 1),
    GOLDEN: (0, 1),
    META: (1, 1),
    GRAPH: (0, 1),
}


class Text(PackedRow):
    """A string: a range of the section ``strings``."""

    offset: int = u32("offset in `strings`")
    length: int = u32("bytes, at most 4096")


class Table(PackedRow):
    """The place of a table of rows within the section ``plan``."""

    count: int = u32("number of rows")
    offset: int = u32("offset in the plan, a multiple of 8")


class Code(PackedRow):
    """The compressed code of a kernel in one language."""

    offset: int = u64("offset in `code`")
    packed: int = u32("compressed bytes, 0 where there is none")
    nbytes: int = u32("bytes when it is unpacked, at most 1040 times as many")


class Totals(PackedRow):
    """The memory that a file takes when unpacked, as its header states it."""

    code_bytes: int = u64("bytes of all kernels' code, unpacked")
    device_bytes: int = u64(
        "bytes of the largest plan's buffers: arena, weights, its own and parameters"
    )
    kernels: int = u32("number of kernels")
    steps: int = u32("steps of the plan that has most")


class FileHeader(PackedRow):
    """The fields at the start of the file."""

    magic: bytes = raw(8, "magic: `89 43 4D 4C 0D 0A 1A 0A`")
    format: int = u32(f"format, {FORMAT}")
    sections: int = u32("number of sections, at most 256")
    nbytes: int = u64("bytes of the whole file")
    table_digest: bytes = raw(32, "SHA-256 of the section table")
    totals: Totals = nested(Totals, "totals of all sections", reserved=16)


class SectionRow(PackedRow):
    """A section in the section table."""

    tag: bytes = raw(8, "tag")
    offset: int = u64("offset in the file, a multiple of 64")
    nbytes: int = u64("bytes")
    number: int = u32("number among the sections of that tag, from 0", reserved=4)
    digest: bytes = raw(32, "SHA-256 of the section's bytes")


class KernelsHead(PackedRow):
    """The fields at the start of the section ``kernels``."""

    count: int = u32("number of kernels", reserved=4)


class KernelRow(PackedRow):
    """A kernel variant."""

    digest: bytes = raw(32, "digest of everything that goes into the kernel")
    label: Text = nested(Text, "label, for messages and tools")
    params_bytes: int = u32("bytes of the parameter block, a multiple of 16, from 16 to 65536")
    tensors: int = u32("number of tensors bound, from 1 to 64")
    flags: int = u32(
        "flags: 1 trusted (may run without run-time checks), 2 needs subgroups, 4 needs "
        "`shader-f16`",
        reserved=4,
    )
    spirv: Code = nested(Code, "SPIR-V, a multiple of 4 bytes when it is unpacked")
    wgsl: Code = nested(Code, "WGSL", reserved=8)


class Needs(PackedRow):
    """The limits and features that a plan needs of a device."""

    storage_alignment: int = u32("`minStorageBufferOffsetAlignment` of the device at most")
    uniform_alignment: int = u32("`minUniformBufferOffsetAlignment` of the device at most")
    binding_bytes: int = u64("`maxStorageBufferBindingSize` at least")
    buffer_bytes: int = u64("`maxBufferSize` at least")
    threads: int = u32("`maxComputeInvocationsPerWorkgroup` at least")
    shared_bytes: int = u32("`maxComputeWorkgroupStorageSize` at least")
    bindings: int = u32("`maxStorageBuffersPerShaderStage` at least")
    lanes: int = u32("lanes of a subgroup at least, 0 where none are used")
    software: int = u32("1: planned for a driver that runs shaders on the CPU", reserved=4)

    def unmet(self, limits: Limits) -> str:
        """Returns a description of the first need that a device does not meet, or an empty
        string if it meets all."""
        rows = (
            ("storage offsets in multiples of", self.storage_alignment,
             limits.storage_offset_alignment, "at most"),
            ("uniform offsets in multiples of", self.uniform_alignment,
             limits.uniform_offset_alignment, "at most"),
            ("bindings of bytes", self.binding_bytes, limits.max_binding_bytes, "at least"),
            ("buffers of bytes", self.buffer_bytes, limits.max_buffer_bytes, "at least"),
            ("threads of a workgroup", self.threads, limits.max_group_threads, "at least"),
            ("bytes of shared memory", self.shared_bytes, limits.max_group_storage, "at least"),
            ("storage buffers", self.bindings, limits.max_storage_buffers, "at least"),
            ("lanes of a subgroup", self.lanes, limits.subgroup_size, "at least"),
        )  # fmt: skip
        for feature, required, available, relation in rows:
            if (required < available) if relation == "at most" else (required > available):
                return f"it needs {feature} {relation} {required:,}, the device has {available:,}"
        return ""


class PlanHead(PackedRow):
    """The fields at the start of a section ``plan``."""

    profile: Text = nested(Text, "the profile: `portable`, `discrete`, `software`, ...", reserved=8)
    spaces: tuple[int, ...] = u64s(3, "bytes of the arena, of the weights, of its own buffer")
    needs: Needs = nested(Needs, "what the plan needs of a device")
    flops: float = f64("FLOPs of a whole run")
    nbytes: float = f64("bytes read and written by a whole run")
    gas: int = u64("[gas](integer.md) of the model")
    steps: Table = nested(Table, "steps")
    bindings: Table = nested(Table, "bindings")
    inputs: Table = nested(Table, "inputs")
    outputs: Table = nested(Table, "outputs")
    updates: Table = nested(Table, "updates")
    params: Table = nested(Table, "parameters, whose rows are bytes")
    constants: Table = nested(Table, "constants", reserved=24)


class PlanStepRow(PackedRow):
    """A dispatch."""

    kernel: int = u32("kernel")
    groups: int = u32("workgroups, at least 1")
    first_binding: int = u32("its first binding, behind the last of the step before")
    bindings: int = u32("number of bindings, as many as the kernel has tensors")
    writes: int = u32("how many of the last bindings it writes")
    params_offset: int = u32("its parameters: offset in the parameters")
    params_bytes: int = u32("their bytes, as the kernel says")
    line: int = u32("line in the model's file, 0 where it is not known")
    op: Text = nested(Text, "operator")
    title: Text = nested(Text, "title, for messages and tables")
    cost_key: Text = nested(Text, "cost key: equal keys cost the same per workgroup")
    file: Text = nested(Text, "the model's file")
    flops: float = f64("FLOPs per workgroup")
    nbytes: float = f64("bytes per workgroup")
    gas: int = u64("operations of the step, rounded", reserved=8)


class BindingRow(PackedRow):
    """A range of a buffer."""

    space: int = u32("space: 0 arena, 1 weights, 2 own", reserved=4)
    offset: int = u64("offset, a multiple of the plan's storage alignment")
    nbytes: int = u64("bytes, a multiple of 4 and at least 4")


class UpdateRow(PackedRow):
    """A copy between buffers after a run."""

    source: BindingRow = nested(BindingRow, "from")
    target: BindingRow = nested(BindingRow, "to, in another space")


class TensorRow(PackedRow):
    """An input or output."""

    name: Text = nested(Text, "name")
    type: int = u32("type: 0 `scalar` (float32), 1 `integer` (int32), 2 `logical` (u32, 0 or 1)")
    layout: int = u32("layout: 0 plain (row-major), 1 `c4`, 2 `c4h` (`cml_engine/ir/layout.py`)")
    rank: int = u32("rank, at most 8")
    extents: tuple[int, ...] = u32s(MOST_DIMENSIONS, "extents, 0 behind the rank")
    space: int = u32("space")
    offset: int = u64("offset")
    nbytes: int = u64("bytes, 0 where the tensor has no elements", reserved=8)


class Dimension(PackedRow):
    """A dimension of a constant as it lies in its buffer."""

    extent: int = u32("extent")
    axis: int = u32("axis of the source")
    step: int = u32("step")


class ConstantRow(PackedRow):
    """A constant in a buffer, and the numbers that it is made of."""

    space: int = u32("space: 1 weights, 2 own")
    stored: int = u32(
        "how its source is stored: bits of 0 one, 1 two, 2 four bytes; 3 int8, 4 uint8, 5 int16, "
        "6 uint16"
    )
    becomes: int = u32(
        "what a stored number becomes: 0 bits stay as they are, 1 float32, 2 int32, 3 binary16 "
        "after the matrix"
    )
    rank: int = u32("number of dimensions, from 1 to 8")
    offset: int = u64("offset in the buffer, a multiple of 4")
    nbytes: int = u64("bytes: those of its elements, up to a multiple of 4 with zeros")
    source: int = u64("source: offset in `values`, a multiple of 16")
    matrix: int = u64("matrix: offset in `values`, a multiple of 16; all ones where there is none")
    extents: tuple[int, ...] = u32s(SOURCE_AXES, "extents of the source, row-major")
    dims: tuple[Dimension, ...] = nested_list(
        Dimension,
        MOST_DIMENSIONS,
        "dimensions: extent, axis of the source, step; 0 behind the last",
    )


class GuessHead(PackedRow):
    """The fields at the start of the section ``guess``."""

    devices: int = u32("number of devices, at most 64")
    factors: int = u32("number of factors, at most 4096")


class DeviceRow(PackedRow):
    """The assumed speed of a type of device."""

    pattern: Text = nested(Text, "pattern")
    flops_per_ms: float = f64("FLOPs per ms")
    bytes_per_ms: float = f64("bytes per ms")
    launch_ms: float = f64("ms per dispatch")
    first_factor: int = u32("its first factor")
    factors: int = u32("number of factors")


class FactorRow(PackedRow):
    """The measured time of a family of kernels, relative to what the device's speed predicts."""

    kernel: Text = nested(Text, "the second word of a cost key, or that up to its last `-`")
    times: float = f64("how many times the work takes that the device's numbers say")


class GoldenHead(PackedRow):
    """The fields at the start of the section ``golden``."""

    tensors: int = u32("number of tensors")
    tolerance: float = f32("tolerance")


class GoldenRow(PackedRow):
    """A tensor of the golden pair."""

    name: Text = nested(Text, "name")
    role: int = u32(
        "role: 0 input, 1 output; all inputs, then all outputs, in the order of the plans"
    )
    type: int = u32("type")
    rank: int = u32("rank")
    extents: tuple[int, ...] = u32s(MOST_DIMENSIONS, "extents", reserved=4)
    offset: int = u64("offset in the section")


TRUSTED, SUBGROUPS, F16 = 1, 2, 4
ALL_FLAGS = TRUSTED | SUBGROUPS | F16
SPACES = ("arena", "weights", "own")
DTYPES = ("scalar", "integer", "logical")
LAYOUTS = ("plain", "c4", "c4h")


def totals_of(kernels: Bytes, plans: Iterable[Bytes]) -> Totals:
    """Returns the memory totals of a section ``kernels`` and all sections ``plan``."""
    rows = [
        KernelRow.read(kernels, at) for at in range(KernelsHead.SIZE, len(kernels), KernelRow.SIZE)
    ]
    heads = [PlanHead.read(plan) for plan in plans]
    return Totals(
        code_bytes=sum(row.spirv.nbytes + row.wgsl.nbytes for row in rows),
        device_bytes=max((sum(head.spaces) + head.params.count for head in heads), default=0),
        kernels=len(rows),
        steps=max((head.steps.count for head in heads), default=0),
    )


@dataclass(frozen=True, slots=True)
class CookedLimits:
    """Limits on the memory of an unpacked file, because a small file can state large sizes.

    The C and JavaScript players have the same limits with the same names.

    Examples
    --------
    >>> data = cml.cooked.cook(graph, ["portable"])
    >>> cml.load_cooked(data, limits=cml.cooked.CookedLimits(kernels=100)).name
    'net'
    """

    code_bytes: int = 64 << 20
    device_bytes: int = 2 << 30
    kernels: int = 4096
    steps: int = 16384

    def __post_init__(self) -> None:
        check_limits(self)

    def exceeded(self, totals: Totals) -> list[tuple[str, int, int]]:
        """Returns the name, total and limit of each total that is above its limit."""
        rows = [(f.name, getattr(totals, f.name), getattr(self, f.name)) for f in fields(self)]
        return [(name, total, limit) for name, total, limit in rows if total > limit]

    def check(self, totals: Totals) -> None:
        """Raises :class:`OverBudget` for the first total that is above its limit."""
        for name, total, limit in self.exceeded(totals):
            raise OverBudget(
                f"the cooked file states {total:,} {name}, the limit is {limit:,}. If you trust "
                f"it: trusted=True (--trusted), or limits=cml.cooked.CookedLimits({name}={total})"
            )


def aligned(offset: int, alignment: int) -> int:
    """Returns ``offset`` rounded up to a multiple of ``alignment``."""
    return -(-offset // alignment) * alignment


def pad(content: bytearray, alignment: int) -> int:
    """Appends zeros up to a multiple of ``alignment``; returns the length."""
    content += bytes(-len(content) % alignment)
    return len(content)


def padded(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns a shape with zeros up to the most dimensions, as records have it."""
    return (*shape, *[0] * (MOST_DIMENSIONS - len(shape)))
