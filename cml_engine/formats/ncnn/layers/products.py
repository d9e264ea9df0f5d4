"""Converts matrix products, sums of products, and layers that look up rows of a table."""

from __future__ import annotations

from math import prod

import numpy as np

from cml_engine.formats.ncnn.conversion import ANY, NcnnLayer, NcnnTensor, converts
from cml_engine.formats.ncnn.layers.activations import apply_activation


@converts("InnerProduct", params="0-2 8-10 18", limits="int8 weights")
def _inner_product(layer: NcnnLayer, x: NcnnTensor) -> NcnnTensor:
    layer.refuse(8, "int8 weights")
    layer.refuse(18, "quantised weights")
    count, size = layer.integer(0), layer.integer(2)
    if count < 1 or size < 1 or size % count:
        raise layer.damaged_error(f"{size} weights for {count} outputs")
    width, extents = size // count, x.extents
    filters = layer.weight("filter", count, width)
    bias = layer.raw("bias", 1, count) if layer.integer(1) else 0.0
    has_rows = len(extents) == 2 and extents[1] == width
    x = x.op("reshape", shape=[-1, width]) if has_rows else x.reshape([-1])
    product = apply_activation(layer, x.linear(filters, bias))
    return product.op("reshape", shape=[-1, extents[0], count]) if has_rows else product


@converts("MatMul", params="0", inputs=(2, 2))
def _matmul(layer: NcnnLayer, a: NcnnTensor, b: NcnnTensor) -> NcnnTensor:
    """Converts MatMul, NumPy's ``matmul``; parameter 0 transposes the second operand."""
    first, second = a.extents, b.extents
    rank = max(len(first), len(second), 2)
    transposed = bool(layer.integer(0)) and len(second) > 1
    a = a.reshape([1] * (rank - len(first)) + list(first))
    column = [*second, 1] if len(second) == 1 else list(second)
    b = b.reshape([1] * (rank - len(column)) + column)
    result = a.matmul(b, transposeB=transposed)
    extents = list(result.extents)
    if len(first) == 1:
        del extents[-2]
    if len(second) == 1:
        del extents[-1]
    return result.reshape(extents or [1])


@converts("Gemm", params="0-14 18 20-22", inputs=(0, 3), limits="quantised weights")
def _gemm(layer: NcnnLayer, *inputs: NcnnTensor) -> NcnnTensor:
    layer.refuse(18, "quantised weights")
    operands = list(inputs)
    a = _matrix(layer, operands, "a", 4, (7, 9), layer.integer(2))
    b = _matrix(layer, operands, "b", 5, (9, 8), layer.integer(3))
    flat = [x.reshape(x.extents[-2:]) for x in (a, b)]
    flags = {"transposeA": bool(layer.integer(2)), "transposeB": bool(layer.integer(3))}
    result = layer.op("matmul", *flat, **flags)
    addend = _addend(layer, operands, result.extents)
    beta, alpha = layer.number(1, 1.0), layer.number(0, 1.0)
    if addend is not None:
        result = result + (addend if beta == 1 else addend * beta)
    if alpha != 1:
        result = result * alpha
    if layer.integer(14):
        result = result.permute([1, 0])
    rows, columns = result.extents
    return result.reshape([rows, 1, columns]) if layer.integer(11) else result


def _matrix(
    layer: NcnnLayer,
    operands: list[NcnnTensor],
    suffix: str,
    storage_key: int,
    ids: tuple[int, int],
    transposed: int,
) -> NcnnTensor:
    """Returns an operand: a matrix of the file, or the first of ``operands``, which is removed."""
    if layer.integer(storage_key):
        rows, columns = (layer.integer(key) for key in (ids[::-1] if transposed else ids))
        if min(rows, columns) < 1:
            raise layer.damaged_error(f"a matrix of {rows} x {columns}")
        return layer.weight(suffix, 1, rows, columns)
    if not operands:
        raise layer.damaged_error("an input is missing")
    x = operands.pop(0)
    extents = x.extents
    if len(extents) == 3 and extents[1] == 1:
        return x.reshape([extents[0], extents[2]])
    if len(extents) != 2:
        raise layer.unsupported_error(f"an operand of {len(extents)} axes")
    return x


def _addend(
    layer: NcnnLayer, operands: list[NcnnTensor], shape: tuple[int, ...]
) -> NcnnTensor | None:
    """Returns the addend of a matrix product of ``shape``, or None if there is none.

    The addend is stored, or is the first of ``operands``, and broadcasts to ``shape``.
    """
    rows, columns = shape
    if layer.integer(6):
        shape_kind = layer.integer(10)
        if shape_kind == -1:
            return None
        stored_shapes = {0: (1, 1), 1: (rows, 1), 2: (rows, 1), 3: (rows, columns), 4: (1, columns)}
        if shape_kind not in stored_shapes:
            raise layer.unsupported_error(f"a sum of kind {shape_kind}")
        return layer.weight("c", 1, *stored_shapes[shape_kind])
    if not operands:
        return None
    extents = list(operands[0].extents)
    if len(extents) == 1:
        extents = [1, *extents] if extents[0] in (1, columns) else [*extents, 1]
    if len(extents) != 2 or extents[0] not in (1, rows) or extents[1] not in (1, columns):
        raise layer.damaged_error(f"a sum of {list(operands[0].extents)} to {rows} x {columns}")
    return operands[0].reshape(extents)


@converts("Einsum", params="0", inputs=(1, ANY), limits="results of another order than i, j, k, l")
def _einsum(layer: NcnnLayer, *inputs: NcnnTensor) -> NcnnTensor:
    """Converts Einsum, whose equation is stored as the codes of its letters.

    The letters of the result are i, j, k, l, in this order; others are summed over.
    """
    codes = layer.integers(0)
    equation = "".join(map(chr, codes)) if all(32 < code < 127 for code in codes) else ""
    left, arrow, result = equation.partition("->")
    tokens = left.split(",")
    if not arrow or not set(left) | set(result) <= set("ijklmnop,") or len(tokens) != len(inputs):
        raise layer.damaged_error(f"the equation '{equation}' of {len(inputs)} inputs")
    if not result or result != "ijkl"[: len(result)]:
        raise layer.unsupported_error(f"the equation '{equation}'")
    sizes: dict[str, int] = {}
    for token, x in zip(tokens, inputs, strict=True):
        if len(token) != len(x.extents) or any(
            sizes.setdefault(letter, n) != n for letter, n in zip(token, x.extents, strict=True)
        ):
            raise layer.damaged_error(f"the shape {list(x.extents)} in the equation '{equation}'")
    if not set(result) <= set(sizes):
        raise layer.damaged_error(f"the result of the equation '{equation}'")
    operands = [_diagonal(x, token) for x, token in zip(inputs, tokens, strict=True)]
    labels = ",".join("b" + "".join(dict.fromkeys(token)) for token in tokens)
    return layer.compound("einsum", *operands, is_list=True, equation=f"{labels}->b{result}")


def _diagonal(x: NcnnTensor, token: str) -> NcnnTensor:
    """Returns the elements of ``x`` where axes with the same letter have the same index."""
    letters = "".join(dict.fromkeys(token))
    if letters == token:
        return x
    places = np.arange(prod(x.extents)).reshape(x.extents)
    places = np.einsum(f"{token}->{letters}", places)
    return x.reshape([-1]).take(places.reshape(-1), 1).reshape(places.shape)


@converts("Embed", params="0-3 18", limits="int8 weights")
def _embed(layer: NcnnLayer, x: NcnnTensor) -> NcnnTensor:
    """Converts Embed: looks up a row of a stored table for each input value and adds a stored bias.

    The bias is optional. Indices outside the table are clamped to it.
    """
    layer.refuse(18, "int8 weights")
    width, n_rows = layer.integer(0), layer.integer(1)
    if width < 1 or n_rows < 1 or layer.integer(3) != width * n_rows:
        raise layer.damaged_error(f"{layer.integer(3)} weights for {n_rows} words of {width}")
    table = layer.weight("table", n_rows, width)
    bias = layer.raw("bias", 1, 1, width) if layer.integer(2) else None
    indices = x.reshape([-1]).clamp(0.0, float(n_rows - 1)).cast(dtype="integer")
    rows = table.gather(indices, axis=0)
    return rows if bias is None else rows + bias
