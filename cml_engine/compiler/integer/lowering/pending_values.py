"""The values of tensors during lowering: words, or pending results that are not rounded yet."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction

from cml_engine.compiler.integer.sum_bounds import Range
from cml_engine.errors import Source
from cml_engine.ir.graph import Node


@dataclass(frozen=True, slots=True)
class QuantizedTensor:
    """A tensor of the new graph whose whole numbers ``q`` stand for ``scale * q``."""

    name: str
    scale: Fraction
    bits: int
    signed: bool
    range: Range

    @property
    def first(self) -> int:
        """The word of a table's first entry."""
        return -(1 << (self.bits - 1)) if self.signed else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingValue:
    """A value that the next rounding point turns into words.

    ``low`` and ``high`` bound the real numbers. ``base`` is the tensor of words that the value is a
    function of, or None if there are several.
    """

    title: str
    source: Source | None = None
    low: Fraction | None = None
    high: Fraction | None = None
    base: QuantizedTensor | None = None

    def with_bounds(self, low: Fraction | None, high: Fraction | None) -> PendingValue:
        """Returns the value with these bounds in addition to its own."""
        lows = [b for b in (self.low, low) if b is not None]
        highs = [b for b in (self.high, high) if b is not None]
        return replace(self, low=max(lows, default=None), high=min(highs, default=None))


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingSum(PendingValue):
    """A sum of whole numbers: one tensor, or ``2^bits * names[0] + names[1]``.

    ``scales`` has one scale, or one for each index of ``axis``. ``negative`` has the slopes that
    multiply values below zero.
    """

    names: tuple[str, ...]
    bits: int
    scales: tuple[Fraction, ...]
    axis: int
    bound: int
    carrier: str
    #: the operator that computes the sum and rounds it in its first epilogue
    made_by: Node | None = None
    negative: tuple[Fraction, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingAddition(PendingValue):
    """The sum ``a + b`` or the difference ``a - b`` of words."""

    a: QuantizedTensor
    b: QuantizedTensor
    sign: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingProduct(PendingValue):
    """The product ``a * b`` of words."""

    a: QuantizedTensor
    b: QuantizedTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingFunction(PendingValue):
    """A function of one tensor of words, evaluated by the table of its rounding point."""

    base: QuantizedTensor


Value = QuantizedTensor | PendingValue


@dataclass(frozen=True, slots=True)
class RoundingPoint:
    """A rounding point: its tensor, the operator that computes it, and the proven bound of its
    sums."""

    name: str
    title: str
    bits: int
    signed: bool
    scale: Fraction
    carrier: str
    bound: int
    shape: tuple[int, ...] = field(default=())
