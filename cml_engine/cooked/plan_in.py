"""Reads and validates a plan from a section of a cooked file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from cml_engine.compiler.plan import Binding, Finished, Memory, Plan, Step, TensorPlace
from cml_engine.cooked.form import (
    BINDING,
    DTYPES,
    LAYOUTS,
    MOST_AMOUNT,
    MOST_BYTES,
    MOST_DIMENSIONS,
    MOST_INPUTS,
    PIECE,
    PLAN_HEADER,
    SPACES,
    STEP,
    SUBGROUPS,
    TABLE_ALIGNMENT,
    TENSOR,
    aligned,
)
from cml_engine.cooked.kernels import Cooked
from cml_engine.cooked.reader import Container, Section, damaged
from cml_engine.cooked.values import Pieces, read_pieces
from cml_engine.errors import Source
from cml_engine.ir.graph import Array, Fact
from cml_engine.ir.layout import PLAIN, words
from cml_engine.ir.limits import Limits
from cml_engine.ops.declaration.spec import Cost

_POWERS = {1 << n for n in range(2, 13)}
#: the most workgroups of a two-dimensional dispatch
_MOST_GROUPS = 65535 * 65535


@dataclass(frozen=True, slots=True)
class Needs:
    """The limits and features that a plan needs of a device."""

    storage_alignment: int
    uniform_alignment: int
    binding_bytes: int
    buffer_bytes: int
    threads: int
    shared_bytes: int
    bindings: int
    lanes: int
    software: int

    def unmet(self, limits: Limits) -> str:
        """Describes the first need that a device does not meet; returns an empty string if it
        meets all."""
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
        for what, wanted, has, how in rows:
            if (wanted < has) if how == "at most" else (wanted > has):
                return f"it needs {what} {how} {wanted:,}, the device has {has:,}"
        return ""


class CookedPlan:
    """A plan of a file, validated on construction; :meth:`plan` builds it on demand."""

    def __init__(self, file: Container, section: Section, kernels: Sequence[Cooked]) -> None:
        self._file, self._section, self._kernels = file, section, kernels
        head = list(section.unpack(PLAN_HEADER, 0))
        self.profile = file.string(head[0], head[1])
        self._sizes = dict(zip(SPACES, head[3:6], strict=True))
        self._flops, self._bytes, self.gas = head[16:19]
        self._tables = [(head[i], head[i + 1]) for i in range(19, 33, 2)]
        if head[2] or head[15] or any(head[33]):
            raise self._damaged("its header")
        self._check_head(head)
        self.used = self._used_kernels()
        self.needs = Needs(*head[6:15])
        self._check_needs()
        #: parameter blocks by offset, the end of the last one, and the next step's first binding
        self._blocks: dict[int, bytes] = {}
        self._blocks_end = self._next_binding = 0
        if self._tables[2][0] > MOST_INPUTS:
            raise self._damaged(f"it has {self._tables[2][0]} inputs")
        self.steps = self._steps()
        if (self._next_binding, self._blocks_end) != (self._tables[1][0], self._tables[5][0]):
            raise self._damaged("it has bindings or parameters that no step has")
        self.inputs, self.outputs = self._tensors(2), self._tensors(3)
        self.updates = self._updates()
        self._constants = self._pieces()

    def _damaged(self, what: str) -> Exception:
        return damaged(f"plan '{self.profile}': {what}")

    # --- checks

    def _check_head(self, head: Sequence[Any]) -> None:
        sizes = (STEP.size, BINDING.size, TENSOR.size, TENSOR.size, 2 * BINDING.size, 1, PIECE.size)
        for (count, offset), size in zip(self._tables, sizes, strict=True):
            if offset % TABLE_ALIGNMENT or offset < PLAN_HEADER.size:
                raise self._damaged(f"a table at {offset}")
            self._section.span(offset, count * size, f"plan '{self.profile}'")
        if not all(0 <= n <= MOST_AMOUNT for n in (self._flops, self._bytes)):
            raise self._damaged("its cost")
        if any(n > MOST_BYTES or n % 4 for n in self._sizes.values()):
            raise self._damaged("its memory")

    def _check_needs(self) -> None:
        needs = self.needs
        if not {needs.storage_alignment, needs.uniform_alignment} <= _POWERS or needs.software > 1:
            raise self._damaged("what it needs of a device")
        if any(kernel.flags & SUBGROUPS for kernel in self.used) and not needs.lanes:
            raise self._damaged("it uses subgroups and does not say of how many lanes")
        if max(self._sizes.values()) > needs.buffer_bytes:
            raise self._damaged("it needs larger buffers than it says")

    def _used_kernels(self) -> list[Cooked]:
        count, offset = self._tables[0]
        numbers = {
            self._section.unpack(STEP, offset + i * STEP.size)[0]: None for i in range(count)
        }
        return [self._kernel(number) for number in numbers]

    def _kernel(self, number: int) -> Cooked:
        if number >= len(self._kernels):
            raise self._damaged(f"kernel {number} of {len(self._kernels)}")
        return self._kernels[number]

    # --- tables

    def _steps(self) -> tuple[Step, ...]:
        count, offset = self._tables[0]
        return tuple(
            self._step(i, self._section.unpack(STEP, offset + i * STEP.size)) for i in range(count)
        )

    def _step(self, index: int, record: Sequence[Any]) -> Step:
        kernel, groups, first, count, writes, at, nbytes, line, *rest = record
        op, title, key, file = (self._file.string(*rest[i : i + 2]) for i in range(0, 8, 2))
        flops, moved, _gas, reserved = rest[8:]
        code = self._kernel(kernel).kernel
        if not 0 < groups <= _MOST_GROUPS or reserved:
            raise self._damaged(f"{title} has {groups} workgroups")
        if not all(0 <= n <= MOST_AMOUNT for n in (flops, moved)):
            raise self._damaged(f"the cost of {title}")
        if count != code.tensors or not 0 < writes <= count <= self.needs.bindings:
            raise self._damaged(f"{title} binds {count} tensors, its kernel has {code.tensors}")
        if nbytes != code.params_bytes:
            raise self._damaged(f"{title} has {nbytes} bytes of parameters")
        if first != self._next_binding:
            raise self._damaged(
                f"{title} has its bindings from {first}, wanted {self._next_binding}"
            )
        self._next_binding += count
        return Step(
            index=index,
            op=op,
            title=title,
            path=code.label.partition(" ")[0],
            params_layout="",
            params={},
            defines={},
            bindings=tuple(self._binding(1, first + i, title) for i in range(count)),
            writes=writes,
            groups=groups,
            cost=Cost(flops * groups, moved * groups, 0.0),
            trusted=code.trusted,
            source=Source(file, line) if file else None,
            finished=Finished(code, self._params(at, nbytes, title), key),
        )

    def _params(self, at: int, nbytes: int, title: str) -> bytes:
        """Returns a step's parameter block, which an earlier step may share.

        Raises :class:`CorruptArtifact` if a new block does not follow the last one.
        """
        count, offset = self._tables[5]
        known = self._blocks.get(at)
        if known is None and at == aligned(self._blocks_end, self.needs.uniform_alignment):
            if at + nbytes > count or any(
                self._section.span(offset + self._blocks_end, at - self._blocks_end, title)
            ):
                raise self._damaged(f"{title} has its parameters at {at} of {count} bytes")
            known = self._blocks[at] = bytes(self._section.span(offset + at, nbytes, title))
            self._blocks_end = at + nbytes
        if known is None or len(known) != nbytes:
            raise self._damaged(f"{title} has {nbytes} bytes of parameters at {at}")
        return known

    def _binding(self, table: int, index: int, title: str) -> Binding:
        count, start = self._tables[table]
        if index >= (count if table == 1 else 2 * count):
            raise self._damaged(f"{title} has binding {index} of {count}")
        space, reserved, offset, nbytes = self._section.unpack(
            BINDING, start + index * BINDING.size
        )
        if space >= len(SPACES) or reserved or nbytes < 4 or nbytes % 4:
            raise self._damaged(f"{title} binds {nbytes} bytes of space {space}")
        self._check_range(SPACES[space], offset, nbytes, title)
        if table == 1 and nbytes > self.needs.binding_bytes:
            raise self._damaged(f"{title} binds {nbytes:,} bytes, more than it says")
        return Binding(f"{SPACES[space]}@{offset}", SPACES[space], offset, nbytes)

    def _check_range(self, space: str, offset: int, nbytes: int, title: str) -> None:
        if offset % self.needs.storage_alignment or offset + nbytes > self._sizes[space]:
            raise self._damaged(
                f"{title}: {nbytes:,} bytes at {offset:,} of the {self._sizes[space]:,} of {space}"
            )

    def _tensors(self, table: int) -> dict[str, TensorPlace]:
        count, start = self._tables[table]
        found = {}
        for i in range(count):
            name, place = self._tensor(self._section.unpack(TENSOR, start + i * TENSOR.size))
            if name in found:
                raise self._damaged(f"it has '{name}' twice")
            found[name] = place
        return found

    def _tensor(self, record: Sequence[Any]) -> tuple[str, TensorPlace]:
        name = self._file.string(record[0], record[1])
        dtype, layout, rank, *rest = record[2:]
        extents, (space, offset, nbytes, reserved) = rest[:MOST_DIMENSIONS], rest[MOST_DIMENSIONS:]
        if dtype >= len(DTYPES) or layout >= len(LAYOUTS) or space >= len(SPACES) or reserved:
            raise self._damaged(f"tensor '{name}' is none")
        if rank > MOST_DIMENSIONS or any(extents[rank:]) or (LAYOUTS[layout] != PLAIN and rank < 3):
            raise self._damaged(f"tensor '{name}' has {rank} dimensions")
        fact = Fact(DTYPES[dtype], tuple(extents[:rank]))
        if nbytes != 4 * words(fact, LAYOUTS[layout]):
            raise self._damaged(f"tensor '{name}', {fact}, has {nbytes:,} bytes")
        # rounded up to whole vectors, for which the writer leaves room
        nbytes = -(-nbytes // 16) * 16
        self._check_range(SPACES[space], offset, nbytes, f"tensor '{name}'")
        return name, TensorPlace(
            Binding(name, SPACES[space], offset, nbytes), fact, LAYOUTS[layout]
        )

    def _updates(self) -> tuple[tuple[Binding, Binding], ...]:
        count, _ = self._tables[4]
        title = "an update"
        pairs = tuple(
            (self._binding(4, 2 * i, title), self._binding(4, 2 * i + 1, title))
            for i in range(count)
        )
        for source, target in pairs:
            if target.space == "weights" or source.space == target.space:
                raise self._damaged(f"an update of {target.space} out of {source.space}")
        return pairs

    def _pieces(self) -> dict[str, Pieces]:
        count, start = self._tables[6]
        records = [self._section.unpack(PIECE, start + i * PIECE.size) for i in range(count)]
        return read_pieces(self._file, records, self._sizes, f"plan '{self.profile}'")

    # --- the plan

    def plan(self, name: str) -> Plan:
        """Returns the plan for a session."""
        return Plan(
            name=name,
            steps=self.steps,
            inputs=self.inputs,
            outputs=self.outputs,
            tensors=self.outputs,
            taps={},
            places={**self.inputs, **self.outputs},
            weights=self._constants["weights"],
            weights_bytes=self._sizes["weights"],
            memory=Memory(self._sizes["arena"], self._sizes["arena"]),
            own=self._own,
            own_bytes=self._sizes["own"],
            updates=self.updates,
            options={"keep": False, "guard": 0},
        )

    @cached_property
    def _own(self) -> dict[str, tuple[int, Array]]:
        """The buffer of this plan alone, and the variables in it by the names that updates use."""
        whole = np.zeros(self._sizes["own"], np.uint8)
        for offset, array in self._constants["own"].values():
            whole[offset : offset + array.nbytes] = array.view(np.uint8)
        whole = whole.view(np.uint32)
        found = {"own": (0, whole)} if whole.size else {}
        for _, target in self.updates:
            if target.space == "own":
                part = whole[target.offset // 4 : target.end // 4]
                found[target.tensor] = target.offset, part
        return found


def choose(
    plans: Sequence[CookedPlan], limits: Limits, has: Callable[[CookedPlan], str]
) -> tuple[CookedPlan | None, list[str]]:
    """Returns the plan for a device, and the reasons why each plan before it does not fit.

    ``has`` returns the reason why a device cannot run a plan's kernels, or an empty string.
    """
    why: list[str] = []
    for plan in sorted(plans, key=lambda plan: limits.software and not plan.needs.software):
        lacking = plan.needs.unmet(limits) or has(plan)
        if not lacking:
            return plan, why
        why.append(f"'{plan.profile}': {lacking}")
    return None, why
