"""An allocation larger than the device's largest buffer, made of several buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import wgpu

from cml_engine.errors import OutOfGpuMemory
from cml_engine.gpu.memory.allocation import Allocation, Home


class Segments:
    """An :class:`Allocation`-like object that consists of segments of equal size.

    The last segment may be smaller. No tensor crosses the border of a segment.
    """

    def __init__(self, parts: Sequence[Allocation], nbytes: int) -> None:
        self._parts, self._each = tuple(parts), nbytes
        self.nbytes = sum(part.nbytes for part in parts)

    @classmethod
    def allocated(
        cls, memory: Home, nbytes: int, each: int, usage: int, *, owner: str, category: str
    ) -> Segments:
        """Returns segments of ``each`` bytes, allocated for ``nbytes`` together.

        If one allocation fails, the others are freed and its :class:`OutOfGpuMemory` is raised.
        """
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
        """The buffers that contain the segments."""
        return tuple(part.buffer for part in self._parts)

    def at(self, offset: int) -> tuple[wgpu.GPUBuffer, int]:
        """Returns the buffer of the byte at ``offset``, and the byte's offset in that buffer."""
        part, rest = divmod(offset, self._each)
        return self._parts[part].at(rest)

    def write(self, data: Any, offset: int = 0) -> None:
        """Queues a write of ``data`` at a byte offset, done before the next submit.

        The data may cross borders of segments.
        """
        data = np.frombuffer(data, np.uint8)
        while data.size:
            part, rest = divmod(offset, self._each)
            size = min(data.size, self._each - rest)
            self._parts[part].write(data[:size], rest)
            data, offset = data[size:], offset + size

    def free(self) -> None:
        """Frees all segments; work that was submitted before may still use them."""
        for part in self._parts:
            part.free()

    def free_now(self) -> None:
        """Frees all segments even while a frame is being encoded.

        The caller guarantees that nothing in the frame uses them.
        """
        for part in self._parts:
            part.free_now()
