"""The outputs of a whole run, back on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import wgpu

from cml_engine.gpu.device import Gpu
from cml_engine.gpu.words import from_words
from cml_engine.graph import NUMPY_DTYPE
from cml_engine.plan import Plan

Array = np.ndarray[Any, Any]


class Readback:
    """One mappable buffer for all outputs of a run."""

    def __init__(self, plan: Plan, gpu: Gpu) -> None:
        self._places = [(n, p) for n, p in plan.outputs.items() if p.fact.size]
        self._empty = {
            n: np.zeros(p.fact.shape, NUMPY_DTYPE[p.fact.dtype])
            for n, p in plan.outputs.items()
            if not p.fact.size
        }
        self._order = list(plan.outputs)
        self._offsets: list[int] = []
        end = 0
        for _, place in self._places:
            self._offsets.append(end)
            end += place.binding.nbytes
        self._buffer = gpu.device.create_buffer(
            label=f"{plan.name}.readback",
            size=max(end, 16),
            usage=wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST,
        )

    def encode(
        self, encoder: wgpu.GPUCommandEncoder, space: Callable[[str], wgpu.GPUBuffer]
    ) -> None:
        for (_, place), offset in zip(self._places, self._offsets, strict=True):
            b = place.binding
            encoder.copy_buffer_to_buffer(space(b.space), b.offset, self._buffer, offset, b.nbytes)

    def read(self) -> dict[str, Array]:
        """The outputs of the run that was submitted last; waits for it."""
        self._buffer.map_sync(wgpu.MapMode.READ)
        try:
            found = dict(self._empty)
            for (name, place), offset in zip(self._places, self._offsets, strict=True):
                data = self._buffer.read_mapped(offset, place.binding.nbytes)
                found[name] = from_words(data, place)
        finally:
            self._buffer.unmap()
        return {name: found[name] for name in self._order}
