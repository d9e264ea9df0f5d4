"""The residency of a program on the device: allocation, sharing, eviction and restoring."""

from __future__ import annotations

import weakref
from threading import RLock

from cml_engine.compiler.plan import Plan
from cml_engine.errors import InputError
from cml_engine.gpu.memory.allocation import Allocation
from cml_engine.gpu.memory.allocator import Allocator
from cml_engine.gpu.memory.segments import Segments
from cml_engine.gpu.program.shared_constants import TENSOR_USAGE, SharedConstants, free

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
