"""Merges nodes that compute the same result."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from cml_engine.ir.graph import Graph, Node
from cml_engine.ops.declaration.registry import lookup

#: constants up to this size are compared by value, because every literal is a separate tensor
_SMALL_BYTES = 64


def merge_common_subexpressions(graph: Graph) -> Graph:
    """Returns the graph with one node in place of all nodes of equal operator, attributes and
    inputs.

    Nodes that compute outputs are kept, because the caller reads outputs by name. Reads of a
    variable are equal, because its value is constant during a run. A game's own operators are
    not merged, because they may give another result each time.
    """
    roots = set(graph.roots)
    same = _equal_constants(graph)
    known: dict[Hashable, Node] = {}
    renamed: dict[str, str] = {}
    nodes = []
    for original in graph.nodes:
        inputs = tuple(renamed.get(name, name) for name in original.inputs)
        node = replace(original, inputs=inputs)
        key = _key(node, same)
        first = known.setdefault(key, node) if key is not None else node
        if first is node or roots.intersection(node.outputs):
            nodes.append(node)
        else:
            renamed.update(zip(node.outputs, first.outputs, strict=True))
    return graph.with_(nodes=tuple(nodes))


def _key(node: Node, same: dict[str, str]) -> Hashable | None:
    """Returns a key that is equal for nodes that compute the same results.

    ``same`` maps constants to their first equal. Returns None for a node that must not be
    merged: one with epilogues, a game's operator, or an attribute whose text is not its value.
    """
    plain = all(_is_plain(value) for value in node.attrs.values())
    if node.epilogues or not plain or lookup(node.op).is_custom:
        return None
    attrs = tuple(sorted((name, repr(value)) for name, value in node.attrs.items()))
    return node.op, attrs, tuple(same.get(n, n) for n in node.inputs), len(node.outputs)


def _is_plain(value: object) -> bool:
    """Returns True if an attribute's value is None, a bool, a number, a string, or a list of
    them, so that its ``repr`` identifies it."""
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _equal_constants(graph: Graph) -> dict[str, str]:
    """Maps every constant of at most ``_SMALL_BYTES`` to the first constant of the same type,
    shape and bits."""
    first: dict[Hashable, str] = {}
    same: dict[str, str] = {}
    for name, value in graph.constants.items():
        if value.nbytes <= _SMALL_BYTES and graph.is_constant(name):
            key = (graph.facts[name], value.tobytes())
            same[name] = first.setdefault(key, name)
    return same
