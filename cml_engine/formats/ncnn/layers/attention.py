"""Attention with several heads."""

from __future__ import annotations

import math

from cml_engine.formats.ncnn.conversion import Conversion
from cml_engine.formats.ncnn.layer_types import layer
from cml_engine.formats.ncnn.param import NcnnLayer


@layer("MultiHeadAttention", params="0-7 18", inputs=(1, 4),
       limits="a cache of keys, quantised weights")  # fmt: skip
def _attention(one: NcnnLayer, to: Conversion, *inputs: str) -> str:
    """Computes multi-head attention of rows of queries, keys and values.

    A mask, if there is one, is the last input.
    """
    one.refuse(7, "a cache of keys and values")
    one.refuse(18, "quantised weights")
    width, heads = one.whole(0), one.whole(1, 1)
    if width < 1 or heads < 1 or width % heads or one.whole(2) % width:
        raise one.damaged(f"{width} wide with {heads} heads")
    tensors = list(inputs)
    mask = tensors.pop() if one.whole(5) else None
    if not 1 <= len(tensors) <= 3:
        raise one.damaged(f"{len(inputs)} inputs")
    query, key, value = (tensors * 3)[:3] if len(tensors) == 1 else (tensors + tensors[-1:])[:3]
    outer = one.whole(2) // width
    scale = one.number(6, 1 / math.sqrt(width / heads))
    q = _projected(one, to, query, "q", outer, width, heads, scale)
    k = _projected(one, to, key, "k", one.whole(3, width), width, heads)
    v = _projected(one, to, value, "v", one.whole(4, width), width, heads)
    scores = to.op("matmul", q, k, transposeB=True)
    if mask is not None:
        extents = list(to.extents(mask))
        scores = to.op("add", scores, to.reshaped(mask, [1] * (3 - len(extents)) + extents))
    mixed = to.op("matmul", to.op("softmax", scores, axes=[3]), v)
    joined = to.merged(to.permuted(mixed, [1, 0, 2]), 2, 2)
    return _rows(one, to, joined, "out", width, outer)


def _projected(
    one: NcnnLayer,
    to: Conversion,
    x: str,
    what: str,
    ins: int,
    outs: int,
    heads: int,
    scale: float = 1.0,
) -> str:
    """Multiplies rows by a matrix and moves the heads to the front: (heads, rows, head size)."""
    projected = _rows(one, to, x, what, ins, outs)
    if scale != 1:
        projected = to.op("mul", projected, scale)
    return to.permuted(to.split(projected, 2, [heads, outs // heads]), [1, 0, 2])


def _rows(one: NcnnLayer, to: Conversion, x: str, what: str, ins: int, outs: int) -> str:
    if len(to.extents(x)) != 2 or to.extents(x)[1] != ins:
        raise one.damaged(f"an input of {list(to.extents(x))}: wanted rows of {ins}")
    matrix = to.weights.flagged(outs * ins, one).reshape(1, outs, ins)
    product = to.op("matmul", x, to.weight(matrix, f"{what}_weight"), transposeB=True)
    bias = to.weights.raw(outs, one).reshape(1, 1, outs)
    return to.op("add", product, to.weight(bias, f"{what}_bias"))
