"""Integer inference on NumPy arrays, whose words and sums are integers in float32.

Intermediate values are float64, in which every step is exact, because no product exceeds 53
bits. Arrays are processed in blocks that stay in the CPU cache from the first step to the last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from cml_engine.ir.graph import Array
from cml_engine.ir.integer_rule import SMALL_TABLE

Out = Array | None
#: the block size in elements; several blocks fit into a core's L1 or L2 cache
_NEAR = 1 << 14


def requantize(sums: Array, code: Array, low: float, high: float, out: Out = None) -> Array:
    """Multiplies sums by a multiplier, rounds them and clips them to words in ``low`` to ``high``.

    A word is a quantized value, an integer of 8 or 16 bits. This is ``rule.requantize`` for arrays;
    ``code`` is ``rule.Multiplier.code``. In this and the following functions, ``out`` receives the
    words; it may be the first operand.
    """
    return _round(np.multiply, (sums, _factor(code)), low, high, out)


def requantize_wide(
    upper: Array, lower: Array, code: Array, factor: float, low: float, high: float, out: Out = None
) -> Array:
    """Requantizes sums that are given in two parts, ``factor * upper + lower``."""
    return requantize(_join_halves(upper, lower, factor), code, low, high, out)


def requantize_by_sign(
    sums: Array, code: Array, negative: Array, low: float, high: float, out: Out = None
) -> Array:
    """Requantizes sums by ``code`` or, for sums below zero, by ``negative``."""
    return _round(_by_sign, (sums, _factor(code), _factor(negative)), low, high, out)


def requantize_wide_by_sign(
    upper: Array, lower: Array, code: Array, negative: Array, factor: float, low: float,
    high: float, out: Out = None,
) -> Array:  # fmt: skip
    return requantize_by_sign(_join_halves(upper, lower, factor), code, negative, low, high, out)


def requantize_pair(
    a: Array, b: Array, first: Array, second: Array, shift: Array, low: float, high: float,
    out: Out = None,
) -> Array:  # fmt: skip
    """Requantizes the sums of two words that each have a multiplier.

    This is ``rule.requantize_pair`` for arrays. The words' multipliers are ``first / 2**shift``
    and ``second / 2**shift``.
    """
    factors = [
        np.ldexp(np.float64(factor), -np.asarray(shift, np.int64)) for factor in (first, second)
    ]
    return _round(_scaled_sum, (a, b, *factors), low, high, out)


def requantize_product(
    a: Array, b: Array, code: Array, low: float, high: float, out: Out = None
) -> Array:
    """Requantizes the products of two arrays of words, with the multiplier ``code``."""
    return _round(_product, (a, b, _factor(code)), low, high, out)


def _factor(code: Array) -> Array:
    """Returns the multiplier of a code as a float64 with at most 15 significant bits."""
    number = np.asarray(code).astype(np.int64)
    return np.asarray(np.ldexp((number >> 6).astype(np.float64), -(number & 63)))


def _join_halves(upper: Array, lower: Array, factor: float) -> Array:
    return np.asarray(upper).astype(np.float64) * factor + lower


def _by_sign(sums: Array, factor: Array, negative: Array, out: Array) -> None:
    out.fill(0)  # NumPy's minimum by a single number takes thrice as long
    below = np.minimum(sums, out)
    below *= negative
    np.maximum(sums, out, out=out)
    out *= factor
    out += below


def _scaled_sum(a: Array, b: Array, first: Array, second: Array, out: Array) -> None:
    np.multiply(a, first, out=out)
    out += b * second


def _product(a: Array, b: Array, factor: Array, out: Array) -> None:
    np.multiply(a, b, out=out)
    out *= factor


def _round(
    scaled: Callable[..., object],
    operands: tuple[Array, ...],
    low: float,
    high: float,
    out: Out,
) -> Array:
    """Computes ``scaled(*operands)``, rounds it with halves up, and clips it to the range.

    The result is written to ``out``, or to a new array if ``out`` is None.
    """
    modes: list[list[Literal["readonly", "writeonly", "allocate"]]]
    modes = [["readonly"] for _ in (out, *operands)]
    modes[0] = ["writeonly", "allocate"]
    blocks = np.nditer(
        [out, *operands],
        ["buffered", "external_loop", "zerosize_ok"],
        modes,
        [np.float64] * (1 + len(operands)),
        buffersize=_NEAR,
        casting="same_kind",
    )
    with blocks:
        for words, *inputs in blocks:
            scaled(*inputs, out=words)
            words += 0.5
            np.floor(words, out=words)
            np.clip(words, low, high, out=words)
        return np.asarray(blocks.operands[0])


def words_of(values: Array, inverse: np.float32, low: float, high: float) -> Array:
    """Quantizes floats to words, integers in float32 from ``low`` to ``high``; NaN becomes 0.

    ``inverse`` is the inverse of the scale.
    """
    numbers = np.ascontiguousarray(values, np.float32)
    words = np.empty(numbers.shape, np.float32)
    flat, out = numbers.reshape(-1), words.reshape(-1)
    for first in range(0, flat.size, _NEAR):
        part = slice(first, first + _NEAR)
        _words_of(flat[part], inverse, low, high, out[part])
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
    """Converts words to real numbers, ``words * scale`` in float32; a zero is never -0."""
    return np.asarray(np.asarray(words).astype(np.int32).astype(np.float32) * scale)


def look_up(words: Array, table: Array, first: int) -> Array:
    """Returns the table's value for each word; ``first`` is the word of the first entry.

    This is ``rule.look_up`` for arrays: a small table has an entry per word, a large one an
    entry per 64 words, between which values are interpolated.
    """
    offsets = words.astype(np.int64) - first
    if len(table) == SMALL_TABLE:
        return np.asarray(table[offsets.clip(0, SMALL_TABLE - 1)])
    offsets = offsets.clip(0, 65535)
    index, fraction, points = offsets >> 6, offsets & 63, table.astype(np.int64)
    return np.asarray((points[index] * (64 - fraction) + points[index + 1] * fraction + 32) >> 6)
