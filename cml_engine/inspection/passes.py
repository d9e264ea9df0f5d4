"""The passes apart from the kernels: ``cml validate --passes``.

The graph as it is written is run in NumPy. Then every operator of the optimized graph is run in
NumPy on those values, so that what differs is charged to the node that made it; the first pass
after which it does is the one at fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cml_engine.backends.cpu import as_stated, run_node
from cml_engine.backends.tolerances import cancelled, node_tolerance, propagated
from cml_engine.graph import Graph, Node
from cml_engine.ops.declaration.registry import lookup
from cml_engine.ops.declaration.spec import Tolerance
from cml_engine.passes import STAGES
from cml_engine.passes.infer import infer_facts
from cml_engine.report.compare import Comparison, compare

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class PassReport:
    """``fault`` says which pass and node differ first, empty where none does. ``passes`` are those
    that changed the graph, with its nodes before and after."""

    model: str
    passes: tuple[tuple[str, int, int], ...]
    compared: int
    worst: float
    fault: str

    @property
    def ok(self) -> bool:
        return not self.fault

    def __str__(self) -> str:
        lines = [f"passes of '{self.model}' against the graph as written, both in NumPy"]
        lines += [f"{name:16s} {was:5d} -> {now:5d} nodes" for name, was, now in self.passes]
        agree = (
            f"all agree: {self.compared} tensors, the worst at {100 * self.worst:.1f} % of what "
        )
        lines.append(self.fault or agree + "rounding may change")
        return "\n".join(lines)


def check_passes(graph: Graph, inputs: Mapping[str, Array]) -> PassReport:
    """Run the graph as written and optimized, in NumPy, and compare what both have."""
    written = infer_facts(graph)
    values = {**written.constants, **inputs}
    for node in written.nodes:
        values |= _results(written, node, values)
    stages, passes = [(STAGES[0][0], written)], []
    for name, stage, _ in STAGES[1:]:
        before = stages[-1][1]
        stages.append((name, stage(before)))
        if stages[-1][1].nodes != before.nodes:
            passes.append((name, len(before.nodes), len(stages[-1][1].nodes)))
    checks = list(_checks(written, stages[-1][1], values))
    worst = max((found.worst for _, found in checks), default=0.0)
    fault = ""
    if not all(found.ok for _, found in checks):
        fault = _fault(written, stages, values)
    return PassReport(graph.name, tuple(passes), len(checks), worst, fault)


def _fault(written: Graph, stages: list[tuple[str, Graph]], values: Mapping[str, Array]) -> str:
    """The first pass after which a tensor is another, and where."""
    for name, graph in stages:
        for node, found in _checks(written, graph, values):
            if not found.ok:
                place = f"{node.source}: " if node.source else ""
                return f"pass '{name}': {place}{node.title}: {found.problem}"
    return "the passes differ, but none of them alone"


def _checks(
    written: Graph, graph: Graph, values: Mapping[str, Array]
) -> Iterator[tuple[Node, Comparison]]:
    """Every tensor that both graphs compute."""
    makers = {name: node for node in written.nodes for name in node.outputs}
    known: dict[str, Array] = {**graph.constants, **{n: values[n] for n in graph.inputs}}
    for name in graph.constants:
        if name in makers:  # computed by a pass
            tolerance = _tolerance(makers, name, frozenset(), makers[name])
            yield makers[name], compare(known[name], values[name], tolerance)
    for node in graph.nodes:
        arrays = [known[name] for name in node.reads]
        read = frozenset(n for n in node.reads if n in makers)
        for name, got in _results(graph, node, known).items():
            known[name] = got
            if name in makers:
                known[name] = values[name]
                tolerance = _tolerance(makers, name, read, node)
                found = compare(got, values[name], tolerance)
                if not found.ok:
                    found = compare(got, values[name], tolerance, _more(node, arrays))
                yield node, found


def _results(graph: Graph, node: Node, values: Mapping[str, Array]) -> dict[str, Array]:
    found = run_node(node, [values[name] for name in node.reads])
    named = zip(node.outputs, found, strict=True)
    return {name: as_stated(node, graph.facts[name], value).copy() for name, value in named}


def _more(node: Node, arrays: list[Array]) -> Array | float:
    more: Array | float = propagated(node, arrays) if node.epilogues else 0.0
    return more + cancelled(node, arrays) if lookup(node.op).traits.adds else more


def _tolerance(
    makers: Mapping[str, Node], name: str, read: frozenset[str], node: Node
) -> Tolerance:
    """What all operators may be off together that lie between what a node reads and its result."""
    between: dict[str, Node] = {}
    pending = [name]
    while pending:
        maker = makers.get(pending.pop())
        if maker is not None and maker.outputs[0] not in between:
            between[maker.outputs[0]] = maker
            pending += [n for n in maker.reads if n not in read]
    parts = [node_tolerance(one) for one in (*between.values(), node)]
    return Tolerance(
        sum(t.rtol for t in parts),
        sum(t.atol for t in parts),
        "all operators in between",
        sum(t.of_largest for t in parts),
    )
