"""Models of other formats -> :class:`cml_engine.graph.Graph`, which ``save`` writes as NNEF."""

from __future__ import annotations

from pathlib import Path

from cml_engine.convert.builder import Infer
from cml_engine.convert.ncnn import convert_ncnn
from cml_engine.errors import InputError
from cml_engine.graph import Graph

__all__ = ["convert"]


def convert(
    path: str | Path, shape: tuple[int, ...] | None = None, infer: Infer | None = None
) -> Graph:
    """Read a model of another format.

    Parameters
    ----------
    path : a ncnn ``.param``, with its ``.bin`` beside it.
    shape : the input's shape, like ``(1, 3, 64, 64)``, for formats that do not hold it.
    infer : the engine's shape inference; a few layers need it to be convertible.
    """
    path = Path(path)
    if path.suffix == ".param":
        return convert_ncnn(path, shape, infer)
    raise InputError(f"'{path}': the format '{path.suffix}' is unknown: wanted a ncnn .param")
