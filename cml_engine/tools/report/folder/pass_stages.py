"""Writes the graph after each optimization pass as text, in NNEF where NNEF can express it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cml_engine.compiler.optimize import stages_of
from cml_engine.errors import CmlError
from cml_engine.ir.graph import Graph, Node
from cml_engine.nnef.files.writer import to_text


@dataclass(frozen=True, slots=True)
class Stage:
    """A pass, its purpose, and the graph after it; ``text`` is "" if the pass changed nothing."""

    name: str
    why: str
    nodes: int
    text: str
    #: the reason why the text is not NNEF; empty if it is
    refused: str


def stages(graph: Graph) -> Iterator[Stage]:
    """Yields the graph as written, then the graph after each pass in order, as text."""
    last = ""
    for name, why, left in stages_of(graph):
        text, refused = _text(left)
        yield Stage(name, why, len(left.nodes), "" if text == last else text, refused)
        last = text


def _text(graph: Graph) -> tuple[str, str]:
    """Returns the graph as NNEF text without weights, and "".

    If NNEF cannot express the graph, returns a line for every node and the reason.
    """
    try:
        return to_text(graph), ""
    except CmlError as error:
        return _plain(graph), str(error)


def _plain(graph: Graph) -> str:
    lines = [f"graph {graph.name}({', '.join(graph.inputs)}) -> ({', '.join(graph.outputs)})"]
    return "\n".join([*lines, *(_node(graph, node) for node in graph.nodes)]) + "\n"


def _node(graph: Graph, node: Node) -> str:
    results = ", ".join(f"{name}: {graph.facts[name]}" for name in node.outputs)
    args = ", ".join((*node.inputs, *([repr(node.attrs)] if node.attrs else ())))
    more = "".join(
        f"\n    then {e.op}({', '.join((*e.inputs, *([repr(e.attrs)] if e.attrs else ())))})"
        for e in node.epilogues
    )
    return f"{results} = {node.op}({args}){more}"
