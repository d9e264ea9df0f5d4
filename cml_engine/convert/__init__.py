"""Models of other formats -> :class:`cml_engine.graph.Graph`, which ``save`` writes as NNEF."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cml_engine.convert.builder import GraphBuilder, Infer
from cml_engine.errors import InputError
from cml_engine.graph import Graph

__all__ = ["GraphBuilder", "convert", "graph_builder"]


def convert(
    path: str | Path, shape: tuple[int, ...] | Mapping[str, tuple[int, ...]] | None = None
) -> Graph:
    """Read a ncnn ``.param`` and the ``.bin`` beside it.

    ``shape`` is the input's, like ``(1, 3, 64, 64)``, where the file does not hold it; of several
    inputs a mapping from their names.
    """
    path = Path(path)
    if path.suffix != ".param":
        raise InputError(
            f"'{path}': wanted .param of ncnn, got '{path.suffix}' (.onnx is read by cml.load, "
            "and by every command as it is)"
        )
    from cml_engine.convert.ncnn import convert_ncnn

    return convert_ncnn(path, _infer(), shape)


def graph_builder() -> GraphBuilder:
    """A builder of a graph of the engine's operators, for a converter of your own. Each operator's
    shapes are inferred, and checked, when it is added."""
    return GraphBuilder(_infer())


def _infer() -> Infer:
    from cml_engine.ops import load_families
    from cml_engine.passes.infer import infer_node

    load_families()
    return infer_node
