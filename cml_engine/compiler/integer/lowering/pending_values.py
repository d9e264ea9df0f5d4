"""The values of tensors during lowering: words, or pending results that are not rounded yet."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction

from cml_engine.compiler.integer.sum_bounds import Range
from cml_engine.errors import Source
from cml_engine.ir.graph import Node


@dataclass(frozen=True, slots=True)
class QuantizedTensor:
    """Words: a tensor of the new graph whose whole numbers ``q`` stand for ``scale * q``.

    ``range`` bounds its words. A word has ``bits`` bits, 8 or 16.
    """

    name: str
    scale: Fraction
    bits: int
    signed: bool
    range: Range

    @property
    def first(self) -> int:
        """The least word of the type, for which the first entry of a lookup table stands."""
        return -(1 << (self.bits - 1)) if self.signed else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingValue:
    """A node's result before the rounding point that turns it into words.

    ``title`` and ``source`` are those of the node. ``low`` and ``high`` are bounds, in real
    numbers, to which activations clamp the value; None is no bound. ``base`` is the only tensor
    of words that the value is a function of, or None if there are several.
    """

    title: str
    source: Source | None = None
    low: Fraction | None = None
    high: Fraction | None = None
    base: QuantizedTensor | None = None

    def with_bounds(self, low: Fraction | None, high: Fraction | None) -> PendingValue:
        """Returns the value clamped to ``low`` and ``high`` in addition to its own bounds; None
        is no bound."""
        lows = [b for b in (self.low, low) if b is not None]
        highs = [b for b in (self.high, high) if b is not None]
        return replace(self, low=max(lows, default=None), high=min(highs, default=None))


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingSum(PendingValue):
    """A pending sum of whole numbers: one tensor, or ``2^bits * names[0] + names[1]``.

    ``scales`` has one scale, or one for each index of ``axis``. ``bound`` is the largest
    possible magnitude of a sum, ``carrier`` the type that holds it. ``negative`` has the slopes
    that multiply values below zero, one or one per index; it is empty without such slopes.
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
    """The pending sum ``a + b`` of two tensors of words, or ``a - b`` if ``sign`` is -1."""

    a: QuantizedTensor
    b: QuantizedTensor
    sign: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingProduct(PendingValue):
    """The pending product ``a * b`` of two tensors of words."""

    a: QuantizedTensor
    b: QuantizedTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingFunction(PendingValue):
    """A pending function of the words ``base``, which the lookup table of its rounding point
    evaluates."""

    base: QuantizedTensor


Value = QuantizedTensor | PendingValue


@dataclass(frozen=True, slots=True)
class RoundingPoint:
    """A tensor that is rounded to words: its name, the title of the operator that computes it, and
    its word type.

    ``bound`` is the proven bound of its sums. ``carrier`` is the type that holds the sums, or
    ``"table"``.
    """

    name: str
    title: str
    bits: int
    signed: bool
    scale: Fraction
    carrier: str
    bound: int
    shape: tuple[int, ...] = field(default=())
