"""The rule of integer inference in Python's integers: docs/integer.md in code.

Everything here is exact. NumPy (``arrays.py``) and the shaders (``integer_rule.hlsli``) compute the
same, and tests hold them to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from cml_engine.errors import RangeError

#: part of every digest: another rule, another number
RULE_VERSION = 1
#: a multiplier is ``mantissa / 2^exponent``, the mantissa of 15 bits
MANTISSA_BITS = 15
LEAST_EXPONENT, MOST_EXPONENT = 3, 46
#: the smallest shift that 32 bits can do in two steps; what needs less is shifted left before
LEAST_SHIFT = 17
#: what a float32, and what an int32 holds exactly, and all partial sums below it
FLOAT_BOUND, INT_BOUND = 1 << 24, 1 << 31
#: points of a table for words of 8 bits, and of one for 16
SMALL_TABLE, LARGE_TABLE = 256, 1025
#: scales outside are no scales of feature maps, and near them floats lose digits
LEAST_SCALE, MOST_SCALE = Fraction(1, 1 << 40), Fraction(1 << 40)


def fraction_of(literal: int | float) -> Fraction:
    """A number of a model's text as its decimal digits say it: 0.1 is one tenth."""
    return Fraction(repr(literal))


def round_half_up(value: Fraction) -> int:
    """The nearest integer; halves go up."""
    return (2 * value.numerator + value.denominator) // (2 * value.denominator)


@dataclass(frozen=True, slots=True)
class Multiplier:
    """``mantissa / 2^exponent``: by which a sum becomes a word."""

    mantissa: int
    exponent: int

    @property
    def before(self) -> int:
        """Bits by which the sum is shifted left, so that the shift right is of 17 bits."""
        return max(0, LEAST_SHIFT - self.exponent)

    @property
    def shift(self) -> int:
        return max(LEAST_SHIFT, self.exponent)

    @property
    def code(self) -> int:
        """Both in one number that a float32 holds exactly."""
        return self.mantissa * 64 + self.exponent


def multiplier(ratio: Fraction) -> Multiplier:
    """The multiplier nearest to a ratio; :class:`RangeError` where there is none."""
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
    if exponent > MOST_EXPONENT:  # below 2^-32: of no sum is anything left
        return Multiplier(0, LEAST_SHIFT)
    if exponent < LEAST_EXPONENT:
        raise RangeError(
            f"a word would be {float(ratio):.3g} times its sum; wanted below "
            f"{2 ** (MANTISSA_BITS - LEAST_EXPONENT)}: make its scale larger"
        )
    return Multiplier(mantissa if ratio > 0 else -mantissa, exponent)


def clamp(value: int, low: int, high: int) -> int:
    return max(low, min(value, high))


def requantize(sum_: int, by: Multiplier, low: int, high: int) -> int:
    """The one rounding: the sum times the multiplier, halves up, within the word's range."""
    shifted = sum_ << by.before
    return clamp((shifted * by.mantissa + (1 << (by.shift - 1))) >> by.shift, low, high)


def requantize_in_32_bits(sum_: int, by: Multiplier, low: int, high: int) -> int:
    """The same as shaders do it, where no intermediate result needs more than 32 bits."""
    shifted = _int32(sum_ << by.before)
    upper = _int32((shifted >> 16) * by.mantissa)
    lower = _int32((shifted & 0xFFFF) * by.mantissa) >> 16
    total = _int32(_int32(upper + lower) + (1 << (by.shift - LEAST_SHIFT)))
    return clamp(total >> (by.shift - 16), low, high)


def _int32(value: int) -> int:
    if not -INT_BOUND <= value < INT_BOUND:
        raise OverflowError(f"{value} is not of 32 bits")
    return value


@dataclass(frozen=True, slots=True)
class Pair:
    """By what two words become one: ``(a * first + b * second) / 2^shift``."""

    first: int
    second: int
    shift: int


def pair(first: Fraction, second: Fraction, most: tuple[int, int]) -> Pair:
    """The multipliers of a sum of two words, the finest of which all sums fit into 32 bits;
    ``most`` is how large the words can be."""
    for shift in range(30, 0, -1):
        found = Pair(round_half_up(first * 2**shift), round_half_up(second * 2**shift), shift)
        sums = abs(found.first) * most[0] + abs(found.second) * most[1] + (1 << (shift - 1))
        if sums < INT_BOUND and max(abs(found.first), abs(found.second)) < FLOAT_BOUND:
            return found
    raise RangeError(
        f"a sum of {float(first):.3g} and {float(second):.3g} times its operands does not fit: "
        "make its scale larger"
    )


def requantize_pair(a: int, b: int, by: Pair, low: int, high: int) -> int:
    """A sum of two words as one word."""
    total = a * by.first + b * by.second + (1 << (by.shift - 1))
    return clamp(total >> by.shift, low, high)


def look_up(word: int, table: list[int], first: int) -> int:
    """A function of one word, as its table says: of 256 words from ``first`` on, or of 1 025 points
    64 words apart, with straight lines between."""
    place = word - first
    if len(table) == SMALL_TABLE:
        return table[place]
    before, after, part = table[place >> 6], table[(place >> 6) + 1], place & 63
    return (before * (64 - part) + after * part + 32) >> 6
