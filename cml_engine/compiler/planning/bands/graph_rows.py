"""Finds the operators of a graph that can compute some rows of their results from some rows of
their operands."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from cml_engine.ir.graph import Attrs, Fact, Graph, Node
from cml_engine.ops.common.row_rules import same_rows
from cml_engine.ops.declaration.registry import is_builtin, lookup
from cml_engine.ops.declaration.traits import OperandRows, RowMapping, Span

#: the operators that cut out and join bands
CUT, JOIN = "slice", "concat"
#: the row axis of inputs: feature maps and pictures
_AXIS = 2


@dataclass(frozen=True, slots=True)
class RowRead:
    """The rows ``span`` of tensor ``name`` along ``axis`` that a node in a band reads; None is
    the whole tensor."""

    name: str
    axis: int
    span: Span | None


@dataclass(frozen=True, slots=True)
class NodeRows:
    """A node restricted to one band: its reads, its attributes, and the rows of its result.

    ``wants`` is in the order of ``Node.reads``.
    """

    wants: tuple[RowRead, ...]
    attrs: Attrs
    made: Span


@dataclass(frozen=True, eq=False, slots=True)
class RowRule:
    """The rule for computing a node in bands of rows; ``axis`` is the row axis of its operands."""

    node: Node
    rows: RowMapping
    axis: int
    facts: Mapping[str, Fact]

    @property
    def extent(self) -> int:
        """The number of rows of the node's result."""
        return self.facts[self.node.outputs[0]].shape[self.rows.axis]

    def for_rows(self, begin: int, end: int) -> NodeRows:
        """Returns the node restricted to rows ``begin`` to ``end``, exclusive, of its result.

        The rows are extended to multiples of the rule's step.
        """
        step = self.rows.step
        need = self.rows.need(begin // step * step, min(-(-end // step) * step, self.extent))
        wants = [
            RowRead(name, self.axis, span)
            for name, span in zip(self.node.inputs, need.inputs, strict=True)
        ]
        wants += [self._beside(n, need) for e in self.node.epilogues for n in e.inputs]
        return NodeRows(tuple(wants), need.attrs, need.made)

    def _beside(self, name: str, need: OperandRows) -> RowRead:
        """Returns the rows that an epilogue reads of its operand ``name``: the rows of the
        result, or the whole tensor if it is broadcast."""
        axis, fact = self.rows.axis, self.facts[name]
        rows = fact.rank > axis and fact.shape[axis] == self.extent > 1
        return RowRead(name, axis, need.made if rows else None)


@dataclass(frozen=True, eq=False)
class GraphRows:
    """The row rules of a graph's nodes, in execution order; None for a node that cannot be computed
    in bands.

    ``axes`` has the row axis of every computed tensor.
    """

    graph: Graph
    rules: tuple[RowRule | None, ...]
    axes: Mapping[str, int]

    def has_rows(self, name: str) -> bool:
        """Returns True if a computed tensor has more than one row."""
        fact, axis = self.graph.facts[name], self.axes[name]
        return fact.rank > axis and fact.shape[axis] > 1


def find_graph_rows(graph: Graph, kernels: Mapping[str, str], whole: Collection[str]) -> GraphRows:
    """Returns for each node of a graph the rule for computing it in bands, if it has one.

    ``kernels`` has the chosen kernels by the titles of nodes. Results named in ``whole`` are
    never computed in bands. No node has a rule if a game overrides the operator that cuts or
    joins bands.
    """
    known_way = is_builtin(CUT, JOIN)
    axes: dict[str, int] = {}
    rules: list[RowRule | None] = []
    for node in graph.nodes:
        known = [axes[name] for name in node.inputs if name in axes]
        rule = None
        if known_way and not any(name in whole for name in node.outputs):
            for axis in dict.fromkeys([*known, _AXIS]):
                rule = rule or _rule(node, graph, axis, kernels.get(node.title, ""))
        rules.append(rule)
        axes |= dict.fromkeys(node.outputs, rule.rows.axis if rule else _AXIS)
    return GraphRows(graph, tuple(rules), axes)


def _rule(node: Node, graph: Graph, axis: int, kernel: str) -> RowRule | None:
    spec = lookup(node.op)
    facts = [graph.facts[name] for name in node.inputs]
    results = [graph.facts[name] for name in node.outputs]
    find = spec.traits.rows or (same_rows if spec.formula is not None else None)
    empty = any(0 in fact.shape for fact in (*facts, *results))
    if (
        find is None
        or spec.traits.quantizes_input
        or empty
        or not any(f.rank > axis for f in facts)
    ):
        return None
    rows = find(node.attrs, facts, axis, kernel)
    if rows is None or any(fact.rank <= rows.axis for fact in results):
        return None
    return RowRule(node, rows, axis, graph.facts)
