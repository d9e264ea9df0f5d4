"""The float tail: the operators without an integer form at the end of a network, and their readers.

Results of the tail may differ between machines.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from cml_engine.compiler.integer.lowering.integer_builder import IntegerGraphBuilder
from cml_engine.errors import ModelError
from cml_engine.ir.graph import Node


@dataclass
class FloatTail:
    """The operators at the end of a network that are computed in floats.

    ``floats`` has the names of their results. ``first`` is the title of the first operator,
    empty if there is none. :meth:`add` appends their nodes to ``builder``.
    """

    builder: IntegerGraphBuilder
    floats: set[str] = field(default_factory=set)
    first: str = ""
    _numbers: dict[str, str] = field(default_factory=dict)

    def reaches(self, node: Node) -> bool:
        """Returns True if the node reads a tensor that is computed in floats."""
        return not self.floats.isdisjoint(node.inputs)

    def add(self, node: Node) -> None:
        """Appends the node to the new graph as part of the float tail; its operands become real
        numbers.

        Raises :class:`ModelError` if one of its results has a line in ``graph.quant``.
        """
        self.first = self.first or node.title
        for name in node.outputs:
            if name in self.builder.quant_params:
                raise ModelError(
                    f"{node.title} is computed in floats, and graph.quant has a line for '{name}': "
                    "what is behind the float tail is not rounded, take the line out",
                    node.source,
                )
        inputs = tuple(self._read(node, name) for name in node.inputs)
        self.builder.nodes.append(replace(node, inputs=inputs))
        self.floats.update(node.outputs)

    def _read(self, node: Node, name: str) -> str:
        """Returns the name of the tensor that holds the real numbers of ``name``.

        Words get a node that converts them, added once. An integer constant gets a new constant
        of real numbers. Any other tensor is returned as it is.
        """
        builder = self.builder
        if name in builder.values:
            if name not in self._numbers:
                words = builder.words(node, name)
                numbers = builder.unique_name(f"{name}.numbers")
                scale = float(words.scale)
                builder.add(node, "integer_numbers", (words.name,), numbers, scale=scale)
                self._numbers[name] = numbers
            return self._numbers[name]
        array = builder.graph.constants.get(name)
        if array is not None and name in builder.quant_params and array.dtype.kind in "iu":
            values = np.array([float(v) for v in builder.exact_values(name)]).reshape(array.shape)
            return builder.constant(f"{name}.numbers", values)
        return name
