"""The memory budget, and the order in which memory is freed when there is no room."""

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
#: categories of memory that jobs and models may free
_PASSING, _MODELS = frozenset({"output"}), frozenset({"weights", "activations"})


class Tenant(Protocol):
    """A model whose memory can be evicted while it is idle and restored later."""

    @property
    def name(self) -> str: ...
    @property
    def last_used(self) -> int: ...
    @property
    def resident(self) -> Collection[Allocation | Segments]:
        """The evictable memory of this model; other models may share parts of it."""
        ...

    @property
    def evictable(self) -> bool:
        """True if the model has memory on the device that can be evicted now."""
        ...

    @property
    def passing(self) -> bool:
        """True if the model has memory on the device that cannot be evicted now but can later."""
        ...

    def evict(self) -> None:
        """Frees the memory at once."""
        ...


class Pressure(Books):
    """The memory budget and its enforcement.

    Empty heaps are freed first, then the memory that callbacks can spare, then the models that have
    been idle the longest.
    """

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
        """The limit of the memory reserved from the driver, in bytes; None for no limit.

        If the limit is set below :attr:`reserved_bytes`, memory that can be freed is freed at
        once, and the rest as soon as its owners free it. :attr:`over_budget_bytes` is the
        remaining excess, and ``str()`` lists the owners.
        """
        return self._budget

    @budget_bytes.setter
    def budget_bytes(self, nbytes: int | None) -> None:
        self._budget = checked_budget(nbytes)
        self._shrink()

    def _shrink(self) -> None:
        """Frees memory until the budget is met or nothing more can be freed."""
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

    # --- memory that can be freed

    def on_pressure(self, callback: Callable[[int], int]) -> Callable[[], None]:
        """Registers a callback that is called before models are evicted.

        ``callback(needed_bytes)`` frees the memory that it can spare and returns the number of
        freed bytes. Returns a function that removes the callback.
        """
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def add_tenant(self, tenant: Tenant) -> None:
        """Registers a model that may be evicted; garbage collection unregisters it."""
        with self.lock:
            self._tenants.add(tenant)

    def tick(self) -> int:
        """Returns a number larger than any before, for :attr:`Tenant.last_used`."""
        self._clock += 1
        return self._clock

    def may_come_free(self, but: Tenant | None = None) -> bool:
        """Returns True if a model other than ``but`` has memory that can be evicted later."""
        with self.lock:
            return any(t.passing for t in list(self._tenants) if t is not but)

    def may_ever_fit(self, nbytes: int, but: Tenant | None = None) -> bool:
        """Returns True if ``nbytes`` would fit once others freed all the memory they can.

        That is the memory of models other than ``but``, and the outputs and readbacks of jobs.
        """
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

    # --- obtaining memory

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
                return  # evicting all idle models would not make enough room
        for tenant in sorted(idle, key=lambda t: t.last_used):
            if tenant.evictable:
                self._evict(tenant)
                yield

    def _evict(self, tenant: Tenant) -> None:
        with suppress(InputError):  # another thread has just started to run it
            held = mib(_bytes_of([tenant]))
            tenant.evict()
            self.evictions += 1
            _log.info("'%s' is evicted: %s MiB", getattr(tenant, "name", "a model"), held)
        self._trim()

    # --- frames: frees are deferred while one is encoded

    def open_frame(self, executor: Any) -> None:
        """Marks the executor as encoding; its previous frame has been submitted."""
        self._encoding.discard(executor)
        self.settle()
        self._encoding.add(executor)

    def close_frame(self, executor: Any) -> None:
        """Marks the executor's frame as submitted and runs the deferred frees."""
        self.frame += 1
        self._encoding.discard(executor)
        self.settle()
        self._shrink()  # memory that was in use when the budget was lowered may be free now


def _bytes_of(tenants: Iterable[Tenant]) -> int:
    """Returns the bytes that these tenants use together, counting shared memory once."""
    return sum(held.nbytes for held in {held for tenant in tenants for held in tenant.resident})
