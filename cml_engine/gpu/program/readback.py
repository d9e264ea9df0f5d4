"""The readback of a whole run's outputs to the host."""

from __future__ import annotations

from collections.abc import Callable

import wgpu

from cml_engine.compiler.plan import Binding, Plan
from cml_engine.gpu.device import Device
from cml_engine.gpu.memory.allocation import Allocation
from cml_engine.gpu.memory.words import empty, from_words
from cml_engine.gpu.native import device_errors
from cml_engine.ir.graph import Array


class Readback:
    """Reads all outputs of a run to the host, through one mappable buffer per run."""

    def __init__(self, plan: Plan) -> None:
        self._name = plan.name
        self._places = [(n, p) for n, p in plan.outputs.items() if p.fact.size]
        self._empty = {n: empty(p.fact) for n, p in plan.outputs.items() if not p.fact.size}
        self._order = list(plan.outputs)
        self._offsets: list[int] = []
        end = 0
        for _, place in self._places:
            self._offsets.append(end)
            end += place.binding.nbytes
        self._nbytes = end

    def staging(self, gpu: Device) -> Allocation:
        """Returns a mappable buffer for :meth:`encode` and :meth:`read`; the caller frees it."""
        usage = wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST
        return gpu.memory.allocate(self._nbytes, usage, owner=self._name, category="staging")

    def encode(
        self,
        encoder: wgpu.GPUCommandEncoder,
        place_of: Callable[[Binding], tuple[wgpu.GPUBuffer, int]],
        staging: Allocation,
    ) -> None:
        """Records the copies of the outputs into the mappable buffer."""
        for (_, place), offset in zip(self._places, self._offsets, strict=True):
            source, nbytes = place_of(place.binding), place.binding.nbytes
            encoder.copy_buffer_to_buffer(*source, staging.buffer, staging.offset + offset, nbytes)

    @device_errors(RuntimeError)
    def read(self, staging: Allocation) -> dict[str, Array]:
        """Waits for the last submitted run; returns its outputs by name, in the graph's order."""
        buffer = staging.buffer
        buffer.map_sync(wgpu.MapMode.READ)
        try:
            found = dict(self._empty)
            for (name, place), offset in zip(self._places, self._offsets, strict=True):
                data = buffer.read_mapped(staging.offset + offset, place.binding.nbytes)
                found[name] = from_words(data, place)
        finally:
            buffer.unmap()
        return {name: found[name] for name in self._order}
