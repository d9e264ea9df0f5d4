"""Computes proven bounds of the values of each tensor."""

from __future__ import annotations

from cml_engine.formats.builder import ImportBuilder
from cml_engine.formats.onnx.ranges.interval import Interval, of_array, whole
from cml_engine.formats.onnx.ranges.rules import PASSED, RULES, Operands
from cml_engine.formats.onnx.values import Value


class Intervals:
    """The proven bounds of the values of each tensor of a graph under construction, by name.

    The bounds of an integer are those of ONNX's 64-bit value until :meth:`settle`;
    :meth:`stored_interval` gives the bounds in the network's 32 bits.
    """

    def __init__(self, builder: ImportBuilder) -> None:
        self._builder = builder
        self._known: dict[str, Interval] = {}
        self._learned = 0

    def declare(self, tensor: str, interval: Interval) -> None:
        """Sets the bounds of the values of an input of the network."""
        self._known[tensor] = interval

    def learn(self) -> None:
        """Computes the bounds of the results of all nodes added since the last call."""
        nodes = self._builder.nodes
        for node in nodes[self._learned :]:
            rule = RULES.get(node.op)
            if rule is not None:
                of = self.__getitem__ if node.op in PASSED else self.stored_interval
                given = [of(name) for name in node.inputs]
                facts = [self._builder.facts[name] for name in node.inputs]
                found = rule(Operands(node, given, facts))
                each = found if isinstance(found, list) else [found] * len(node.outputs)
                self._known.update(zip(node.outputs, each, strict=True))
        self._learned = len(nodes)

    def of(self, value: Value) -> Interval:
        """Returns the bounds of a value in the network.

        For a known value they are its smallest and largest number.
        """
        if value.array is not None:
            return of_array(value.array)
        self.learn()
        return self.stored_interval(value.tensor or "")

    def with_bounds(self, value: Value, interval: Interval) -> Value:
        """Sets tighter bounds of a value than the computed ones, and returns the same value."""
        self.learn()
        self._known[value.tensor or ""] = interval
        return value

    def settle(self, tensor: str, all_of_type: Interval) -> None:
        """Replaces bounds that exceed the tensor's type by ``all_of_type``."""
        if not self[tensor].within(all_of_type):
            self._known[tensor] = all_of_type

    def forget(self, mark: int) -> None:
        """Records that the nodes from index ``mark`` on were removed from the graph."""
        self._learned = min(self._learned, mark)

    def __getitem__(self, tensor: str) -> Interval:
        known = self._known.get(tensor)
        if known is None:
            array = self._builder.constants.get(tensor)
            known = whole(self._builder.facts[tensor]) if array is None else of_array(array)
            self._known[tensor] = known
        return known

    def stored_interval(self, tensor: str) -> Interval:
        """Returns a tensor's bounds in the network.

        An integer that may exceed 32 bits has any value.
        """
        found, all_of_type = self[tensor], whole(self._builder.facts[tensor])
        return found if found.within(all_of_type) else all_of_type
