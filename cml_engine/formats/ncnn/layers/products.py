"""Matrix products."""

from __future__ import annotations

from cml_engine.formats.ncnn.conversion import Conversion
from cml_engine.formats.ncnn.layer_types import layer
from cml_engine.formats.ncnn.layers.activations import activated
from cml_engine.formats.ncnn.param import NcnnLayer


@layer("InnerProduct", params="0-2 8-10 18", limits="int8 weights")
def _inner_product(one: NcnnLayer, to: Conversion, x: str) -> str:
    one.refuse(8, "int8 weights")
    one.refuse(18, "quantised weights")
    count, size = one.whole(0), one.whole(2)
    if count < 1 or size < 1 or size % count:
        raise one.damaged(f"{size} weights for {count} outputs")
    width = size // count
    filters = to.weight(to.weights.flagged(size, one).reshape(count, width), "filter")
    bias: str | float = 0.0
    if one.whole(1):
        bias = to.raw(count, "bias")
    extents = to.extents(x)
    rows = len(extents) == 2 and extents[1] == width
    if rows:
        x = to.op("reshape", x, shape=[-1, width])
    else:
        x = to.reshaped(x, [-1])
    product = activated(one, to, to.op("linear", x, filters, bias))
    return to.op("reshape", product, shape=[-1, extents[0], count]) if rows else product


@layer("MatMul", params="0", inputs=(2, 2))
def _matmul(one: NcnnLayer, to: Conversion, a: str, b: str) -> str:
    """Multiplies as NumPy's ``matmul``; operands count as batched only with more than two axes."""
    first, second = to.extents(a), to.extents(b)
    rank = max(len(first), len(second), 2)
    turned = bool(one.whole(0)) and len(second) > 1
    a = to.reshaped(a, [1] * (rank - len(first)) + list(first))
    if len(second) == 1:
        b = to.reshaped(b, [1] * (rank - 2) + [second[0], 1])
    else:
        b = to.reshaped(b, [1] * (rank - len(second)) + list(second))
    result = to.op("matmul", a, b, transposeB=turned)
    extents = list(to.extents(result))
    if len(first) == 1:
        del extents[-2]
    if len(second) == 1:
        del extents[-1]
    return to.reshaped(result, extents or [1])


@layer("Gemm", params="0-14 18 20-22", inputs=(0, 3), limits="quantised weights")
def _gemm(one: NcnnLayer, to: Conversion, *inputs: str) -> str:
    one.refuse(18, "quantised weights")
    rest = list(inputs)
    a = _matrix(one, to, rest, "a", 4, (7, 9), one.whole(2))
    b = _matrix(one, to, rest, "b", 5, (9, 8), one.whole(3))
    flat = [to.reshaped(x, to.extents(x)[-2:]) for x in (a, b)]
    result = to.op("matmul", *flat, transposeA=bool(one.whole(2)), transposeB=bool(one.whole(3)))
    added = _added(one, to, rest, to.extents(result))
    beta, alpha = one.number(1, 1.0), one.number(0, 1.0)
    if added is not None:
        result = to.op("add", result, added if beta == 1 else to.op("mul", added, beta))
    if alpha != 1:
        result = to.op("mul", result, alpha)
    if one.whole(14):
        result = to.permuted(result, [1, 0])
    rows, columns = to.extents(result)
    return to.reshaped(result, [rows, 1, columns]) if one.whole(11) else result


def _matrix(
    one: NcnnLayer,
    to: Conversion,
    rest: list[str],
    what: str,
    stored: int,
    ids: tuple[int, int],
    turned: int,
) -> str:
    """Returns an operand: a matrix of the file, or the next input."""
    if one.whole(stored):
        rows, columns = (one.whole(key) for key in (ids[::-1] if turned else ids))
        if min(rows, columns) < 1:
            raise one.damaged(f"a matrix of {rows} x {columns}")
        values = to.weights.flagged(rows * columns, one)
        return to.weight(values.reshape(1, rows, columns), what)
    if not rest:
        raise one.damaged("an input is missing")
    x = rest.pop(0)
    extents = to.extents(x)
    if len(extents) == 3 and extents[1] == 1:
        return to.reshaped(x, [extents[0], extents[2]])
    if len(extents) != 2:
        raise one.unsupported(f"an operand of {len(extents)} axes")
    return x


def _added(one: NcnnLayer, to: Conversion, rest: list[str], shape: tuple[int, ...]) -> str | None:
    """Returns the addend of a matrix product, as a matrix that broadcasts; None if there is
    none."""
    rows, columns = shape
    if one.whole(6):
        kind = one.whole(10)
        if kind == -1:
            return None
        wanted = {0: [1, 1], 1: [rows, 1], 2: [rows, 1], 3: [rows, columns], 4: [1, columns]}
        if kind not in wanted:
            raise one.unsupported(f"a sum of kind {kind}")
        extents = wanted[kind]
        values = to.weights.flagged(extents[0] * extents[1], one)
        return to.weight(values.reshape(1, *extents), "c")
    if not rest:
        return None
    x = rest.pop(0)
    extents = list(to.extents(x))
    if len(extents) == 1:
        extents = [1, *extents] if extents[0] not in (1, rows) else [*extents, 1]
    if len(extents) != 2 or extents[0] not in (1, rows) or extents[1] not in (1, columns):
        raise one.damaged(f"a sum of {list(to.extents(x))} to {rows} x {columns}")
    return to.reshaped(x, extents)
