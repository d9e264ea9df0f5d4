"""A network's digest: equal for equal networks, whatever file they came from."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from cml_engine.ir.graph import Graph


def graph_digest(graph: Graph) -> str:
    """SHA-256 of all that a network's results depend on: operators, shapes, values. Not of its
    name, its file or the places in it."""
    hasher = hashlib.sha256()

    def add(*words: Any) -> None:
        hasher.update(repr(words).encode())

    add(graph.inputs, graph.outputs, graph.updates, graph.integer)
    for node in graph.nodes:
        epilogues = [(e.op, e.inputs, _plain(e.attrs), e.position, e.own) for e in node.epilogues]
        add(node.op, node.inputs, node.outputs, _plain(node.attrs), epilogues)
    for name in sorted(graph.facts):
        add(name, graph.facts[name].dtype, graph.facts[name].shape)
    for name in sorted(graph.constants):
        value = np.ascontiguousarray(graph.constants[name])
        add(name, value.dtype.str, value.shape)
        hasher.update(value.tobytes())
    for name in sorted(graph.quantization):
        add(name, _plain(graph.quantization[name]))
    return hasher.hexdigest()


def _plain(value: Any) -> Any:
    """A value whose ``repr`` says all of it."""
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, np.generic):
        return value.item()
    if hasattr(value, "items"):
        return sorted((name, _plain(item)) for name, item in value.items())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
