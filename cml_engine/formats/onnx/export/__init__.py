"""The exporter to ONNX files, without the onnx package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from cml_engine.errors import InputError
from cml_engine.errors.arguments import ONNX_OPSET, check_flag
from cml_engine.formats.onnx.export.dynamic_axes import find_dynamic_axes
from cml_engine.formats.onnx.export.writer import OnnxWriter, default_opset
from cml_engine.io.atomic_write import write_atomically
from cml_engine.io.output_folder import check_new_file
from cml_engine.ir.graph import Graph

__all__ = ["onnx_parts", "save_onnx"]


def save_onnx(
    graph: Graph,
    path: str | Path,
    *,
    overwrite: bool = False,
    opset: int | None = None,
    half: bool = False,
    dynamic: Mapping[str, Sequence[int | str]] | None = None,
) -> None:
    """Writes a graph as an ONNX file; the options are those of ``cml.save``."""
    path = Path(path)
    check_new_file(path, overwrite)
    parts = onnx_parts(graph, opset, half=half, dynamic=dynamic)
    try:
        write_atomically(path, lambda file: file.writelines(parts))
    except OSError as error:
        raise InputError(f"cannot write '{path}': {error.strerror or error}") from None


def onnx_parts(
    graph: Graph,
    opset: int | None = None,
    *,
    half: bool = False,
    dynamic: Mapping[str, Sequence[int | str]] | None = None,
) -> list[bytes]:
    """Returns the bytes of a graph's ONNX file, in parts to be written one after another."""
    axes = None if dynamic is None else find_dynamic_axes(graph, dynamic)
    checked = ONNX_OPSET.check(default_opset(graph) if opset is None else opset, "opset")
    return OnnxWriter(graph, checked, check_flag(half, "half"), axes).parts()
