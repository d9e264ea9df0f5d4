"""Intervals of numbers, and arithmetic on them."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from cml_engine.ir.graph import Array, DType, Fact

#: the most elements of a float constant whose bounds are computed; larger ones are weights
_MAX_SCALARS = 4096


class Interval(NamedTuple):
    """All numbers from ``low`` to ``high``, which may be infinite."""

    low: float
    high: float

    def within(self, other: Interval) -> bool:
        return other.low <= self.low and self.high <= other.high

    def outside(self, other: Interval) -> bool:
        """Returns True if the intervals have no number in common."""
        return self.high < other.low or self.low > other.high

    def __str__(self) -> str:
        return f"{self.low:,} to {self.high:,}"


INT32 = Interval(-(1 << 31), (1 << 31) - 1)
#: the integers that float32 represents exactly
EXACT = Interval(-(1 << 24), 1 << 24)
ANY = Interval(-math.inf, math.inf)
UNIT = Interval(0, 1)
NOTHING = Interval(0, 0)


def of_dtype(dtype: DType) -> Interval:
    """Returns the interval of an input of an ONNX type.

    A 64-bit input accepts 32-bit values only.
    """
    if dtype.kind == "b":
        return UNIT
    if dtype.kind not in "iu":
        return ANY
    info = np.iinfo(dtype)
    return Interval(max(info.min, int(INT32.low)), min(info.max, int(INT32.high)))


def of_array(array: Array) -> Interval:
    """Returns the smallest and largest of known values; 0 to 0 for an empty array.

    Large arrays of floats are not examined: their interval is all numbers.
    """
    if array.dtype.kind == "b":
        return UNIT
    if array.dtype.kind not in "iu" and array.size > _MAX_SCALARS:
        return ANY
    if not array.size:
        return NOTHING
    low, high = array.min().item(), array.max().item()
    return ANY if math.isnan(low) else Interval(low, high)


def whole(fact: Fact) -> Interval:
    """Returns the interval of all values that a tensor of the network can have."""
    return {"scalar": ANY, "integer": INT32, "logical": UNIT}[fact.dtype]


# -- arithmetic ----------------------------------------------------------------------------------


def hull(*ends: float) -> Interval:
    """Returns the interval from the smallest to the largest end; all numbers if an end is NaN."""
    return ANY if any(math.isnan(end) for end in ends) else Interval(min(ends), max(ends))


def union(*parts: Interval) -> Interval:
    return Interval(min(p.low for p in parts), max(p.high for p in parts))


def add(a: Interval, b: Interval) -> Interval:
    return hull(a.low + b.low, a.high + b.high)


def neg(a: Interval) -> Interval:
    return Interval(-a.high, -a.low)


def mul(a: Interval, b: Interval) -> Interval:
    return hull(*(x * y for x in a for y in b))


def absolute(a: Interval) -> Interval:
    least = 0 if a.low <= 0 <= a.high else min(abs(a.low), abs(a.high))
    return Interval(least, max(abs(a.low), abs(a.high)))


def quotient(a: Interval, b: Interval) -> Interval:
    """Returns the bounds of the quotients of integers from two intervals, truncated towards zero.

    A division by 0 gives 0.
    """
    if b.low < 1:
        most = absolute(a).high
        return Interval(-most, most)
    return hull(*(math.trunc(x / y) for x in a for y in b))


def remainder(a: Interval, b: Interval, of_divisor: bool) -> Interval:
    """Returns the bounds of the remainders of integers from two intervals.

    A remainder has the sign of the divisor with ``of_divisor``, else of the dividend.
    """
    most = max(absolute(b).high - 1, 0)
    most = most if of_divisor else min(most, absolute(a).high)
    sign = b if of_divisor else a
    return Interval(0 if sign.low >= 0 else -most, 0 if sign.high <= 0 else most)


def bit_and(a: Interval, b: Interval) -> Interval:
    """Returns the bounds of the bitwise and of integers from two intervals.

    If an operand cannot be negative, they are 0 and the smallest upper bound of such an operand;
    otherwise they are all 32-bit integers.
    """
    limits = [i.high for i in (a, b) if i.low >= 0]
    return Interval(0, min(limits)) if limits else INT32


def shift_left(a: Interval, by: Interval) -> Interval:
    steps = max(0, min(int(by.high), 64))
    return mul(a, Interval(1, 1 << steps))


def shift_right(a: Interval, by: Interval) -> Interval:
    return Interval(0, int(a.high) >> max(0, min(int(by.low), 31))) if a.low >= 0 else INT32


def sum_of(x: Interval, count: int) -> Interval:
    return hull(x.low * count, x.high * count) if count else NOTHING


def cumulative_sum(x: Interval, count: int) -> Interval:
    return union(NOTHING, x, sum_of(x, count))


def minimum(*parts: Interval) -> Interval:
    return Interval(min(p.low for p in parts), min(p.high for p in parts))


def maximum(*parts: Interval) -> Interval:
    return Interval(max(p.low for p in parts), max(p.high for p in parts))
