"""A digest of everything that determines a network's results."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from cml_engine.errors.arguments import check_instance
from cml_engine.ir.graph import Graph


def graph_digest(graph: Graph) -> str:
    """Returns the SHA-256, in hexadecimal, of everything that determines a network's results.

    This covers operators, shapes and values. The network's name, its file and its positions in
    the file are left out.

    Examples
    --------
    >>> len(graph_digest(graph))
    64
    """
    check_instance(Graph, graph, "graph")
    hasher = hashlib.sha256()

    def add(*items: object) -> None:
        hasher.update(repr(items).encode())

    add(graph.inputs, graph.outputs, graph.updates, graph.integer)
    for node in graph.nodes:
        epilogues = [
            (e.op, e.inputs, _to_python(e.attrs), e.position, e.own) for e in node.epilogues
        ]
        add(node.op, node.inputs, node.outputs, _to_python(node.attrs), epilogues)
    for name in sorted(graph.facts):
        add(name, graph.facts[name].dtype, graph.facts[name].shape)
    for name in sorted(graph.constants):
        value = np.ascontiguousarray(graph.constants[name])
        add(name, value.dtype.str, value.shape)
        hasher.update(value.tobytes())
    for name in sorted(graph.quantization):
        add(name, _to_python(graph.quantization[name]))
    return hasher.hexdigest()


def _to_python(value: object) -> object:
    """Returns a value as plain Python objects whose ``repr`` is complete.

    An array becomes its type, shape and bytes, because the ``repr`` of a large array leaves
    items out. A mapping becomes its sorted items.
    """
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return [(name, _to_python(value[name])) for name in sorted(value)]
    if isinstance(value, list | tuple):
        return [_to_python(item) for item in value]
    return value
