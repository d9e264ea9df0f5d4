"""The converter from ncnn: one function per layer type in ``layers/``, found by ``converts``."""

from __future__ import annotations

from cml_engine.formats.format import ConverterOptions, Format, GraphFactory, Model


def _open(model: Model, options: ConverterOptions) -> GraphFactory:
    from cml_engine.formats.ncnn.ncnn_model import NcnnModel

    return NcnnModel(model, options.outputs).graph


FORMAT = Format("ncnn", ".param", _open, frozenset({"outputs"}))
