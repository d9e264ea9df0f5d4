"""Runs of neighbouring operators, and the rows that each operator computes in a band."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from cml_engine.compiler.planning.bands.graph_rows import GraphRows, NodeRows, RowRule
from cml_engine.ops.declaration.traits import Span


@dataclass(frozen=True, eq=False)
class Band:
    """One band of a run: its nodes restricted to rows, by node number in execution order.

    ``results`` has the rows that the band adds to each result of the run.
    """

    parts: Mapping[int, NodeRows]
    results: Mapping[str, Span]


@dataclass(frozen=True, eq=False)
class OperatorRun:
    """A run of neighbouring nodes of a graph: numbers ``first`` to ``end``, exclusive."""

    chart: GraphRows
    first: int
    end: int

    @cached_property
    def aside(self) -> frozenset[int]:
        """The numbers of the run's nodes that are computed once, before the bands.

        They have no rows and read no result of the run's banded nodes.
        """
        made: set[str] = set()
        found: set[int] = set()
        for k in range(self.first, self.end):
            node, rule = self.chart.graph.nodes[k], self.chart.rules[k]
            small = rule is None or not any(map(self.chart.has_rows, node.outputs))
            if small and made.isdisjoint(node.reads):
                found.add(k)
            else:
                made.update(node.outputs)
        return frozenset(found)

    @cached_property
    def inside(self) -> Mapping[str, RowRule]:
        """The tensors that are computed in bands, each with the row rule of its node."""
        found: dict[str, RowRule] = {}
        for k in self._banded:
            rule = self.chart.rules[k]
            if rule is not None:
                found |= dict.fromkeys(rule.node.outputs, rule)
        return found

    @property
    def _banded(self) -> list[int]:
        return [k for k in range(self.first, self.end) if k not in self.aside]

    @cached_property
    def results(self) -> tuple[str, ...]:
        """The names of the tensors that the run computes in bands and that are read after it."""
        graph = self.chart.graph
        later = {n for node in graph.nodes[self.end :] for n in node.reads} | set(graph.roots)
        return tuple(name for name in self.inside if name in later)

    @cached_property
    def is_possible(self) -> bool:
        """True if the run can be computed in bands: its nodes have rules that fit together, and
        a result is read after it."""
        if not self.results or any(self.chart.rules[k] is None for k in self._banded):
            return False
        return all(self._fits(rule) for rule in self.inside.values())

    def _fits(self, rule: RowRule) -> bool:
        """Returns True if the node reads tensors of the run by rows, along the axis in which
        they are computed."""
        part = rule.for_rows(0, rule.extent)
        return all(
            want.span is not None and want.axis == self.chart.axes[want.name]
            for want in part.wants
            if want.name in self.inside
        )

    @cached_property
    def max_bands(self) -> int:
        """The largest possible number of bands, limited by the result with the fewest rows."""
        return min(-(-self.inside[n].extent // self.inside[n].rows.step) for n in self.results)

    def band(self, number: int, count: int) -> Band:
        """Returns band ``number`` of ``count``, with the rows that each node must compute for
        it, halo included."""
        results = {name: self._share(name, number, count) for name in self.results}
        wanted: dict[str, Span] = dict(results)
        parts: dict[int, NodeRows] = {}
        for k in reversed(self._banded):
            rule = self.chart.rules[k]
            assert rule is not None
            spans = [wanted[name] for name in rule.node.outputs if name in wanted]
            if not spans:
                continue
            part = parts[k] = rule.for_rows(min(s[0] for s in spans), max(s[1] for s in spans))
            for want in part.wants:
                if want.name in self.inside and want.span is not None:
                    begin, end = wanted.get(want.name, want.span)
                    wanted[want.name] = min(begin, want.span[0]), max(end, want.span[1])
        return Band(dict(sorted(parts.items())), results)

    def _share(self, name: str, number: int, count: int) -> Span:
        rule = self.inside[name]
        step, units = rule.rows.step, -(-rule.extent // rule.rows.step)
        begin, end = (units * n // count * step for n in (number, number + 1))
        return begin, min(end, rule.extent)
