"""The ONNX nodes written for one node of the engine's graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from cml_engine.errors import UnsupportedOp
from cml_engine.formats.onnx.export.wire import ELEMENTS, OutNode
from cml_engine.ir.graph import NUMPY_DTYPE, Array, AttrValue, Node, numbered_name


class ConstantStore(Protocol):
    """A function that stores an array as a constant of the ONNX file and returns its name.

    The constant is an initializer or a node of a local function. Its name is ``name`` if that is
    free.
    """

    def __call__(self, array: Array, name: str = "") -> str: ...


@dataclass(kw_only=True)
class NodeWriter:
    """The ONNX nodes that replace one node of the engine's graph, and the constants that they read.

    Methods take and return the names of tensors.
    """

    node: Node
    opset: int
    constants: ConstantStore
    prefix: str
    taken: set[str]
    nodes: list[OutNode] = field(default_factory=list)

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Adds a node with one result and returns the result's name."""
        return self.split(op, *inputs, results=1, **attributes)[0]

    def split(self, op: str, *inputs: str, results: int, **attributes: AttrValue) -> list[str]:
        """Adds a node with ``results`` results and returns their names.

        Attributes of None are left out.
        """
        names = [self._name(op) for _ in range(results)]
        given = {name: value for name, value in attributes.items() if value is not None}
        self.nodes.append(OutNode(op, inputs, tuple(names), given))
        return names

    def _name(self, op: str) -> str:
        name = numbered_name(f"{self.prefix}{op}", self.taken.__contains__)
        self.taken.add(name)
        return name

    def constant(self, array: Array) -> str:
        return self.constants(array)

    def real(self, value: float) -> str:
        return self.constants(np.array(value, np.float32))

    def whole(self, value: int) -> str:
        """Adds an int32 constant and returns its name."""
        return self.constants(np.array(value, np.int32))

    def indices(self, *values: int) -> str:
        """Adds an int64 list, the type of ONNX's shapes and axes, and returns its name."""
        return self.constants(np.array(values, np.int64))

    # -- what many forms share --------------------------------------------------------------------

    def reshape(self, x: str, shape: Sequence[int]) -> str:
        # without allowzero 0 means the input's extent
        zero = 1 if 0 in shape else None
        if zero:
            self.require_opset(14, "a shape with an extent of 0")
        return self.add("Reshape", x, self.indices(*shape), allowzero=zero)

    def cast(self, x: str, dtype: str) -> str:
        """Adds a cast to ``dtype``, a type of NNEF or of NumPy, and returns the result's name."""
        name = NUMPY_DTYPE[dtype].name if dtype in NUMPY_DTYPE else dtype
        return self.add("Cast", x, to=ELEMENTS[name])

    def transpose(self, x: str, axes: Sequence[int]) -> str:
        if list(axes) == list(range(len(axes))):
            return x
        return self.add("Transpose", x, perm=[int(axis) for axis in axes])

    def reduce(self, op: str, x: str, axes: Sequence[int], keep: bool = True) -> str:
        """Adds the reduction ``op`` over the given axes and returns the result's name.

        The axes are an attribute before opset 18, but always an input of ReduceSum.
        """
        axes = [int(axis) for axis in axes]
        if op == "ReduceSum" or self.opset >= 18:
            return self.add(op, x, self.indices(*axes), keepdims=int(keep))
        return self.add(op, x, axes=axes, keepdims=int(keep))

    def where(self, condition: str, yes: str, no: str) -> str:
        return self.add("Where", condition, yes, no)

    def require_opset(self, opset: int, what: str) -> None:
        """Raises :class:`UnsupportedOp` if the model's opset is below ``opset``.

        ``what`` is the feature that needs ``opset``, for the message.
        """
        if self.opset < opset:
            raise UnsupportedOp(
                f"{self.node.title}: {what} needs opset {opset}, and {self.opset} is asked for: "
                f"give --opset {opset} (opset={opset})",
                self.node.source,
            )

    def unsupported_error(self, why: str) -> UnsupportedOp:
        return UnsupportedOp(f"{self.node.title} has no ONNX form: {why}", self.node.source)


def rename_tensors(nodes: Sequence[OutNode], names: Mapping[str, str]) -> list[OutNode]:
    """Returns copies of the nodes with their inputs and outputs renamed by ``names``."""
    return [
        replace(
            node,
            inputs=tuple(names.get(name, name) for name in node.inputs),
            outputs=tuple(names.get(name, name) for name in node.outputs),
        )
        for node in nodes
    ]
