"""The records of a cooked file (docs/cooked.md), in file order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from struct import Struct

from cml_engine.io.load_limits import OverBudget
from cml_engine.io.model_source import Bytes

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
#: the alignment of constants; the axes of a stored constant, the dimensions of the packed one, and
#: the largest size in bytes
VALUE_ALIGNMENT, PIECE_AXES, PIECE_DIMS, MOST_BYTES = 16, 4, 8, 1 << 48
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

#: magic, format, sections, bytes, SHA-256 of the table, the four totals, reserved
HEADER = Struct("<8s2IQ32s2Q2I16s")
#: tag, offset, bytes, number, reserved, SHA-256
SECTION = Struct("<8s2Q2I32s")
#: kernels, reserved
COUNT = Struct("<2I")
#: digest, label, parameter bytes, tensors, flags, reserved, then SPIR-V and WGSL: offset,
#: compressed bytes, bytes; reserved
KERNEL = Struct("<32s2I4IQ2IQ2IQ")
#: profile, reserved; bytes of arena, weights, own; alignments, most bytes of a binding and of
#: a buffer, threads, shared memory, bindings, lanes, software, reserved; FLOPs, bytes, gas; then
#: count and offset of steps, bindings, inputs, outputs, updates, parameters, pieces; reserved
PLAN_HEADER = Struct("<2IQ3Q2I2Q6I2dQ14I24s")
#: kernel, groups, first binding, bindings, writes, parameters' offset and bytes, line, operator,
#: title, cost key, file; FLOPs, bytes, gas, reserved
STEP = Struct("<8I8I2d2Q")
#: space, reserved, offset, bytes
BINDING = Struct("<2I2Q")
#: name, type, layout, rank, extents, space, offset, bytes, reserved
TENSOR = Struct("<2I3I8II3Q")
#: space, stored type of the source, type to convert it to, dimensions; offset and bytes; source,
#: matrix; the source's extents; then extent, axis and step of each dimension
PIECE = Struct("<4I2Q2Q4I24I")
#: patterns, FLOPs and bytes per ms, ms per dispatch, first factor, factors
DEVICE = Struct("<2I3d2I")
#: kernel, times
FACTOR = Struct("<2Id")
#: tensors, tolerance
GOLDEN_HEADER = Struct("<If")
#: name, role, type, rank, extents, reserved, offset
GOLDEN_TENSOR = Struct("<2I3I8IIQ")

TRUSTED, SUBGROUPS, F16 = 1, 2, 4
ALL_FLAGS = TRUSTED | SUBGROUPS | F16
SPACES = ("arena", "weights", "own")
DTYPES = ("scalar", "integer", "logical")
LAYOUTS = ("plain", "c4", "c4h")

assert [s.size for s in (HEADER, SECTION, KERNEL, PLAN_HEADER, STEP)] == [96, 64, 96, 192, 96]
assert PIECE.size == 160
assert [s.size for s in (BINDING, TENSOR, DEVICE, FACTOR, GOLDEN_TENSOR)] == [24, 80, 40, 16, 64]


@dataclass(frozen=True, slots=True)
class Totals:
    """The memory that a file takes when unpacked, as its header states it."""

    #: bytes of all kernels, unpacked
    code_bytes: int
    #: bytes of the largest plan's buffers
    device_bytes: int
    kernels: int
    #: steps of the plan that has most
    steps: int

    @staticmethod
    def of(kernels: Bytes, plans: Iterable[Bytes]) -> Totals:
        """Returns the totals of the kernel and plan sections."""
        rows = [
            KERNEL.unpack_from(kernels, at) for at in range(COUNT.size, len(kernels), KERNEL.size)
        ]
        heads = [PLAN_HEADER.unpack_from(plan) for plan in plans]
        return Totals(
            code_bytes=sum(row[9] + row[12] for row in rows),
            device_bytes=max((sum(head[3:6]) + head[29] for head in heads), default=0),
            kernels=len(rows),
            steps=max((head[19] for head in heads), default=0),
        )


@dataclass(frozen=True, slots=True)
class CookedLimits:
    """Limits on the memory of an unpacked file, because a small file can state large sizes.

    The C and JavaScript players have the same limits with the same names.
    """

    code_bytes: int = 64 << 20
    device_bytes: int = 2 << 30
    kernels: int = 4096
    steps: int = 16384

    def exceeded(self, totals: Totals) -> list[tuple[str, int, int]]:
        """Returns the name, total and limit of each total that is above its limit."""
        rows = [(f.name, getattr(totals, f.name), getattr(self, f.name)) for f in fields(self)]
        return [(name, total, most) for name, total, most in rows if total > most]

    def check(self, totals: Totals) -> None:
        """Raises :class:`OverBudget` if a total is above its limit."""
        for name, total, most in self.exceeded(totals):
            raise OverBudget(
                f"the cooked file states {total:,} {name}, the limit is {most:,}. If you trust it: "
                f"trusted=True (--trusted), or limits=cml.CookedLimits({name}={total})"
            )


def aligned(offset: int, alignment: int) -> int:
    """Returns ``offset`` rounded up to a multiple of ``alignment``."""
    return -(-offset // alignment) * alignment
