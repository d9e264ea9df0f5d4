"""What kernels read from uniform buffers: their slice of the workgroups, and their parameters."""

from __future__ import annotations

import numpy as np
import wgpu

from cml_engine.gpu.device import SLICE_BYTES, Gpu
from cml_engine.gpu.params import parse_params
from cml_engine.plan import Plan, Step

#: ranges of workgroups that one submit may hold
RANGE_SLOTS = 256


class Slots:
    """A uniform buffer of slices: one per step for a whole run, then the free ones for ranges."""

    def __init__(self, plan: Plan, gpu: Gpu) -> None:
        self._stride = max(gpu.limits.uniform_offset_alignment, SLICE_BYTES)
        self._width = gpu.limits.max_groups_per_dimension
        self._steps = len(plan.steps)
        block = bytearray(self._stride * (self._steps + RANGE_SLOTS))
        for step in plan.steps:
            at = self.step_offset(step.index)
            block[at : at + SLICE_BYTES] = self.data(0, step.groups)
        self._queue = gpu.queue
        self._next = 0
        self.buffer = gpu.device.create_buffer_with_data(
            label=f"{plan.name}.slots",
            data=block,
            usage=wgpu.BufferUsage.UNIFORM | wgpu.BufferUsage.COPY_DST,
        )

    def step_offset(self, step: int) -> int:
        return step * self._stride

    def take(self, first: int, end: int) -> int:
        """Write a range into the next free slot; its byte offset. A slot is used again after
        :data:`RANGE_SLOTS` others, which must be in a later submit."""
        offset = (self._steps + self._next) * self._stride
        self._next = (self._next + 1) % RANGE_SLOTS
        self._queue.write_buffer(self.buffer, offset, self.data(first, end))
        return offset

    def data(self, first: int, end: int) -> bytes:
        return np.array([first, end, self._width, 0], np.uint32).tobytes()


class Uniforms:
    """Every step's parameters, written once: shapes do not change while a plan lives."""

    def __init__(self, plan: Plan, gpu: Gpu) -> None:
        self.slots = Slots(plan, gpu)
        align = gpu.limits.uniform_offset_alignment
        block = bytearray()
        self._ranges: list[tuple[int, int]] = []
        for step in plan.steps:
            data = parse_params(step.params_layout).pack(step.params)
            self._ranges.append((len(block), len(data)))
            block += data + bytes(-len(data) % align)
        self.params = gpu.device.create_buffer_with_data(
            label=f"{plan.name}.params", data=block or bytes(16), usage=wgpu.BufferUsage.UNIFORM
        )

    def params_range(self, step: Step) -> tuple[int, int]:
        return self._ranges[step.index]
