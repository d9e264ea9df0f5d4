"""The device memory of a program: its constants and arena, access by one user, and eviction."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Lock, RLock

import numpy as np
import wgpu

from cml_engine.compiler.plan import Binding, Plan
from cml_engine.errors import InputError
from cml_engine.gpu.memory.allocator import Allocation, Allocator, BufferRange, Segments
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
                allocation.free(now=now)

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


def write_chunks(allocation: Arena, chunks: Chunks, limit: int) -> int:
    """Writes chunks up to ``limit`` bytes and returns the unused part of the limit.

    Returns 0 if more chunks may remain.
    """
    for offset, numbers in chunks:
        write_numbers(allocation, offset, numbers)
        limit -= numbers.nbytes
        if limit <= 0:
            return 0
    return limit


def write_numbers(allocation: Arena, offset: int, numbers: Array) -> None:
    """Queues a write of numbers at a byte offset; Boolean values become 32-bit words."""
    if numbers.size:
        if numbers.dtype == np.bool_:
            numbers = numbers.astype(np.uint32)
        allocation.write(np.ascontiguousarray(numbers), offset)


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
            arena = arenas.get(name)
            if arena is None:
                arena = arenas[name] = SharedArena(memory, name)
            return arena

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
            largest = max(member.arena_bytes for member in self._members)
            if self._current is None or self._current.nbytes < largest:
                for member in list(self._members):
                    if not member.holders:
                        member.drop_arena()
                self._current = self._memory.allocate(
                    largest, TENSOR_USAGE, owner=self.name, category="activations"
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
                arena.free(now=now)


#: the shared arenas of every device that is in use
_ARENAS: weakref.WeakKeyDictionary[Allocator, weakref.WeakValueDictionary[str, SharedArena]] = (
    weakref.WeakKeyDictionary()
)


class Residency:
    """The device memory of one program: its arena and its weights, and who uses them.

    Weights shared with programs of other shapes stay on the device as long as one of them uses
    them. One user at a time has access: a run, which other runs wait for, or a scheduler's job,
    which rejects runs. The memory is freed with this object.
    """

    def __init__(
        self, plan: Plan, memory: Allocator, arena: str | None, constants: SharedConstants
    ) -> None:
        self.plan = plan
        self.arena_bytes = max(plan.memory.peak, 256)
        if plan.memory.segment and arena is not None:
            raise InputError(
                f"arena '{arena}': the activations of '{plan.name}' take {self.arena_bytes} bytes, "
                "more than one buffer of this device: leave arena out, or use a smaller input"
            )
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
        self._pins = 0
        if self.shared is not None:
            self.shared.join(self)

    # --- access

    @contextmanager
    def pinned(self) -> Iterator[None]:
        """Prevents eviction and runs of other threads in the ``with`` block; waits for them."""
        with self.lock, device_errors():
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
            self.refuse_if(self.busy)
            yield

    @contextmanager
    def if_free(self) -> Iterator[bool]:
        """Yields True if no other thread uses the program, else False; never blocks.

        After True other threads wait until the ``with`` block ends.
        """
        free = self.lock.acquire(blocking=False)
        try:
            with device_errors():
                yield free
        finally:
            if free:
                self.lock.release()

    @contextmanager
    def if_idle(self, *, wait: bool) -> Iterator[bool]:
        """Yields True if neither a run nor a job uses the program, else False.

        With ``wait`` it waits until no other program of a shared arena runs or is prepared, and
        never for this program. After True other threads wait until the ``with`` block ends.
        """
        waits = wait and self.shared is not None and not self._pins
        acquired = self.lock.acquire(blocking=waits)
        try:
            with device_errors():
                yield acquired and not self.in_use
        finally:
            if acquired:
                self.lock.release()

    @property
    def is_free(self) -> bool:
        """True if no other thread uses the program at the moment; never blocks."""
        free = self.lock.acquire(blocking=False)
        if free:
            self.lock.release()
        return free

    @property
    def in_use(self) -> bool:
        """True during a run or a job of this program."""
        return bool(self._pins or self.holders)

    @property
    def busy(self) -> bool:
        """True if a scheduler has a job running in the memory, or in the shared arena."""
        return self.shared.busy if self.shared is not None else bool(self.holders)

    def refuse_if(self, busy: bool) -> None:
        """Raises :class:`InputError` if ``busy``, because a running job needs the tensors."""
        if busy:
            raise InputError(
                f"{self.description} has a running job, whose tensors this would overwrite. Wait "
                "until it has ended, submit a run to the scheduler too, or use a second session"
            )

    @property
    def description(self) -> str:
        """The name of the shared arena, or of the program, for messages."""
        return f"'{self.plan.name}'" if self.shared is None else f"arena '{self.shared.name}'"

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

    def place(self, binding: Binding) -> tuple[wgpu.GPUBuffer, int]:
        """Returns the buffer of a :class:`Binding` and the byte offset in it.

        Raises :class:`InputError` if the memory was evicted.
        """
        spaces = {"arena": self.arena, "weights": self.weights, "own": self.own}
        memory = spaces[binding.space]
        if memory is None:
            raise InputError(f"model '{self.plan.name}' was evicted: there is nothing to look at")
        return memory.at(binding.offset)

    def range(self, binding: Binding) -> BufferRange:
        """Returns the memory of a :class:`Binding` as a bind group resource."""
        buffer, offset = self.place(binding)
        return {"buffer": buffer, "offset": offset, "size": binding.nbytes}

    # --- allocation

    @property
    def resident(self) -> list[Arena]:
        """The program's memory that is on the device; other programs may share parts of it."""
        return [part for part in (self.arena, self.weights, self.own) if part is not None]

    @property
    def complete(self) -> bool:
        """True if all of the program's memory is on the device."""
        has_own = self.own is not None or not self.plan.own_bytes
        return has_own and self.arena is not None and self.weights is not None

    @property
    def missing_bytes(self) -> int:
        """The bytes of the program's memory that must still be allocated."""
        missing = 0 if self.weights is not None else self._constants.nbytes
        missing += 0 if self.own is not None else self.plan.own_bytes
        return missing + (0 if self.arena is not None else self.arena_bytes)

    def acquire(self) -> bool:
        """Allocates the missing memory; returns True if the arena is a new one."""
        if self.weights is None:
            self.weights = self._constants.acquire()
        if self.own is None and self.plan.own_bytes:
            self.own = self._memory.allocate(
                self.plan.own_bytes, TENSOR_USAGE, owner=self.plan.name, category="weights"
            )
        if self.arena is not None:
            return False
        self.arena = self._take_arena()
        return True

    def _take_arena(self) -> Arena:
        if self.shared is not None:
            return self.shared.acquire()
        nbytes, owner, category = self.arena_bytes, self.plan.name, "activations"
        if segment := self.plan.memory.segment:
            return Segments.allocated(
                self._memory, nbytes, segment, TENSOR_USAGE, owner=owner, category=category
            )
        return self._memory.allocate(nbytes, TENSOR_USAGE, owner=owner, category=category)

    def end_reservation(self, executor: object) -> None:
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
            arena.free(now=now)

    def release(self, now: bool = False) -> None:
        """Frees all memory; ``now`` frees it even while a frame is being encoded."""
        self.drop_arena(now)
        weights, self.weights = self.weights, None
        if weights is not None:
            self._constants.give_back(now)
        own, self.own = self.own, None
        if own is not None:
            own.free(now=now)
