"""Layers that look up rows of a table."""

from __future__ import annotations

from cml_engine.formats.ncnn.conversion import Conversion
from cml_engine.formats.ncnn.layer_types import layer
from cml_engine.formats.ncnn.param import NcnnLayer


@layer("Embed", params="0-3 18", limits="int8 weights")
def _embed(one: NcnnLayer, to: Conversion, x: str) -> str:
    """Looks up a row per input value; indices outside the table are clamped to it."""
    one.refuse(18, "int8 weights")
    width, words = one.whole(0), one.whole(1)
    if width < 1 or words < 1 or one.whole(3) != width * words:
        raise one.damaged(f"{one.whole(3)} weights for {words} words of {width}")
    table = to.weight(to.weights.flagged(width * words, one).reshape(words, width), "table")
    bias = to.raw(width, "bias", 2) if one.whole(2) else None
    flat = to.reshaped(x, [-1])
    numbers = to.op("cast", to.op("clamp", flat, 0.0, float(words - 1)), dtype="integer")
    rows = to.op("gather", table, numbers, axis=0)
    return rows if bias is None else to.op("add", rows, to.op("reshape", bias, shape=[1, 1, width]))
