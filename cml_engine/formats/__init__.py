"""The converters from other model formats to :class:`cml_engine.ir.graph.Graph`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from cml_engine.formats.builder import ImportBuilder
from cml_engine.formats.format import Format

__all__ = ["ImportBuilder", "formats"]


@cache
def formats() -> Mapping[str, Format]:
    """Returns the formats that ``cml.load`` reads beside NNEF, by file suffix, such as ``".onnx"``.

    A package of this folder adds a format by defining ``FORMAT``.
    """
    packages = [import_module(f"{__name__}.{m.name}") for m in iter_modules(__path__) if m.ispkg]
    registered: list[Format] = [p.FORMAT for p in packages if hasattr(p, "FORMAT")]
    return {format.suffix: format for format in registered}
