"""Converts multi-head attention."""

from __future__ import annotations

import math

from cml_engine.formats.ncnn.conversion import Conversion
from cml_engine.formats.ncnn.layer_types import converts
from cml_engine.formats.ncnn.param import NcnnLayer


@converts("MultiHeadAttention", params="0-7 18", inputs=(1, 4),
       limits="a cache of keys, quantised weights")  # fmt: skip
def _attention(layer: NcnnLayer, graph: Conversion, *inputs: str) -> str:
    """Converts MultiHeadAttention of rows of queries, keys and values.

    Missing inputs repeat the last one: with one input it is query, key and value. A mask, if
    there is one, is the last input.
    """
    layer.refuse(7, "a cache of keys and values")
    layer.refuse(18, "quantised weights")
    width, heads = layer.integer(0), layer.integer(1, 1)
    if width < 1 or heads < 1 or width % heads or layer.integer(2) % width:
        raise layer.damaged_error(f"{width} wide with {heads} heads")
    tensors = list(inputs)
    mask = tensors.pop() if layer.integer(5) else None
    if not 1 <= len(tensors) <= 3:
        raise layer.damaged_error(f"{len(inputs)} inputs")
    query, key, value = (tensors * 3)[:3] if len(tensors) == 1 else (tensors + tensors[-1:])[:3]
    outer = layer.integer(2) // width
    scale = layer.number(6, 1 / math.sqrt(width / heads))
    q = _projected(layer, graph, query, "q", outer, width, heads, scale)
    k = _projected(layer, graph, key, "k", layer.integer(3, width), width, heads)
    v = _projected(layer, graph, value, "v", layer.integer(4, width), width, heads)
    scores = graph.op("matmul", q, k, transposeB=True)
    if mask is not None:
        extents = list(graph.extents(mask))
        scores = graph.op("add", scores, graph.reshape(mask, [1] * (3 - len(extents)) + extents))
    mixed = graph.op("matmul", graph.op("softmax", scores, axes=[3]), v)
    joined = graph.merge(graph.permute(mixed, [1, 0, 2]), 2, 2)
    return _rows(layer, graph, joined, "out", width, outer)


def _projected(
    layer: NcnnLayer,
    graph: Conversion,
    x: str,
    what: str,
    ins: int,
    outs: int,
    heads: int,
    scale: float = 1.0,
) -> str:
    """Adds operators that multiply the rows of ``x`` by a stored matrix and split them into heads.

    Returns the name of the result, times ``scale``, of ncnn's shape (heads, rows, head size).
    """
    projected = _rows(layer, graph, x, what, ins, outs)
    if scale != 1:
        projected = graph.op("mul", projected, scale)
    return graph.permute(graph.split(projected, 2, [heads, outs // heads]), [1, 0, 2])


def _rows(layer: NcnnLayer, graph: Conversion, x: str, what: str, ins: int, outs: int) -> str:
    if len(graph.extents(x)) != 2 or graph.extents(x)[1] != ins:
        raise layer.damaged_error(f"an input of {list(graph.extents(x))}: wanted rows of {ins}")
    matrix = graph.weights.flagged(outs * ins, layer).reshape(1, outs, ins)
    product = graph.op("matmul", x, graph.weight(matrix, f"{what}_weight"), transposeB=True)
    bias = graph.weights.raw(outs, layer).reshape(1, 1, outs)
    return graph.op("add", product, graph.weight(bias, f"{what}_bias"))
