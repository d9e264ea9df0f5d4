"""What a tensor of an integer network is while the network is made ready: words, or a sum that is
yet to be rounded."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction

from cml_engine.compiler.integer.proof import Range
from cml_engine.errors import Source
from cml_engine.ir.graph import Node


@dataclass(frozen=True, slots=True)
class Words:
    """A tensor of the new graph: whole numbers ``q`` that stand for ``scale * q``."""

    name: str
    scale: Fraction
    bits: int
    signed: bool
    range: Range

    @property
    def first(self) -> int:
        """The word that a table's first entry is for."""
        return -(1 << (self.bits - 1)) if self.signed else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """What becomes words at the next rounding point. ``low`` and ``high`` bound the numbers that it
    stands for; ``base`` is the tensor that it is a function of, where it is one of a single one."""

    title: str
    source: Source | None = None
    low: Fraction | None = None
    high: Fraction | None = None
    base: Words | None = None

    def bounded(self, low: Fraction | None, high: Fraction | None) -> Pending:
        """With bounds besides those it has."""
        lows = [b for b in (self.low, low) if b is not None]
        highs = [b for b in (self.high, high) if b is not None]
        return replace(self, low=max(lows, default=None), high=min(highs, default=None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum(Pending):
    """``2^bits * names[0] + names[1]``, or one tensor: whole numbers times ``scales``, one or one
    for each index of ``axis``. ``negative`` multiplies what is below zero."""

    names: tuple[str, ...]
    bits: int
    scales: tuple[Fraction, ...]
    axis: int
    bound: int
    carrier: str
    #: where they are not rounded apart from what makes them: that operator
    made_by: Node | None = None
    negative: tuple[Fraction, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Two(Pending):
    """``a + b`` or ``a - b`` of words."""

    a: Words
    b: Words
    sign: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Product(Pending):
    """``a * b`` of words."""

    a: Words
    b: Words


@dataclass(frozen=True, slots=True, kw_only=True)
class Function(Pending):
    """Any function of one tensor of words, as the table at its rounding point says."""

    base: Words


Value = Words | Pending


@dataclass(frozen=True, slots=True)
class Point:
    """A rounding point: which tensor, made how, and what is proven of it."""

    name: str
    title: str
    bits: int
    signed: bool
    scale: Fraction
    carrier: str
    bound: int
    shape: tuple[int, ...] = field(default=())
