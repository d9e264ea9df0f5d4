"""The rule of integer inference on NumPy's arrays: words and sums as whole numbers in float32.

Between them float64 computes, in which every step is exact: no product here has more than 53 bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cml_engine.integer.rule import SMALL_TABLE

Array = np.ndarray[Any, Any]
#: numbers that lie in a processor's near cache, several times
_NEAR = 1 << 14


def requantize(sums: Array, code: Array, low: float, high: float) -> Array:
    """``rule.requantize``: ``code`` is ``rule.Multiplier.code``."""
    number = np.asarray(code).astype(np.int64)
    mantissa, exponent = number >> 6, number & 63
    # the shift left before and the shift right after are one power of two
    half = np.ldexp(0.5, exponent)
    total = np.asarray(sums).astype(np.float64) * mantissa + half
    return np.asarray(np.clip(np.floor(total * np.ldexp(1.0, -exponent)), low, high))


def requantize_wide(
    upper: Array, lower: Array, code: Array, factor: float, low: float, high: float
) -> Array:
    """Of a sum in two parts, ``factor * upper + lower``."""
    sums = np.asarray(upper).astype(np.float64) * factor + lower
    return requantize(sums, code, low, high)


def requantize_by_sign(sums: Array, code: Array, negative: Array, low: float, high: float) -> Array:
    """With a multiplier of their own for sums below zero."""
    return requantize(sums, np.where(np.asarray(sums) < 0, negative, code), low, high)


def requantize_wide_by_sign(
    upper: Array, lower: Array, code: Array, negative: Array, factor: float, low: float, high: float
) -> Array:
    sums = np.asarray(upper).astype(np.float64) * factor + lower
    return requantize_by_sign(sums, code, negative, low, high)


def requantize_pair(
    a: Array, b: Array, first: Array, second: Array, shift: Array, low: float, high: float
) -> Array:
    """``rule.requantize_pair``."""
    exponent = np.asarray(shift).astype(np.int64)
    total = np.asarray(a).astype(np.float64) * first + np.asarray(b).astype(np.float64) * second
    total = total + np.ldexp(0.5, exponent)
    return np.clip(np.floor(total * np.ldexp(1.0, -exponent)), low, high)


def requantize_product(a: Array, b: Array, code: Array, low: float, high: float) -> Array:
    """Of the product of two words."""
    return requantize(np.asarray(a).astype(np.float64) * b, code, low, high)


def words_of(values: Array, inverse: np.float32, low: float, high: float) -> Array:
    """Real numbers as words: ``inverse`` is one over the scale, NaN becomes 0."""
    given = np.ascontiguousarray(values, np.float32)
    words = np.empty(given.shape, np.float32)
    flat, into = given.reshape(-1), words.reshape(-1)
    for first in range(0, flat.size, _NEAR):
        part = slice(first, first + _NEAR)
        _words_of(flat[part], inverse, low, high, into[part])
    return words.reshape(np.shape(values))


def _words_of(values: Array, inverse: np.float32, low: float, high: float, words: Array) -> None:
    with np.errstate(invalid="ignore", over="ignore"):
        steps = values * inverse
        np.floor(steps, out=words)
        steps -= words
        words += steps >= np.float32(0.5)
    np.clip(words, low, high, out=words)
    words[np.isnan(words)] = 0


def numbers_of(words: Array, scale: np.float32) -> Array:
    """Words as real numbers; 0 has no sign."""
    return np.asarray(np.asarray(words).astype(np.int32).astype(np.float32) * scale)


def look_up(words: Array, table: Array, first: int) -> Array:
    """``rule.look_up``."""
    at = words.astype(np.int64) - first
    if len(table) == SMALL_TABLE:
        return np.asarray(table[at.clip(0, SMALL_TABLE - 1)])
    at = at.clip(0, 65535)
    place, part, points = at >> 6, at & 63, table.astype(np.int64)
    return np.asarray((points[place] * (64 - part) + points[place + 1] * part + 32) >> 6)
