"""Checks of the numbers that a scheduler accepts.

Values at set-up that make no sense are refused. Values that come with every frame are ignored and
counted instead, because a game does not catch errors in its frame loop.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cml_engine.errors import InputError


def refused(why: str) -> InputError:
    """The error for what a caller handed in. Its module is loaded when it is needed: the scheduler
    comes without NumPy."""
    from cml_engine.errors import InputError

    return InputError(why)


def checked(name: str, value: Any, *, least: float = 0.0, above: bool = False) -> float:
    """The value as a finite number of at least ``least``, or ``above`` it; else
    :class:`InputError`."""
    number = _number(value)
    if number is None or number < least or (above and number == least):
        wanted = f"greater than {least:g}" if above else f"of {least:g} or more"
        raise refused(f"{name} is {value!r}: wanted a finite number {wanted}")
    return number


def checked_count(name: str, value: Any) -> int:
    """The value as a whole number of at least 1; else :class:`InputError`."""
    number = _number(value)
    if number is None or number < 1 or number != int(number):
        raise refused(f"{name} is {value!r}: wanted a whole number of 1 or more")
    return int(number)


def checked_share(name: str, value: Any) -> float:
    """The value as a part of a whole, between 0 and 1; else :class:`InputError`."""
    number = _number(value)
    if number is None or not 0 < number < 1:
        raise refused(f"{name} is {value!r}: wanted a number between 0 and 1")
    return number


def ranges() -> Any:
    """The readers of :mod:`cml_engine.errors.arguments`, which comes with NumPy."""
    from cml_engine.errors import arguments as found

    return found


def is_ms(value: Any) -> bool:
    """Returns True if the value is a finite number of milliseconds that is not negative."""
    number = _number(value)
    return number is not None and number >= 0


def _number(value: Any) -> float | None:
    """The value as a finite number; None where it is something else."""
    if isinstance(value, str | bytes | bool):
        return None
    try:
        number = float(value)
    except Exception:  # whatever it is, it is no number
        return None
    return number if math.isfinite(number) else None
