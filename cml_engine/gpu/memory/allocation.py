"""Allocations: ranges of GPU buffers, alone or in segments."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Protocol, TypeAlias, TypedDict

import numpy as np
import wgpu

from cml_engine.errors import InputError, OutOfGpuMemory
from cml_engine.gpu.native import device_errors
from cml_engine.ir.graph import Array
from cml_engine.ir.memory import MemoryRange

#: what a buffer's bytes are written from
Data: TypeAlias = bytes | bytearray | memoryview | Array


class BufferRange(TypedDict):
    """A range of a buffer as the resource of a bind group entry."""

    buffer: wgpu.GPUBuffer
    offset: int
    size: int


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

    def free(self, *, now: bool = False) -> None:
        """Frees the range; work that was submitted before may still use it.

        With ``now`` it is freed even while a frame is being encoded; the caller guarantees that
        nothing in the frame uses it. Raises :class:`InputError` if it was freed before.
        """
        if self.freed:
            raise InputError(
                f"{self.nbytes} bytes for {self.category} of '{self.owner}' are freed twice"
            )
        self.freed = True
        if now:
            self._give_back()
        else:
            self._memory.free_later(self._give_back)
            self._memory.free_deferred()

    def free_with(self, user: object) -> weakref.finalize[..., object]:
        """Frees the range when ``user`` is garbage-collected; returns the finalizer."""
        finalizer = weakref.finalize(user, self._memory.free_later, self.free)
        finalizer.atexit = False
        return finalizer

    def _give_back(self) -> None:
        self._memory.give_back(self, self._range)

    def write(self, data: Data, offset: int = 0) -> None:
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

    def binding(self, offset: int = 0, nbytes: int | None = None) -> BufferRange:
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
                part.free(now=True)
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

    def write(self, data: Data, offset: int = 0) -> None:
        """Queues a write of ``data`` at a byte offset, done before the next submit.

        The data may cross borders of segments.
        """
        rest_of_data = np.frombuffer(data, np.uint8)
        while rest_of_data.size:
            part, rest = divmod(offset, self._each)
            size = min(rest_of_data.size, self._each - rest)
            self._parts[part].write(rest_of_data[:size], rest)
            rest_of_data, offset = rest_of_data[size:], offset + size

    def free(self, *, now: bool = False) -> None:
        """Frees all segments; see :meth:`Allocation.free`."""
        for part in self._parts:
            part.free(now=now)
