"""The exporter to ONNX files, without the onnx package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cml_engine.errors.arguments import ONNX_OPSET, check_flag
from cml_engine.formats.onnx.export.dynamic_axes import find_dynamic_axes
from cml_engine.formats.onnx.export.writer import OnnxWriter, default_opset
from cml_engine.ir.graph import Graph

__all__ = ["default_opset", "onnx_parts"]


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
