"""The exact rule of integer inference, in Python's integers. See docs/integer.md.

NumPy (``arrays.py``) and the shaders (``integer_rule.hlsli``) compute the same values; tests
compare them with this module.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from cml_engine.errors import RangeError

#: the version of the rule, part of every digest; any change of the rule increases it
RULE_VERSION = 1
#: the bits of a multiplier's mantissa; the multiplier is ``mantissa / 2^exponent``
MANTISSA_BITS = 15
LEAST_EXPONENT, MOST_EXPONENT = 3, 46
#: the smallest right shift that 32 bits can do in two steps; for smaller ones the sum is first
#: shifted left
LEAST_SHIFT = 17
#: the bounds below which all partial sums are exact in a float32 and in an int32
FLOAT_BOUND, INT_BOUND = 1 << 24, 1 << 31
#: the number of points in a table for 8-bit words, and in one for 16-bit words
SMALL_TABLE, LARGE_TABLE = 256, 1025
#: the range of valid scales; feature maps need no others, and floats lose digits near its ends
LEAST_SCALE, MOST_SCALE = Fraction(1, 1 << 40), Fraction(1 << 40)


def fraction_of(literal: int | float) -> Fraction:
    """Returns the exact value of a number's decimal digits: 0.1 is one tenth."""
    return Fraction(repr(literal))


def round_half_up(value: Fraction) -> int:
    """Returns the nearest integer; halves are rounded up."""
    return (2 * value.numerator + value.denominator) // (2 * value.denominator)


@dataclass(frozen=True, slots=True)
class Multiplier:
    """The factor ``mantissa / 2^exponent`` that rescales an integer sum to a word.

    A word is an integer of 8 or 16 bits that represents a number.
    """

    mantissa: int
    exponent: int

    @property
    def before(self) -> int:
        """The number of bits by which a sum is shifted left before the product.

        The right shift after it is then at least 17.
        """
        return max(0, LEAST_SHIFT - self.exponent)

    @property
    def shift(self) -> int:
        return max(LEAST_SHIFT, self.exponent)

    @property
    def code(self) -> int:
        """The mantissa and the exponent as one number that a float32 represents exactly."""
        return self.mantissa * 64 + self.exponent


def multiplier(ratio: Fraction) -> Multiplier:
    """Returns the multiplier nearest to a ratio; a ratio that rounds every sum to 0 becomes 0.

    Raises :class:`RangeError` if the ratio is too large.
    """
    if not ratio:
        return Multiplier(0, LEAST_SHIFT)
    size = abs(ratio)
    # 2^14 <= size * 2^exponent < 2^15
    exponent = MANTISSA_BITS - (size.numerator.bit_length() - size.denominator.bit_length())
    two = Fraction(2)
    while size * two**exponent >= 1 << MANTISSA_BITS:
        exponent -= 1
    while size * two**exponent < 1 << (MANTISSA_BITS - 1):
        exponent += 1
    mantissa = round_half_up(size * two**exponent)
    if mantissa == 1 << MANTISSA_BITS:
        mantissa, exponent = mantissa // 2, exponent - 1
    if exponent > MOST_EXPONENT:  # below 2^-32 every sum becomes 0
        return Multiplier(0, LEAST_SHIFT)
    if exponent < LEAST_EXPONENT:
        raise RangeError(
            f"a word would be {float(ratio):.3g} times its sum; wanted below "
            f"{2 ** (MANTISSA_BITS - LEAST_EXPONENT)}: make its scale larger"
        )
    return Multiplier(mantissa if ratio > 0 else -mantissa, exponent)


def clamp(value: int, low: int, high: int) -> int:
    return max(low, min(value, high))


def requantize(sum_: int, factor: Multiplier, low: int, high: int) -> int:
    """Returns a sum times a multiplier, rounded (halves up) and clamped to ``low`` to ``high``."""
    shifted = sum_ << factor.before
    return clamp((shifted * factor.mantissa + (1 << (factor.shift - 1))) >> factor.shift, low, high)


@dataclass(frozen=True, slots=True)
class Pair:
    """The factors that combine two words into one: ``(a * first + b * second) / 2^shift``."""

    first: int
    second: int
    shift: int


def pair(first: Fraction, second: Fraction, largest: tuple[int, int]) -> Pair:
    """Returns the most precise factors with which the sum of two words always fits into 32 bits.

    ``first`` and ``second`` are the exact factors, ``largest`` the largest absolute values of the
    two words. Raises :class:`RangeError` if no factors fit.
    """
    for shift in range(30, 0, -1):
        factors = Pair(round_half_up(first * 2**shift), round_half_up(second * 2**shift), shift)
        sums = (
            abs(factors.first) * largest[0] + abs(factors.second) * largest[1] + (1 << (shift - 1))
        )
        if sums < INT_BOUND and max(abs(factors.first), abs(factors.second)) < FLOAT_BOUND:
            return factors
    raise RangeError(
        f"a sum of {float(first):.3g} and {float(second):.3g} times its operands does not fit: "
        "make its scale larger"
    )


def requantize_pair(a: int, b: int, factors: Pair, low: int, high: int) -> int:
    """Returns the sum of two words times their factors, rounded with halves up and clamped."""
    total = a * factors.first + b * factors.second + (1 << (factors.shift - 1))
    return clamp(total >> factors.shift, low, high)


def look_up(word: int, table: list[int], first: int) -> int:
    """Returns the value for ``word`` in a table of a function.

    A table has 256 values, one per word from ``first`` on, or 1025 points at intervals of 64
    words with linear interpolation between them.
    """
    index = word - first
    if len(table) == SMALL_TABLE:
        return table[index]
    before, after, fraction = table[index >> 6], table[(index >> 6) + 1], index & 63
    return (before * (64 - fraction) + after * fraction + 32) >> 6
