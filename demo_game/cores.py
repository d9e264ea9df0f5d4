"""Leaves cores to other processes that keep them busy, before a software driver counts the cores.

llvmpipe starts as many threads as its process may use cores. Where another process takes a core,
one of them waits for it, 3 to 9 ms at a time, and frames are late by that. With fewer threads on
the other cores, frames take longer on average and hardly ever much longer, for the system gives the
busy process a core of its own.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

#: the share of a core's time from which others keep it busy, and the ticks of the system's clock
#: after which a share is known well enough
_BUSY, _LEAST_TICKS = 0.75, 20


class _Times(NamedTuple):
    """Seconds: of a clock, for which this process's cores were busy, and for which it ran."""

    now_s: float
    busy_s: float
    own_s: float


class CoreWatch:
    """Measures since its creation how many of this process's cores others keep busy (Linux)."""

    def __init__(self, stat: Path = Path("/proc/stat")) -> None:
        self._stat = stat
        #: the cores that this process may use; empty where the system does not say
        self.cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set[int]()
        self._began = self._read()

    def _read(self) -> _Times | None:
        try:
            lines = self._stat.read_text().splitlines()
        except OSError:
            return None
        ticks, names = 0, {f"cpu{core}" for core in self.cores}
        for name, *numbers in filter(None, map(str.split, lines)):
            if name in names:
                user, nice, system, _idle, _iowait, irq, softirq = map(int, numbers[:7])
                ticks += user + nice + system + irq + softirq
        busy_s = ticks / os.sysconf("SC_CLK_TCK")
        return _Times(time.perf_counter(), busy_s, time.process_time())

    def count_taken(self) -> int:
        """Returns how many cores other processes keep busy; always fewer than there are."""
        began, now = self._began, self._read()
        if began is None or now is None or not self.cores:
            return 0
        passed = _Times(*(b - a for a, b in zip(began, now, strict=True)))
        if passed.now_s * os.sysconf("SC_CLK_TCK") < _LEAST_TICKS:
            return 0
        taken = int((passed.busy_s - passed.own_s) / passed.now_s + 1.0 - _BUSY)
        return max(0, min(taken, len(self.cores) - 1))

    def leave(self, count: int) -> None:
        """Keeps this thread, and those that it starts, off so many cores; 0 allows all again."""
        if self.cores:
            os.sched_setaffinity(0, sorted(self.cores)[: len(self.cores) - count])
