"""Writes a plan as a section of a cooked file; reads and validates it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import PurePath
from typing import TypeVar

import numpy as np

from cml_engine.compiler.plan import Binding, CookedStep, Memory, Plan, Step, StepCost, TensorPlace
from cml_engine.cooked.kernels import Codes, Cooked
from cml_engine.cooked.profiles import Profile
from cml_engine.cooked.reader import Container, Section, damaged
from cml_engine.cooked.records import PackedRow
from cml_engine.cooked.schema import (
    DTYPES,
    LAYOUTS,
    MOST_AMOUNT,
    MOST_BYTES,
    MOST_DIMENSIONS,
    MOST_INPUTS,
    SPACES,
    SUBGROUPS,
    TABLE_ALIGNMENT,
    BindingRow,
    ConstantRow,
    Needs,
    PlanHead,
    PlanStepRow,
    Table,
    TensorRow,
    UpdateRow,
    aligned,
    pad,
    padded,
)
from cml_engine.cooked.values import read_constants
from cml_engine.cooked.writer import Sections, Strings
from cml_engine.errors import DeviceError, InputError, Source
from cml_engine.gpu.shaders.hlsl import step_params
from cml_engine.ir.graph import Array, Fact
from cml_engine.ir.layout import PLAIN, words
from cml_engine.ir.limits import Limits
from cml_engine.ops.declaration.spec import Cost

_POWERS = {1 << n for n in range(2, 13)}
#: the most workgroups of a two-dimensional dispatch
_MOST_GROUPS = 65535 * 65535


R = TypeVar("R", bound=PackedRow)


class CookedPlan:
    """A plan in a cooked file; construction reads and validates it, and :meth:`plan` returns it.

    Raises :class:`CorruptArtifact` if the section is invalid.
    """

    def __init__(self, file: Container, section: Section, kernels: Sequence[Cooked]) -> None:
        self._file, self._section, self._kernels = file, section, kernels
        head = self._head = section.head(PlanHead)
        self.profile = file.string(head.profile)
        self._sizes = dict(zip(SPACES, head.spaces, strict=True))
        self.needs, self.gas = head.needs, head.gas
        self._check_head()
        self._bindings = self._rows(BindingRow, head.bindings)
        rows = self._rows(PlanStepRow, head.steps)
        self.used = [self._kernel(number) for number in dict.fromkeys(r.kernel for r in rows)]
        self._check_needs()
        #: parameter blocks by offset, the end of the last one, and the next step's first binding
        self._blocks: dict[int, bytes] = {}
        self._blocks_end = self._next_binding = 0
        if head.inputs.count > MOST_INPUTS:
            raise self._damaged(f"it has {head.inputs.count} inputs")
        self.steps = tuple(self._step(i, row) for i, row in enumerate(rows))
        if (self._next_binding, self._blocks_end) != (head.bindings.count, head.params.count):
            raise self._damaged("it has bindings or parameters that no step has")
        self.inputs, self.outputs = self._tensors(head.inputs), self._tensors(head.outputs)
        self.updates = self._updates()
        constants = self._rows(ConstantRow, head.constants)
        self._constants = read_constants(file, constants, self._sizes, f"plan '{self.profile}'")

    def _damaged(self, defect: str) -> Exception:
        return damaged(f"plan '{self.profile}': {defect}")

    def _rows(self, record: type[R], table: Table) -> list[R]:
        self._check_offset(table)
        return self._section.rows(record, table.count, table.offset, f"plan '{self.profile}'")

    def _check_offset(self, table: Table) -> None:
        if table.offset % TABLE_ALIGNMENT or table.offset < PlanHead.SIZE:
            raise self._damaged(f"a table at {table.offset}")

    def _check_head(self) -> None:
        head = self._head
        self._check_offset(head.params)
        self._section.span(head.params.offset, head.params.count, f"plan '{self.profile}'")
        if not all(0 <= n <= MOST_AMOUNT for n in (head.flops, head.nbytes)):
            raise self._damaged("its cost")
        if any(n > MOST_BYTES or n % 4 for n in head.spaces):
            raise self._damaged("its memory")

    def _check_needs(self) -> None:
        needs = self.needs
        if not {needs.storage_alignment, needs.uniform_alignment} <= _POWERS or needs.software > 1:
            raise self._damaged("what it needs of a device")
        if any(kernel.flags & SUBGROUPS for kernel in self.used) and not needs.lanes:
            raise self._damaged("it uses subgroups and does not say of how many lanes")
        if max(self._sizes.values()) > needs.buffer_bytes:
            raise self._damaged("it needs larger buffers than it says")

    def _kernel(self, number: int) -> Cooked:
        if number >= len(self._kernels):
            raise self._damaged(f"kernel {number} of {len(self._kernels)}")
        return self._kernels[number]

    def _step(self, index: int, row: PlanStepRow) -> Step:
        title, file = self._file.string(row.title), self._file.string(row.file)
        code, count = self._kernel(row.kernel).kernel, row.bindings
        if not 0 < row.groups <= _MOST_GROUPS:
            raise self._damaged(f"{title} has {row.groups} workgroups")
        if not all(0 <= n <= MOST_AMOUNT for n in (row.flops, row.nbytes)):
            raise self._damaged(f"the cost of {title}")
        if count != code.tensors or not 0 < row.writes <= count <= self.needs.bindings:
            raise self._damaged(f"{title} binds {count} tensors, its kernel has {code.tensors}")
        if row.params_bytes != code.params_bytes:
            raise self._damaged(f"{title} has {row.params_bytes} bytes of parameters")
        first, end = row.first_binding, row.first_binding + count
        if first != self._next_binding or end > len(self._bindings):
            raise self._damaged(
                f"{title} has bindings {first} to {end}, expected the next {count} from "
                f"{self._next_binding} of {len(self._bindings)}"
            )
        self._next_binding = end
        cost_key = self._file.string(row.cost_key)
        return Step(
            index=index,
            op=self._file.string(row.op),
            title=title,
            path=code.label.partition(" ")[0],
            params_layout="",
            params={},
            defines={},
            bindings=tuple(self._bound(binding, title) for binding in self._bindings[first:end]),
            writes=row.writes,
            groups=row.groups,
            cost=Cost(row.flops * row.groups, row.nbytes * row.groups, 0.0),
            trusted=code.trusted,
            source=Source(file, row.line) if file else None,
            cooked=CookedStep(code, self._params(row, title), cost_key),
        )

    def _params(self, row: PlanStepRow, title: str) -> bytes:
        """Returns a step's parameter block, which an earlier step may share.

        Raises :class:`CorruptArtifact` if a new block does not follow the last one.
        """
        table, offset, nbytes = self._head.params, row.params_offset, row.params_bytes
        block = self._blocks.get(offset)
        if block is None and offset == aligned(self._blocks_end, self.needs.uniform_alignment):
            gap = self._section.span(
                table.offset + self._blocks_end, offset - self._blocks_end, title
            )
            if offset + nbytes > table.count or any(gap):
                raise self._damaged(
                    f"{title} has its parameters at {offset} of {table.count} bytes"
                )
            block = self._blocks[offset] = bytes(
                self._section.span(table.offset + offset, nbytes, title)
            )
            self._blocks_end = offset + nbytes
        if block is None or len(block) != nbytes:
            raise self._damaged(f"{title} has {nbytes} bytes of parameters at {offset}")
        return block

    def _binding(self, row: BindingRow, title: str) -> Binding:
        if row.space >= len(SPACES) or row.nbytes < 4 or row.nbytes % 4:
            raise self._damaged(f"{title} binds {row.nbytes} bytes of space {row.space}")
        space = SPACES[row.space]
        self._check_range(space, row.offset, row.nbytes, title)
        return Binding(f"{space}@{row.offset}", space, row.offset, row.nbytes)

    def _bound(self, row: BindingRow, title: str) -> Binding:
        if row.nbytes > self.needs.binding_bytes:
            raise self._damaged(f"{title} binds {row.nbytes:,} bytes, more than it says")
        return self._binding(row, title)

    def _check_range(self, space: str, offset: int, nbytes: int, title: str) -> None:
        if offset % self.needs.storage_alignment or offset + nbytes > self._sizes[space]:
            raise self._damaged(
                f"{title}: {nbytes:,} bytes at {offset:,} of the {self._sizes[space]:,} of {space}"
            )

    def _tensors(self, table: Table) -> dict[str, TensorPlace]:
        tensors = {}
        for row in self._rows(TensorRow, table):
            name = self._file.string(row.name)
            if name in tensors:
                raise self._damaged(f"it has '{name}' twice")
            tensors[name] = self._tensor(name, row)
        return tensors

    def _tensor(self, name: str, row: TensorRow) -> TensorPlace:
        rank = row.rank
        if row.type >= len(DTYPES) or row.layout >= len(LAYOUTS) or row.space >= len(SPACES):
            raise self._damaged(f"tensor '{name}' is none")
        layout, space = LAYOUTS[row.layout], SPACES[row.space]
        if rank > MOST_DIMENSIONS or any(row.extents[rank:]) or (layout != PLAIN and rank < 3):
            raise self._damaged(f"tensor '{name}' has {rank} dimensions")
        fact = Fact(DTYPES[row.type], row.extents[:rank])
        if row.nbytes != 4 * words(fact, layout):
            raise self._damaged(f"tensor '{name}', {fact}, has {row.nbytes:,} bytes")
        # rounded up to whole vectors, for which the writer leaves room
        nbytes = aligned(row.nbytes, 16)
        self._check_range(space, row.offset, nbytes, f"tensor '{name}'")
        return TensorPlace(Binding(name, space, row.offset, nbytes), fact, layout)

    def _updates(self) -> tuple[tuple[Binding, Binding], ...]:
        title = "an update"
        pairs = tuple(
            (self._binding(row.source, title), self._binding(row.target, title))
            for row in self._rows(UpdateRow, self._head.updates)
        )
        for source, target in pairs:
            if target.space == "weights" or source.space == target.space:
                raise self._damaged(f"an update of {target.space} out of {source.space}")
        return pairs

    # --- the plan

    def plan(self, name: str) -> Plan:
        """Returns the plan for a session of network ``name``."""
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
            own=self._plan_values,
            own_bytes=self._sizes["own"],
            updates=self.updates,
            options={"keep": False, "guard": 0},
        )

    @cached_property
    def _plan_values(self) -> dict[str, tuple[int, Array]]:
        """The contents of the plan's own buffer, as byte offset and array by name.

        They are the whole buffer, named ``"own"``, and each variable in it by the name that
        updates use.
        """
        buffer = np.zeros(self._sizes["own"], np.uint8)
        for offset, array in self._constants["own"].values():
            buffer[offset : offset + array.nbytes] = array.view(np.uint8)
        buffer = buffer.view(np.uint32)
        values = {"own": (0, buffer)} if buffer.size else {}
        for _, target in self.updates:
            if target.space == "own":
                part = buffer[target.offset // 4 : target.end // 4]
                values[target.tensor] = target.offset, part
        return values


def choose(
    plans: Sequence[CookedPlan], limits: Limits, kernel_problem: Callable[[CookedPlan], str]
) -> tuple[CookedPlan | None, list[str]]:
    """Returns the first plan that a device can run, or None, and the reasons why each plan before
    it does not fit.

    ``kernel_problem`` returns the reason why a device cannot run a plan's kernels, or an empty
    string. On a driver that runs shaders on the CPU, plans made for such drivers are tried first.
    """
    reasons: list[str] = []
    for plan in sorted(plans, key=lambda plan: limits.software and not plan.needs.software):
        problem = plan.needs.unmet(limits) or kernel_problem(plan)
        if not problem:
            return plan, reasons
        reasons.append(f"'{plan.profile}': {problem}")
    return None, reasons


#: the most bytes of shared memory that the engine's kernels use per workgroup
_MOST_SHARED = 16384


def write_plan(
    plan: Plan, profile: Profile, kernels: Sequence[tuple[int, Codes]], gas: int, sections: Sections
) -> bytes:
    """Returns the bytes of a section ``plan``; adds its strings and constants to ``sections``.

    ``kernels`` has for each step its kernel's number in the file and the kernel; ``gas`` is the
    cost of the model. Raises :class:`DeviceError` if the arena does not fit into one buffer.
    """
    if plan.memory.segment:
        raise DeviceError(
            f"'{plan.name}' takes {plan.memory.peak} bytes for activations, and players have one "
            f"buffer for them: the devices of '{profile.name}' allow {plan.memory.segment} bytes. "
            "Cook it for others, or with a smaller input"
        )
    strings = sections.strings
    values = sections.values
    constants = [*values.rows("weights", plan.weights), *values.rows("own", plan.own)]
    params, offsets = _parameters(plan, profile.limits.uniform_offset_alignment)
    bindings = bytearray()
    steps, first = bytearray(), 0
    costs = zip(plan.steps, plan.step_costs(), kernels, strict=True)
    for step, cost, (number, codes) in costs:
        steps += _step(step, cost, number, codes, first, offsets[step.index], strings)
        bindings += b"".join(_binding(b) for b in step.bindings)
        first += len(step.bindings)
    updates = b"".join(_binding(b) for pair in plan.updates for b in pair)
    tables = {
        "steps": (len(plan.steps), bytes(steps)),
        "bindings": (first, bytes(bindings)),
        "inputs": (len(plan.inputs), _tensors(plan.inputs, strings)),
        "outputs": (len(plan.outputs), _tensors(plan.outputs, strings)),
        "updates": (len(plan.updates), updates),
        "params": (len(params), params),
        "constants": (len(constants), b"".join(constants)),
    }
    body, table_rows = bytearray(), dict[str, Table]()
    for name, (count, table) in tables.items():
        table_rows[name] = Table(count=count, offset=PlanHead.SIZE + pad(body, TABLE_ALIGNMENT))
        body += table
    head = PlanHead(
        profile=strings.put(profile.name),
        spaces=(plan.memory.peak, plan.weights_bytes, plan.own_bytes),
        needs=_needs(plan, profile, [codes for _, codes in kernels]),
        flops=plan.cost.flops,
        nbytes=plan.cost.bytes,
        gas=gas,
        **table_rows,
    )
    return head.to_bytes() + bytes(body)


def _needs(plan: Plan, profile: Profile, kernels: Sequence[Codes]) -> Needs:
    limits = profile.limits
    bound = [b.nbytes for step in plan.steps for b in step.bindings]
    subgroups = any(kernel.flags & SUBGROUPS for kernel in kernels)
    return Needs(
        storage_alignment=limits.storage_offset_alignment,
        uniform_alignment=limits.uniform_offset_alignment,
        binding_bytes=max(bound, default=0),
        buffer_bytes=max(plan.memory.peak, plan.weights_bytes, plan.own_bytes),
        threads=max((int(step.defines.get("GROUP", 0)) for step in plan.steps), default=0),
        shared_bytes=_MOST_SHARED,
        bindings=max((len(step.bindings) for step in plan.steps), default=0),
        lanes=limits.subgroup_size if subgroups else 0,
        software=int(limits.software),
    )


def _parameters(plan: Plan, alignment: int) -> tuple[bytes, list[tuple[int, int]]]:
    """Returns the parameter blocks of all steps, each distinct block stored once, and the place of
    each step's block.

    A place is an offset, a multiple of ``alignment``, and a size in bytes.
    """
    content, offset_by_block, offsets = bytearray(), dict[bytes, int](), []
    for step in plan.steps:
        block = step_params(step)
        if block not in offset_by_block:
            offset_by_block[block] = pad(content, alignment)
            content += block
        offsets.append((offset_by_block[block], len(block)))
    return bytes(content), offsets


def _step(
    step: Step,
    cost: StepCost,
    kernel: int,
    codes: Codes,
    first: int,
    params: tuple[int, int],
    strings: Strings,
) -> bytes:
    if params[1] != codes.params_bytes:
        raise InputError(f"{step.title}: its kernel wants other parameters than it has")
    line, file = (step.source.line, step.source.file) if step.source else (0, "")
    return PlanStepRow(
        kernel=kernel,
        groups=step.groups,
        first_binding=first,
        bindings=len(step.bindings),
        writes=step.writes,
        params_offset=params[0],
        params_bytes=params[1],
        line=line,
        op=strings.put(cost.op),
        title=strings.put(step.title),
        cost_key=strings.put(cost.key),
        file=strings.put(PurePath(file).name),
        flops=cost.flops,
        nbytes=cost.nbytes,
        gas=round(step.cost.flops),
    ).to_bytes()


def _binding(binding: Binding) -> bytes:
    space = SPACES.index(binding.space)
    return BindingRow(space=space, offset=binding.offset, nbytes=binding.nbytes).to_bytes()


def _tensors(tensors: Mapping[str, TensorPlace], strings: Strings) -> bytes:
    return b"".join(_tensor(name, tensor, strings) for name, tensor in tensors.items())


def _tensor(name: str, tensor: TensorPlace, strings: Strings) -> bytes:
    shape = tensor.fact.shape
    if len(shape) > MOST_DIMENSIONS:
        raise InputError(f"'{name}' has {len(shape)} dimensions, a cooked file has at most 8")
    return TensorRow(
        name=strings.put(name),
        type=DTYPES.index(tensor.fact.dtype),
        layout=LAYOUTS.index(tensor.layout),
        rank=len(shape),
        extents=padded(shape),
        space=SPACES.index(tensor.binding.space),
        offset=tensor.binding.offset,
        nbytes=4 * words(tensor.fact, tensor.layout),
    ).to_bytes()
