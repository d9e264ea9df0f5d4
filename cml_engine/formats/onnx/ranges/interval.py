"""Bounds of numbers, and arithmetic on them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from cml_engine.ir.graph import Array, Fact

#: constants of floats are looked at up to so many elements: large ones are weights
_MAX_SCALARS = 4096


class Interval(NamedTuple):
    """All numbers from ``low`` to ``high``, which may be infinite."""

    low: float
    high: float

    def within(self, other: Interval) -> bool:
        return other.low <= self.low and self.high <= other.high

    def outside(self, other: Interval) -> bool:
        """Whether they have no number in common."""
        return self.high < other.low or self.low > other.high

    def __str__(self) -> str:
        return f"{self.low:,} to {self.high:,}"


INT32 = Interval(-(1 << 31), (1 << 31) - 1)
#: integers that float32 holds, each by itself
EXACT = Interval(-(1 << 24), 1 << 24)
ANY = Interval(-math.inf, math.inf)
UNIT = Interval(0, 1)
NOTHING = Interval(0, 0)


def of_dtype(dtype: np.dtype[Any]) -> Interval:
    """What an input of an ONNX type may hold; of 64 bits a run takes those of 32 alone."""
    if dtype.kind == "b":
        return UNIT
    if dtype.kind not in "iu":
        return ANY
    info = np.iinfo(dtype)
    return Interval(max(info.min, int(INT32.low)), min(info.max, int(INT32.high)))


def of_array(array: Array) -> Interval:
    """The bounds of known values; of none at all 0."""
    if array.dtype.kind == "b":
        return UNIT
    if array.dtype.kind not in "iu" and array.size > _MAX_SCALARS:
        return ANY
    if not array.size:
        return NOTHING
    low, high = array.min().item(), array.max().item()
    return ANY if math.isnan(low) else Interval(low, high)


def whole(fact: Fact) -> Interval:
    """All that a tensor of the network may hold."""
    return {"scalar": ANY, "integer": INT32, "logical": UNIT}[fact.dtype]


# -- arithmetic ----------------------------------------------------------------------------------


def made(*ends: float) -> Interval:
    """From the least to the greatest of what the ends make; of infinite ends that may be NaN."""
    return ANY if any(math.isnan(end) for end in ends) else Interval(min(ends), max(ends))


def union(*parts: Interval) -> Interval:
    return Interval(min(p.low for p in parts), max(p.high for p in parts))


def add(a: Interval, b: Interval) -> Interval:
    return made(a.low + b.low, a.high + b.high)


def neg(a: Interval) -> Interval:
    return Interval(-a.high, -a.low)


def mul(a: Interval, b: Interval) -> Interval:
    return made(*(x * y for x in a for y in b))


def absolute(a: Interval) -> Interval:
    least = 0 if a.low <= 0 <= a.high else min(abs(a.low), abs(a.high))
    return Interval(least, max(abs(a.low), abs(a.high)))


def quotient(a: Interval, b: Interval) -> Interval:
    """Of integers, cut off towards zero; by 0 it is 0."""
    if b.low < 1:
        most = absolute(a).high
        return Interval(-most, most)
    return made(*(math.trunc(x / y) for x in a for y in b))


def rest(a: Interval, b: Interval, of_divisor: bool) -> Interval:
    """Less than the divisor, of its sign or of the other's."""
    most = max(absolute(b).high - 1, 0)
    most = most if of_divisor else min(most, absolute(a).high)
    sign = b if of_divisor else a
    return Interval(0 if sign.low >= 0 else -most, 0 if sign.high <= 0 else most)


def bit_and(a: Interval, b: Interval) -> Interval:
    """No larger than an operand that is not negative."""
    limits = [i.high for i in (a, b) if i.low >= 0]
    return Interval(0, min(limits)) if limits else INT32


def shift_left(a: Interval, by: Interval) -> Interval:
    steps = max(0, min(int(by.high), 64))
    return mul(a, Interval(1, 1 << steps))


def shift_right(a: Interval, by: Interval) -> Interval:
    return Interval(0, int(a.high) >> max(0, min(int(by.low), 31))) if a.low >= 0 else INT32


def total(x: Interval, count: int) -> Interval:
    return made(x.low * count, x.high * count) if count else NOTHING


def running(x: Interval, count: int) -> Interval:
    return union(NOTHING, x, total(x, count))


def least(*parts: Interval) -> Interval:
    return Interval(min(p.low for p in parts), min(p.high for p in parts))


def greatest(*parts: Interval) -> Interval:
    return Interval(max(p.low for p in parts), max(p.high for p in parts))
