"""Rewrites a graph so that some runs of its nodes are computed in bands of rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from cml_engine.compiler.planning.bands.graph_rows import CUT, JOIN, RowRead
from cml_engine.compiler.planning.bands.run import Band, OperatorRun
from cml_engine.ir.graph import Attrs, Fact, Graph, Node, unused_name
from cml_engine.ops.declaration.traits import Span


@dataclass
class BandRewriter:
    """The graph with runs in bands, under construction.

    ``of`` maps each new tensor to the tensor that it is a part of. ``titles`` maps the title of
    each new node to the title of the node that it computes a band of. ``joins`` are the tensors
    that are joined from bands.
    """

    graph: Graph
    nodes: list[Node] = field(default_factory=list)
    facts: dict[str, Fact] = field(default_factory=dict)
    of: dict[str, str] = field(default_factory=dict)
    titles: dict[str, str] = field(default_factory=dict)
    joins: list[str] = field(default_factory=list)
    #: a key for each node of a band; nodes with equal keys have equal dispatches
    alike: dict[str, object] = field(default_factory=dict)

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
        held: dict[str, tuple[str, Span]] = {}
        slices: dict[RowRead, str] = {}

        def operand(want: RowRead, node: Node) -> str:
            if want.name not in run.inside:
                extent = self.graph.facts[want.name].shape[want.axis] if want.span else 0
                if want.span in (None, (0, extent)):
                    return want.name
                name, begin = want.name, 0
            else:
                name, (begin, end) = held[want.name]
                if want.span in (None, (begin, end)):
                    return name
            if want not in slices:
                assert want.span is not None
                slices[want] = self._slice(name, want, want.span[0] - begin, node)
            return slices[want]

        for k, part in band.parts.items():
            node, axis = self.graph.nodes[k], run.chart.axes[self.graph.nodes[k].outputs[0]]
            names = [operand(want, node) for want in part.wants]
            reads = iter(names)
            inputs = tuple(next(reads) for _ in node.inputs)
            epilogues = tuple(
                replace(e, inputs=tuple(next(reads) for _ in e.inputs)) for e in node.epilogues
            )
            outputs = tuple(self._part(name, axis, part.made) for name in node.outputs)
            held |= {n: (o, part.made) for n, o in zip(node.outputs, outputs, strict=True)}
            self._add(
                replace(
                    node, inputs=inputs, outputs=outputs, attrs=part.attrs, epilogues=epilogues
                ),
                node,
            )
        shares = {}
        for name, span in band.results.items():
            want = RowRead(name, run.chart.axes[name], span)
            shares[name] = operand(want, run.inside[name].node)
        return shares

    def _add(self, node: Node, of: Node) -> None:
        self.nodes.append(node)
        self.titles[node.title] = of.title
        names = (*node.reads, *node.outputs)
        shapes = tuple(self.facts[n].shape if n in self.facts else n for n in names)
        same = tuple(map(names.index, names))
        self.alike[node.title] = of.title, repr(node.attrs), shapes, same

    def _slice(self, name: str, want: RowRead, begin: int, node: Node) -> str:
        assert want.span is not None
        rows = want.span[1] - want.span[0]
        part = self._part(want.name, want.axis, want.span)
        attrs = Attrs(axes=[want.axis], begin=[begin], end=[begin + rows], stride=[1])
        self.nodes.append(Node(CUT, (name,), (part,), attrs, node.source))
        return part

    def _part(self, of: str, axis: int, span: Span) -> str:
        """Registers a new tensor for the rows ``span`` of tensor ``of``, and returns its name."""
        fact = self.graph.facts[of]
        name = unused_name(f"{of}[{span[0]}:{span[1]}]", self.graph.facts, self.facts)
        shape = (*fact.shape[:axis], span[1] - span[0], *fact.shape[axis + 1 :])
        self.facts[name], self.of[name] = Fact(fact.dtype, shape), of
        return name

    def finished(self) -> Graph:
        """Returns the graph of the nodes added so far, with the facts of the new tensors."""
        words = self.graph.words
        return self.graph.with_(
            nodes=tuple(self.nodes),
            facts={**self.graph.facts, **self.facts},
            words={**words, **{name: words[of] for name, of in self.of.items() if of in words}},
        )

    def layouts(self, layouts: Mapping[str, str]) -> dict[str, str]:
        """Returns ``layouts`` extended by the new tensors; a part has the layout of its whole."""
        parts = {name: layouts[of] for name, of in self.of.items() if of in layouts}
        return {**layouts, **parts}


def rewrite_in_bands(graph: Graph, runs: Iterable[tuple[OperatorRun, int]]) -> BandRewriter:
    """Returns a :class:`BandRewriter` with all nodes of the graph, each of ``runs`` in its number
    of bands.

    The runs must not overlap.
    """
    found = BandRewriter(graph)
    done = 0
    for run, count in sorted(runs, key=lambda pair: pair[0].first):
        found.nodes += graph.nodes[done : run.first]
        found.add_run(run, count)
        done = run.end
    found.nodes += graph.nodes[done:]
    return found
