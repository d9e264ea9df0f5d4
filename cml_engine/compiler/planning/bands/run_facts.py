"""The facts of a graph for a search for bands; they do not depend on the memory limit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import ceil

import numpy as np

from cml_engine.compiler.planning.bands.graph_rows import GraphRows, RowRule
from cml_engine.compiler.planning.bands.memory_usage import MemoryUsage
from cml_engine.compiler.planning.plan_memory import Lifetime
from cml_engine.compiler.planning.views import resolve_view
from cml_engine.ir.graph import Array
from cml_engine.ir.layout import PLAIN
from cml_engine.ops.declaration.registry import lookup

#: the numbers of bands that are considered
COUNTS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128)


@dataclass(frozen=True, slots=True)
class RowWindow:
    """The rows that a node reads of tensor ``name``: ``slope * rows + halo`` for ``rows`` rows
    of its result."""

    name: str
    slope: float
    halo: float

    def rows(self, made: Array, step: int = 1) -> Array:
        """Returns the rows read for ``made`` rows of the result, rounded up to a multiple of
        ``step``; 0 for none.

        ``step`` is that of the node that computes the tensor. With a halo the rows may begin and
        end inside a step.
        """
        rows = np.ceil(self.slope * made + self.halo)
        if step > 1:
            rows = np.ceil((rows + (step - 1 if self.halo > 0 else 0)) / step) * step
        return np.where(made > 0, rows, 0.0)


@dataclass(frozen=True, slots=True)
class LiveItem:
    """A tensor in the arena, the node ``maker`` whose rows it has, and the dispatches that use it.

    A node may work in ``rounds`` that share the scratch memory of one round. ``touched`` has all
    dispatches, ``touched_once`` those of the last round only: if a band is one round, its
    tensors live no longer than that.
    """

    life: Lifetime
    maker: int
    touched: list[int]
    touched_once: list[int]
    rounds: float
    is_scratch: bool


@dataclass
class RunFacts:
    """The facts about a graph's nodes that a search for bands needs, by node number.

    ``requested`` maps the last node of a run to the number of bands that the caller requested
    for it.
    """

    chart: GraphRows
    usage: MemoryUsage
    requested: Mapping[int, int]

    @cached_property
    def counts(self) -> Array:
        return np.array(sorted({*COUNTS, *self.requested.values()}), np.float64)

    @cached_property
    def allowed(self) -> Array:
        """A mask of the allowed numbers of bands: a row for each last node of a run, a column
        for each of ``counts``."""
        found = np.tile(np.isin(self.counts, COUNTS), (len(self.chart.graph.nodes), 1))
        for k, count in self.requested.items():
            found[k] = self.counts == count
        return found

    @cached_property
    def makers(self) -> dict[str, int]:
        nodes = self.chart.graph.nodes
        return {name: k for k, node in enumerate(nodes) for name in node.outputs}

    @cached_property
    def is_small(self) -> list[bool]:
        """For each node, True if its results have no rows, so that it is never computed in
        bands."""
        chart = self.chart
        return [
            rule is None or not any(map(chart.has_rows, node.outputs))
            for rule, node in zip(chart.rules, chart.graph.nodes, strict=True)
        ]

    @cached_property
    def reads(self) -> list[list[RowWindow]]:
        """For each node, the rows that it reads of its operands; empty for nodes without rows."""
        found: list[list[RowWindow]] = []
        for rule, small in zip(self.chart.rules, self.is_small, strict=True):
            found.append([] if rule is None or small else _reads_of(rule))
        return found

    @cached_property
    def first_begin(self) -> list[int]:
        """For each node, the number of the last node that a run containing it must not contain;
        -1 if there is none."""
        origin: list[int] = []
        found: list[int] = []
        for k, (node, rule) in enumerate(
            zip(self.chart.graph.nodes, self.chart.rules, strict=True)
        ):
            made = {name: origin[self.makers[name]] for name in node.reads if name in self.makers}
            if self.is_small[k] or rule is None:
                found.append(max(made.values(), default=-1))
                origin.append(found[-1])
                continue
            wants = rule.for_rows(0, rule.extent).wants
            unfit = (
                made[want.name]
                for want in wants
                if want.name in made
                and (want.span is None or want.axis != self.chart.axes[want.name])
            )
            found.append(max(unfit, default=-1))
            origin.append(k)
        return found

    @cached_property
    def readers(self) -> list[list[tuple[int, RowWindow]]]:
        """For each node, the numbers of the nodes that read its result by rows, and the rows
        that they read."""
        found: list[list[tuple[int, RowWindow]]] = [[] for _ in self.reads]
        for k, reads in enumerate(self.reads):
            for read in reads:
                if read.name in self.makers:
                    found[self.makers[read.name]].append((k, read))
        return found

    @cached_property
    def last_read(self) -> list[int]:
        """For each node, the number of its last reader: -1 for none, the number of nodes if a
        result is read after a run."""
        graph = self.chart.graph
        found = [-1] * len(graph.nodes)
        for k, node in enumerate(graph.nodes):
            for name in node.reads:
                if name in self.makers:
                    found[self.makers[name]] = k
        for name in graph.roots:
            if name in self.makers:
                found[self.makers[name]] = len(graph.nodes)
        return found

    @cached_property
    def items(self) -> dict[int, list[LiveItem]]:
        """The tensors in the arena except inputs, by the number of the node that first uses
        each."""
        usage = self.usage
        lives = {item.name: item for item in usage.items}
        touched: dict[str, list[int]] = {}
        alias = usage.drafted.alias
        launches = usage.drafted.draft.dispatches
        for step, (_, _, dispatch, _) in enumerate(launches):
            for name in dict.fromkeys(dispatch.tensors):
                root, _ = resolve_view(usage.views, alias.get(name, name))
                if root in lives and (not touched.get(root) or touched[root][-1] != step):
                    touched.setdefault(root, []).append(step)
        rounds = self.rounds
        found: dict[int, list[LiveItem]] = {}
        for name, steps in touched.items():
            if name not in self.chart.graph.inputs:
                homes = [self.node_of[step] for step in steps]
                once = [step for step in steps if self._is_last(step)]
                maker = max(self.makers.get(name, homes[0]), homes[0])
                item = LiveItem(lives[name], maker, steps, once, max(rounds[k] for k in homes),
                             name not in self.makers)  # fmt: skip
                found.setdefault(homes[0], []).append(item)
        return found

    def _is_last(self, step: int) -> bool:
        """Returns True if dispatch ``step`` is in the last round of its node."""
        k = self.node_of[step]
        first, end = self.usage.steps[k]
        return (end - step) * ceil(self.rounds[k]) <= end - first

    @cached_property
    def rounds(self) -> list[float]:
        """For each node, the number of times that it fills and reads its scratch memory; 1
        without scratch."""
        found = [1.0] * len(self.usage.steps)
        filled: dict[str, list[int]] = {}
        for _, _, dispatch, _ in self.usage.drafted.draft.dispatches:
            for name in self.usage.drafted.draft.scratch.keys() & set(dispatch.tensors):
                filled.setdefault(name, []).append(dispatch.groups)
        for (
            name,
            groups,
        ) in filled.items():  # dispatches that fill and read the scratch come in pairs
            k = self.makers.get(name.rpartition(".scratch")[0])
            if k is not None:
                found[k] = max(found[k], sum(groups) / sum(groups[:2]))
        return found

    @cached_property
    def is_joined(self) -> list[bool]:
        """For each node, True if its operands may lie in its result, so that they take no memory
        of their own."""
        found = []
        for node in self.chart.graph.nodes:
            parts = lookup(node.op).traits.parts
            fact = self.chart.graph.facts[node.outputs[0]]
            layout = self.usage.drafted.layouts.get(node.outputs[0], PLAIN)
            joins = parts is not None and parts.joined
            found.append(bool(joins and parts and parts.place(node.attrs, fact, layout)))
        return found

    @cached_property
    def node_of(self) -> list[int]:
        """The number of each dispatch's node, followed by the number of nodes."""
        found = [k for k, (first, end) in enumerate(self.usage.steps) for _ in range(first, end)]
        return [*found, len(self.usage.steps)]


def _reads_of(rule: RowRule) -> list[RowWindow]:
    """Returns, for each operand that a node reads by rows, the rows read as a linear function of
    the result rows.

    The function is measured in the middle of the map, away from its borders.
    """
    step, extent = rule.rows.step, rule.extent
    many = max(extent // 2 // step, 2) * step
    few = max(many // 3 // step, 1) * step
    begin = max((extent - many) // 2 // step, 0) * step
    found = []
    pair = [rule.for_rows(begin, min(begin + n, extent)).wants for n in (few, many)]
    for one, two in zip(*pair, strict=True):
        if one.span is None or two.span is None:
            continue
        rows = [float(want.span[1] - want.span[0]) for want in (one, two) if want.span]
        slope = (rows[1] - rows[0]) / (min(many, extent - begin) - few or 1)
        found.append(RowWindow(one.name, slope, rows[0] - slope * few))
    return found
