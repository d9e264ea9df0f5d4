"""The exporter to ONNX files, without the onnx package."""

from __future__ import annotations

from pathlib import Path

from cml_engine.errors import InputError
from cml_engine.errors.arguments import ONNX_OPSET
from cml_engine.formats.onnx.export.call import DEFAULT_OPSET
from cml_engine.formats.onnx.export.writer import OnnxWriter
from cml_engine.io.atomic_write import write_atomically
from cml_engine.io.output_folder import check_new_file
from cml_engine.ir.graph import Graph

__all__ = ["DEFAULT_OPSET", "onnx_parts", "save_onnx"]


def save_onnx(
    graph: Graph, path: str | Path, *, opset: int = DEFAULT_OPSET, overwrite: bool = False
) -> None:
    """Writes a graph as an ONNX file.

    Parameters
    ----------
    graph : a loaded graph. A game's own operator is a function of ONNX's operators if it has an
        expression or a body, else a placeholder: a node of the domain ``game``.
    path : the file.
    opset : the version of ONNX's operators.
    overwrite : whether an existing file may be replaced.
    """
    path = Path(path)
    check_new_file(path, overwrite)
    parts = onnx_parts(graph, opset)
    try:
        write_atomically(path, lambda file: file.writelines(parts))
    except OSError as error:
        raise InputError(f"cannot write '{path}': {error.strerror or error}") from None


def onnx_parts(graph: Graph, opset: int = DEFAULT_OPSET) -> list[bytes]:
    """Returns the bytes of a graph's ONNX file, in parts to be written one after another."""
    return OnnxWriter(graph, ONNX_OPSET.check(opset, "opset")).parts()
