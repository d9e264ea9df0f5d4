"""Buffers that bring bytes home: mapped when they are asked for, and never waited for."""

from __future__ import annotations

import weakref

import wgpu

from cml_engine.gpu.memory.allocation import Allocation, Home
from cml_engine.gpu.native import PendingMap

_USAGE = wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST


class _Held:
    """What must be given back, whoever forgets it in whichever state."""

    def __init__(self, memory: Allocation) -> None:
        self.memory = memory
        self.mapping: PendingMap | None = None

    def give_back(self) -> None:
        """Unmapped first: who gets the buffer next copies into it."""
        if self.mapping is not None:
            self.mapping.abort()
            self.mapping = None
        self.memory.free()


class Staging:
    """A mappable buffer of the device's allocator, which has it back at :meth:`free`, or when this
    object goes: a readback that nobody waits for any more leaves nothing behind."""

    def __init__(self, memory: Home, nbytes: int, owner: str) -> None:
        self.nbytes = nbytes
        self._held = _Held(memory.allocate(nbytes, _USAGE, owner=owner, category="staging"))
        self._finalizer = weakref.finalize(self, memory.later, self._held.give_back)
        self._finalizer.atexit = False

    @property
    def memory(self) -> Allocation:
        """Where to copy to."""
        return self._held.memory

    @property
    def asked(self) -> bool:
        """Whether its bytes are on their way."""
        return self._held.mapping is not None

    @property
    def arrived(self) -> bool:
        """Whether :meth:`take` has something to take."""
        return self._held.mapping is not None and self._held.mapping.done

    def ask(self) -> None:
        """Ask for what was copied into it by what has been submitted."""
        self._held.mapping = PendingMap(self.memory.buffer, self.nbytes)

    def forget(self) -> None:
        """What was asked for is not wanted any more: it may be copied into again."""
        mapping, self._held.mapping = self._held.mapping, None
        if mapping is not None:
            mapping.abort()

    def take(self) -> bytes:
        """The bytes that have :attr:`arrived`; it may be asked again afterwards. Raises
        :class:`DeviceError` where they were lost."""
        mapping, self._held.mapping = self._held.mapping, None
        assert mapping is not None
        return mapping.take()

    def free(self) -> None:
        """Give it back."""
        if self._finalizer.detach():
            self._held.give_back()
