"""Machine code as text: its instructions by class, its loops, and the time of a wave alone.

A loop's number of turns is not in the code. The caller gives the turns of each nest
(:mod:`benchmarks.hardware.nests`); an instruction in a branch counts as executed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

#: classes of instructions: multiply-adds, other vector arithmetic, scalar arithmetic, loads of
#: scalars, loads and stores of lanes, groupshared memory, waits, and jumps
FMA, VECTOR, SCALAR, SCALAR_LOAD, MEMORY, SHARED, WAIT, JUMP = CLASSES = (
    "fma", "vector", "scalar", "scalar load", "memory", "shared", "wait", "jump",
)  # fmt: skip
#: classes whose results a wave waits for
_LOADS = (SCALAR_LOAD, MEMORY, SHARED)
#: the counter of stores, where they have one of their own
_STORES = "stores"


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction: its name, its class, and the bytes that a lane (or a scalar) moves.

    ``slow`` is its time relative to an addition. ``target`` is the label that it jumps to.
    ``pending`` is, for a wait, the number of operations on each counter that may be outstanding
    after it. ``counter`` counts this operation until it is complete: that of its class by default.
    """

    name: str
    kind: str
    nbytes: int = 0
    slow: int = 1
    target: str = ""
    pending: Mapping[str, int] = field(default_factory=dict)
    counter: str = ""


@dataclass(frozen=True, slots=True)
class Latencies:
    """Cycles: of a vector instruction, and from a load of each class to its result."""

    vector: int
    loads: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Nest:
    """The turns of a kernel's loops: of those around its products, the outermost first, and of any
    other loop. A kernel without products has the turns of its nest in ``products``.

    ``each`` has the turns of the innermost loops in the order of the code, if they differ; then
    ``products`` has those of the loops around them. ``tail`` is the share of a workgroup's waves
    that execute the code behind its last barrier.
    """

    products: Sequence[float] = ()
    others: float = 1.0
    each: Sequence[float] = ()
    tail: float = 1.0


class Listing:
    """The blocks of a kernel's machine code in order, and its loops."""

    def __init__(
        self, blocks: Sequence[tuple[str, list[Instruction]]], shows_waits: bool = True
    ) -> None:
        blocks = [part for label, code in blocks for part in _split_at_barrier(label, code)]
        self.blocks = [instructions for _, instructions in blocks]
        ends = [i for i, block in enumerate(self.blocks) if block and _is_barrier(block[-1])]
        #: the first block behind the last barrier
        self._tail = ends[-1] + 1 if ends else len(self.blocks)
        #: False if the code does not show waits; then a block waits for its loads at its end
        self.shows_waits = shows_waits
        positions = {label: i for i, (label, _) in enumerate(blocks)}
        #: the first and the last block of each loop, the outermost first
        self.loops = sorted(
            {
                (positions[jump.target], i)
                for i, (_, instructions) in enumerate(blocks)
                for jump in instructions
                if jump.target
                and positions.get(jump.target, i + 1) <= i
                # the code ends in a jump to itself
                and not (positions[jump.target] == i and instructions[0] is jump)
            },
            key=lambda loop: (loop[0], -loop[1]),
        )

    def _around(self, block: int) -> list[tuple[int, int]]:
        return [loop for loop in self.loops if loop[0] <= block <= loop[1]]

    def _has_products(self, loop: tuple[int, int]) -> bool:
        blocks = self.blocks[loop[0] : loop[1] + 1]
        return any(instruction.kind == FMA for block in blocks for instruction in block)

    def turns(self, nest: Nest) -> list[float]:
        """Returns how often each block runs if the loops iterate as often as ``nest`` says."""
        return [n * self._share(i, nest.tail) for i, n in enumerate(self._turns(nest))]

    def _share(self, block: int, tail: float) -> float:
        """Returns the share of a workgroup's waves that execute a block."""
        return tail if block >= self._tail else 1.0

    def _turns(self, nest: Nest) -> list[float]:
        products = [loop for loop in self.loops if self._has_products(loop)] or self.loops
        if nest.each:
            return self._turns_of_each(nest, products)
        depth = max((len(self._nested(loop, products)) for loop in products), default=0)
        known = [1.0] * max(depth - len(nest.products), 0) + list(nest.products)
        # loops of the source that the code lacks were merged with the loop around them
        merged = len(known) - depth
        known = [prod(known[: merged + 1]), *known[merged + 1 :]] if depth else []
        turns = []
        for i in range(len(self.blocks)):
            around = self._around(i)
            inside = [loop for loop in around if loop in products]
            turns.append(prod(known[: len(inside)]) * nest.others ** (len(around) - len(inside)))
        return turns

    def _turns_of_each(self, nest: Nest, products: Sequence[tuple[int, int]]) -> list[float]:
        """Returns how often each block runs if the innermost loops with products iterate
        differently; if the code has another number of them, each iterates as the longest."""
        inner = [
            loop
            for loop in products
            if not any(loop in self._nested(other, products) for other in products if other != loop)
        ]
        each = nest.each if len(nest.each) == len(inner) else [max(nest.each)] * len(inner)
        outer = nest.products[0] if nest.products else 1.0
        counts = dict.fromkeys(products, outer) | dict(zip(inner, each, strict=True))
        return [
            prod(counts.get(loop, nest.others) for loop in self._around(i))
            for i in range(len(self.blocks))
        ]

    @staticmethod
    def _nested(loop: tuple[int, int], loops: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        return [other for other in loops if other[0] <= loop[0] and loop[1] <= other[1]]

    def counts(self, nest: Nest) -> Counter[str]:
        """Returns the number of executed instructions of a wave by class."""
        total = Counter[str]()
        for turns, block in zip(self.turns(nest), self.blocks, strict=True):
            for instruction in block:
                total[instruction.kind] += turns  # type: ignore[assignment]
        return total

    def moved(self, nest: Nest) -> Counter[str]:
        """Returns the bytes that a lane moves by class, or a wave by scalar loads."""
        total = Counter[str]()
        for turns, block in zip(self.turns(nest), self.blocks, strict=True):
            for instruction in block:
                total[instruction.kind] += turns * instruction.nbytes  # type: ignore[assignment]
        return total

    def vector_cycles(self, nest: Nest, vector: int) -> float:
        """Returns the cycles of a wave's vector instructions, each of ``vector`` cycles or more."""
        return sum(
            turns * vector * instruction.slow
            for turns, block in zip(self.turns(nest), self.blocks, strict=True)
            for instruction in block
            if instruction.kind in (FMA, VECTOR)
        )

    def inner_loop(self) -> Counter[str]:
        """Returns the instructions by class of the innermost loop with the most multiply-adds.

        It is the whole code if no loop has any.
        """
        best = Counter[str](i.kind for block in self.blocks for i in block)
        loops = [
            Counter[str](i.kind for block in self.blocks[first : last + 1] for i in block)
            for first, last in self.loops
            if not any((a, b) != (first, last) and first <= a and b <= last for a, b in self.loops)
        ]
        with_products = [loop for loop in loops if loop[FMA]]
        return max(with_products, key=lambda loop: loop[FMA], default=best)

    def cycles_alone(self, nest: Nest, latencies: Latencies) -> float:
        """Returns the cycles of a wave that has a SIMD for itself, waits included.

        A turn of a loop is one that follows another: its loads may have been issued before it.
        """
        turns = self.turns(nest)
        total = 0.0
        for loop, blocks in self._streams().items():
            once, steady = self._stream_cycles(blocks, latencies)
            count = max(turns[i] for i in blocks)
            total += once if loop is None else min(count, 1) * once + max(count - 1, 0) * steady
        return total

    def cycles_by_depth(
        self, latencies: Latencies, load_cycles: float, tail: float = 1.0
    ) -> tuple[list[float], list[float]]:
        """Returns the cycles of a wave by the number of loops around the code.

        The first list is of vector instructions, or of loads if these take longer, at
        ``load_cycles`` for a byte of each lane; ``tail`` is that of :class:`Nest`. The second is of
        all with waits, if the wave is alone: of a turn that follows another.
        """
        depth = max((len(self._around(i)) for i in range(len(self.blocks))), default=0)
        busy, alone = [0.0] * (depth + 1), [0.0] * (depth + 1)
        for loop, blocks in self._streams().items():
            level = len(self._around(blocks[0]))
            stream = [(code, self._share(i, tail)) for i in blocks for code in self.blocks[i]]
            vector = sum(
                latencies.vector * code.slow * share
                for code, share in stream
                if code.kind in (FMA, VECTOR)
            )
            loaded = sum(code.nbytes * share for code, share in stream if code.kind == MEMORY)
            busy[level] += max(vector, load_cycles * loaded)
            alone[level] += self._stream_cycles(blocks, latencies)[loop is not None]
        return busy, alone

    def _streams(self) -> dict[tuple[int, int] | None, list[int]]:
        """Returns the blocks by the innermost loop around them; None is the key of the others."""
        streams: dict[tuple[int, int] | None, list[int]] = {}
        for i in range(len(self.blocks)):
            around = self._around(i)
            streams.setdefault(around[-1] if around else None, []).append(i)
        return streams

    def _stream_cycles(self, blocks: Sequence[int], latencies: Latencies) -> tuple[float, float]:
        """Returns the cycles of blocks in a row, and of the same once more behind them."""
        stream = [instruction for i in blocks for instruction in self.blocks[i]]
        once = _cycles(stream, latencies, self.shows_waits)
        return once, _cycles([*stream, *stream], latencies, self.shows_waits) - once


def _cycles(stream: Sequence[Instruction], latencies: Latencies, shows_waits: bool) -> float:
    """Returns the cycles of instructions in a row. If the code does not show waits, they wait for
    their loads at their end."""
    now, issued = 0.0, {counter: list[float]() for counter in (*_LOADS, _STORES)}
    for instruction in stream:
        is_vector = instruction.kind in (FMA, VECTOR)
        now += latencies.vector * instruction.slow if is_vector else 1
        if instruction.kind in _LOADS:
            counter = instruction.counter or instruction.kind
            issued[counter].append(now + latencies.loads[instruction.kind])
        for counter, pending in instruction.pending.items():
            done = issued[counter][: max(len(issued[counter]) - pending, 0)]
            now = max([now, *done])
            del issued[counter][: len(done)]
    if not shows_waits:
        now = max([now, *issued[SCALAR_LOAD], *issued[MEMORY], *issued[SHARED]])
    return now


def _is_barrier(instruction: Instruction) -> bool:
    return instruction.name.startswith(("s_barrier", "BAR"))


def _split_at_barrier(
    label: str, code: list[Instruction]
) -> Iterator[tuple[str, list[Instruction]]]:
    """Yields a block in parts that end at a barrier; those behind the first have no label."""
    begin = 0
    for end in [i + 1 for i, instruction in enumerate(code) if _is_barrier(instruction)]:
        yield label, code[begin:end]
        label, begin = "", end
    yield label, code[begin:]


# ------------------------------------------------------------------ AMD

_LINE = re.compile(r"^\s+(\S+)\s*(.*?)\s*; *([0-9a-f]{8})?")
_WIDTH = re.compile(r"(?:dwordx|b)(\d+)")
_AMD_FMA = re.compile(
    r"v_(pk_)?(fma|fmac|mac|mad|fmaak|fmamk|madak|madmk)_(f32|f16|legacy|mix)|v_dot"
)
_AMD_SLOW = re.compile(r"v_(rcp|rsq|sqrt|exp|log|sin|cos|mul_lo|mul_hi)_?|v_\w+_[ui]64|v_\w+_f64")
_AMD_WAITS = ("s_waitcnt", "s_nop", "s_clause", "s_barrier", "s_inst_prefetch", "s_delay_alu",
              "s_sleep", "s_sendmsg", "s_setprio", "s_code_end")  # fmt: skip


def amd_listing(text: str, is_rdna: bool = True) -> Listing:
    """Reads ACO's assembly, as LLVM's disassembler prints it for GCN and RDNA.

    RDNA counts stores, and atomic operations that return nothing, by vscnt and not by vmcnt.
    """
    blocks: list[tuple[str, list[Instruction]]] = []
    for line in text.splitlines():
        if line.startswith("BB") and line.rstrip().endswith(":"):
            blocks.append((line.rstrip()[:-1], []))
        elif blocks and (instruction := _amd_instruction(line, is_rdna)) is not None:
            blocks[-1][1].append(instruction)
    return Listing(blocks)


def _amd_instruction(line: str, is_rdna: bool) -> Instruction | None:
    if line.startswith("(invalid"):
        # scalar loads into vcc, which this disassembler does not know; their second word is skipped
        return Instruction("s_buffer_load", SCALAR_LOAD, 16) if "; f4" in line else None
    match = _LINE.match(line)
    if match is None:
        return None
    name, operands = match[1], match[2]
    if name.startswith("v_"):
        slow = 4 if _AMD_SLOW.match(name) else 1
        return Instruction(name, FMA if _AMD_FMA.match(name) else VECTOR, slow=slow)
    if name.startswith(("buffer_", "global_", "flat_", "scratch_", "image_")):
        is_store = "_store" in name or ("_atomic" in name and "glc" not in operands)
        counter = _STORES if is_rdna and is_store else MEMORY
        return Instruction(name, MEMORY, _amd_bytes(name), counter=counter)
    if name.startswith("ds_"):
        return Instruction(name, SHARED, _amd_bytes(name))
    if name.startswith(("s_load", "s_buffer_load")):
        return Instruction(name, SCALAR_LOAD, _amd_bytes(name))
    if name.startswith(("s_branch", "s_cbranch", "s_endpgm", "s_setpc")):
        return Instruction(name, JUMP, target=operands.split()[0] if operands else "")
    if name.startswith(_AMD_WAITS):
        return Instruction(name, WAIT, pending=dict(_amd_pending(operands)))
    return Instruction(name, SCALAR)


def _amd_bytes(name: str) -> int:
    if "_ubyte" in name or "_byte" in name or "_u8" in name or "_i8" in name:
        return 1
    if "short" in name or "_u16" in name or "_d16" in name:
        return 2
    match = _WIDTH.search(name)
    width = int(match[1]) if match else 1
    bits = width if match and match[0].startswith("b") else 32 * width
    return bits // 8 * (2 if "2st" in name or "read2" in name or "write2" in name else 1)


def _amd_pending(operands: str) -> Iterator[tuple[str, int]]:
    if stores := re.fullmatch(r"null, (0x[0-9a-f]+)", operands):  # s_waitcnt_vscnt
        yield _STORES, int(stores[1], 16)
    for counter, number in re.findall(r"(vmcnt|lgkmcnt)\((\d+)\)", operands):
        if counter == "vmcnt":
            yield MEMORY, int(number)
        elif counter == "lgkmcnt":
            yield SCALAR_LOAD, int(number)
            yield SHARED, int(number)


# ------------------------------------------------------------------ NVIDIA

_SASS_LINE = re.compile(
    r"^\s*(?:/\*[0-9a-f]+\*/)?\s*(?:\{\s*)?(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]+)(.*?);"
)
_SASS_LABEL = re.compile(r"^\s*(\.L_x_\d+|\.L_\d+):")
_SASS_CLASSES = (
    (FMA, ("FFMA", "HFMA2", "IDP", "HMMA")),
    (MEMORY, ("LDG", "STG", "LD.", "ST.", "LDL", "STL", "RED", "ATOM")),
    (SHARED, ("LDS", "STS", "ATOMS")),
    (SCALAR_LOAD, ("LDC", "ULDC", "LDCU")),
    (WAIT, ("BAR", "NOP", "DEPBAR", "WARPSYNC", "BSSY", "BSYNC", "MEMBAR", "YIELD")),
    (JUMP, ("BRA", "EXIT", "RET", "CALL", "BRX", "JMP")),
)
_SASS_SLOW = ("MUFU", "IMAD.WIDE", "IMAD.HI", "I2F", "F2I", "F2F", "POPC")
_SASS_STORES = ("STG", "ST.", "STL", "RED")
_SASS_HALVES = ("HFMA2", "HADD2", "HMUL2", "HMNMX2", "HSET")


def nvidia_listing(text: str, half_time: int = 1) -> Listing:
    """Reads the output of ``nvdisasm``; labels begin blocks.

    ``half_time`` is the time of an instruction on halves, relative to one on floats.
    """
    blocks: list[tuple[str, list[Instruction]]] = [("", [])]
    for line in text.splitlines():
        if label := _SASS_LABEL.match(line):
            blocks.append((label[1], []))
        elif match := _SASS_LINE.match(line):
            blocks[-1][1].append(_sass_instruction(match[1], match[2], half_time))
    return Listing(blocks, shows_waits=False)


def _sass_instruction(name: str, operands: str, half_time: int) -> Instruction:
    kind = next((k for k, names in _SASS_CLASSES if name.startswith(names)), VECTOR)
    if kind == VECTOR and name.startswith(("U", "R2UR", "S2UR")):
        kind = SCALAR
    if kind == JUMP:
        target = re.search(r"`\((\.L_\w+)\)", operands)
        return Instruction(name, kind, target=target[1] if target else "")
    width = re.search(r"\.(8|16|32|64|128)\b", name)
    nbytes = (int(width[1]) // 8 if width else 4) if kind in _LOADS else 0
    usual = half_time if name.startswith(_SASS_HALVES) else 1
    slow = 4 if name.startswith(_SASS_SLOW) else usual
    counter = _STORES if name.startswith(_SASS_STORES) else ""
    return Instruction(name, kind, nbytes, slow, counter=counter)
