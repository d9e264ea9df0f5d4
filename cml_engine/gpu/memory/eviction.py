"""Frees memory in a fixed order when there is no room."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from typing import Protocol

from cml_engine.errors import InputError
from cml_engine.gpu.memory.allocation import Allocation
from cml_engine.gpu.memory.segments import Segments
from cml_engine.ir.memory import mib

_log = logging.getLogger(__name__)


class Tenant(Protocol):
    """A model whose memory can be evicted while it is idle and restored later."""

    @property
    def name(self) -> str: ...
    @property
    def last_used(self) -> int: ...
    @property
    def resident(self) -> Collection[Allocation | Segments]:
        """The evictable allocations of this model; other models may share some of them."""
        ...

    @property
    def evictable(self) -> bool:
        """True if the model has memory on the device that can be evicted now."""
        ...

    @property
    def evictable_later(self) -> bool:
        """True if the model has memory on the device that cannot be evicted now but can later."""
        ...

    def evict(self) -> None:
        """Frees the memory at once."""
        ...


class Eviction:
    """Frees memory in this order: unused heaps, the host's callbacks, then idle models.

    ``free_unused`` runs deferred frees and destroys empty heaps.
    """

    def __init__(self, free_unused: Callable[[], None]) -> None:
        self._free_unused = free_unused
        self._callbacks: list[Callable[[int], int]] = []
        self._tenants: weakref.WeakSet[Tenant] = weakref.WeakSet()
        #: how often a model was evicted
        self.count = 0

    def add_callback(self, callback: Callable[[int], int]) -> Callable[[], None]:
        """Registers a callback; returns a function that removes it."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def add_tenant(self, tenant: Tenant) -> None:
        """Registers a model that may be evicted; garbage collection unregisters it."""
        self._tenants.add(tenant)

    def may_come_free(self, but: Tenant | None = None) -> bool:
        """Returns True if a model except ``but`` is in use and has memory to evict later."""
        return any(t.evictable_later for t in list(self._tenants) if t is not but)

    def lasting_bytes(self, but: Tenant | None) -> int:
        """Returns the bytes of ``but`` and of the models that can never be evicted."""
        return _bytes_of(
            t for t in list(self._tenants) if t is but or not (t.evictable or t.evictable_later)
        )

    @property
    def evictable_bytes(self) -> int:
        """The bytes that become free if all idle models are evicted."""
        tenants = list(self._tenants)
        return _bytes_of(tenants) - _bytes_of(t for t in tenants if not t.evictable)

    def free_step_by_step(
        self, needed: Callable[[], int], may_suffice: Callable[[], bool] = lambda: True
    ) -> Iterator[None]:
        """Frees memory and yields whenever there may be more room than before.

        Empty heaps come first, then the memory that callbacks can spare, then the models that
        have been idle the longest. No model is evicted unless ``may_suffice()``.
        """
        self._free_unused()
        yield
        for callback in list(self._callbacks):
            if callback(needed()) > 0:
                self._free_unused()
                yield
        if not may_suffice():
            return
        for tenant in sorted(self._tenants, key=lambda t: t.last_used):
            if tenant.evictable:
                self.evict(tenant)
                yield

    def evict(self, tenant: Tenant) -> None:
        """Evicts a model and frees unused heaps.

        The model stays if another thread has just started to run it.
        """
        with suppress(InputError):
            freed = mib(_bytes_of([tenant]))
            tenant.evict()
            self.count += 1
            _log.info("'%s' is evicted: %s MiB", getattr(tenant, "name", "a model"), freed)
        self._free_unused()


def _bytes_of(tenants: Iterable[Tenant]) -> int:
    """Returns the bytes that these tenants use together, counting shared memory once."""
    return sum(part.nbytes for part in {part for tenant in tenants for part in tenant.resident})
