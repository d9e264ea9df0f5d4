"""Time is injected: the same scheduler runs on the real clock and on a virtual one."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Something that knows the time in milliseconds; only differences mean anything."""

    def now_ms(self) -> float: ...


class RealClock:
    """The machine's monotonic clock."""

    def now_ms(self) -> float:
        return 1e3 * time.perf_counter()


class VirtualClock:
    """A clock that moves only when told to: for tests, simulations and replays."""

    def __init__(self, start_ms: float = 0.0) -> None:
        self._now = start_ms

    def now_ms(self) -> float:
        return self._now

    def advance(self, ms: float) -> None:
        """Let ``ms`` milliseconds pass."""
        if ms < 0:
            raise ValueError(f"time cannot go back by {-ms} ms")
        self._now += ms

    def advance_to(self, now_ms: float) -> None:
        """Let it be ``now_ms``, to the last bit; times that are past already change nothing."""
        self._now = max(self._now, now_ms)
