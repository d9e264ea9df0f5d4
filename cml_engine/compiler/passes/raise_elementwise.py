"""Moves elementwise operators before the reshapes and transposes between them and their producer.

The producer's kernel then takes them as epilogues, which saves a kernel. The last activation of a
network often follows a pixel shuffle or the reshape of a product's rows.
"""

from __future__ import annotations

from dataclasses import replace

from cml_engine.compiler.passes.cleanup import eliminate_dead_code
from cml_engine.ir.construction import GraphRewriter
from cml_engine.ir.graph import Fact, Graph, Node
from cml_engine.ops.declaration.registry import is_builtin, lookup

_MOVES = ("reshape", "transpose")


def raise_elementwise(graph: Graph) -> Graph:
    """Returns the graph with elementwise operators moved to the kernels that can apply them.

    The other operands must have one value. Behind reshapes alone they may also be tensors of the
    result's shape.
    """
    if not is_builtin(*_MOVES):
        return graph
    raiser = _Raiser(graph)
    for node in graph.nodes:
        raiser.visit(node)
    return eliminate_dead_code(raiser.finished())


class _Raiser(GraphRewriter):
    """Moves operators in one pass over the nodes, in execution order."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self._roots = set(graph.roots)
        self._raised: set[str] = set()

    def visit(self, node: Node) -> None:
        for position in self._positions(node):
            moves = self._moves_before(node.inputs[position])
            if moves and self._fits(node, position, moves):
                self._raise(node, position, moves)
                return
        self.append(node)

    def _positions(self, node: Node) -> range:
        """Returns the positions of the operands that may come from a producer."""
        formula = lookup(node.op).formula
        if formula is None or not formula.fusable or node.epilogues:
            return range(0)
        return range(min(2 if formula.commutative else 1, len(node.inputs)))

    def _moves_before(self, name: str) -> list[Node]:
        """Returns the reshapes and transposes between a kernel with epilogues and the tensor.

        They are in running order. The list is empty if no kernel that takes epilogues computes
        the first one's operand, or if another node reads a tensor in between.
        """
        moves: list[Node] = []
        while self._is_read_once(name) and (node := self.producers.get(name)) is not None:
            if node.op not in _MOVES or node.epilogues:
                kernel = lookup(node.op).kernel
                takes = kernel is not None and kernel.epilogues != "none"
                is_producer = len(node.outputs) == 1 and (takes or name in self._raised)
                return moves[::-1] if is_producer else []
            moves.append(node)
            name = node.inputs[0]
        return []

    def _is_read_once(self, name: str) -> bool:
        return name not in self._roots and len(self.graph.consumers.get(name, ())) <= 1

    def _fits(self, node: Node, position: int, moves: list[Node]) -> bool:
        source = self.facts[moves[0].inputs[0]]
        result = self.facts[node.outputs[0]]
        others = [n for i, n in enumerate(node.inputs) if i != position]
        if result != self.facts[node.inputs[position]] or node.inputs[position] in others:
            return False
        facts = [self.facts[name] for name in others]
        only_reshapes = all(move.op == "reshape" for move in moves)
        return all(
            (fact.size == 1 and fact.rank <= source.rank)
            or (only_reshapes and fact == result and name not in self.graph.constants)
            for name, fact in zip(others, facts, strict=True)
        )

    def _raise(self, node: Node, position: int, moves: list[Node]) -> None:
        """Adds the operator on what the moves read, and the moves behind it."""
        name, source = node.outputs[0], self.facts[moves[0].inputs[0]]
        operands = [
            moves[0].inputs[0] if i == position else self._reshaped(operand, source, node)
            for i, operand in enumerate(node.inputs)
        ]
        latest = self._new(f"{name}.raised", Fact(self.facts[name].dtype, source.shape))
        self.append(replace(node, inputs=tuple(operands), outputs=(latest,)))
        self._raised.add(latest)
        for move in moves:
            moved = self.facts[move.outputs[0]]
            result = name if move is moves[-1] else self._new(move.outputs[0], moved)
            self.append(replace(move, inputs=(latest,), outputs=(result,)))
            latest = result

    def _reshaped(self, operand: str, source: Fact, node: Node) -> str:
        """Returns the name of an operand of the result's shape in the shape of the source."""
        fact = self.facts[operand]
        if fact.size == 1 or fact == source:
            return operand
        name = self._new(f"{operand}.raised", source)
        shape = list(source.shape)
        return self.add(node, "reshape", (operand,), name, shape=shape, axis_start=0, axis_count=-1)

    def _new(self, name: str, fact: Fact) -> str:
        name = self.unused_name(name)
        self.facts[name] = fact
        return name
