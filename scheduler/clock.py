"""The clocks of a scheduler: the machine's, a virtual one, and a guard for the host's clock."""

from __future__ import annotations

import time
from typing import Protocol

from scheduler.checks import check_number


class Clock(Protocol):
    """A clock in milliseconds; only differences between its times are meaningful.

    Examples
    --------
    >>> class EngineClock:
    ...     def now_ms(self) -> float:
    ...         return 1000 * engine.seconds()
    """

    def now_ms(self) -> float:
        """Returns the milliseconds since a fixed but arbitrary moment."""
        ...


class RealClock:
    """The machine's monotonic clock.

    Examples
    --------
    >>> clock = cml.RealClock()
    >>> clock.now_ms() <= clock.now_ms()
    True
    """

    def now_ms(self) -> float:
        """Returns the current time of the system's monotonic clock in milliseconds."""
        return 1e3 * time.perf_counter()


class VirtualClock:
    """A clock that moves only on request, for tests, simulations and replays.

    Examples
    --------
    >>> clock = cml.VirtualClock()
    >>> clock.advance(16.7)
    >>> clock.now_ms()
    16.7
    """

    def __init__(self, start_ms: float = 0.0) -> None:
        self._now = check_number("start_ms", start_ms, least=-float("inf"))

    def now_ms(self) -> float:
        """Returns the current virtual time in milliseconds."""
        return self._now

    def advance(self, ms: float) -> None:
        """Advances the clock by ``ms`` milliseconds, which must not be negative."""
        self._now += check_number("ms", ms)

    def advance_to(self, now_ms: float) -> None:
        """Sets the clock to exactly ``now_ms``; a time in the past has no effect."""
        self._now = max(self._now, check_number("now_ms", now_ms, least=-float("inf")))


class SteadyClock:
    """A clock that follows the host's clock and guards against its faults.

    A time that is not a number, or goes back, is replaced by the last valid one and counted in
    :attr:`ignored`.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = check_number("clock.now_ms()", clock.now_ms(), least=-float("inf"))
        self.ignored = 0

    def now_ms(self) -> float:
        now = self._clock.now_ms()
        if now >= self._last and now != float("inf"):
            self._last = now
        elif now != self._last:
            self.ignored += 1
        return self._last
