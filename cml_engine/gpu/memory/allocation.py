"""Allocations: the ranges of GPU buffers that an allocator returns."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

import wgpu

from cml_engine.errors import InputError
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
