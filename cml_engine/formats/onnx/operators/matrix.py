"""Imports matrix products."""

from __future__ import annotations

import string
from collections.abc import Sequence
from functools import reduce
from math import prod

import numpy as np

from cml_engine.formats.onnx.op_schemas import MICROSOFT, attribute, op
from cml_engine.formats.onnx.operators.elementwise import activate, parameter_count, wrap
from cml_engine.formats.onnx.operators.reductions import integer_sum
from cml_engine.formats.onnx.values import (
    InvalidNode,
    Value,
    add_operator,
    allocate,
    checked_shape,
    expandable,
    fragment,
    unsupported_error,
    zeros,
)
from cml_engine.io.load_limits import current_budget
from cml_engine.ir.graph import Array


def matmul(x: Value, y: Value, turn_x: object = False, turn_y: object = False) -> Value:
    """Adds a product as NumPy's ``matmul``: a vector is a row on the left, a column on the right.

    ``turn_x`` and ``turn_y`` transpose an operand of floats first. Returns the result.
    """
    if not x.rank or not y.rank:
        raise InvalidNode(f"a product of {x} and {y}")
    row, column = x.rank == 1, y.rank == 1
    x = x.unsqueeze([0]) if row else x
    y = y.unsqueeze([1]) if column else y
    rank = max(x.rank, y.rank)
    x, y = x.lift(rank), y.lift(rank)
    if x.kind == "integer":
        result = x.int_matmul(y)
    else:
        result = x.matmul(y, transposeA=bool(turn_x), transposeB=bool(turn_y))
    return result.squeeze([rank - 2] * row + [rank - 1] * column)


def _mat_mul_fold(x: Array, y: Array) -> Array:
    rows, columns = x.shape[:-1], y.shape[-1:]
    shape = allocate([*y.shape[:-2], *rows, *columns], max(x.itemsize, y.itemsize))
    products = prod(shape) * x.shape[-1] if x.ndim else 0
    current_budget().charge_steps(products >> 10, "its product")
    return np.asarray(np.matmul(x, y))


@op("MatMul", "matmul, int_matmul", fold=_mat_mul_fold)
def mat_mul(x: Value, y: Value) -> Value:
    product = matmul(x, y)
    return product.typed(x.dtype) if x.kind == "integer" else product


TURNS = {"transA": attribute(0, kind=int), "transB": attribute(0, kind=int)}


@op("Gemm", "linear; or matmul, mul, add", attrs=TURNS)
def gemm(
    x: Value,
    weights: Value,
    bias: Value | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    **flags: int,
) -> Value:
    if x.rank != 2 or weights.rank != 2:
        raise InvalidNode(f"a product of {x} and {weights}, wanted matrices")
    if bias is not None and beta == 0.0:
        bias = None
    if weights.array is not None and not flags["transA"]:
        rows = weights.array if flags["transB"] else weights.array.T
        row = _linear_bias(bias, beta, rows.shape[0])
        if row is not None:
            scaled = rows * np.float32(alpha) if alpha != 1.0 else rows
            return x.linear(Value.known(scaled, weights.name), row)
    result = matmul(x, weights, flags["transA"], flags["transB"])
    result = result if alpha == 1.0 else result * alpha
    if bias is None:
        return result
    bias = expandable(bias, result.shape, "the third input")
    return result + (bias if beta == 1.0 else bias * beta)


def _linear_bias(bias: Value | None, beta: float, count: int) -> Value | float | None:
    """Returns Gemm's third operand times ``beta`` as [1, N], or a 0 if it has none.

    Returns None if the operand is computed or is not one number per column.
    """
    if bias is None:
        return 0.0
    if bias.array is None or bias.shape not in ((count,), (1, count)):
        return None
    return Value.known((bias.array * np.float32(beta)).reshape(1, count), bias.name)


@op("FusedGemm", "linear; or matmul, mul, add; and its activation", attrs=TURNS, domain=MICROSOFT)
def fused_gemm(
    x: Value,
    weights: Value,
    bias: Value | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    activation: str = "",
    activation_alpha: float | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    **flags: int,
) -> Value:
    y = gemm(x, weights, bias, alpha=alpha, beta=beta, **flags)
    given = [activation_alpha, activation_beta, activation_gamma]
    parameters = [value for value in given if value is not None]
    return activate(y, activation, parameters[: parameter_count(activation)])


_FUSED = {name: attribute(0, kind=int) for name in ("transBatchA", "transBatchB")}


@op("FusedMatMul", "matmul, mul", attrs={**TURNS, **_FUSED}, domain=MICROSOFT)
@op("TransposeMatMul", "matmul, mul", attrs={**TURNS, **_FUSED}, domain=MICROSOFT)
def fused_matmul(x: Value, y: Value, *, alpha: float = 1.0, **flags: int) -> Value:
    x = _after_batch(x) if flags["transBatchA"] else x
    y = _after_batch(y) if flags["transBatchB"] else y
    result = matmul(x, y, flags["transA"], flags["transB"])
    return result if alpha == 1.0 else result * alpha


def _after_batch(x: Value) -> Value:
    """Returns an operand with its first axis moved behind the axes of the batch."""
    return x.transpose([*range(1, x.rank - 1), 0, x.rank - 1]) if x.rank > 2 else x


# -- Einsum --------------------------------------------------------------------------------------


@op("Einsum", "einsum, expanded")
def einsum(*operands: Value, equation: str) -> Value:
    first = operands[0]
    if any(value.kind != first.kind for value in operands):
        raise InvalidNode(f"it has operands of {', '.join(map(str, operands))}")
    terms, result = _parse_equation(equation, operands)
    pairs = [_take_diagonals(v, labels) for v, labels in zip(operands, terms, strict=True)]
    pairs = _squeeze_ones(pairs)
    missing = [label for label in result if not any(label in term for _, term in pairs)]
    if missing:
        raise InvalidNode(f"equation '{equation}': no operand has '{missing[0]}'")
    extents = {c: n for value, term in pairs for c, n in zip(term, value.shape, strict=True)}
    if 0 in extents.values():  # a sum of nothing
        return zeros([extents[label] for label in result], first.dtype)
    if first.kind == "integer":
        return wrap(_integer_einsum(pairs, result), first.dtype)
    equation = f"{','.join(term for _, term in pairs)}->{result}"
    return fragment("einsum", [v for v, _ in pairs], many=True, equation=equation).typed(
        first.dtype
    )


def _integer_einsum(pairs: Sequence[tuple[Value, str]], result: str) -> Value:
    """Adds operators for an einsum of integers, exact in 32 bits: the full product, then a sum.

    ``pairs`` are operands and their labels, and ``result`` the labels of the result, which is
    returned.
    """
    labels = "".join(dict.fromkeys(result + "".join(term for _, term in pairs)))
    checked_shape(list({c: n for v, t in pairs for c, n in zip(t, v.shape, strict=True)}.values()))
    lifted = []
    for value, term in pairs:
        order = sorted(range(len(term)), key=lambda a: labels.index(term[a]))
        missing = [a for a, c in enumerate(labels) if c not in term]
        lifted.append(value.transpose(order).unsqueeze(missing))
    product = reduce(lambda x, y: add_operator("int_mul", x, y), lifted)
    summed_axes = list(range(len(result), len(labels)))
    return integer_sum(product, summed_axes).squeeze(summed_axes) if summed_axes else product


def _parse_equation(equation: str, values: Sequence[Value]) -> tuple[list[str], str]:
    """Returns the labels of each operand and of the result of an einsum equation.

    An ellipsis becomes letters that the equation does not use.
    """
    text = equation.replace(" ", "")
    operand_text, arrow_text, result = text.partition("->")
    terms = operand_text.split(",")
    if len(terms) != len(values):
        raise InvalidNode(f"equation '{equation}' has {len(terms)} operands, got {len(values)}")
    unused_letters = [c for c in string.ascii_letters if c not in text]
    ellipsis_ranks = [
        v.rank - len(t.replace("...", "")) for t, v in zip(terms, values, strict=True)
    ]
    depth = max((n for n, t in zip(ellipsis_ranks, terms, strict=True) if "..." in t), default=0)
    if depth > len(unused_letters) or any(n < 0 for n in ellipsis_ranks):
        raise InvalidNode(f"equation '{equation}' of {', '.join(map(str, values))}")
    dots = "".join(unused_letters[:depth])
    full_terms = [
        t.replace("...", dots[depth - n :]) for t, n in zip(terms, ellipsis_ranks, strict=True)
    ]
    for term, value in zip(full_terms, values, strict=True):
        if len(term) != value.rank or not term.isalpha() and term:
            raise InvalidNode(f"equation '{equation}': '{term}' does not fit {value}")
    if not arrow_text:
        unique_labels = sorted(
            c for c in set(operand_text) - set(",.") if operand_text.count(c) == 1
        )
        return full_terms, dots + "".join(unique_labels)
    return full_terms, result.replace("...", dots)


def _take_diagonals(value: Value, labels: str) -> tuple[Value, str]:
    """Returns an einsum operand and its labels, with repeated labels replaced by diagonals."""
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            value = _diagonal(value, first, second)
            labels = labels[:second] + labels[second + 1 :]
    return value, labels


def _diagonal(value: Value, first: int, second: int) -> Value:
    n = value.shape[first]
    order = [a for a in range(value.rank) if a not in (first, second)]
    transposed = value.transpose([first, second, *order])
    flat = transposed.reshape([n * n, *(value.shape[a] for a in order)])
    diagonal = flat.gather(Value.known(np.arange(n, dtype=np.int64) * (n + 1)), axis=0)
    # move the diagonal's axis to the position of the first one
    return diagonal.transpose([*range(1, first + 1), 0, *range(first + 1, diagonal.rank)])


def _squeeze_ones(pairs: Sequence[tuple[Value, str]]) -> list[tuple[Value, str]]:
    """Returns operands and labels without axes of 1 that broadcast against another extent."""
    extents: dict[str, int] = {}
    for value, term in pairs:
        for label, n in zip(term, value.shape, strict=True):
            if n != 1 and extents.setdefault(label, n) != n:
                raise InvalidNode(f"index '{label}' is {extents[label]} and {n}")
    squeezed = []
    for value, term in pairs:
        ones = [a for a, c in enumerate(term) if value.shape[a] == 1 != extents.get(c, 1)]
        labels = "".join(c for a, c in enumerate(term) if a not in ones)
        squeezed.append((value.squeeze(ones), labels))
    return squeezed


# -- products of integers --------------------------------------------------------------------------


def subtract_zero_point(x: Value, zero: Value | None) -> Value:
    """Returns an integer tensor minus its zero point, which broadcasts.

    The tensor is returned unchanged if there is no zero point, or it is known to be 0.
    """
    if zero is None or (zero.array is not None and not zero.array.any()):
        return x
    return x - expandable(zero, x.shape, "the zero point")


@op("MatMulInteger", "int_sub, int_matmul")
def matmul_integer(
    a: Value, b: Value, zero: Value | None = None, zero_of_b: Value | None = None
) -> Value:
    if zero is not None and zero.rank == 1 and zero.shape != (1,) and a.rank > 1:
        zero = zero.unsqueeze([1])  # one per row
    product = matmul(subtract_zero_point(a, zero), subtract_zero_point(b, zero_of_b))
    return product.typed(np.int32)


#: the largest matrix whose determinant is expanded along the first row
_MAX_ROWS = 4


@op("Det", "slice, mul, sub")
def det(x: Value) -> Value:
    if x.rank < 2 or x.shape[-1] != x.shape[-2] or not x.shape[-1]:
        raise InvalidNode(f"the determinant of {x}")
    if x.shape[-1] > _MAX_ROWS:
        raise unsupported_error(f"the determinant of {x.shape[-1]} rows (up to {_MAX_ROWS} are)")
    count = range(x.shape[-1])
    rows = [x.slice(x.rank - 2, i, i + 1) for i in count]
    elements = [[row.slice(x.rank - 1, i, i + 1) for i in count] for row in rows]
    return _determinant(elements).squeeze([x.rank - 2, x.rank - 1])


def _determinant(rows: list[list[Value]]) -> Value:
    first, *minor_rows = rows
    if not minor_rows:
        return first[0]
    terms = (
        element * _determinant([row[:i] + row[i + 1 :] for row in minor_rows])
        for i, element in enumerate(first)
    )
    total = next(terms)
    for i, term in enumerate(terms):
        total = total + term if i % 2 else total - term
    return total
