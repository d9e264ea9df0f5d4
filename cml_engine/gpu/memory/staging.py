"""Staging buffers for readbacks, which are mapped on request without blocking."""

from __future__ import annotations

import wgpu

from cml_engine.gpu.memory.allocator import Allocation, Allocator
from cml_engine.gpu.native import PendingMap

_USAGE = wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST


class _MappedMemory:
    """The memory and pending mapping of a :class:`Staging`, released by its finalizer."""

    def __init__(self, memory: Allocation) -> None:
        self.memory = memory
        self.mapping: PendingMap | None = None

    def give_back(self) -> None:
        """Aborts the mapping, then frees the memory: the buffer's next user copies into it."""
        if self.mapping is not None:
            self.mapping.abort()
            self.mapping = None
        self.memory.free()


class Staging:
    """A mappable buffer for one readback at a time.

    The memory returns to the allocator at :meth:`free`, or when this object is garbage-collected.
    """

    def __init__(self, memory: Allocator, nbytes: int, owner: str) -> None:
        self.nbytes = nbytes
        self._mapped = _MappedMemory(
            memory.allocate(nbytes, _USAGE, owner=owner, category="staging")
        )
        self._finalizer = memory.free_with(self, self._mapped.give_back)

    @property
    def memory(self) -> Allocation:
        """The allocation that the GPU copies into."""
        return self._mapped.memory

    @property
    def is_mapping(self) -> bool:
        """True if the bytes were requested and not yet collected."""
        return self._mapped.mapping is not None

    @property
    def arrived(self) -> bool:
        """True if the requested bytes are ready for :meth:`collect`."""
        return self._mapped.mapping is not None and self._mapped.mapping.done

    def start_mapping(self) -> None:
        """Requests the bytes that the submitted work copied into the buffer."""
        self._mapped.mapping = PendingMap(self.memory.buffer, self.nbytes)

    def forget(self) -> None:
        """Cancels the request, so that the buffer can be copied into again."""
        mapping, self._mapped.mapping = self._mapped.mapping, None
        if mapping is not None:
            mapping.abort()

    def collect(self) -> bytes:
        """Returns the bytes that have :attr:`arrived`; the buffer can then be reused.

        Raises :class:`DeviceError` if the bytes were lost.
        """
        mapping, self._mapped.mapping = self._mapped.mapping, None
        assert mapping is not None
        return mapping.collect()

    def free(self) -> None:
        """Cancels a pending mapping and frees the buffer; does nothing the second time."""
        if self._finalizer.detach():
            self._mapped.give_back()
