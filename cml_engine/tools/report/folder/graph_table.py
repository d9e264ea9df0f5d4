"""Converts the graph to rows: each operator as it runs, with its operators in the model's file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cml_engine.compiler.planning.decisions import made_of, producers
from cml_engine.io.json_files import Json
from cml_engine.ir.graph import Graph, Node
from cml_engine.tools.report.folder.page import Cell, Html, details, html, listed, table, whole


@dataclass(frozen=True, slots=True)
class WrittenOperator:
    """An operator of the model as written: its title, position in the file, and text there."""

    title: str
    place: str
    text: str


@dataclass(frozen=True, slots=True)
class NodeRow:
    """An operator of the optimized network; ``made_of`` are the model's operators in it."""

    number: int
    op: str
    outputs: dict[str, str]
    reads: dict[str, str]
    attrs: str
    made_of: tuple[WrittenOperator, ...]


def node_rows(written: Graph, optimized: Graph) -> list[NodeRow]:
    """Returns a row for each operator of ``optimized``, in the order in which they run.

    ``written`` is the same network before the passes.
    """
    origins, computed = producers(written), producers(optimized)

    def row(number: int, node: Node) -> NodeRow:
        return NodeRow(
            number,
            node.full_op,
            {name: str(optimized.facts[name]) for name in node.outputs},
            {name: str(optimized.facts[name]) for name in dict.fromkeys(node.reads)},
            repr(node.attrs),
            tuple(map(_line, made_of(node, origins, computed) or [node])),
        )

    return [row(number, node) for number, node in enumerate(optimized.nodes)]


def graph_data(graph: Graph, rows: list[NodeRow]) -> dict[str, Json]:
    """Returns the graph as a JSON object: name, inputs, outputs and the rows."""
    return {
        "name": graph.name,
        "inputs": {name: str(graph.facts[name]) for name in graph.inputs},
        "outputs": {name: str(graph.facts[name]) for name in graph.outputs},
        "nodes": [asdict(row) for row in rows],
    }


def graph_table(rows: list[NodeRow], constants: Mapping[str, Any]) -> Html:
    """Returns the rows as an HTML table; a row expands to the operators that it was made of.

    ``constants`` has the graph's constants by name, which the table marks.
    """

    def cells(row: NodeRow) -> list[Cell]:
        reads = [n if n not in constants else f"{n} (constant)" for n in row.reads]
        places = row.made_of[-1].place if row.made_of else ""
        return [
            whole(row.number),
            _opening(row),
            ", ".join(f"{name}: {fact}" for name, fact in row.outputs.items()),
            ", ".join(reads),
            places,
        ]

    return table(("", "operator", "result", "reads", "place"), map(cells, rows))


def _opening(row: NodeRow) -> Cell:
    name = html(Html("<code>"), row.op, Html("</code>"))
    lines = [
        html(f"{line.title}  {line.place} ", Html("<pre>"), line.text, Html("</pre>"))
        for line in row.made_of
    ]
    if row.attrs:
        lines.append(html(Html("<code>"), row.attrs, Html("</code>")))
    return details(name, listed(lines)) if lines else name


def _line(node: Node) -> WrittenOperator:
    source = node.source
    return WrittenOperator(
        node.title, str(source) if source else "", source.text.strip() if source else ""
    )
