"""A program's memory on the device: taken, shared, taken away while it is idle, brought back."""

from __future__ import annotations

import weakref
from threading import RLock
from typing import Any

from cml_engine.compiler.plan import Plan
from cml_engine.errors import InputError
from cml_engine.gpu.memory.allocation import Allocation
from cml_engine.gpu.memory.allocator import Allocator
from cml_engine.gpu.memory.segments import Segments
from cml_engine.gpu.program.common import TENSOR_USAGE, Common, free

_PREFIX = "shared:"
Arena = Allocation | Segments


class SharedArena:
    """Activation memory for programs of which only one runs at a time: the largest of them.

    When a larger program joins, the others move to the larger memory at their next start; one
    that is running keeps the old memory until it has ended.
    """

    def __init__(self, memory: Allocator, name: str) -> None:
        self.name = name
        #: held by the program of the group that is running
        self.lock = RLock()
        self._memory = memory
        self._members: weakref.WeakSet[Residency] = weakref.WeakSet()
        self._current: Allocation | None = None
        #: who wrote there last
        self.writer: weakref.ref[Residency] | None = None
        self._users: dict[Allocation, int] = {}

    @classmethod
    def named(cls, memory: Allocator, name: str) -> SharedArena:
        """The device's arena of that name, ``"shared:NAME"``."""
        if not name.startswith(_PREFIX) or name == _PREFIX:
            raise InputError(f"arena '{name}': wanted '{_PREFIX}NAME', with a name of your own")
        with memory.lock:
            arenas = _ARENAS.setdefault(memory, weakref.WeakValueDictionary())
            found = arenas.get(name)
            if found is None:
                found = arenas[name] = SharedArena(memory, name)
            return found

    def join(self, member: Residency) -> None:
        """The member will take its arena here."""
        with self._memory.lock:
            self._members.add(member)

    @property
    def busy(self) -> bool:
        """Whether a program of the group has a running job."""
        with self._memory.lock:
            return any(member.holders for member in self._members)

    def is_current(self, arena: Arena | None) -> bool:
        """Whether that is the memory which members take now."""
        return arena is self._current

    def take(self) -> Allocation:
        """Memory that is large enough for every member alive."""
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
        """A member does not use it any more."""
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
    """The arena and the weights of one program, and who is running it. Weights that programs of
    other shapes share are there as long as one of them has them."""

    def __init__(self, plan: Plan, memory: Allocator, arena: str | None, common: Common) -> None:
        self.name = plan.name
        self.arena_bytes = max(plan.memory.peak, 256)
        self._segment = plan.memory.segment
        if self._segment and arena is not None:
            raise InputError(
                f"arena '{arena}': the activations of '{plan.name}' take {self.arena_bytes} bytes, "
                f"more than one buffer of this device: leave arena out, or use a smaller input"
            )
        self._own_bytes = plan.own_bytes
        self._common = common
        self._memory = memory
        self.shared = None if arena is None else SharedArena.named(memory, arena)
        #: held by who is running it, or another of its group; taken before the allocator's
        self.lock = RLock() if self.shared is None else self.shared.lock
        self.arena: Arena | None = None
        self.weights: Allocation | None = None
        #: what is the program's alone, where there is anything
        self.own: Allocation | None = None
        #: frame schedulers that have a job of the program running (forgotten when they are gone)
        self.holders: weakref.WeakSet[Any] = weakref.WeakSet()
        if self.shared is not None:
            self.shared.join(self)

    @property
    def busy(self) -> bool:
        """Whether a scheduler has a job running in its memory."""
        return self.shared.busy if self.shared is not None else bool(self.holders)

    @property
    def wrote_last(self) -> bool:
        """Whether no other of its group has written to the arena since :meth:`claim`."""
        if self.shared is None:
            return True
        return self.shared.writer is not None and self.shared.writer() is self

    def claim(self) -> None:
        """It is about to write to the arena."""
        if self.shared is not None:
            self.shared.writer = weakref.ref(self)

    @property
    def complete(self) -> bool:
        """Whether all of its memory is there."""
        return self.arena is not None and self.weights is not None and self._has_own

    @property
    def _has_own(self) -> bool:
        return self.own is not None or not self._own_bytes

    @property
    def resident(self) -> list[Arena]:
        """What of it is there; others may hold some of it too."""
        return [part for part in (self.arena, self.weights, self.own) if part is not None]

    @property
    def nbytes(self) -> int:
        """What of it is there, the whole of what is shared included."""
        return sum(part.nbytes for part in self.resident)

    @property
    def missing_bytes(self) -> int:
        """What of it is not there."""
        missing = 0 if self.weights is not None else self._common.nbytes
        missing += 0 if self._has_own else self._own_bytes
        return missing + (0 if self.arena is not None else self.arena_bytes)

    def acquire(self) -> bool:
        """Take what is missing; whether the arena is another one than before."""
        if self.weights is None:
            self.weights = self._common.take()
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
            return self.shared.take()
        if self._segment:
            return Segments.allocated(
                self._memory, self.arena_bytes, self._segment, TENSOR_USAGE,
                owner=self.name, category="activations",
            )  # fmt: skip
        return self._memory.allocate(
            self.arena_bytes, TENSOR_USAGE, owner=self.name, category="activations"
        )

    def let_go(self, executor: Any) -> None:
        """The executor's job has ended. Where the group has larger memory by now, move there."""
        self.holders.discard(executor)
        if self.shared is not None and not self.shared.is_current(self.arena):
            self.drop_arena()

    def drop_arena(self, now: bool = False) -> None:
        """Give the arena back and keep the weights."""
        arena, self.arena = self.arena, None
        if arena is None:
            return
        if self.shared is not None:
            self.shared.give_back(arena, now)
        else:
            free(arena, now)

    def release(self, now: bool = False) -> None:
        """Give everything back; ``now`` even while a frame is being encoded."""
        self.drop_arena(now)
        weights, self.weights = self.weights, None
        if weights is not None:
            self._common.give_back(now)
        own, self.own = self.own, None
        if own is not None:
            free(own, now)
