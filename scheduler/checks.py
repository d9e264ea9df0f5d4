"""Checks of the numbers that a scheduler accepts.

Invalid values at set-up are refused. Invalid values that arrive with every frame are ignored and
counted, because a game does not catch errors in its frame loop.
"""

from __future__ import annotations

import math

from cml_engine.errors import InputError
from cml_engine.errors.arguments import shortened


def check_number(name: str, value: object, *, least: float = 0.0, above: bool = False) -> float:
    """Returns the value as a finite float of at least ``least``; with ``above``, greater than it.

    Raises :class:`InputError` for anything else, with ``name`` in the message.
    """
    number = _number(value)
    if number is None or number < least or (above and number == least):
        wanted = f"greater than {least:g}" if above else f"of {least:g} or more"
        raise InputError(f"{name} is {shortened(repr(value))}: wanted a finite number {wanted}")
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


def _number(value: object) -> float | None:
    """Returns the value as a finite float, or None. A text or a boolean is no number."""
    if isinstance(value, str | bytes | bool):
        return None
    try:
        number = float(value)  # type: ignore[arg-type]
    except Exception:  # whatever it is, it is no number
        return None
    return number if math.isfinite(number) else None
