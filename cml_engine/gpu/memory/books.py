"""The memory accounting of one device: bytes reserved from the driver, and bytes used per owner."""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import Callable
from threading import RLock
from typing import Any

import wgpu

from cml_engine.gpu.memory.heaps import Heaps
from cml_engine.ir.memory import Ledger, MemorySource, MemoryStats, checked_budget, leak_report

_log = logging.getLogger(__name__)
_LIMITS = (
    "max-buffer-size",
    "min-storage-buffer-offset-alignment",
    "min-uniform-buffer-offset-alignment",
)


class Books:
    """The memory source of a device, its usage statistics and its deferred frees.

    A deferred free runs as soon as no frame is being encoded.
    """

    def __init__(
        self,
        device: wgpu.GPUDevice,
        budget_bytes: int | None,
        heap_bytes: int,
        source: MemorySource | None,
    ) -> None:
        self.device = device
        self._budget = checked_budget(budget_bytes)
        #: how often a model was evicted
        self.evictions = 0
        self._limits = {name: int(device.limits[name]) for name in _LIMITS}
        self._heaps: Heaps | None = None
        if source is None:
            largest = min(heap_bytes, self._limits["max-buffer-size"] & ~255)
            source = self._heaps = Heaps(device, largest, self._may_reserve, lambda: self._budget)
        self._source = source
        self._ledger = Ledger()
        self._texture_bytes = 0
        self._encoding: weakref.WeakSet[Any] = weakref.WeakSet()
        # finalizers may run at any time, so they only queue their work here
        self._later: deque[Callable[[], None]] = deque()
        self._settling = False
        #: lock order: its owner acquires a program's lock only without blocking
        self.lock = RLock()

    def _may_reserve(self, nbytes: int) -> bool:
        return self._budget is None or self.reserved_bytes + nbytes <= self._budget

    def _trim(self) -> None:
        if self._heaps is not None:
            self._heaps.trim()

    # --- deferred frees

    def later(self, free: Callable[[], None]) -> None:
        """Calls ``free`` as soon as no frame is being encoded.

        Safe to call from any thread or finalizer.
        """
        self._later.append(free)

    def settle(self) -> None:
        """Runs the deferred frees, unless a frame is being encoded.

        Errors are logged and not raised, because they are not the caller's. A nested call
        returns at once; the outer loop also runs the work that was deferred meanwhile, so the
        call stack stays flat.
        """
        if not self._later or self._encoding:
            return
        with self.lock:
            if self._settling:
                return
            self._settling = True
            try:
                while self._later:
                    work = self._later.popleft()
                    try:
                        work()
                    except Exception:
                        _log.exception("giving GPU memory back has failed: %r", work)
            finally:
                self._settling = False

    # --- statistics

    @property
    def held_bytes(self) -> int:
        """Bytes in use."""
        self.settle()
        return self._ledger.held

    @property
    def reserved_bytes(self) -> int:
        """Bytes reserved from the driver: whole heaps, and textures."""
        if self._heaps is None:
            return self._ledger.held
        return self._heaps.reserved_bytes + self._texture_bytes

    @property
    def over_budget_bytes(self) -> int:
        """Bytes reserved beyond the budget.

        They are positive after the budget was lowered, until the owners free enough memory.
        """
        return 0 if self._budget is None else max(0, self.reserved_bytes - self._budget)

    @property
    def peak_bytes(self) -> int:
        """The largest number of bytes that were in use at a time."""
        return self._ledger.peak

    def stats(self) -> MemoryStats:
        """Returns all statistics as data; ``str()`` of them prints a memory map."""
        self.settle()
        with self.lock:
            return MemoryStats(
                self._ledger.held,
                self.reserved_bytes,
                self._ledger.peak,
                self._budget,
                self._ledger.holdings(),
                self._heaps.heaps() if self._heaps else (),
                self.evictions,
            )

    def report(self) -> str:
        """Returns the bytes in use, one line per owner and category.

        At the end of a program these are the leaks.
        """
        return leak_report(self.stats().holdings)

    def __str__(self) -> str:
        return str(self.stats())
