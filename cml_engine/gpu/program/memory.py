"""The device memory of a program: its constants and arena, access by one user, and eviction."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Lock, RLock

import numpy as np
import wgpu

from cml_engine.compiler.plan import Binding, Plan
from cml_engine.errors import InputError, OutOfGpuMemory
from cml_engine.gpu.device import Device
from cml_engine.gpu.memory.allocation import Allocation, Segments
from cml_engine.gpu.memory.allocator import Allocator
from cml_engine.gpu.native import device_errors
from cml_engine.gpu.shaders.hlsl import Variant, step_keys
from cml_engine.ir.graph import Array
from cml_engine.ir.layout import stored_bytes

_Usage = wgpu.BufferUsage
TENSOR_USAGE = _Usage.STORAGE | _Usage.COPY_SRC | _Usage.COPY_DST
#: an upload limit in bytes that is never reached
EVERYTHING = 1 << 62
_CHUNK_NUMBERS = 16 << 10

Chunks = Iterator[tuple[int, Array]]


class SharedConstants:
    """The constants that a plan shares with the plans of the same network at other shapes.

    No run changes them. They are uploaded once and stay on the device as long as one program
    uses them.
    """

    def __init__(self, plan: Plan, memory: Allocator) -> None:
        self.name = plan.name
        self.nbytes = max(plan.weights_bytes, 256)
        self._values = plan.weights
        self._memory = memory
        self._allocation: Allocation | None = None
        self._holders = 0
        self._chunks: Chunks = iter(())
        self._uploaded = False
        self._uploading = Lock()
        self._contents: dict[tuple[str, str], str] = {}

    def acquire(self) -> Allocation:
        """Returns the memory of the weights and counts a new user of it."""
        with self._memory.lock:
            if self._allocation is None:
                self._allocation = self._memory.allocate(
                    self.nbytes, TENSOR_USAGE, owner=self.name, category="weights"
                )
                self._chunks, self._uploaded = chunks(self._values), False
            self._holders += 1
            return self._allocation

    def give_back(self, now: bool) -> None:
        """Counts one user of the memory less and frees the memory after the last one.

        ``now`` frees it even while a frame is being encoded.
        """
        with self._memory.lock:
            self._holders -= 1
            if not self._holders:
                allocation, self._allocation = self._allocation, None
                assert allocation is not None
                free(allocation, now)

    def upload(self, limit: int) -> int:
        """Uploads about ``limit`` bytes of the weights, for a program that has taken the memory.

        Returns the unused part of the limit. Returns 0 if more weights may remain, or if another
        thread is uploading them.
        """
        if self._uploaded:
            return limit
        if not self._uploading.acquire(blocking=limit >= EVERYTHING):
            return 0
        try:
            assert self._allocation is not None
            limit = write_chunks(self._allocation, self._chunks, limit)
            self._uploaded = limit > 0
            return limit
        finally:
            self._uploading.release()

    def step_keys(self, plan: Plan) -> list[Variant]:
        """Returns the kernel variants of the plan's steps, in order.

        Kernel files that were read for an earlier plan are not read again.
        """
        return step_keys(plan, self._contents)


def chunks(values: Mapping[str, tuple[int, Array]]) -> Chunks:
    """Yields all values as pairs of a byte offset and at most 64 KiB of flat elements."""
    for offset, array in values.values():
        flat = np.ravel(array)
        for start in range(0, flat.size, _CHUNK_NUMBERS):
            yield offset + stored_bytes(flat[:start]), flat[start : start + _CHUNK_NUMBERS]


def write_chunks(allocation: Allocation, chunks: Chunks, limit: int) -> int:
    """Writes chunks up to ``limit`` bytes and returns the unused part of the limit.

    Returns 0 if more chunks may remain.
    """
    for offset, numbers in chunks:
        write_numbers(allocation, offset, numbers)
        limit -= numbers.nbytes
        if limit <= 0:
            return 0
    return limit


def write_numbers(allocation: Allocation, offset: int, numbers: Array) -> None:
    """Queues a write of numbers at a byte offset; Boolean values become 32-bit words."""
    if numbers.size:
        if numbers.dtype == np.bool_:
            numbers = numbers.astype(np.uint32)
        allocation.write(np.ascontiguousarray(numbers), offset)


def free(allocation: Allocation | Segments, now: bool) -> None:
    """Frees an allocation, either at once or as soon as no frame is being encoded."""
    if now:
        allocation.free_now()
    else:
        allocation.free()


_PREFIX = "shared:"
Arena = Allocation | Segments


class SharedArena:
    """Activation memory shared by programs of which only one runs at a time.

    It is as large as the largest of them needs. When a larger program joins, the others move to the
    larger memory at their next run; a running program keeps the old memory until it ends.
    """

    def __init__(self, memory: Allocator, name: str) -> None:
        self.name = name
        #: acquired by the program of the group that is running
        self.lock = RLock()
        self._memory = memory
        self._members: weakref.WeakSet[Residency] = weakref.WeakSet()
        self._current: Allocation | None = None
        #: the program that wrote to the arena last
        self.writer: weakref.ref[Residency] | None = None
        self._users: dict[Allocation, int] = {}

    @classmethod
    def named(cls, memory: Allocator, name: str) -> SharedArena:
        """Returns the device's arena named ``"shared:NAME"``, created on first use."""
        if not name.startswith(_PREFIX) or name == _PREFIX:
            raise InputError(f"arena '{name}': wanted '{_PREFIX}NAME', with a name of your own")
        with memory.lock:
            arenas = _ARENAS.setdefault(memory, weakref.WeakValueDictionary())
            found = arenas.get(name)
            if found is None:
                found = arenas[name] = SharedArena(memory, name)
            return found

    def join(self, member: Residency) -> None:
        """Adds a program to those that use this arena; the arena will be large enough for it."""
        with self._memory.lock:
            self._members.add(member)

    @property
    def busy(self) -> bool:
        """True if a program of the group has a running job."""
        with self._memory.lock:
            return any(member.holders for member in self._members)

    def is_current(self, arena: Arena | None) -> bool:
        """Returns True if ``arena`` is the memory that programs of the group get now."""
        return arena is self._current

    def acquire(self) -> Allocation:
        """Returns memory that is large enough for every program of the group and counts its user.

        If the current memory is too small, the group's programs without a job lose it.
        """
        with self._memory.lock:
            needed = max(member.arena_bytes for member in self._members)
            if self._current is None or self._current.nbytes < needed:
                for member in list(self._members):
                    if not member.holders:
                        member.drop_arena()
                self._current = self._memory.allocate(
                    needed, TENSOR_USAGE, owner=self.name, category="activations"
                )
            self._users[self._current] = self._users.get(self._current, 0) + 1
            return self._current

    def give_back(self, arena: Arena, now: bool) -> None:
        """Counts one user of the memory less and frees the memory after the last one.

        ``now`` frees it even while a frame is being encoded.
        """
        assert isinstance(arena, Allocation)
        with self._memory.lock:
            self._users[arena] -= 1
            if not self._users[arena]:
                del self._users[arena]
                if arena is self._current:
                    self._current = None
                free(arena, now)


#: the shared arenas of every device that is in use
_ARENAS: weakref.WeakKeyDictionary[Allocator, weakref.WeakValueDictionary[str, SharedArena]] = (
    weakref.WeakKeyDictionary()
)


class Residency:
    """The device memory of one program: its arena, its weights, and the schedulers that use them.

    Weights shared with programs of other shapes stay on the device as long as one of them uses
    them.
    """

    def __init__(
        self, plan: Plan, memory: Allocator, arena: str | None, constants: SharedConstants
    ) -> None:
        self.name = plan.name
        self.arena_bytes = max(plan.memory.peak, 256)
        self._segment = plan.memory.segment
        if self._segment and arena is not None:
            raise InputError(
                f"arena '{arena}': the activations of '{plan.name}' take {self.arena_bytes} bytes, "
                f"more than one buffer of this device: leave arena out, or use a smaller input"
            )
        self._own_bytes = plan.own_bytes
        self._constants = constants
        self._memory = memory
        self.shared = None if arena is None else SharedArena.named(memory, arena)
        #: acquired while this program or another of its group runs; precedes the allocator's lock
        self.lock = RLock() if self.shared is None else self.shared.lock
        self.arena: Arena | None = None
        self.weights: Allocation | None = None
        #: memory that only this program uses, if any
        self.own: Allocation | None = None
        #: frame schedulers that have a job of the program running
        self.holders: weakref.WeakSet[object] = weakref.WeakSet()
        if self.shared is not None:
            self.shared.join(self)

    @property
    def busy(self) -> bool:
        """True if a scheduler has a job running in the memory, or in the shared arena."""
        return self.shared.busy if self.shared is not None else bool(self.holders)

    @property
    def wrote_last(self) -> bool:
        """True if no other program of the group has written to the arena since :meth:`claim`."""
        if self.shared is None:
            return True
        return self.shared.writer is not None and self.shared.writer() is self

    def claim(self) -> None:
        """Records that this program is about to write to the arena."""
        if self.shared is not None:
            self.shared.writer = weakref.ref(self)

    @property
    def complete(self) -> bool:
        """True if all of the program's memory is on the device."""
        return self.arena is not None and self.weights is not None and self._has_own

    @property
    def _has_own(self) -> bool:
        return self.own is not None or not self._own_bytes

    @property
    def resident(self) -> list[Arena]:
        """The program's memory that is on the device; other programs may share parts of it."""
        return [part for part in (self.arena, self.weights, self.own) if part is not None]

    @property
    def nbytes(self) -> int:
        """The bytes of the program's memory on the device, including all of the shared memory."""
        return sum(part.nbytes for part in self.resident)

    @property
    def missing_bytes(self) -> int:
        """The bytes of the program's memory that must still be allocated."""
        missing = 0 if self.weights is not None else self._constants.nbytes
        missing += 0 if self._has_own else self._own_bytes
        return missing + (0 if self.arena is not None else self.arena_bytes)

    def acquire(self) -> bool:
        """Allocates the missing memory; returns True if the arena is a new one."""
        if self.weights is None:
            self.weights = self._constants.acquire()
        if not self._has_own:
            self.own = self._memory.allocate(
                self._own_bytes, TENSOR_USAGE, owner=self.name, category="weights"
            )
        if self.arena is not None:
            return False
        self.arena = self._take_arena()
        return True

    def _take_arena(self) -> Arena:
        if self.shared is not None:
            return self.shared.acquire()
        if self._segment:
            return Segments.allocated(
                self._memory, self.arena_bytes, self._segment, TENSOR_USAGE,
                owner=self.name, category="activations",
            )  # fmt: skip
        return self._memory.allocate(
            self.arena_bytes, TENSOR_USAGE, owner=self.name, category="activations"
        )

    def let_go(self, executor: object) -> None:
        """Ends the executor's job. If the group has a larger arena now, drops the old one."""
        self.holders.discard(executor)
        if self.shared is not None and not self.shared.is_current(self.arena):
            self.drop_arena()

    def drop_arena(self, now: bool = False) -> None:
        """Frees the arena and keeps the weights."""
        arena, self.arena = self.arena, None
        if arena is None:
            return
        if self.shared is not None:
            self.shared.give_back(arena, now)
        else:
            free(arena, now)

    def release(self, now: bool = False) -> None:
        """Frees all memory; ``now`` frees it even while a frame is being encoded."""
        self.drop_arena(now)
        weights, self.weights = self.weights, None
        if weights is not None:
            self._constants.give_back(now)
        own, self.own = self.own, None
        if own is not None:
            free(own, now)


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
