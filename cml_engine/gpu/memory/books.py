"""The memory of one device in numbers: what was asked of the driver, and who holds it."""

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
    """Where memory comes from, what is held of it, and what is freed once no frame is being
    encoded."""

    def __init__(
        self,
        device: wgpu.GPUDevice,
        budget_bytes: int | None,
        heap_bytes: int,
        source: MemorySource | None,
    ) -> None:
        self.device = device
        self._budget = checked_budget(budget_bytes)
        #: how often a model lost its memory
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
        # finalizers may run in the middle of anything: they only leave their work here
        self._later: deque[Callable[[], None]] = deque()
        self._settling = False
        #: whoever holds it takes no lock of a program's, unless that is free
        self.lock = RLock()

    def _may_reserve(self, nbytes: int) -> bool:
        return self._budget is None or self.reserved_bytes + nbytes <= self._budget

    def _trim(self) -> None:
        if self._heaps is not None:
            self._heaps.trim()

    # --- what is freed while a frame is encoded

    def later(self, free: Callable[[], None]) -> None:
        """Call this when no frame is being encoded. May be called at any moment by anyone."""
        self._later.append(free)

    def settle(self) -> None:
        """Run the work that was put off, unless a frame is being encoded. An error there is not the
        caller's: it is logged. Work that settles itself returns at once: the loop that called it
        takes what it has put off, so that its length is no depth of the stack."""
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

    # --- looking at it

    @property
    def held_bytes(self) -> int:
        """Bytes in use."""
        self.settle()
        return self._ledger.held

    @property
    def reserved_bytes(self) -> int:
        """Bytes that the driver was asked for: heaps whole, and textures."""
        if self._heaps is None:
            return self._ledger.held
        return self._heaps.reserved_bytes + self._texture_bytes

    @property
    def over_budget_bytes(self) -> int:
        """How much more is reserved than the budget allows: what holders have not given back since
        it was lowered."""
        return 0 if self._budget is None else max(0, self.reserved_bytes - self._budget)

    @property
    def peak_bytes(self) -> int:
        """The most that was ever in use."""
        return self._ledger.peak

    def stats(self) -> MemoryStats:
        """Everything, as data; ``str()`` of it is a map."""
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
        """What is held, a line for each owner and category: at the end of a program, the leaks."""
        return leak_report(self.stats().holdings)

    def __str__(self) -> str:
        return str(self.stats())
