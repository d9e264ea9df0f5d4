"""ncnn -> Graph: one function per layer type, in the table at the end of ``ncnn_layers.py``.

ncnn has no batch axis: its (channels, height, width) is NNEF's (1, channels, height, width), and an
axis counts one more here.
"""

from __future__ import annotations

import difflib
from pathlib import Path

from cml_engine.convert.builder import GraphBuilder, Infer
from cml_engine.convert.conversion import Conversion
from cml_engine.convert.ncnn_files import Layer, WeightReader, read_param
from cml_engine.convert.ncnn_layers import LAYERS
from cml_engine.errors import UnsupportedOp
from cml_engine.graph import Graph


def convert_ncnn(
    path: Path, shape: tuple[int, ...] | None = None, infer: Infer | None = None
) -> Graph:
    """Convert a ``.param`` and the ``.bin`` beside it; ``shape`` is the input's."""
    layers = read_param(path)
    conversion = Conversion(GraphBuilder(infer), WeightReader(path.with_suffix(".bin")), shape)
    for layer in layers:
        _convert(layer, conversion)
    conversion.weights.finish()
    return conversion.graph(path.stem)


def _convert(layer: Layer, conversion: Conversion) -> None:
    function = LAYERS.get(layer.type)
    if function is None:
        near = difflib.get_close_matches(layer.type, LAYERS, n=1, cutoff=0.5)
        hint = f" (near: {near[0]})" if near else ""
        message = f"ncnn layer '{layer.type}' cannot be converted{hint}: export it otherwise"
        raise UnsupportedOp(message, layer.source)
    conversion.builder.source = layer.source
    inputs = [conversion.blob(name, layer) for name in layer.inputs]
    function(layer, conversion, *inputs)
