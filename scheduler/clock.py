"""The clocks of a scheduler, and the checks of the numbers that it accepts.

Invalid values at set-up are refused. Invalid values that arrive with every frame are ignored and
counted, because a game does not catch errors in its frame loop."""

from __future__ import annotations

import math
import time
from typing import Protocol

from cml_engine.errors import InputError
from cml_engine.errors.arguments import shortened


def check_number(name: str, value: object, *, least: float = 0.0, above: bool = False) -> float:
    """Returns the value as a finite float of at least ``least``; with ``above``, greater than it.

    Raises :class:`InputError` for anything else, with ``name`` in the message.
    """
    number = _number(value)
    if number is None or number < least or (above and number == least):
        requirement = f"greater than {least:g}" if above else f"of {least:g} or more"
        raise InputError(
            f"{name} is {shortened(repr(value))}: wanted a finite number {requirement}"
        )
    return number


def check_count(name: str, value: object) -> int:
    """Returns the value as an int of at least 1; raises :class:`InputError` for anything else."""
    number = _number(value)
    if number is None or number < 1 or number != int(number):
        raise InputError(f"{name} is {shortened(repr(value))}: wanted a whole number of 1 or more")
    return int(number)


def check_share(name: str, value: object) -> float:
    """Returns the value as a float between 0 and 1, excluding both; else raises ``InputError``."""
    number = _number(value)
    if number is None or not 0 < number < 1:
        raise InputError(f"{name} is {shortened(repr(value))}: wanted a number between 0 and 1")
    return number


def is_ms(value: object) -> bool:
    """Returns True if the value can be a duration: a finite number that is not negative."""
    number = _number(value)
    return number is not None and number >= 0


#: types whose values ``float`` takes, and which are no numbers
_NO_NUMBERS = (str, bytes, bool)


def _number(value: object) -> float | None:
    """Returns the value as a finite float, or None. A text or a boolean is no number."""
    if isinstance(value, _NO_NUMBERS):
        return None
    try:
        number = float(value)  # type: ignore[arg-type]
    except Exception:  # whatever it is, it is no number
        return None
    return number if math.isfinite(number) else None


class Clock(Protocol):
    """A clock in milliseconds; only differences between its times are meaningful.

    Its steps must be much shorter than a frame: on a device without timestamps, a clock of 15.6 ms,
    as some on Windows are, shows late frames that are not.

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
    >>> clock = cml.scheduler.RealClock()
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
    >>> clock = cml.scheduler.VirtualClock()
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
