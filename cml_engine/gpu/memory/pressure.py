"""When there is no room: what gives memory back so that others can have it, and in which order."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from typing import Any, Protocol

import wgpu

from cml_engine.errors import InputError, OutOfGpuMemory
from cml_engine.gpu.memory.allocation import Allocation
from cml_engine.gpu.memory.books import Books
from cml_engine.gpu.memory.segments import Segments
from cml_engine.ir.memory import MemorySource, checked_budget, exhausted_message, mib

_log = logging.getLogger(__name__)
#: what jobs and models may give back
_PASSING, _MODELS = frozenset({"output"}), frozenset({"weights", "activations"})


class Tenant(Protocol):
    """A model whose memory can be taken away while it is idle and brought back later."""

    @property
    def name(self) -> str: ...
    @property
    def last_used(self) -> int: ...
    @property
    def resident(self) -> Collection[Allocation | Segments]:
        """What it holds that it can lose; other models may hold some of it too."""
        ...

    @property
    def evictable(self) -> bool:
        """Whether it holds memory and may lose it now."""
        ...

    @property
    def passing(self) -> bool:
        """Whether it holds memory that it cannot lose now but can later."""
        ...

    def evict(self) -> None:
        """Give the memory back at once."""
        ...


class Pressure(Books):
    """The budget, and who is asked to keep it: empty heaps go first, then what callbacks can spare,
    then the models that are idle for the longest."""

    def __init__(
        self,
        device: wgpu.GPUDevice,
        budget_bytes: int | None,
        heap_bytes: int,
        source: MemorySource | None,
    ) -> None:
        super().__init__(device, budget_bytes, heap_bytes, source)
        #: frames that schedulers on this device have ended
        self.frame = 0
        self._callbacks: list[Callable[[int], int]] = []
        self._tenants: weakref.WeakSet[Tenant] = weakref.WeakSet()
        self._clock = 0

    @property
    def budget_bytes(self) -> int | None:
        """The most that the driver is asked for. Where it is set below :attr:`reserved_bytes`, what
        can go goes at once, as where there is no room, and the rest as soon as it is given back;
        :attr:`over_budget_bytes` says how much that is, and ``str()`` who holds it."""
        return self._budget

    @budget_bytes.setter
    def budget_bytes(self, nbytes: int | None) -> None:
        self._budget = checked_budget(nbytes)
        self._shrink()

    def _shrink(self) -> None:
        """Give back what can go, until the budget is kept."""
        if not self.over_budget_bytes:
            return
        with self.lock:
            self.settle()
            self._trim()
            for callback in list(self._callbacks):
                if self.over_budget_bytes and callback(self.over_budget_bytes) > 0:
                    self.settle()
                    self._trim()
            for tenant in sorted(self._tenants, key=lambda t: t.last_used):
                if self.over_budget_bytes and tenant.evictable:
                    self._evict(tenant)

    # --- who can give some back

    def on_pressure(self, callback: Callable[[int], int]) -> Callable[[], None]:
        """Ask ``callback(needed_bytes)`` before models are evicted: it frees what it can spare
        and returns how many bytes that was. Returns a function that takes it off again."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def add_tenant(self, tenant: Tenant) -> None:
        """A model that may be evicted (it is forgotten when it is collected)."""
        with self.lock:
            self._tenants.add(tenant)

    def tick(self) -> int:
        """A number larger than any before: what :attr:`Tenant.last_used` is set to."""
        self._clock += 1
        return self._clock

    def may_come_free(self, but: Tenant | None = None) -> bool:
        """Whether a model, another one than ``but``, holds memory that it can lose later."""
        with self.lock:
            return any(t.passing for t in list(self._tenants) if t is not but)

    def may_ever_fit(self, nbytes: int, but: Tenant | None = None) -> bool:
        """Whether so much more would fit if others gave back what they may: other models than
        ``but`` their memory, jobs their outputs and readbacks."""
        if self.may_come_free(but):
            return True
        if self._budget is None or not self._ledger.of(_PASSING):
            return False
        if self._heaps is None:
            lasting = self._ledger.held - self._ledger.of(_PASSING | _MODELS)
        else:
            lasting = self._heaps.lasting_bytes(_PASSING | _MODELS) + self._texture_bytes
        stays = [t for t in list(self._tenants) if t is but or not (t.evictable or t.passing)]
        return lasting + _bytes_of(stays) + nbytes <= self._budget

    # --- asking them

    def _obtain(self, nbytes: int, owner: str, category: str, make: Callable[[], Any]) -> Any:
        reason = ""
        for _ in self._attempts(nbytes):
            try:
                return make()
            except MemoryError as error:
                reason = str(error)
        raise OutOfGpuMemory(
            exhausted_message(nbytes, owner, category, self.stats(), reason=reason)
        )

    def _attempts(self, nbytes: int) -> Iterator[None]:
        """Yields whenever there may be more room than before."""
        yield
        self._trim()
        yield
        for callback in list(self._callbacks):
            if callback(nbytes) > 0:
                self.settle()
                self._trim()
                yield
        idle = [t for t in list(self._tenants) if t.evictable]
        if self._budget is not None:
            others = [t for t in list(self._tenants) if t not in idle]
            least = self._ledger.held - (_bytes_of([*idle, *others]) - _bytes_of(others))
            if least + nbytes > self._budget:
                return  # it would be in vain
        for tenant in sorted(idle, key=lambda t: t.last_used):
            if tenant.evictable:
                self._evict(tenant)
                yield

    def _evict(self, tenant: Tenant) -> None:
        with suppress(InputError):  # another thread began to run it just now
            held = mib(_bytes_of([tenant]))
            tenant.evict()
            self.evictions += 1
            _log.info("'%s' is evicted: %s MiB", getattr(tenant, "name", "a model"), held)
        self._trim()

    # --- frames, in which nothing is freed

    def open_frame(self, executor: Any) -> None:
        """The executor is about to encode; what it encoded before has been submitted."""
        self._encoding.discard(executor)
        self.settle()
        self._encoding.add(executor)

    def close_frame(self, executor: Any) -> None:
        """The host has submitted what the executor encoded."""
        self.frame += 1
        self._encoding.discard(executor)
        self.settle()
        self._shrink()  # what was in use when the budget was lowered may be free by now


def _bytes_of(tenants: Iterable[Tenant]) -> int:
    """What these hold together."""
    return sum(held.nbytes for held in {held for tenant in tenants for held in tenant.resident})
