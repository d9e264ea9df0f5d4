"""Proves, before anything runs, that the sums of a network fit; computes in Python's integers.

``B = |b| + max|q| * sum|w|`` bounds every partial sum of a channel, in any order and any
partition. A float32 carries sums below 2^24 exactly, with or without fused multiply-adds. Sums
below 2^31 are carried as two sums, ``2^bits * upper + lower``, each of them below 2^24. All
kernels, tiles and slices therefore give bit-identical results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from cml_engine.errors import RangeError, Source
from cml_engine.ir.graph import Array
from cml_engine.ir.integer_rule import FLOAT_BOUND, INT_BOUND

#: the numbers of low bits that the second of two passes may take
_LOW_BITS = (8, 4)


@dataclass(frozen=True, slots=True)
class Range:
    """The least and the largest word of a tensor."""

    low: int
    high: int

    @property
    def magnitude(self) -> int:
        """The largest absolute value of a word."""
        return max(abs(self.low), abs(self.high))

    def part(self, take: str, bits: int) -> Range:
        """Returns the range of the upper bits of the words, of their lower ``bits`` bits, or of all
        bits.

        ``take`` is ``"upper"``, ``"lower"`` or ``"all"``.
        """
        if take == "all":
            return self
        if take == "lower":
            return Range(0, (1 << bits) - 1)
        return Range(self.low >> bits, self.high >> bits)


@dataclass(frozen=True, slots=True)
class SumPass:
    """One pass over the products of a sum: its weights, its bias and the bits of the words that it
    reads.

    ``take`` is ``"all"``, ``"upper"`` or ``"lower"``.
    """

    take: str
    weights: Array
    bias: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ExactSum:
    """The one or two passes that compute the sums of a node exactly.

    ``bound`` is the largest bound of any channel, ``carrier`` the type that holds it:
    ``"float32"`` or ``"int32"``. With two ``parts`` the result of the first is multiplied by
    ``2^bits``, and the result of the second is added.
    """

    carrier: str
    bound: int
    parts: tuple[SumPass, ...]
    bits: int = 0


def row_magnitudes(weights: Array) -> list[int]:
    """Returns the exact sum of the absolute values of each row of integer weights."""
    rows = np.abs(weights.astype(np.int64)).reshape(len(weights), -1)
    return [int(total) for total in rows.sum(1)]


def bounds(weights: Array, bias: Sequence[int], words: Range) -> list[int]:
    """Returns for each channel the bound ``|b| + max|q| * sum|w|`` of its sums.

    ``weights`` has one row per channel, ``bias`` one integer per channel; ``words`` is the range
    of ``q``.
    """
    return [
        abs(b) + words.magnitude * w for b, w in zip(bias, row_magnitudes(weights), strict=True)
    ]


def plan_exact_sum(
    title: str,
    weights: Array,
    bias: Sequence[int],
    words: Range,
    source: Source | None = None,
    whole: bool = False,
) -> ExactSum:
    """Returns the one or two passes that compute a node's sums exactly.

    ``weights`` are integers, one row per channel; ``bias`` has one integer per channel;
    ``words`` is the range of the input's words. With ``whole`` the kernel sums in int32 and
    needs one pass only. Raises :class:`RangeError` if the sums do not fit.
    """
    totals = bounds(weights, bias, words)
    bound = max(totals, default=0)
    if bound < FLOAT_BOUND:
        return ExactSum("float32", bound, (SumPass("all", weights, tuple(bias)),))
    if whole and bound < INT_BOUND:
        return ExactSum("int32", bound, (SumPass("all", weights, tuple(bias)),))
    if bound >= INT_BOUND:
        raise sum_overflow_error(title, totals.index(bound), bound, words, source)
    for split, bits in product((_split_words, _split_weights), _LOW_BITS):
        parts = split(weights, bias, bits)
        ranges = [words.part(part.take, bits) for part in parts]
        found = [max(bounds(p.weights, p.bias, r)) for p, r in zip(parts, ranges, strict=True)]
        if max(found) < FLOAT_BOUND:
            return ExactSum("int32", bound, parts, bits)
    raise RangeError(
        f"{title}: channel {totals.index(bound)} sums to {bound:,} at most, and neither its words' "
        "nor its weights' bytes sum below 2^24: quantize it with 8 bits, or with fewer weights",
        source,
    )


def sum_overflow_error(
    title: str, channel: int, bound: int, words: Range, source: Source | None = None
) -> RangeError:
    """Returns the error for a channel whose sum does not fit into 32 bits; its message proposes
    changes."""
    return RangeError(
        f"{title}: channel {channel} sums to {bound:,} at most, wanted below 2^31 = {INT_BOUND:,}: "
        f"its input has words up to {words.magnitude}; quantize that with 8 bits, or make the "
        "weights' scale larger",
        source,
    )


def check_shift(
    title: str, bound: int, before: int, words: Range, source: Source | None = None
) -> None:
    """Raises :class:`RangeError` if a sum of up to ``bound``, shifted left by ``before`` bits,
    does not fit into 31 bits."""
    if bound << before >= INT_BOUND:
        raise RangeError(
            f"{title}: sums up to {bound:,} are shifted left by {before} bits, which do not fit "
            f"into 31; its result of {words.low} to {words.high} is finer than its sums: give it "
            "a larger scale",
            source,
        )


def _split_words(weights: Array, bias: Sequence[int], bits: int) -> tuple[SumPass, ...]:
    upper, lower = _split_bias(bias, bits)
    return SumPass("upper", weights, upper), SumPass("lower", weights, lower)


def _split_weights(weights: Array, bias: Sequence[int], bits: int) -> tuple[SumPass, ...]:
    wide, half = weights.astype(np.int64), 1 << (bits - 1)
    rest = ((wide + half) & ((1 << bits) - 1)) - half
    upper, lower = _split_bias(bias, bits)
    return SumPass("all", (wide - rest) >> bits, upper), SumPass("all", rest, lower)


def _split_bias(bias: Sequence[int], bits: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(b >> bits for b in bias), tuple(b & ((1 << bits) - 1) for b in bias)


def find_range_violation(name: str, got: Array, wanted: Range) -> str:
    """Returns a description of the first value of ``got`` that is no whole number or is outside
    ``wanted``.

    ``got`` is the result ``name`` of an exact operator. Returns an empty string if all values
    are valid.
    """
    for off, what in (
        (got != np.rint(got), "exact=True says that it gives whole numbers"),
        ((got < wanted.low) | (got > wanted.high), f"wanted {wanted.low} to {wanted.high}"),
    ):
        if off.any():
            at = tuple(int(i) for i in np.argwhere(off)[0])
            return f"gives {got[at]} in '{name}', at {list(at)}: {what}"
    return ""
