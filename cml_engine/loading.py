"""From a model on disk to a :class:`Graph` whose shapes are known, and back."""

from __future__ import annotations

from pathlib import Path

from cml_engine import nnef
from cml_engine.graph import Graph
from cml_engine.ops import is_registered, load_families, registered
from cml_engine.passes.infer import infer_facts, infer_node


def load(path: str | Path) -> Graph:
    """The network in an NNEF folder, in the ``graph.nnef`` inside one, or in a ``.tgz`` of one.

    Operators that the engine knows become nodes; fragments with a body are expanded. Every error
    in the model is a :class:`ModelError` with file, line and operator.
    """
    load_families()
    graph = nnef.load(path, is_registered, infer_node, declarations())
    return infer_facts(graph)


def declarations() -> dict[str, str]:
    """What the registered operators that are not NNEF's take and give, by name."""
    return {
        name: spec.signature
        for name, spec in registered().items()
        if spec.signature and name not in nnef.standard_signatures()
    }


def save(graph: Graph, path: str | Path, *, overwrite: bool = False) -> None:
    """Write the graph as an NNEF folder (or, for a name in ``.tgz``, as an archive of one)."""
    nnef.save(graph, path, overwrite=overwrite)
