"""The device memory of a program: access by one user at a time, and eviction."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

import wgpu

from cml_engine.compiler.plan import Binding, Plan
from cml_engine.errors import InputError, OutOfGpuMemory
from cml_engine.gpu.device import Device
from cml_engine.gpu.native import device_errors
from cml_engine.gpu.program.residency import Arena, Residency
from cml_engine.gpu.program.shared_constants import SharedConstants


class ProgramMemory(ABC):
    """The arena and the weights of a program on the device, with locking and eviction.

    One user at a time has access: a run, which other runs wait for, or a scheduler's job, which
    rejects runs. The memory may be evicted while it is idle, unless variables that the network
    updates would be lost.
    """

    def __init__(
        self, plan: Plan, gpu: Device, arena: str | None, constants: SharedConstants
    ) -> None:
        self.plan, self.gpu, self.name = plan, gpu, plan.name
        self.residency = Residency(plan, gpu.memory, arena, constants)
        self._pins = 0
        #: the frame until which it is not evicted, so that its job can begin
        self.stays_until = 0
        #: why the last allocation of its memory failed
        self.lacking = ""
        self.last_used = gpu.memory.tick()
        gpu.memory.add_tenant(self)
        weakref.finalize(self, gpu.memory.free_later, self.residency.release).atexit = False

    @property
    @abstractmethod
    def prepared(self) -> bool:
        """True if everything that a run needs is on the device."""

    @abstractmethod
    def _acquire(self) -> None:
        """Allocates the memory; raises :class:`OutOfGpuMemory` if there is not enough."""

    @abstractmethod
    def _forget(self) -> None:
        """Drops bind groups and upload state, because the memory is about to be freed."""

    @property
    def exclusive_group(self) -> str | None:
        """The name of the shared arena, or None. Only one program of a group runs at a time."""
        return None if self.residency.shared is None else self.residency.shared.name

    @property
    def evictable(self) -> bool:
        """True if the program has memory on the device that can be evicted now."""
        # a program that waits for the rest of its memory must not block others
        waited_for = self.residency.complete and self.gpu.memory.frame < self.stays_until
        return bool(self.resident_bytes) and not (waited_for or self._in_use or self.plan.updates)

    @property
    def evictable_later(self) -> bool:
        """True if the program has memory on the device that cannot be evicted now but can later."""
        return bool(self.resident_bytes) and not (self.evictable or self.plan.updates)

    @property
    def resident_bytes(self) -> int:
        """The bytes of arena and weights that are on the device now."""
        return self.residency.nbytes

    @property
    def resident(self) -> list[Arena]:
        """The allocations of arena and weights that are on the device now."""
        return self.residency.resident

    @property
    def _in_use(self) -> bool:
        return bool(self._pins or self.residency.holders)

    def evict(self) -> None:
        """Frees arena and weights now.

        Raises :class:`InputError` if the program cannot be evicted.
        """
        with self._if_free() as free:
            if not free or self._in_use or self.plan.updates:
                why = "has variables that would be lost" if self.plan.updates else "is running"
                raise InputError(f"model '{self.name}' cannot be evicted: it {why}")
            self._forget()
            self.residency.release(now=True)

    @contextmanager
    def pinned(self) -> Iterator[None]:
        """Prevents eviction and runs of other threads in the ``with`` block; waits for them."""
        with self.residency.lock, device_errors():
            self._pins += 1
            try:
                yield
            finally:
                self._pins -= 1

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Pins the memory like :meth:`pinned`, if no scheduler's job is running in it.

        Raises :class:`InputError` if a job is running.
        """
        with self.pinned():
            self._refuse(self.residency.busy)
            yield

    def _refuse(self, busy: bool) -> None:
        if busy:
            raise InputError(
                f"{self._called} has a running job, whose tensors this would overwrite. Wait "
                "until it has ended, submit a run to the scheduler too, or use a second session"
            )

    @contextmanager
    def _if_free(self) -> Iterator[bool]:
        """Yields True if no other thread uses the program, else False; never blocks.

        After True other threads wait until the ``with`` block ends.
        """
        free = self.residency.lock.acquire(blocking=False)
        try:
            with device_errors():
                yield free
        finally:
            if free:
                self.residency.lock.release()

    def hold(self, executor: object) -> str:
        """Reserves the memory for an executor's job until :meth:`let_go`; never blocks.

        Returns "" on success, else a description of what the job must wait for: a run of another
        thread that began after the program was checked, or the job of another scheduler.
        """
        with self._if_free() as free:
            if not (free and self.prepared):
                return "its network, which another thread took just now"
            if self.residency.busy:
                return f"{self._called}, in which a job of another scheduler is running"
            self.residency.holders.add(executor)
        self.last_used = self.gpu.memory.tick()
        self.stays_until = 0
        return ""

    def let_go(self, executor: object) -> None:
        """Ends the reservation, because the job's last commands have been submitted."""
        self.residency.let_go(executor)

    @property
    def _called(self) -> str:
        return f"arena '{self.exclusive_group}'" if self.exclusive_group else f"'{self.name}'"

    def _take_memory(self) -> bool:
        """Allocates the memory like :meth:`_acquire` and returns True if all of it is there.

        Returns False and sets :attr:`lacking` if other models must end their jobs first. Raises
        :class:`OutOfGpuMemory` if the memory can never fit.
        """
        try:
            with self.pinned():
                self._acquire()
        except OutOfGpuMemory as error:
            if not self.gpu.memory.may_ever_fit(self.residency.missing_bytes, but=self):
                raise
            self.lacking = str(error).splitlines()[0]
        return self.residency.complete

    def place(self, binding: Binding) -> tuple[wgpu.GPUBuffer, int]:
        """Returns the buffer of a :class:`Binding` and the byte offset in it.

        Raises :class:`InputError` if the memory was evicted.
        """
        there = self.residency
        spaces = {"arena": there.arena, "weights": there.weights, "own": there.own}
        found = spaces[binding.space]
        if found is None:
            raise InputError(f"model '{self.name}' was evicted: there is nothing to look at")
        return found.at(binding.offset)
