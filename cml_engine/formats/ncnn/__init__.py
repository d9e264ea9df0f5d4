"""The converter from ncnn: one function per layer type in ``layers/``, found by ``converts``."""

from __future__ import annotations

from cml_engine.formats.format import ConverterOptions, Engine, Format, GraphFactory, Model


def _open(model: Model, engine: Engine, options: ConverterOptions) -> GraphFactory:
    from cml_engine.formats.ncnn.ncnn_model import NcnnModel

    return NcnnModel(model, engine, options.outputs).graph


FORMAT = Format("ncnn", ".param", _open, frozenset({"outputs"}))
