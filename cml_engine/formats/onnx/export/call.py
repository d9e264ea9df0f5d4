"""One node of the engine's graph while it is written as nodes of ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cml_engine.formats.onnx.export.nodes import NodeWriter
from cml_engine.ir.graph import NUMPY_DTYPE, Array, Attrs, Fact


@dataclass(frozen=True, slots=True)
class ExportOperand:
    """A tensor that a node reads.

    ``value`` is set if the tensor is the same in every run. ``stored`` is True if a tensor of
    that name is already in the file.
    """

    name: str
    fact: Fact
    value: Array | None = None
    stored: bool = False


@dataclass(kw_only=True)
class ExportCall(NodeWriter):
    """The argument of an export form: the node's operands and attributes, and the nodes written."""

    operands: Sequence[ExportOperand]
    results: Sequence[Fact]

    @property
    def attrs(self) -> Attrs:
        return self.node.attrs

    @property
    def x(self) -> str:
        """The first operand."""
        return self.tensor(0)

    @property
    def shape(self) -> tuple[int, ...]:
        """The first operand's extents."""
        return self.fact(0).shape

    @property
    def out(self) -> Fact:
        """The first result."""
        return self.results[0]

    def fact(self, position: int) -> Fact:
        return self.operands[position].fact

    def value(self, position: int) -> Array | None:
        """Returns an operand's values, or None if they are not known."""
        return self.operands[position].value

    def tensor(self, position: int, shape: Sequence[int] | None = None) -> str:
        """Returns the name of an operand, reshaped if a shape is given."""
        operand = self.operands[position]
        wanted = operand.fact.shape if shape is None else tuple(shape)
        if operand.value is not None and not operand.stored:
            return self.constants(operand.value.reshape(wanted), operand.name)
        if wanted == operand.fact.shape:
            return operand.name
        return self.reshape(operand.name, wanted)

    @property
    def tensors(self) -> list[str]:
        return [self.tensor(i) for i in range(len(self.operands))]

    def align(self, position: int, rank: int) -> str:
        """Appends axes of 1 to an operand: NNEF aligns shapes from the left, ONNX from the
        right."""
        shape = self.fact(position).shape
        if not shape:
            return self.tensor(position)
        return self.tensor(position, (*shape, *[1] * (rank - len(shape))))

    def align_all(self) -> list[str]:
        rank = max(operand.fact.rank for operand in self.operands)
        return [self.align(i, rank) for i in range(len(self.operands))]

    def fill(self, value: object, fact: Fact | None = None) -> str:
        """Adds a constant filled with one value; its default shape is that of the first result."""
        fact = fact or self.out
        return self.constants(np.full(fact.shape, value, NUMPY_DTYPE[fact.dtype]))
