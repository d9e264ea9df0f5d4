"""Rewrites a graph so that some runs of its nodes are computed in bands of rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from cml_engine.ir.graph import Attrs, Fact, Graph, Node, unused_name
from cml_engine.ops.common.window import same_rows
from cml_engine.ops.declaration.registry import is_builtin, lookup
from cml_engine.ops.declaration.spec import OperandRows, RowMapping, Span
from cml_engine.ops.declaration.variant import rows_of

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

    ``reads`` is in the order of ``Node.reads``.
    """

    reads: tuple[RowRead, ...]
    attrs: Attrs
    rows: Span


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
        reads = [
            RowRead(name, self.axis, span)
            for name, span in zip(self.node.inputs, need.inputs, strict=True)
        ]
        reads += [self._operand_rows(n, need) for e in self.node.epilogues for n in e.inputs]
        return NodeRows(tuple(reads), need.attrs, need.rows)

    def _operand_rows(self, name: str, need: OperandRows) -> RowRead:
        """Returns the rows that an epilogue reads of its operand ``name``: the rows of the
        result, or the whole tensor if it is broadcast."""
        axis, fact = self.rows.axis, self.facts[name]
        rows = fact.rank > axis and fact.shape[axis] == self.extent > 1
        return RowRead(name, axis, need.rows if rows else None)


@dataclass(frozen=True, eq=False)
class GraphRows:
    """The row rules of a graph's nodes, in execution order; None for a node that cannot be computed
    in bands.

    ``axes`` has the row axis of every computed tensor.
    """

    graph: Graph
    rules: tuple[RowRule | None, ...]
    axes: Mapping[str, int]


def find_graph_rows(
    graph: Graph, kernels: Mapping[str, str], unbanded: Collection[str]
) -> GraphRows:
    """Returns for each node of a graph the rule for computing it in bands, if it has one.

    A node whose results have a single row has none. ``kernels`` has the chosen kernels by the
    titles of nodes. Results named in ``unbanded`` are never computed in bands. No node has a rule
    if a game overrides the operator that cuts or joins bands.
    """
    can_cut = is_builtin(CUT, JOIN)
    axes: dict[str, int] = {}
    rules: list[RowRule | None] = []
    for node in graph.nodes:
        operand_axes = [axes[name] for name in node.inputs if name in axes]
        rule = None
        if can_cut and not any(name in unbanded for name in node.outputs):
            for axis in dict.fromkeys([*operand_axes, _AXIS]):
                rule = rule or _rule(node, graph, axis, kernels.get(node.title, ""))
        axis = rule.rows.axis if rule else _AXIS
        axes |= dict.fromkeys(node.outputs, axis)
        has_rows = any(graph.facts[name].shape[axis : axis + 1] > (1,) for name in node.outputs)
        rules.append(rule if has_rows else None)
    return GraphRows(graph, tuple(rules), axes)


def _rule(node: Node, graph: Graph, axis: int, kernel: str) -> RowRule | None:
    spec = lookup(node.op)
    facts = graph.facts_of(node.inputs)
    results = graph.facts_of(node.outputs)
    find = spec.traits.rows or (same_rows if spec.formula is not None else None)
    empty = any(0 in fact.shape for fact in (*facts, *results))
    if (
        find is None
        or spec.traits.quantizes_input
        or empty
        or not any(f.rank > axis for f in facts)
    ):
        return None
    rows = find(node.attrs, facts, axis)
    if rows is None or any(fact.rank <= rows.axis for fact in results):
        return None
    rows = replace(rows, step=rows.step * rows_of(kernel))
    return RowRule(node, rows, axis, graph.facts)


# -- run ------------------------------------------------------------------------------------------


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
        banded: set[str] = set()
        numbers: set[int] = set()
        for k in range(self.first, self.end):
            node = self.chart.graph.nodes[k]
            if self.chart.rules[k] is None and banded.isdisjoint(node.reads):
                numbers.add(k)
            else:
                banded.update(node.outputs)
        return frozenset(numbers)

    @cached_property
    def inside(self) -> Mapping[str, RowRule]:
        """The tensors that are computed in bands, each with the row rule of its node."""
        rules: dict[str, RowRule] = {}
        for k in self._banded:
            rule = self.chart.rules[k]
            if rule is not None:
                rules |= dict.fromkeys(rule.node.outputs, rule)
        return rules

    @property
    def _banded(self) -> list[int]:
        return [k for k in range(self.first, self.end) if k not in self.aside]

    @cached_property
    def results(self) -> tuple[str, ...]:
        """The names of the tensors that the run computes in bands and that are read after it."""
        graph = self.chart.graph
        read_later = {n for node in graph.nodes[self.end :] for n in node.reads} | set(graph.roots)
        return tuple(name for name in self.inside if name in read_later)

    @cached_property
    def max_bands(self) -> int:
        """The largest possible number of bands, limited by the result with the fewest rows."""
        return min(-(-self.inside[n].extent // self.inside[n].rows.step) for n in self.results)

    def band(self, number: int, count: int) -> Band:
        """Returns band ``number`` of ``count``, with the rows that each node must compute for
        it, halo included."""
        results = {name: self._share(name, number, count) for name in self.results}
        needed_rows: dict[str, Span] = dict(results)
        parts: dict[int, NodeRows] = {}
        for k in reversed(self._banded):
            rule = self.chart.rules[k]
            assert rule is not None
            spans = [needed_rows[name] for name in rule.node.outputs if name in needed_rows]
            if not spans:
                continue
            part = parts[k] = rule.for_rows(min(s[0] for s in spans), max(s[1] for s in spans))
            for read in part.reads:
                if read.name in self.inside and read.span is not None:
                    begin, end = needed_rows.get(read.name, read.span)
                    needed_rows[read.name] = min(begin, read.span[0]), max(end, read.span[1])
        return Band(dict(sorted(parts.items())), results)

    def _share(self, name: str, number: int, count: int) -> Span:
        rule = self.inside[name]
        step, units = rule.rows.step, -(-rule.extent // rule.rows.step)
        begin, end = (units * n // count * step for n in (number, number + 1))
        return begin, min(end, rule.extent)


# -- rewrite --------------------------------------------------------------------------------------


@dataclass
class BandRewriter:
    """The graph with runs in bands, under construction.

    ``originals`` maps each new tensor to the tensor that it is a part of. ``titles`` maps the title
    of each new node to the title of the node that it computes a band of. ``joins`` are the tensors
    that are joined from bands.
    """

    graph: Graph
    nodes: list[Node] = field(default_factory=list)
    facts: dict[str, Fact] = field(default_factory=dict)
    originals: dict[str, str] = field(default_factory=dict)
    titles: dict[str, str] = field(default_factory=dict)
    joins: list[str] = field(default_factory=list)
    #: a key for each node of a band; nodes with equal keys have equal dispatches
    dispatch_keys: dict[str, object] = field(default_factory=dict)

    def add_run(self, run: OperatorRun, count: int) -> None:
        """Appends the nodes of a run in ``count`` bands, and the nodes that join the results."""
        self.nodes += (self.graph.nodes[k] for k in sorted(run.aside))
        parts: dict[str, list[str]] = {name: [] for name in run.results}
        for number in range(count):
            band = run.band(number, count)
            for name, part in self.add_band(run, band).items():
                parts[name].append(part)
        for name, names in parts.items():
            node = run.inside[name].node
            attrs = Attrs(axis=run.chart.axes[name])
            self.nodes.append(Node(JOIN, tuple(names), (name,), attrs, node.source))
            self.joins.append(name)

    def add_band(self, run: OperatorRun, band: Band) -> dict[str, str]:
        """Appends the nodes of one band of a run, and returns the name of the band's part of
        each result."""
        computed: dict[str, tuple[str, Span]] = {}
        slices: dict[RowRead, str] = {}

        def operand(read: RowRead, node: Node) -> str:
            if read.name not in run.inside:
                extent = self.graph.facts[read.name].shape[read.axis] if read.span else 0
                if read.span in (None, (0, extent)):
                    return read.name
                name, begin = read.name, 0
            else:
                name, (begin, end) = computed[read.name]
                if read.span in (None, (begin, end)):
                    return name
            if read not in slices:
                assert read.span is not None
                slices[read] = self._slice(name, read, read.span[0] - begin, node)
            return slices[read]

        for k, part in band.parts.items():
            node, axis = self.graph.nodes[k], run.chart.axes[self.graph.nodes[k].outputs[0]]
            names = [operand(read, node) for read in part.reads]
            reads = iter(names)
            inputs = tuple(next(reads) for _ in node.inputs)
            epilogues = tuple(
                replace(e, inputs=tuple(next(reads) for _ in e.inputs)) for e in node.epilogues
            )
            outputs = tuple(self._part(name, axis, part.rows) for name in node.outputs)
            computed |= {n: (o, part.rows) for n, o in zip(node.outputs, outputs, strict=True)}
            self._add(
                replace(
                    node, inputs=inputs, outputs=outputs, attrs=part.attrs, epilogues=epilogues
                ),
                node,
            )
        shares = {}
        for name, span in band.results.items():
            read = RowRead(name, run.chart.axes[name], span)
            shares[name] = operand(read, run.inside[name].node)
        return shares

    def _add(self, node: Node, original: Node) -> None:
        self.nodes.append(node)
        self.titles[node.title] = original.title
        names = node.tensors
        shapes = tuple(self.facts[n].shape if n in self.facts else n for n in names)
        name_pattern = tuple(map(names.index, names))
        self.dispatch_keys[node.title] = original.title, repr(node.attrs), shapes, name_pattern

    def _slice(self, name: str, read: RowRead, begin: int, node: Node) -> str:
        assert read.span is not None
        rows = read.span[1] - read.span[0]
        part = self._part(read.name, read.axis, read.span)
        attrs = Attrs(axes=[read.axis], begin=[begin], end=[begin + rows], stride=[1])
        self.nodes.append(Node(CUT, (name,), (part,), attrs, node.source))
        return part

    def _part(self, original: str, axis: int, span: Span) -> str:
        """Registers a new tensor for the rows ``span`` of tensor ``original``, and returns its
        name."""
        fact = self.graph.facts[original]
        name = unused_name(f"{original}[{span[0]}:{span[1]}]", self.graph.facts, self.facts)
        shape = (*fact.shape[:axis], span[1] - span[0], *fact.shape[axis + 1 :])
        self.facts[name], self.originals[name] = Fact(fact.dtype, shape), original
        return name

    def finished(self) -> Graph:
        """Returns the graph of the nodes added so far, with the facts of the new tensors."""
        ranges = self.graph.words
        part_ranges = {n: ranges[o] for n, o in self.originals.items() if o in ranges}
        return self.graph.with_(
            nodes=tuple(self.nodes),
            facts={**self.graph.facts, **self.facts},
            words={**ranges, **part_ranges},
        )

    def layouts(self, layouts: Mapping[str, str]) -> dict[str, str]:
        """Returns ``layouts`` extended by the new tensors; a part has the layout of its whole."""
        parts = {n: layouts[o] for n, o in self.originals.items() if o in layouts}
        return {**layouts, **parts}


def rewrite_in_bands(graph: Graph, runs: Iterable[tuple[OperatorRun, int]]) -> BandRewriter:
    """Returns a :class:`BandRewriter` with all nodes of the graph, each of ``runs`` in its number
    of bands.

    The runs must not overlap.
    """
    rewriter = BandRewriter(graph)
    next_node = 0
    for run, count in sorted(runs, key=lambda pair: pair[0].first):
        rewriter.nodes += graph.nodes[next_node : run.first]
        rewriter.add_run(run, count)
        next_node = run.end
    rewriter.nodes += graph.nodes[next_node:]
    return rewriter
