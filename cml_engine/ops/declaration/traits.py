"""Properties of operators that graph passes use, beside shape rules and kernels.

A pass queries a trait, never a name: an operator that a game has put in the place of one of the
engine's has none of its traits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cml_engine.ir.graph import Array, Attrs, Fact, Node

#: a range of rows of a tensor: the first, and one past the last
Span = tuple[int, int]
#: the axes of a transpose: axis d of the result is axis ``order[d]`` of the operand
Order = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Parts:
    """The trait that one tensor of the node is the concatenation of the others along an axis.

    If ``joined`` is True, the result is the whole and the operands are the parts; otherwise the
    operand is the whole. ``place(attrs, fact of the whole, its layout)`` returns the axis and
    the start of the first part in 32-bit words; None if the parts are not contiguous in memory.
    """

    joined: bool
    place: Callable[[Attrs, Fact, str], tuple[int, int] | None]


@dataclass(frozen=True, slots=True)
class OperandRows:
    """The rows of the operands that an operator needs to compute some rows of its result.

    ``inputs`` has the rows of each operand (None: all of it), ``attrs`` the attributes to use
    for this computation, and ``made`` the rows that it gives, which include the requested ones.
    """

    inputs: tuple[Span | None, ...]
    attrs: Attrs
    made: Span


@dataclass(frozen=True, slots=True)
class RowMapping:
    """A mapping from rows of a result, along ``axis``, to the operand rows that they need.

    ``need(begin, end)`` is called with ranges that begin and end at multiples of ``step`` or at
    the end of the axis. The rows computed from them are bit-identical to those of the whole
    operator.
    """

    axis: int
    need: Callable[[int, int], OperandRows]
    step: int = 1


#: a function of attributes, operands' facts, axis of the rows, and chosen kernel; None: no rule
RowsOf = Callable[[Attrs, Sequence[Fact], int, str], RowMapping | None]


@dataclass(frozen=True, slots=True)
class Traits:
    """Properties of an operator that passes use. None or False means that it lacks the property.

    Parameters
    ----------
    before_transpose : ``before_transpose(attrs, order)`` returns the operator's attributes after
        the transpose of all its operands is moved to its result.
    parts : the tensors that may be views of one another.
    scaled_weights : ``scaled_weights(attrs, facts, weights, scale)`` returns the second operand
        that makes the result ``scale`` times as large, with one number for each index of axis 1.
        The third operand is a bias.
    matrix_in_half : ``matrix_in_half(node, facts)`` returns True if the second operand, a constant,
        may be stored in 16 bits.
    filter_in_half : ``filter_in_half(node, layouts)`` returns True if the operator's kernels pack
        the second operand, a constant, in 16 bits.
    reads_sums : the first operand contains sums, as floats or as integers.
    quantizes_input : it quantizes an input to words; the caller may provide the words instead.
    is_integer : it computes integers, which 16-bit floats cannot represent.
    is_sum : it adds products of its operands. Applied to their absolute values, it returns the sum
        of the terms' absolute values.
    rows : ``rows(attrs, facts, axis, kernel)`` returns the rows of the operands, along that axis,
        that some rows of the results depend on; None if there is no such relation. ``kernel`` is
        the chosen variant, "" if there was no choice.
    """

    before_transpose: Callable[[Attrs, Order], Attrs] | None = None
    parts: Parts | None = None
    scaled_weights: Callable[[Attrs, Sequence[Fact], Array, Array], Array] | None = None
    matrix_in_half: Callable[[Node, Mapping[str, Fact]], bool] | None = None
    filter_in_half: Callable[[Node, Mapping[str, str]], bool] | None = None
    reads_sums: bool = False
    quantizes_input: bool = False
    is_integer: bool = False
    is_sum: bool = False
    rows: RowsOf | None = None


NO_TRAITS = Traits()


def other_axis(attrs: Attrs, order: Order) -> Attrs:
    """Returns the attributes with ``axis`` renumbered for transposed operands."""
    return Attrs({**attrs, "axis": order[int(attrs["axis"])]})


def other_axes(attrs: Attrs, order: Order) -> Attrs:
    """Returns the attributes with all ``axes`` renumbered for transposed operands."""
    return Attrs({**attrs, "axes": [order[int(axis)] for axis in attrs["axes"]]})


def along_axis(attrs: Attrs, whole: Fact, layout: str) -> tuple[int, int]:
    """Returns the attribute ``axis`` and 0: the parts are consecutive along it from its start.

    A function for ``Parts.place``.
    """
    return int(attrs["axis"]), 0
