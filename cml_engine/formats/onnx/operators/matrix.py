"""Imports matrix products."""

from __future__ import annotations

import string
from math import prod

import numpy as np

from cml_engine.formats.onnx.attributes import Attr, at_least, required
from cml_engine.formats.onnx.call import OnnxCall
from cml_engine.formats.onnx.op_schemas import MANY, MICROSOFT, op
from cml_engine.formats.onnx.operators.arithmetic import wrap
from cml_engine.formats.onnx.operators.reduction import integer_sum
from cml_engine.formats.onnx.values import Value
from cml_engine.io.load_limits import current_budget
from cml_engine.ir.graph import Array


def matmul(
    call: OnnxCall, x: Value, y: Value, *, turn_x: bool = False, turn_y: bool = False
) -> Value:
    """Adds a product as NumPy's ``matmul``: a vector is a row on the left, a column on the right.

    ``turn_x`` and ``turn_y`` transpose an operand of floats first. Returns the result.
    """
    row, column = x.rank == 1, y.rank == 1
    if not x.rank or not y.rank:
        raise call.shape_error(f"a product of {x} and {y}")
    x = call.unsqueeze(x, [0]) if row else x
    y = call.unsqueeze(y, [1]) if column else y
    rank = max(x.rank, y.rank)
    x = call.unsqueeze(x, list(range(rank - x.rank)))
    y = call.unsqueeze(y, list(range(rank - y.rank)))
    if x.kind == "integer":
        result = call.op("int_matmul", x, y)
    else:
        result = call.op("matmul", x, y, transposeA=turn_x, transposeB=turn_y)
    return call.squeeze(result, [rank - 2] * row + [rank - 1] * column)


def _mat_mul_fold(call: OnnxCall, x: Array, y: Array) -> Array:
    rows, columns = x.shape[:-1], y.shape[-1:]
    made = call.allocate([*y.shape[:-2], *rows, *columns], max(x.itemsize, y.itemsize))
    products = prod(made) * x.shape[-1] if x.ndim else 0
    current_budget().charge_steps(products >> 10, "its product", call.emit.source)
    return np.asarray(np.matmul(x, y))


@op("MatMul", nnef="matmul, int_matmul", inputs=2, fold=_mat_mul_fold)
def mat_mul(call: OnnxCall) -> Value:
    x, y = call[0], call[1]
    if x.kind == "integer":
        return matmul(call, x, y).typed(x.dtype)
    return matmul(call, x, y)


_GEMM = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0}


@op("Gemm", nnef="linear; or matmul, mul, add", inputs=3, attrs=_GEMM)
def gemm(call: OnnxCall) -> Value:
    alpha, beta = call.attr("alpha"), call.attr("beta")
    x, weights = call[0], call[1]
    if weights.array is not None and not call.attr("transA") and x.rank == 2:
        rows = weights.array if call.attr("transB") else weights.array.T
        bias = _linear_bias(call, beta, rows.shape[0])
        if bias is not None:
            scaled = rows * np.float32(alpha) if alpha != 1.0 else rows
            return call.op("linear", x, Value.known(scaled, weights.name), bias)
    turns = {"turn_x": bool(call.attr("transA")), "turn_y": bool(call.attr("transB"))}
    result = matmul(call, x, weights, **turns)
    if alpha != 1.0:
        result = call.op("mul", result, alpha)
    if not call.has(2) or beta == 0.0:
        return result
    added = call[2] if beta == 1.0 else call.op("mul", call[2], beta)
    return call.zip("add", result, added)


def _linear_bias(call: OnnxCall, beta: float, count: int) -> Value | None:
    """Returns Gemm's third operand times ``beta`` as [1, N], or a 0 if it has none.

    Returns None if the operand is computed or is not one number per column.
    """
    if not call.has(2) or beta == 0.0:
        return call.emit.value(0.0)
    bias = call[2].array
    if bias is None or bias.shape not in ((count,), (1, count)):
        return None
    return Value.known((bias * np.float32(beta)).reshape(1, count), call[2].name)


_FUSED = {"alpha": 1.0, "transA": 0, "transB": 0, "transBatchA": 0, "transBatchB": 0}


@op("FusedMatMul", "TransposeMatMul", nnef="matmul, mul", inputs=2, attrs=_FUSED, domain=MICROSOFT)
def fused_matmul(call: OnnxCall) -> Value:
    if call.attr("transBatchA") or call.attr("transBatchB"):
        raise call.unsupported_error("transBatchA or transBatchB")
    turns = {"turn_x": bool(call.attr("transA")), "turn_y": bool(call.attr("transB"))}
    result = matmul(call, call[0], call[1], **turns)
    return result if call.attr("alpha") == 1.0 else call.op("mul", result, call.attr("alpha"))


# -- Einsum --------------------------------------------------------------------------------------


@op("Einsum", nnef="einsum, expanded", inputs=MANY, attrs={"equation": str})
def einsum(call: OnnxCall) -> Value:
    values = [call[i] for i in range(len(call.inputs))]
    if any(value.kind != values[0].kind for value in values):
        raise call.shape_error(f"it has operands of {', '.join(map(str, values))}")
    terms, result = _parse_equation(call, call.attr("equation"), values)
    for i, labels in enumerate(terms):
        values[i], terms[i] = _take_diagonals(call, values[i], labels)
    values, terms = _squeeze_ones(call, values, terms)
    missing = [label for label in result if not any(label in term for term in terms)]
    if missing:
        raise call.shape_error(f"equation '{call.attr('equation')}': no operand has '{missing[0]}'")
    if values[0].kind == "integer":
        return wrap(_integer_einsum(call, values, terms, result), values[0].dtype, call)
    equation = f"{','.join(terms)}->{result}"
    return call.fragment("einsum", 1, *values, equation=equation)[0].typed(values[0].dtype)


def _integer_einsum(call: OnnxCall, values: list[Value], terms: list[str], result: str) -> Value:
    """Adds operators for an einsum of integers, exact in 32 bits: the full product, then a sum.

    ``terms`` are the operands' labels, and ``result`` the labels of the result, which is returned.
    """
    labels = result + "".join(dict.fromkeys(c for t in terms for c in t if c not in result))
    extents = {
        c: n for v, t in zip(values, terms, strict=True) for c, n in zip(t, v.shape, strict=True)
    }
    call.checked_shape(list(extents.values()))
    product: Value | None = None
    for value, term in zip(values, terms, strict=True):
        moved = call.transpose(value, sorted(range(len(term)), key=lambda a: labels.index(term[a])))
        lifted = call.unsqueeze(moved, [a for a, c in enumerate(labels) if c not in term])
        product = lifted if product is None else call.op("int_mul", product, lifted)
    assert product is not None
    summed = list(range(len(result), len(labels)))
    return call.squeeze(integer_sum(call, product, summed), summed) if summed else product


def _parse_equation(call: OnnxCall, equation: str, values: list[Value]) -> tuple[list[str], str]:
    """Returns the labels of each operand and of the result of an einsum equation.

    An ellipsis becomes letters that the equation does not use.
    """
    text = equation.replace(" ", "")
    left, arrow, result = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(values):
        raise call.shape_error(
            f"equation '{equation}' has {len(terms)} operands, got {len(values)}"
        )
    free = [c for c in string.ascii_letters if c not in text]
    hidden = [v.rank - len(t.replace("...", "")) for t, v in zip(terms, values, strict=True)]
    depth = max((n for n, t in zip(hidden, terms, strict=True) if "..." in t), default=0)
    if depth > len(free) or any(n < 0 for n in hidden):
        raise call.shape_error(f"equation '{equation}' of {', '.join(map(str, values))}")
    dots = "".join(free[:depth])
    filled = [
        t.replace("...", dots[depth - n :]) if "..." in t else t
        for t, n in zip(terms, hidden, strict=True)
    ]
    for term, value in zip(filled, values, strict=True):
        if len(term) != value.rank or not term.isalpha() and term:
            raise call.shape_error(f"equation '{equation}': '{term}' does not fit {value}")
    if not arrow:
        once = sorted(c for c in set(left) - set(",.") if left.count(c) == 1)
        return filled, dots + "".join(once)
    return filled, result.replace("...", dots)


def _take_diagonals(call: OnnxCall, value: Value, labels: str) -> tuple[Value, str]:
    """Returns an einsum operand and its labels, with repeated labels replaced by diagonals."""
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            value = _diagonal(call, value, first, second)
            labels = labels[:second] + labels[second + 1 :]
    return value, labels


def _diagonal(call: OnnxCall, value: Value, first: int, second: int) -> Value:
    n = value.shape[first]
    order = [a for a in range(value.rank) if a not in (first, second)]
    moved = call.transpose(value, [first, second, *order])
    rest = [value.shape[a] for a in order]
    flat = call.reshape(moved, [n * n, *rest])
    places = Value.known(np.arange(n, dtype=np.int64) * (n + 1))
    taken = call.op("gather", flat, places, axis=0)
    # move the diagonal's axis to the position of the first one
    back = [*range(1, first + 1), 0, *range(first + 1, taken.rank)]
    return call.transpose(taken, back)


def _squeeze_ones(
    call: OnnxCall, values: list[Value], terms: list[str]
) -> tuple[list[Value], list[str]]:
    """Removes axes of extent 1 that broadcast against longer ones of the same label.

    Changes ``values`` and ``terms``, their labels, and returns both.
    """
    extents: dict[str, int] = {}
    for value, term in zip(values, terms, strict=True):
        for label, n in zip(term, value.shape, strict=True):
            extents[label] = max(extents.get(label, 1), n)
    for i, (value, term) in enumerate(zip(values, terms, strict=True)):
        ones = [a for a, c in enumerate(term) if value.shape[a] == 1 < extents[c]]
        values[i] = call.squeeze(value, ones)
        terms[i] = "".join(c for a, c in enumerate(term) if a not in ones)
    return values, terms


# -- products of integers --------------------------------------------------------------------------


def subtract_zero_point(call: OnnxCall, x: Value, zero: Value) -> Value:
    """Returns an integer tensor minus its zero point, which broadcasts.

    The tensor is returned unchanged if the zero point is known to be 0.
    """
    if zero.array is not None and not zero.array.any():
        return x
    if x.array is not None and zero.array is not None:
        return Value.known(x.array.astype(np.int64) - zero.array)
    return call.zip("int_sub", x, zero)


@op("MatMulInteger", nnef="int_sub, int_matmul", inputs=4)
def matmul_integer(call: OnnxCall) -> Value:
    a, b = call[0], call[1]
    if call.has(2):
        zero = call[2]
        rows = zero.rank == 1 and zero.shape != (1,) and a.rank > 1
        a = subtract_zero_point(call, a, call.unsqueeze(zero, [1]) if rows else zero)
    if call.has(3):
        b = subtract_zero_point(call, b, call[3])
    return matmul(call, a, b).typed(np.int32)


_NBITS = {
    "K": required(at_least(1)),
    "N": required(at_least(1)),
    "accuracy_level": 0,
    "bits": Attr(int, 4, among=(2, 4, 8)),
    "block_size": required(at_least(1)),
}


@op("MatMulNBits", nnef="matmul_nbits, add", inputs=6, attrs=_NBITS, domain=MICROSOFT)
def matmul_nbits(call: OnnxCall) -> Value:
    """Imports MatMulNBits, a product by quantized weights of a few bits.

    The weights are packed into bytes from the lowest bits on.
    """
    rows, bits, size = call.attr("N"), call.attr("bits"), call.attr("block_size")
    blocks = -(-call.attr("K") // size)
    if call.has(4) and call[4].shape != (0,):
        raise call.unsupported_error("g_idx")
    codes = call.array(1, "the weights").reshape(rows, -1).astype(np.uint8)
    codes = np.pad(codes, ((0, 0), (0, -codes.shape[1] % 4)))
    scales = call.reshape(call[2], [rows, blocks])
    zeros: Value | float = float(1 << (bits - 1))
    if call.has(3):
        stored = call.array(3, "the zero points")
        zeros = Value.known(_zero_points(stored, rows, blocks, bits))
    words = Value.known(codes.view("<i4"))
    y = call.op("matmul_nbits", call[0], words, scales, zeros, block_size=size, bits=bits)
    return call.zip("add", y, call[5]) if call.has(5) else y


def _zero_points(stored: Array, rows: int, blocks: int, bits: int) -> Array:
    if stored.dtype.kind == "f":
        return stored.reshape(rows, blocks).astype(np.float32)
    single = np.unpackbits(stored.reshape(rows, -1).astype(np.uint8), axis=1, bitorder="little")
    numbers = single[:, : single.shape[1] // bits * bits].reshape(rows, -1, bits)
    return (numbers @ (1 << np.arange(bits)))[:, :blocks].astype(np.float32)


#: the largest matrix whose determinant is expanded along the first row
_MAX_ROWS = 4


@op("Det", nnef="slice, mul, sub")
def det(call: OnnxCall) -> Value:
    x = call[0]
    if x.rank < 2 or x.shape[-1] != x.shape[-2] or not x.shape[-1]:
        raise call.shape_error(f"the determinant of {x}")
    if x.shape[-1] > _MAX_ROWS:
        raise call.unsupported_error(
            f"the determinant of {x.shape[-1]} rows (up to {_MAX_ROWS} are)"
        )
    count = range(x.shape[-1])
    rows = [call.slice(x, x.rank - 2, i, i + 1) for i in count]
    elements = [[call.slice(row, x.rank - 1, i, i + 1) for i in count] for row in rows]
    return call.squeeze(_determinant(call, elements), [x.rank - 2, x.rank - 1])


def _determinant(call: OnnxCall, rows: list[list[Value]]) -> Value:
    first, *others = rows
    if not others:
        return first[0]
    total: Value | None = None
    for i, element in enumerate(first):
        minor = [row[:i] + row[i + 1 :] for row in others]
        term = call.op("mul", element, _determinant(call, minor))
        if total is None:
            total = term
        else:
            total = call.op("sub" if i % 2 else "add", total, term)
    assert total is not None
    return total
