"""Time is injected: the same scheduler runs on the real clock and on a virtual one."""

from __future__ import annotations

import time
from typing import Protocol

from scheduler.checks import checked


class Clock(Protocol):
    """Something that knows the time in milliseconds; only differences mean anything."""

    def now_ms(self) -> float:
        """Milliseconds since any moment, the same one each time."""
        ...


class RealClock:
    """The machine's monotonic clock."""

    def now_ms(self) -> float:
        """Milliseconds of the system's steady clock."""
        return 1e3 * time.perf_counter()


class VirtualClock:
    """A clock that moves only when told to: for tests, simulations and replays."""

    def __init__(self, start_ms: float = 0.0) -> None:
        self._now = checked("start_ms", start_ms, least=-float("inf"))

    def now_ms(self) -> float:
        """Milliseconds as they were set or advanced to."""
        return self._now

    def advance(self, ms: float) -> None:
        """Let ``ms`` milliseconds pass; time does not go back."""
        self._now += checked("ms", ms)

    def advance_to(self, now_ms: float) -> None:
        """Let it be ``now_ms``, to the last bit; times that are past already change nothing."""
        self._now = max(self._now, checked("now_ms", now_ms, least=-float("inf")))


class SteadyClock:
    """Another clock, trusted with nothing: a time that is no number, or goes back, is the last one
    again, and counted in :attr:`ignored`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = checked("clock.now_ms()", clock.now_ms(), least=-float("inf"))
        self.ignored = 0

    def now_ms(self) -> float:
        now = self._clock.now_ms()
        if now >= self._last and now != float("inf"):
            self._last = now
        elif now != self._last:
            self.ignored += 1
        return self._last
