"""Allocations: ranges of GPU buffers, alone or in segments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Protocol

import numpy as np
import wgpu

from cml_engine.errors import InputError, OutOfGpuMemory
from cml_engine.gpu.native import device_errors
from cml_engine.ir.memory import MemoryRange


class Home(Protocol):
    """The interface of an allocator that its allocations use, implemented by ``Allocator``."""

    device: wgpu.GPUDevice

    def allocate(
        self, nbytes: int, usage: int, *, owner: str, category: str, alignment: int | None = None
    ) -> Allocation: ...

    def give_back(self, allocation: Allocation, found: MemoryRange) -> None: ...

    def free_later(self, free: Callable[[], None]) -> None: ...

    def free_deferred(self) -> None: ...


class Allocation:
    """A range of a buffer that belongs to one owner until :meth:`free`."""

    __slots__ = ("_memory", "_range", "buffer", "category", "freed", "nbytes", "offset", "owner")

    def __init__(
        self, memory: Home, found: MemoryRange, nbytes: int, owner: str, category: str
    ) -> None:
        self._memory, self._range = memory, found
        self.buffer: wgpu.GPUBuffer = found.buffer
        self.offset: int = found.offset
        self.nbytes, self.owner, self.category = nbytes, owner, category
        self.freed = False

    @property
    def allocator(self) -> Home:
        """The allocator that made this allocation."""
        return self._memory

    def free(self) -> None:
        """Frees the range; work that was submitted before may still use it.

        Raises :class:`InputError` if it was freed before.
        """
        self._once()
        self._memory.free_later(self._give_back)
        self._memory.free_deferred()

    def free_now(self) -> None:
        """Frees the range even while a frame is being encoded.

        The caller guarantees that nothing in the frame uses the range.
        """
        self._once()
        self._give_back()

    def _once(self) -> None:
        if self.freed:
            raise InputError(
                f"{self.nbytes} bytes for {self.category} of '{self.owner}' are freed twice"
            )
        self.freed = True

    def _give_back(self) -> None:
        self._memory.give_back(self, self._range)

    def write(self, data: Any, offset: int = 0) -> None:
        """Queues a write of ``data`` at a byte offset of the range, done before the next submit."""
        with device_errors():
            self._memory.device.queue.write_buffer(self.buffer, self.offset + offset, data)

    @property
    def buffers(self) -> tuple[wgpu.GPUBuffer, ...]:
        """The buffers that contain the allocation."""
        return (self.buffer,)

    def at(self, offset: int) -> tuple[wgpu.GPUBuffer, int]:
        """Returns the buffer of the byte at ``offset``, and the byte's offset in that buffer."""
        return self.buffer, self.offset + offset

    def binding(self, offset: int = 0, nbytes: int | None = None) -> dict[str, Any]:
        """Returns the range, or a part of it, as the ``resource`` of a bind group entry."""
        size = self.nbytes - offset if nbytes is None else nbytes
        return {"buffer": self.buffer, "offset": self.offset + offset, "size": size}

    def __enter__(self) -> Allocation:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self.freed:
            self.free()

    def __repr__(self) -> str:
        state = ", freed" if self.freed else ""
        return f"Allocation({self.owner}, {self.category}, {self.nbytes} bytes{state})"


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
