"""The uniform buffers of kernels: their slices of workgroups, and their parameters."""

from __future__ import annotations

import struct
import weakref
from typing import Any

import wgpu

from cml_engine.compiler.plan import Plan, Step
from cml_engine.gpu.device import SLICE_BYTES, Device
from cml_engine.gpu.memory.allocation import Allocation
from cml_engine.gpu.shaders.steps import step_params

#: ranges of workgroups that one submit may hold
RANGE_SLOTS = 256


class Slots:
    """A uniform buffer of workgroup ranges.

    It has one slot per whole step, then a ring of slots for partial ranges.
    """

    def __init__(self, plan: Plan, gpu: Device) -> None:
        self._stride = max(gpu.limits.uniform_offset_alignment, SLICE_BYTES)
        self._width = gpu.limits.max_groups_per_dimension
        self._steps = len(plan.steps)
        block = bytearray(self._stride * (self._steps + RANGE_SLOTS))
        for step in plan.steps:
            at = self.step_offset(step.index)
            block[at : at + SLICE_BYTES] = self.data(0, step.groups)
        self._next = 0
        self.memory = _filled(plan, gpu, block)

    def step_offset(self, step: int) -> int:
        """Returns the byte offset of the whole step's slice in :attr:`memory`."""
        return step * self._stride

    def take(self, first: int, end: int) -> int:
        """Writes the range ``[first, end)`` into the ring's next slot and returns its byte offset.

        A slot is reused after :data:`RANGE_SLOTS` others, which must be in a later submit.
        """
        offset = (self._steps + self._next) * self._stride
        self._next = (self._next + 1) % RANGE_SLOTS
        self.memory.write(self.data(first, end), offset)
        return offset

    def data(self, first: int, end: int) -> bytes:
        return struct.pack("=4I", first, end, self._width, 0)


class Uniforms:
    """The uniform buffers of a program: the slices, and the parameters of every step.

    The parameters are written once, because a plan's shapes do not change. The memory is freed with
    this object.
    """

    def __init__(self, plan: Plan, gpu: Device) -> None:
        self.slots = Slots(plan, gpu)
        align = gpu.limits.uniform_offset_alignment
        block = bytearray()
        self._ranges: list[tuple[int, int]] = []
        known: dict[bytes, tuple[int, int]] = {}  # equal blocks share memory
        for step in plan.steps:
            data = step_params(step)
            if data not in known:
                known[data] = len(block), len(data)
                block += data + bytes(-len(data) % align)
            self._ranges.append(known[data])
        self._params = _filled(plan, gpu, block or bytearray(16))
        for memory in (self.slots.memory, self._params):
            weakref.finalize(self, gpu.memory.free_later, memory.free).atexit = False

    def params_binding(self, step: Step) -> dict[str, Any]:
        """Returns the step's parameters as a bind group resource."""
        return self._params.binding(*self._ranges[step.index])


def _filled(plan: Plan, gpu: Device, data: bytearray) -> Allocation:
    usage = wgpu.BufferUsage.UNIFORM | wgpu.BufferUsage.COPY_DST
    memory = gpu.memory.allocate(len(data), usage, owner=plan.name, category="uniform")
    memory.write(data)
    return memory
