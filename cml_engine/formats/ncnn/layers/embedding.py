"""Converts layers that look up rows of a table."""

from __future__ import annotations

from cml_engine.formats.ncnn.conversion import Conversion
from cml_engine.formats.ncnn.layer_types import converts
from cml_engine.formats.ncnn.param import NcnnLayer


@converts("Embed", params="0-3 18", limits="int8 weights")
def _embed(layer: NcnnLayer, graph: Conversion, x: str) -> str:
    """Converts Embed: looks up a row of a stored table for each input value and adds a stored bias.

    The bias is optional. Indices outside the table are clamped to it.
    """
    layer.refuse(18, "int8 weights")
    width, words = layer.integer(0), layer.integer(1)
    if width < 1 or words < 1 or layer.integer(3) != width * words:
        raise layer.damaged_error(f"{layer.integer(3)} weights for {words} words of {width}")
    table = graph.weight(graph.weights.flagged(width * words, layer).reshape(words, width), "table")
    bias = graph.raw(width, "bias", 2) if layer.integer(2) else None
    flat = graph.reshape(x, [-1])
    numbers = graph.op("cast", graph.op("clamp", flat, 0.0, float(words - 1)), dtype="integer")
    rows = graph.op("gather", table, numbers, axis=0)
    return (
        rows
        if bias is None
        else graph.op("add", rows, graph.op("reshape", bias, shape=[1, 1, width]))
    )
