"""One node of ours being written as nodes of ONNX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from cml_engine.convert.onnx.export.wire import OutNode
from cml_engine.errors import UnsupportedOp
from cml_engine.graph import NUMPY_DTYPE, Attrs, Fact, Node

Array = np.ndarray[Any, Any]


class Constants(Protocol):
    """Where constants go: initializers of the graph, or nodes of a function. ``name`` is what
    they are called if that can be."""

    def __call__(self, array: Array, name: str = "") -> str: ...


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that a node reads; ``value`` where it is the same in every run, and ``stored``
    where a tensor of that name has it already."""

    name: str
    fact: Fact
    value: Array | None = None
    stored: bool = False


@dataclass
class Call:
    """What a row's form is handed: the node's operands and attributes, and where nodes go."""

    node: Node
    operands: Sequence[Operand]
    results: Sequence[Fact]
    opset: int
    constants: Constants
    prefix: str
    taken: set[str]
    nodes: list[OutNode] = field(default_factory=list)

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
        """An operand's values, where they are known."""
        return self.operands[position].value

    def tensor(self, position: int, shape: Sequence[int] | None = None) -> str:
        """An operand, in another shape if wanted."""
        operand = self.operands[position]
        wanted = operand.fact.shape if shape is None else tuple(shape)
        if operand.value is not None and not operand.stored:
            return self.constants(operand.value.reshape(wanted), operand.name)
        if wanted == operand.fact.shape:
            return operand.name
        return self.reshaped(operand.name, wanted)

    @property
    def tensors(self) -> list[str]:
        return [self.tensor(i) for i in range(len(self.operands))]

    def aligned(self, position: int, rank: int) -> str:
        """An operand with ones behind: NNEF lines shapes up on the left, ONNX on the right."""
        shape = self.fact(position).shape
        if not shape:
            return self.tensor(position)
        return self.tensor(position, (*shape, *[1] * (rank - len(shape))))

    def all_aligned(self) -> list[str]:
        rank = max(operand.fact.rank for operand in self.operands)
        return [self.aligned(i, rank) for i in range(len(self.operands))]

    # -- what is written ------------------------------------------------------------------------

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """A node with one result."""
        return self.split(op, *inputs, results=1, **attributes)[0]

    def split(self, op: str, *inputs: str, results: int, **attributes: Any) -> list[str]:
        """A node with several results."""
        names = [self._name(op) for _ in range(results)]
        given = {name: value for name, value in attributes.items() if value is not None}
        self.nodes.append(OutNode(op, inputs, tuple(names), given))
        return names

    def _name(self, op: str) -> str:
        name, count = f"{self.prefix}{op}", 1
        while name in self.taken:
            count += 1
            name = f"{self.prefix}{op}_{count}"
        self.taken.add(name)
        return name

    def constant(self, array: Array) -> str:
        return self.constants(array)

    def real(self, value: float) -> str:
        return self.constants(np.array(value, np.float32))

    def whole(self, value: int) -> str:
        """One of our integers."""
        return self.constants(np.array(value, np.int32))

    def indices(self, *values: int) -> str:
        """A list as ONNX wants shapes, axes and the like."""
        return self.constants(np.array(values, np.int64))

    def filled(self, value: Any, fact: Fact | None = None) -> str:
        """A constant of one value, of the first result's shape or another."""
        fact = fact or self.out
        return self.constants(np.full(fact.shape, value, NUMPY_DTYPE[fact.dtype]))

    # -- what many forms share ------------------------------------------------------------------

    def reshaped(self, x: str, shape: Sequence[int]) -> str:
        # 0 would stand for the input's own extent
        zero = 1 if 0 in shape else None
        if zero:
            self.need(14, "a shape with an extent of 0")
        return self.add("Reshape", x, self.indices(*shape), allowzero=zero)

    def cast(self, x: str, dtype: str) -> str:
        """To a type of ours, or of NumPy's."""
        name = NUMPY_DTYPE[dtype].name if dtype in NUMPY_DTYPE else dtype
        return self.add("Cast", x, to=ELEMENTS[name])

    def transposed(self, x: str, axes: Sequence[int]) -> str:
        if list(axes) == list(range(len(axes))):
            return x
        return self.add("Transpose", x, perm=[int(axis) for axis in axes])

    def reduced(self, op: str, x: str, axes: Sequence[int], keep: bool = True) -> str:
        """A reduction; its axes were an attribute before opset 18, of ReduceSum's before 13."""
        axes = [int(axis) for axis in axes]
        if op == "ReduceSum" or self.opset >= 18:
            return self.add(op, x, self.indices(*axes), keepdims=int(keep))
        return self.add(op, x, axes=axes, keepdims=int(keep))

    def either(self, condition: str, yes: str, no: str) -> str:
        return self.add("Where", condition, yes, no)

    def need(self, opset: int, what: str) -> None:
        """Refuse an opset that is too old for something."""
        if self.opset < opset:
            raise UnsupportedOp(
                f"{self.node.title}: {what} needs opset {opset}, and {self.opset} is asked for: "
                f"give --opset {opset} (opset={opset})",
                self.node.source,
            )

    def refused(self, why: str) -> UnsupportedOp:
        return UnsupportedOp(f"{self.node.title} has no ONNX form: {why}", self.node.source)


ELEMENTS: Mapping[str, int] = {
    "float32": 1, "uint8": 2, "int32": 6, "int64": 7, "bool": 9, "float64": 11, "uint32": 12,
}  # fmt: skip


def renamed(nodes: Sequence[OutNode], names: Mapping[str, str]) -> list[OutNode]:
    """The nodes with other names of tensors."""
    return [
        replace(
            node,
            inputs=tuple(names.get(name, name) for name in node.inputs),
            outputs=tuple(names.get(name, name) for name in node.outputs),
        )
        for node in nodes
    ]
