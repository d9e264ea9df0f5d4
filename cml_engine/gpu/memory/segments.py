"""Memory that no buffer of the device is large enough for: several, counted through as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import wgpu

from cml_engine.errors import OutOfGpuMemory
from cml_engine.gpu.memory.allocation import Allocation, Home


class Segments:
    """Allocations of ``nbytes`` each, the last one perhaps of fewer. What lies in it lies in one of
    them; it is used as an :class:`Allocation`."""

    def __init__(self, parts: Sequence[Allocation], nbytes: int) -> None:
        self._parts, self._each = tuple(parts), nbytes
        self.nbytes = sum(part.nbytes for part in parts)

    @classmethod
    def allocated(
        cls, memory: Home, nbytes: int, each: int, usage: int, *, owner: str, category: str
    ) -> Segments:
        """So many bytes of the device, ``each`` in an allocation; all of them, or none."""
        parts: list[Allocation] = []
        try:
            for start in range(0, nbytes, each):
                size = min(each, nbytes - start)
                parts.append(memory.allocate(size, usage, owner=owner, category=category))
        except OutOfGpuMemory:
            for part in parts:
                part.free_now()
            raise
        return cls(parts, each)

    @property
    def buffers(self) -> tuple[wgpu.GPUBuffer, ...]:
        """Where it lies."""
        return tuple(part.buffer for part in self._parts)

    def at(self, offset: int) -> tuple[wgpu.GPUBuffer, int]:
        """The buffer that has a byte, and where."""
        part, rest = divmod(offset, self._each)
        return self._parts[part].at(rest)

    def write(self, data: Any, offset: int = 0) -> None:
        """Put bytes at an offset of it, before what is submitted next."""
        data = np.frombuffer(data, np.uint8)
        while data.size:
            part, rest = divmod(offset, self._each)
            size = min(data.size, self._each - rest)
            self._parts[part].write(data[:size], rest)
            data, offset = data[size:], offset + size

    def free(self) -> None:
        """Give all of it back; work that was submitted before may still use it."""
        for part in self._parts:
            part.free()

    def free_now(self) -> None:
        """Give it back even though a frame is being encoded: nothing in it uses this memory."""
        for part in self._parts:
            part.free_now()
