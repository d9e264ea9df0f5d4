"""Converts attention: of matrices that other layers project, and of rows with stored weights."""

from __future__ import annotations

import math

from cml_engine.formats.ncnn.conversion import NcnnLayer, NcnnTensor, converts


@converts("MultiHeadAttention", params="0-7 18", inputs=(1, 4),
       limits="a cache of keys, quantised weights")  # fmt: skip
def _attention(layer: NcnnLayer, *inputs: NcnnTensor) -> NcnnTensor:
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
    query, key, value = (tensors + 2 * tensors[-1:])[:3]
    outer = layer.integer(2) // width
    scale = layer.number(6, 1 / math.sqrt(width / heads))

    def heads_of(x: NcnnTensor, suffix: str, columns: int, factor: float = 1.0) -> NcnnTensor:
        rows = _rows(layer, x, suffix, columns, width)
        rows = rows if factor == 1 else rows * factor
        return rows.unflatten(2, [heads, width // heads]).permute([1, 0, 2])

    q = heads_of(query, "q", outer, scale)
    k = heads_of(key, "k", layer.integer(3, width))
    v = heads_of(value, "v", layer.integer(4, width))
    scores = q.matmul(k, transposeB=True)
    if mask is not None:
        scores = scores + mask.reshape([1] * (3 - len(mask.extents)) + list(mask.extents))
    attended = scores.softmax(axes=[3]).matmul(v)
    return _rows(layer, attended.permute([1, 0, 2]).merge(2, 2), "out", width, outer)


def _rows(layer: NcnnLayer, x: NcnnTensor, suffix: str, width: int, count: int) -> NcnnTensor:
    """Multiplies the rows of ``x``, ``width`` wide, by a stored matrix and adds a stored bias."""
    if len(x.extents) != 2 or x.extents[1] != width:
        raise layer.damaged_error(f"an input of {list(x.extents)}: wanted rows of {width}")
    product = x.matmul(layer.weight(f"{suffix}_weight", 1, count, width), transposeB=True)
    return product + layer.raw(f"{suffix}_bias", 1, 1, count)


@converts("SDPA", params="5-7 18", inputs=(3, 6), outputs=(1, 3), limits="int8 products")
def _scaled_dot_product_attention(
    layer: NcnnLayer, query: NcnnTensor, key: NcnnTensor, value: NcnnTensor, *more: NcnnTensor
) -> list[NcnnTensor]:
    """Converts SDPA of heads of queries, keys and values: [heads, rows, width].

    A mask is added to the products. Several heads of queries may share a head of keys. With a
    cache the past keys and values come in front, and the results follow the attention's.
    """
    layer.refuse(18, "an int8 product")
    has_mask, has_cache = bool(layer.integer(5)), bool(layer.integer(7))
    if len(more) != has_mask + 2 * has_cache:
        raise layer.damaged_error(f"{3 + len(more)} inputs")
    if any(len(x.extents) != 3 for x in (query, key, value)):
        raise layer.unsupported_error("an input that is not heads of rows")
    cache: list[NcnnTensor] = []
    if has_cache:
        key, value = (
            past.concat(x, axis=2) for past, x in zip(more[-2:], (key, value), strict=True)
        )
        cache = [key, value]
    heads, n_queries, width = query.extents
    groups, n_keys, _ = key.extents
    if heads % groups or key.extents[2] != width or value.extents[:2] != key.extents[:2]:
        shapes = ", ".join(str(list(x.extents)) for x in (query, key, value))
        raise layer.damaged_error(f"queries, keys and values of {shapes}")
    rows = query.reshape([groups, heads // groups * n_queries, width])
    scale = layer.number(6) or 1 / math.sqrt(width)
    scores = rows.matmul(key, transposeB=True) * scale
    if has_mask:
        mask = more[0].reshape([1] * (3 - len(more[0].extents)) + list(more[0].extents))
        scores = scores.reshape([heads, n_queries, n_keys]) + mask
        scores = scores.reshape([groups, heads // groups * n_queries, n_keys])
    attended = scores.softmax(axes=[3]).matmul(value)
    return [attended.reshape([heads, n_queries, value.extents[2]]), *cache]


@converts("RotaryEmbed", params="0", inputs=(3, 3))
def _rotary_embedding(
    layer: NcnnLayer, x: NcnnTensor, cosines: NcnnTensor, sines: NcnnTensor
) -> NcnnTensor:
    """Rotates pairs of elements in each row: neighbours, or element i of both halves.

    ``x`` is (heads, rows, width). The angles' tables have at least as many rows.
    """
    if len(x.extents) != 3 or x.extents[2] % 2:
        raise layer.unsupported_error(f"an input of {list(x.extents)}")
    heads, n_rows, width = x.extents
    half = width // 2
    is_interleaved = bool(layer.integer(0))
    tables = []
    for table in (cosines, sines):
        *outer, count, columns = (1, *table.extents)
        is_whole = columns == width and not is_interleaved
        if math.prod(outer) != 1 or count < n_rows or not (columns == half or is_whole):
            raise layer.damaged_error(
                f"angles of {list(table.extents)} for {n_rows} rows of {half}"
            )
        rows = table.reshape([1, count, columns])
        if count > n_rows:
            rows = rows.slice(axes=[2], begin=[0], end=[n_rows])
        if is_interleaved:
            rows = rows.reshape([1, n_rows, half, 1])
        tables.append(rows.split(3, [1, 1]) if is_whole else [rows, rows])
    (c0, c1), (s0, s1) = tables
    if is_interleaved:
        x = x.reshape([heads, n_rows, half, 2])
    axis = len(x.extents)
    x0, x1 = x.split(axis, [1, 1])
    rotated = (x0 * c0 - x1 * s0).concat(x0 * s1 + x1 * c1, axis=axis)
    return rotated.reshape([heads, n_rows, width])
