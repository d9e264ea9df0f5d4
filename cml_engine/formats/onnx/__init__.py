"""The converter from ONNX: opsets 7 to 28, without the onnx package."""

from __future__ import annotations

from cml_engine.formats.format import ConverterOptions, Format, GraphFactory, Model


def _open(model: Model, options: ConverterOptions) -> GraphFactory:
    from cml_engine.formats.onnx.onnx_model import OnnxModel

    return OnnxModel(model, options).graph


_TAKES = frozenset({"constants", "random_weights", "placeholders", "inputs", "outputs"})
FORMAT = Format("ONNX", ".onnx", _open, _TAKES, in_bytes=True)
