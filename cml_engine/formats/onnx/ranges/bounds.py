"""Between which bounds the values of each tensor lie, as far as that can be proven."""

from __future__ import annotations

from cml_engine.formats.builder import GraphBuilder
from cml_engine.formats.onnx.ranges.interval import Interval, of_array, whole
from cml_engine.formats.onnx.ranges.rules import PASSED, RULES, Operands
from cml_engine.formats.onnx.values import Value


class Intervals:
    """The tensors' bounds, by name. Those of an integer are what ONNX's 64 bits would hold until
    they are settled; :meth:`held` is what becomes of them in 32."""

    def __init__(self, builder: GraphBuilder) -> None:
        self._builder = builder
        self._known: dict[str, Interval] = {}
        self._learned = 0

    def declare(self, tensor: str, interval: Interval) -> None:
        """The bounds of an input."""
        self._known[tensor] = interval

    def learn(self) -> None:
        """Look at the nodes that are new since the last time."""
        nodes = self._builder.nodes
        for node in nodes[self._learned :]:
            rule = RULES.get(node.op)
            if rule is not None:
                of = self.__getitem__ if node.op in PASSED else self.held
                given = [of(name) for name in node.inputs]
                facts = [self._builder.facts[name] for name in node.inputs]
                found = rule(Operands(node, given, facts))
                each = found if isinstance(found, list) else [found] * len(node.outputs)
                self._known.update(zip(node.outputs, each, strict=True))
        self._learned = len(nodes)

    def of(self, value: Value) -> Interval:
        """The bounds of what an operator of ONNX's reads."""
        if value.array is not None:
            return of_array(value.array)
        self.learn()
        return self.held(value.tensor or "")

    def bounded(self, value: Value, interval: Interval) -> Value:
        """A computed value of which more is known than its operators say."""
        self.learn()
        self._known[value.tensor or ""] = interval
        return value

    def settle(self, tensor: str, all_of_type: Interval) -> None:
        """What left its type is said: from here on it counts as any of the type."""
        if not self[tensor].within(all_of_type):
            self._known[tensor] = all_of_type

    def forget(self, mark: int) -> None:
        """The nodes from that number on are taken back."""
        self._learned = min(self._learned, mark)

    def __getitem__(self, tensor: str) -> Interval:
        known = self._known.get(tensor)
        if known is None:
            array = self._builder.constants.get(tensor)
            known = whole(self._builder.facts[tensor]) if array is None else of_array(array)
            self._known[tensor] = known
        return known

    def held(self, tensor: str) -> Interval:
        """The bounds in the network: integers that leave 32 bits may be any."""
        found, all_of_type = self[tensor], whole(self._builder.facts[tensor])
        return found if found.within(all_of_type) else all_of_type
