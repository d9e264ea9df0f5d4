"""A program as a tenant of the device's memory: who may use it, and when it may be taken away."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import wgpu

from cml_engine.compiler.plan import Binding, Plan
from cml_engine.errors import InputError, OutOfGpuMemory
from cml_engine.gpu.device import Device
from cml_engine.gpu.native import device_errors
from cml_engine.gpu.program.common import Common
from cml_engine.gpu.program.residency import Arena, Residency


class ProgramMemory(ABC):
    """The arena and the weights of a program. One at a time uses them: a run, which others wait
    for, or a scheduler's job, which refuses runs. While nobody does they may be taken away, unless
    variables that the network updates would be lost with them."""

    def __init__(self, plan: Plan, gpu: Device, arena: str | None, common: Common) -> None:
        self.plan, self.gpu, self.name = plan, gpu, plan.name
        self.residency = Residency(plan, gpu.memory, arena, common)
        self._pins = 0
        #: the frame until which it stays for the job that it was prepared for
        self.stays_until = 0
        #: why there was no memory for it when it was last asked for
        self.lacking = ""
        self.last_used = gpu.memory.tick()
        gpu.memory.add_tenant(self)
        weakref.finalize(self, gpu.memory.later, self.residency.release).atexit = False

    @property
    @abstractmethod
    def prepared(self) -> bool:
        """Whether all that it needs to run is there."""

    @abstractmethod
    def _acquire(self) -> None:
        """Have the memory now; :class:`OutOfGpuMemory` where there is none."""

    @abstractmethod
    def _forget(self) -> None:
        """Let go of what points into the memory, which will be given back."""

    @property
    def exclusive_group(self) -> str | None:
        """The shared arena's name: of such a group only one program runs at a time."""
        return None if self.residency.shared is None else self.residency.shared.name

    @property
    def evictable(self) -> bool:
        """Whether it holds memory and may lose it now."""
        # what waits for the rest of its memory must not make others wait for it
        waited_for = self.residency.complete and self.gpu.memory.frame < self.stays_until
        return bool(self.resident_bytes) and not (waited_for or self._in_use or self.plan.updates)

    @property
    def passing(self) -> bool:
        """Whether it holds memory that it cannot lose now but can later."""
        return bool(self.resident_bytes) and not (self.evictable or self.plan.updates)

    @property
    def resident_bytes(self) -> int:
        """Arena and weights that are on the device now."""
        return self.residency.nbytes

    @property
    def resident(self) -> list[Arena]:
        """The memory of these."""
        return self.residency.resident

    @property
    def _in_use(self) -> bool:
        return bool(self._pins or self.residency.holders)

    def evict(self) -> None:
        """Give arena and weights back now. :class:`InputError` where it must not be."""
        with self._if_free() as free:
            if not free or self._in_use or self.plan.updates:
                why = "has variables that would be lost" if self.plan.updates else "is running"
                raise InputError(f"model '{self.name}' cannot be evicted: it {why}")
            self._forget()
            self.residency.release(now=True)

    @contextmanager
    def pinned(self) -> Iterator[None]:
        """In the ``with`` block it is not evicted, and other threads wait with their runs."""
        with self.residency.lock, device_errors():
            self._pins += 1
            try:
                yield
            finally:
                self._pins -= 1

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """As :meth:`pinned`, and no scheduler has a job running in the memory: what this writes
        there is nobody else's. :class:`InputError` where one has."""
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
        """Whether nobody else is at it now, who then waits until the end of the ``with`` block."""
        free = self.residency.lock.acquire(blocking=False)
        try:
            with device_errors():
                yield free
        finally:
            if free:
                self.residency.lock.release()

    def hold(self, executor: Any) -> str:
        """Takes the memory for a job until :meth:`let_go`. Returns "", or what the job has to wait
        for: a thread that began a run since the network was looked at, or the job of another
        scheduler. Never waits."""
        with self._if_free() as free:
            if not (free and self.prepared):
                return "its network, which another thread took just now"
            if self.residency.busy:
                return f"{self._called}, in which a job of another scheduler is running"
            self.residency.holders.add(executor)
        self.last_used = self.gpu.memory.tick()
        self.stays_until = 0
        return ""

    def let_go(self, executor: Any) -> None:
        """The job's last commands have been submitted."""
        self.residency.let_go(executor)

    @property
    def _called(self) -> str:
        return f"arena '{self.exclusive_group}'" if self.exclusive_group else f"'{self.name}'"

    def _take_memory(self) -> bool:
        """As :meth:`_acquire`, or False where other models must end their jobs first."""
        try:
            with self.pinned():
                self._acquire()
        except OutOfGpuMemory as error:
            if not self.gpu.memory.may_ever_fit(self.residency.missing_bytes, but=self):
                raise
            self.lacking = str(error).splitlines()[0]
        return self.residency.complete

    def place(self, binding: Binding) -> tuple[wgpu.GPUBuffer, int]:
        """The buffer behind a :class:`Binding`, and the byte offset in it."""
        there = self.residency
        spaces = {"arena": there.arena, "weights": there.weights, "own": there.own}
        found = spaces[binding.space]
        if found is None:
            raise InputError(f"model '{self.name}' was evicted: there is nothing to look at")
        return found.at(binding.offset)
