"""Converts matrix products."""

from __future__ import annotations

from cml_engine.formats.ncnn.conversion import Conversion
from cml_engine.formats.ncnn.layer_types import converts
from cml_engine.formats.ncnn.layers.activations import apply_activation
from cml_engine.formats.ncnn.param import NcnnLayer


@converts("InnerProduct", params="0-2 8-10 18", limits="int8 weights")
def _inner_product(layer: NcnnLayer, graph: Conversion, x: str) -> str:
    layer.refuse(8, "int8 weights")
    layer.refuse(18, "quantised weights")
    count, size = layer.integer(0), layer.integer(2)
    if count < 1 or size < 1 or size % count:
        raise layer.damaged_error(f"{size} weights for {count} outputs")
    width = size // count
    filters = graph.weight(graph.weights.flagged(size, layer).reshape(count, width), "filter")
    bias: str | float = 0.0
    if layer.integer(1):
        bias = graph.raw(count, "bias")
    extents = graph.extents(x)
    rows = len(extents) == 2 and extents[1] == width
    if rows:
        x = graph.op("reshape", x, shape=[-1, width])
    else:
        x = graph.reshape(x, [-1])
    product = apply_activation(layer, graph, graph.op("linear", x, filters, bias))
    return graph.op("reshape", product, shape=[-1, extents[0], count]) if rows else product


@converts("MatMul", params="0", inputs=(2, 2))
def _matmul(layer: NcnnLayer, graph: Conversion, a: str, b: str) -> str:
    """Converts MatMul, a product as NumPy's ``matmul``.

    Parameter 0 transposes the second operand.
    """
    first, second = graph.extents(a), graph.extents(b)
    rank = max(len(first), len(second), 2)
    turned = bool(layer.integer(0)) and len(second) > 1
    a = graph.reshape(a, [1] * (rank - len(first)) + list(first))
    if len(second) == 1:
        b = graph.reshape(b, [1] * (rank - 2) + [second[0], 1])
    else:
        b = graph.reshape(b, [1] * (rank - len(second)) + list(second))
    result = graph.op("matmul", a, b, transposeB=turned)
    extents = list(graph.extents(result))
    if len(first) == 1:
        del extents[-2]
    if len(second) == 1:
        del extents[-1]
    return graph.reshape(result, extents or [1])


@converts("Gemm", params="0-14 18 20-22", inputs=(0, 3), limits="quantised weights")
def _gemm(layer: NcnnLayer, graph: Conversion, *inputs: str) -> str:
    layer.refuse(18, "quantised weights")
    rest = list(inputs)
    a = _matrix(layer, graph, rest, "a", 4, (7, 9), layer.integer(2))
    b = _matrix(layer, graph, rest, "b", 5, (9, 8), layer.integer(3))
    flat = [graph.reshape(x, graph.extents(x)[-2:]) for x in (a, b)]
    result = graph.op(
        "matmul", *flat, transposeA=bool(layer.integer(2)), transposeB=bool(layer.integer(3))
    )
    added = _added(layer, graph, rest, graph.extents(result))
    beta, alpha = layer.number(1, 1.0), layer.number(0, 1.0)
    if added is not None:
        result = graph.op("add", result, added if beta == 1 else graph.op("mul", added, beta))
    if alpha != 1:
        result = graph.op("mul", result, alpha)
    if layer.integer(14):
        result = graph.permute(result, [1, 0])
    rows, columns = graph.extents(result)
    return graph.reshape(result, [rows, 1, columns]) if layer.integer(11) else result


def _matrix(
    layer: NcnnLayer,
    graph: Conversion,
    rest: list[str],
    what: str,
    stored: int,
    ids: tuple[int, int],
    turned: int,
) -> str:
    """Returns the name of an operand: a matrix of the file, or the first of ``rest``.

    An input that is used is removed from ``rest``.
    """
    if layer.integer(stored):
        rows, columns = (layer.integer(key) for key in (ids[::-1] if turned else ids))
        if min(rows, columns) < 1:
            raise layer.damaged_error(f"a matrix of {rows} x {columns}")
        values = graph.weights.flagged(rows * columns, layer)
        return graph.weight(values.reshape(1, rows, columns), what)
    if not rest:
        raise layer.damaged_error("an input is missing")
    x = rest.pop(0)
    extents = graph.extents(x)
    if len(extents) == 3 and extents[1] == 1:
        return graph.reshape(x, [extents[0], extents[2]])
    if len(extents) != 2:
        raise layer.unsupported_error(f"an operand of {len(extents)} axes")
    return x


def _added(
    layer: NcnnLayer, graph: Conversion, rest: list[str], shape: tuple[int, ...]
) -> str | None:
    """Returns the name of the addend of a matrix product, or None if there is none.

    The addend is stored, or is the first of ``rest``, from which it is then removed. It has a
    shape that broadcasts to ``shape``.
    """
    rows, columns = shape
    if layer.integer(6):
        kind = layer.integer(10)
        if kind == -1:
            return None
        wanted = {0: [1, 1], 1: [rows, 1], 2: [rows, 1], 3: [rows, columns], 4: [1, columns]}
        if kind not in wanted:
            raise layer.unsupported_error(f"a sum of kind {kind}")
        extents = wanted[kind]
        values = graph.weights.flagged(extents[0] * extents[1], layer)
        return graph.weight(values.reshape(1, *extents), "c")
    if not rest:
        return None
    x = rest.pop(0)
    extents = list(graph.extents(x))
    if len(extents) == 1:
        extents = [1, *extents] if extents[0] not in (1, rows) else [*extents, 1]
    if len(extents) != 2 or extents[0] not in (1, rows) or extents[1] not in (1, columns):
        raise layer.damaged_error(f"a sum of {list(graph.extents(x))} to {rows} x {columns}")
    return graph.reshape(x, extents)
