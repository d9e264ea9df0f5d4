"""The end of a network that may be computed in floats: what has no integer form, and all that reads
it. What comes of it may differ from machine to machine."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from cml_engine.compiler.integer.lowering.making import Making
from cml_engine.errors import ModelError
from cml_engine.ir.graph import Node


@dataclass
class Tail:
    """``floats`` are its tensors, ``first`` the operator that it begins with."""

    making: Making
    floats: set[str] = field(default_factory=set)
    first: str = ""
    _numbers: dict[str, str] = field(default_factory=dict)

    def reaches(self, node: Node) -> bool:
        """Whether the node reads what is computed in floats."""
        return not self.floats.isdisjoint(node.inputs)

    def take(self, node: Node) -> None:
        """The node itself, of real numbers."""
        self.first = self.first or node.title
        for name in node.outputs:
            if name in self.making.lines:
                raise ModelError(
                    f"{node.title} is computed in floats, and graph.quant has a line for '{name}': "
                    "what is behind the float tail is not rounded, take the line out",
                    node.source,
                )
        inputs = tuple(self._read(node, name) for name in node.inputs)
        self.making.nodes.append(replace(node, inputs=inputs))
        self.floats.update(node.outputs)

    def _read(self, node: Node, name: str) -> str:
        """A tensor's numbers."""
        making = self.making
        if name in making.values:
            if name not in self._numbers:
                words = making.words(node, name)
                numbers = making.fresh(f"{name}.numbers")
                scale = float(words.scale)
                making.add(node, "integer_numbers", (words.name,), numbers, scale=scale)
                self._numbers[name] = numbers
            return self._numbers[name]
        array = making.graph.constants.get(name)
        if array is not None and name in making.lines and array.dtype.kind in "iu":
            values = np.array([float(v) for v in making.real(name)]).reshape(array.shape)
            return making.constant(f"{name}.numbers", values)
        return name
