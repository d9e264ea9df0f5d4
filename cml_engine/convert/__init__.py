"""Models of other formats -> :class:`cml_engine.graph.Graph`, which ``save`` writes as NNEF."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from cml_engine.convert.builder import GraphBuilder, Infer
from cml_engine.convert.format import Format
from cml_engine.errors import InputError
from cml_engine.graph import Graph

__all__ = ["GraphBuilder", "convert", "formats", "graph_builder"]


@cache
def formats() -> Mapping[str, Format]:
    """What :func:`convert` reads, by suffix: each package of this folder may state a ``FORMAT``."""
    packages = [import_module(f"{__name__}.{m.name}") for m in iter_modules(__path__) if m.ispkg]
    found: list[Format] = [p.FORMAT for p in packages if hasattr(p, "FORMAT")]
    return {format.suffix: format for format in found}


def convert(
    path: str | Path, shape: tuple[int, ...] | Mapping[str, tuple[int, ...]] | None = None
) -> Graph:
    """Read a model of one of the :func:`formats`: a ncnn ``.param`` and the ``.bin`` beside it.

    ``shape`` is the input's, like ``(1, 3, 64, 64)``, where the file does not hold it; of several
    inputs a mapping from their names.
    """
    path = Path(path)
    format = formats().get(path.suffix)
    if format is None:
        wanted = " or ".join(f"{f.suffix} of {f.name}" for f in formats().values())
        raise InputError(
            f"'{path}': wanted {wanted}, got '{path.suffix}' (.onnx is read by cml.load, "
            "and by every command as it is)"
        )
    return format.read(path, _infer(), shape)


def graph_builder() -> GraphBuilder:
    """A builder of a graph of the engine's operators, for a converter of your own. Each operator's
    shapes are inferred, and checked, when it is added."""
    return GraphBuilder(_infer())


def _infer() -> Infer:
    from cml_engine.ops import load_families
    from cml_engine.passes.infer import infer_node

    load_families()
    return infer_node
