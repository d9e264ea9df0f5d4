"""The proof that a network's sums fit, before anything runs: in Python's integers.

``B = |b| + max|q| * sum|w|`` bounds every partial sum of a channel, in whatever order and in
whatever parts it is added up. What is below 2^24 a float32 carries exactly, with or without fused
multiply-adds. What is below 2^31 is carried as two sums, ``2^bits * upper + lower``, each of which
is below 2^24 itself: so every kernel, tile and slice gives the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from cml_engine.errors import RangeError, Source
from cml_engine.ir.graph import Array
from cml_engine.ir.integer_rule import FLOAT_BOUND, INT_BOUND

#: how many low bits one of two passes may take
_LOW_BITS = (8, 4)


@dataclass(frozen=True, slots=True)
class Range:
    """The words that a tensor can have."""

    low: int
    high: int

    @property
    def most(self) -> int:
        """The largest absolute value."""
        return max(abs(self.low), abs(self.high))

    def taken(self, take: str, bits: int) -> Range:
        """Of all of the words, or of their upper or lower part."""
        if take == "all":
            return self
        if take == "lower":
            return Range(0, (1 << bits) - 1)
        return Range(self.low >> bits, self.high >> bits)


@dataclass(frozen=True, slots=True)
class Part:
    """One pass over the products: of which weights and bias, and whether it takes all of a word,
    its upper or its lower bits."""

    take: str
    weights: Array
    bias: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Carried:
    """How the sums of a node are carried: ``bound`` is the largest of its channels', ``parts`` is
    one pass, or two of which the first counts ``2^bits`` times."""

    carrier: str
    bound: int
    parts: tuple[Part, ...]
    bits: int = 0


def magnitudes(weights: Array) -> list[int]:
    """The sum of the absolute values of each row, exactly."""
    rows = np.abs(weights.astype(np.int64)).reshape(len(weights), -1)
    return [int(total) for total in rows.sum(1)]


def bounds(weights: Array, bias: Sequence[int], words: Range) -> list[int]:
    """``B`` of each channel; ``weights`` has a row for each."""
    return [abs(b) + words.most * w for b, w in zip(bias, magnitudes(weights), strict=True)]


def carried(
    title: str,
    weights: Array,
    bias: Sequence[int],
    words: Range,
    source: Source | None = None,
    whole: bool = False,
) -> Carried:
    """How the sums can be carried; :class:`RangeError` where they cannot. ``weights`` are integers,
    a row for each channel, as many as ``bias`` has. ``whole``: they are added up in 32 bits,
    and needs no parts."""
    totals = bounds(weights, bias, words)
    bound = max(totals, default=0)
    if bound < FLOAT_BOUND:
        return Carried("float32", bound, (Part("all", weights, tuple(bias)),))
    if whole and bound < INT_BOUND:
        return Carried("int32", bound, (Part("all", weights, tuple(bias)),))
    if bound >= INT_BOUND:
        raise too_large(title, totals.index(bound), bound, words, source)
    for split, bits in product((_by_words, _by_weights), _LOW_BITS):
        parts = split(weights, bias, bits)
        ranges = [words.taken(part.take, bits) for part in parts]
        found = [max(bounds(p.weights, p.bias, r)) for p, r in zip(parts, ranges, strict=True)]
        if max(found) < FLOAT_BOUND:
            return Carried("int32", bound, parts, bits)
    raise RangeError(
        f"{title}: channel {totals.index(bound)} sums to {bound:,} at most, and neither its words' "
        "nor its weights' bytes sum below 2^24: quantize it with 8 bits, or with fewer weights",
        source,
    )


def too_large(
    title: str, channel: int, bound: int, words: Range, source: Source | None = None
) -> RangeError:
    """That a channel's sum does not fit, and what to change."""
    return RangeError(
        f"{title}: channel {channel} sums to {bound:,} at most, wanted below 2^31 = {INT_BOUND:,}: "
        f"its input has words up to {words.most}; quantize that with 8 bits, or make the weights' "
        "scale larger",
        source,
    )


def check_shift(
    title: str, bound: int, before: int, words: Range, source: Source | None = None
) -> None:
    """A sum that is shifted left before it is multiplied must fit then, too."""
    if bound << before >= INT_BOUND:
        raise RangeError(
            f"{title}: sums up to {bound:,} are shifted left by {before} bits, which do not fit "
            f"into 31; its result of {words.low} to {words.high} is finer than its sums: give it "
            "a larger scale",
            source,
        )


def _by_words(weights: Array, bias: Sequence[int], bits: int) -> tuple[Part, ...]:
    upper, lower = _halves(bias, bits)
    return Part("upper", weights, upper), Part("lower", weights, lower)


def _by_weights(weights: Array, bias: Sequence[int], bits: int) -> tuple[Part, ...]:
    wide, half = weights.astype(np.int64), 1 << (bits - 1)
    rest = ((wide + half) & ((1 << bits) - 1)) - half
    upper, lower = _halves(bias, bits)
    return Part("all", (wide - rest) >> bits, upper), Part("all", rest, lower)


def _halves(bias: Sequence[int], bits: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(b >> bits for b in bias), tuple(b & ((1 << bits) - 1) for b in bias)


def broken_promise(name: str, got: Array, wanted: Range) -> str:
    """What is wrong with the results of an exact operator: they are whole numbers of a range."""
    for off, what in (
        (got != np.rint(got), "exact=True says that it gives whole numbers"),
        ((got < wanted.low) | (got > wanted.high), f"wanted {wanted.low} to {wanted.high}"),
    ):
        if off.any():
            at = tuple(int(i) for i in np.argwhere(off)[0])
            return f"gives {got[at]} in '{name}', at {list(at)}: {what}"
    return ""
