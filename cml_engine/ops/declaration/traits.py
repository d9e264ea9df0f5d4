"""Properties of an operator that passes use, beside its shape rule and its kernel.

A pass queries a trait, never a name: an operator that a game has put in the place of one of the
engine's has none of its traits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cml_engine.ir.graph import Array, Attrs, Fact, Node

#: some rows of a tensor: the first, and the one behind the last
Span = tuple[int, int]
#: axis d of what is transposed is axis ``order[d]`` of what it was made of
Order = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Parts:
    """One tensor of the node is made of the others, one after the other along an axis.

    ``joined``: the result is the whole, its operands are the parts; else the other way.
    ``place(attrs, fact of the whole, its layout)``: the axis, and where the first part begins, in
    32-bit words; None where the parts are no runs of memory.
    """

    joined: bool
    place: Callable[[Attrs, Fact, str], tuple[int, int] | None]


@dataclass(frozen=True, slots=True)
class Need:
    """The inputs for some rows of a result.

    It has the rows of each operand (None: all of it), the attributes to use then, and the rows
    that are made, which include the requested ones.
    """

    inputs: tuple[Span | None, ...]
    attrs: Attrs
    made: Span


@dataclass(frozen=True, slots=True)
class Rows:
    """The dependence of result rows, along ``axis``, on rows of the operands.

    ``need(begin, end)`` is called with ranges that begin and end at multiples of ``step`` or at
    the end of the axis. The rows made from them are bit-identical to those of the whole
    operator.
    """

    axis: int
    need: Callable[[int, int], Need]
    step: int = 1


#: of attributes, the operands' facts, the axis of their rows, and the kernel that was chosen
RowsOf = Callable[[Attrs, Sequence[Fact], int, str], Rows | None]


@dataclass(frozen=True, slots=True)
class Traits:
    """Each is None or False where the operator has nothing of the kind.

    Parameters
    ----------
    before_transpose : ``before_transpose(attrs, order)``: its attributes where the operator comes
        before a transpose of its result, which all its operands had before.
    parts : what of it may be views.
    scaled_weights : ``scaled_weights(attrs, facts, weights, scale)``: its second operand so that
        the result is ``scale`` times as large, a number for each index of axis 1; the third is a
        bias.
    matrix_in_half : ``matrix_in_half(node, facts)``: its second operand, a constant, may lie in
        memory in 16 bits.
    filter_in_half : ``filter_in_half(node, layouts)``: its kernels pack its second operand, a
        constant, in 16 bits.
    rounds : its first operand are sums, as floats or as integers.
    enters : it makes words of an input, which who gives that may do too.
    whole : it is of whole numbers, which 16-bit floats do not hold.
    adds : it adds up products of its operands: of their absolute values it gives the sum of the
        terms' absolute values.
    rows : ``rows(attrs, facts, axis, kernel)``: how some rows of its results are made of some rows
        of its operands, whose rows lie along that axis; None where they are not. ``kernel`` is the
        variant that was chosen for it, "" where there was nothing to choose.
    """

    before_transpose: Callable[[Attrs, Order], Attrs] | None = None
    parts: Parts | None = None
    scaled_weights: Callable[[Attrs, Sequence[Fact], Array, Array], Array] | None = None
    matrix_in_half: Callable[[Node, Mapping[str, Fact]], bool] | None = None
    filter_in_half: Callable[[Node, Mapping[str, str]], bool] | None = None
    rounds: bool = False
    enters: bool = False
    whole: bool = False
    adds: bool = False
    rows: RowsOf | None = None


NO_TRAITS = Traits()


def other_axis(attrs: Attrs, order: Order) -> Attrs:
    """Returns the attributes after a transpose, for an operator with one ``axis``."""
    return Attrs({**attrs, "axis": order[int(attrs["axis"])]})


def other_axes(attrs: Attrs, order: Order) -> Attrs:
    """Returns the attributes after a transpose, for an operator with a list of ``axes``."""
    return Attrs({**attrs, "axes": [order[int(axis)] for axis in attrs["axes"]]})


def along_axis(attrs: Attrs, whole: Fact, layout: str) -> tuple[int, int]:
    """Returns the axis and start of parts that together are the whole along ``axis``."""
    return int(attrs["axis"]), 0
