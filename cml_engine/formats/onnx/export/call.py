"""One node of the engine's graph while it is exported as nodes of ONNX."""

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
    """One node of the engine's graph during export: its operands and the types of its results.

    The export function of the node's operator gets it as its argument and adds ONNX nodes to it.
    """

    operands: Sequence[ExportOperand]
    results: Sequence[Fact]

    @property
    def attrs(self) -> Attrs:
        return self.node.attrs

    @property
    def x(self) -> str:
        """The name of the first operand's ONNX tensor."""
        return self.tensor(0)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the first operand."""
        return self.fact(0).shape

    @property
    def out(self) -> Fact:
        """The type and shape of the first result."""
        return self.results[0]

    def fact(self, position: int) -> Fact:
        return self.operands[position].fact

    def value(self, position: int) -> Array | None:
        """Returns an operand's values, or None if they are only known at run time."""
        return self.operands[position].value

    def tensor(self, position: int, shape: Sequence[int] | None = None) -> str:
        """Returns the name of an operand's ONNX tensor, reshaped if a shape is given.

        A constant operand is stored in the file first.
        """
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
        """Returns the name of an operand with axes of 1 appended up to ``rank``.

        NNEF aligns shapes from the left, ONNX from the right.
        """
        shape = self.fact(position).shape
        if not shape:
            return self.tensor(position)
        return self.tensor(position, (*shape, *[1] * (rank - len(shape))))

    def align_all(self) -> list[str]:
        rank = max(operand.fact.rank for operand in self.operands)
        return [self.align(i, rank) for i in range(len(self.operands))]

    def fill(self, value: object, fact: Fact | None = None) -> str:
        """Adds a constant tensor with the same value everywhere and returns its name.

        Its type and shape are ``fact``, or those of the first result.
        """
        fact = fact or self.out
        return self.constants(np.full(fact.shape, value, NUMPY_DTYPE[fact.dtype]))
