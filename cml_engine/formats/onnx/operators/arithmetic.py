"""Imports arithmetic: NNEF's operators for floats, the engine's own for integers."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import numpy as np

from cml_engine.formats.onnx.attributes import FLOAT, one_of, required
from cml_engine.formats.onnx.call import OnnxCall
from cml_engine.formats.onnx.op_schemas import MANY, op
from cml_engine.formats.onnx.ranges.interval import INT32, of_array
from cml_engine.formats.onnx.values import Value
from cml_engine.ir.graph import Array


def binary(call: OnnxCall, name: str, x: Value, y: Value) -> Value:
    """Adds ``add``, ``sub``, ``mul``, ``div``, ``min`` or ``max`` of two values of one type.

    Returns the result. Integer results wrap around to the range of their type.
    """
    if x.kind != y.kind:
        raise call.shape_error(f"it has operands of {x.dtype} and {y.dtype}")
    if x.kind == "integer":
        if name in ("min", "max"):
            x, y = _nearest(x), _nearest(y)
        return wrap(call.zip(f"int_{name}", x, y), x.dtype, call)
    if name in ("min", "max"):
        return _with_nan(call, name, x, y).typed(x.dtype)
    return call.zip(name, x, y).typed(x.dtype)


def _with_nan(call: OnnxCall, name: str, x: Value, y: Value) -> Value:
    """Adds ``min`` or ``max`` that gives NaN where an operand is NaN, as ONNX does.

    NNEF's operators return the second operand there. Returns the result.
    """
    if y.array is not None:
        x, y = y, x
    result = call.zip(name, x, y)
    if x.array is not None and not np.isnan(x.array).any():
        return result
    return call.zip("select", call.op("is_nan", x), x, result)


def _nearest(limit: Value) -> Value:
    """Returns a known limit clamped to 32 bits; a computed limit is returned unchanged.

    The clamped limit has the same effect on 32-bit values.
    """
    if limit.array is None or of_array(limit.array).within(INT32):
        return limit
    low, high = map(int, INT32)
    return Value.known(np.clip(limit.array, max(low, np.iinfo(limit.dtype).min), high), limit.name)


def wrap(value: Value, dtype: np.dtype[Any], call: OnnxCall) -> Value:
    """Adds operators that wrap integers to the range of ``dtype``; returns the result.

    Types of 32 bits and more need none.
    """
    bits = 8 * dtype.itemsize
    if bits < 32 and dtype.kind == "u":
        value = call.op("bit_and", value, (1 << bits) - 1)
    elif bits < 32:
        half = 1 << (bits - 1)
        value = call.op("bit_and", call.op("int_add", value, half), (1 << bits) - 1)
        value = call.op("int_sub", value, half)
    return value.typed(dtype)


def integer_division(x: Array, y: Array) -> Array:
    """Returns the quotient of integer arrays as ONNX does: rounded towards zero, 0 for x / 0."""
    whole = np.where(y == 0, 1, y).astype(x.dtype)
    quotient = x // whole
    cut = quotient + ((x % whole != 0) & ((x < 0) != (whole < 0)))
    return np.asarray(np.where(y == 0, 0, cut), x.dtype)


def _fold(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda call, *arrays: np.asarray(function(*arrays), arrays[0].dtype)


def _plain(name: str) -> Callable[[OnnxCall], Value]:
    return lambda call: binary(call, name, call[0], call[1])


for _name, _nnef, _function in (
    ("Add", "add", np.add),
    ("Sub", "sub", np.subtract),
    ("Mul", "mul", np.multiply),
    ("Div", "div", integer_division),
):
    op(_name, nnef=f"{_nnef}, int_{_nnef}", inputs=2, fold=_fold(_function))(_plain(_nnef))


def _many(name: str) -> Callable[[OnnxCall], Value]:
    def form(call: OnnxCall) -> Value:
        values = [call[i] for i in range(len(call.inputs))]
        if len(values) == 1:
            return values[0]
        return reduce(partial(binary, call, name), values)

    return form


for _name, _nnef, _many_of in (
    ("Sum", "add", np.add),
    ("Max", "max", np.maximum),
    ("Min", "min", np.minimum),
):
    op(_name, nnef=_nnef, inputs=MANY, fold=_fold(lambda *a, f=_many_of: reduce(f, a)))(
        _many(_nnef)
    )


@op("Mean", nnef="add, mul", inputs=MANY)
def mean(call: OnnxCall) -> Value:
    total = _many("add")(call)
    return call.op("mul", total, 1.0 / len(call.inputs))


def _mod_fold(call: OnnxCall, x: Array, y: Array) -> Array:
    return np.asarray(np.fmod(x, y) if call.attr("fmod") else np.mod(x, y), x.dtype)


@op("Mod", nnef="fmod, int_mod, int_rem", inputs=2, attrs={"fmod": 0}, fold=_mod_fold)
def mod(call: OnnxCall) -> Value:
    x, y, cut = call[0], call[1], call.attr("fmod")
    if x.kind == "integer":
        return call.zip("int_rem" if cut else "int_mod", x, y).typed(x.dtype)
    rest = call.zip("fmod", x, y)
    if cut:
        return rest
    # the remainder has the divisor's sign, as in Python
    signs = call.zip("mul", call.op("sign", rest), call.zip("sign", y))
    return call.zip("select", call.op("lt", signs, 0.0), call.zip("add", rest, y), rest)


def _pow_fold(call: OnnxCall, x: Array, y: Array) -> Array:
    """Returns exact powers of integer arrays, truncated if the exponent is negative."""
    below = np.where(y < 0, np.power(x.astype(np.float64), y), 0)
    return np.asarray(np.where(y < 0, below, np.power(x, np.maximum(y, 0))), x.dtype)


@op("Pow", nnef="pow, sqr, rcp, mul", inputs=2, fold=_pow_fold)
def power(call: OnnxCall) -> Value:
    x, y = call[0], call[1]
    exponent = None
    if y.array is not None and y.array.size == 1 and y.rank <= x.rank:
        exponent = float(y.array.reshape(())[()])
    if x.kind == "integer":
        return _integer_power(call, x, y, exponent)
    # 0.5 is not sqrt: the powers of -0 and of -infinity are positive
    simple = {2.0: "sqr", -1.0: "rcp", -2.0: "rsqr"}
    if exponent == 1.0:
        return x
    if exponent in simple:
        return call.op(simple[exponent], x)
    if exponent == 3.0:
        return call.op("mul", call.op("sqr", x), x)
    return call.zip("pow", x, call.scalar(y))


def _integer_power(call: OnnxCall, x: Value, y: Value, exponent: float | None) -> Value:
    """Adds operators for integer powers ``x ** y``; ``exponent`` is the exponent if it is known.

    A small exponent becomes products, because floats are exact up to 2^24 only. Returns the result.
    """
    if exponent is not None and exponent == int(exponent) and 1 <= exponent <= 16:
        result = x
        for _ in range(int(exponent) - 1):
            result = binary(call, "mul", result, x)
        return result
    if exponent == 0.5:
        return integer_root(call, x).typed(x.dtype)
    result = call.zip("pow", call.scalar(x), call.scalar(y))
    # truncate as ONNX Runtime does, but round results within the power's error of an integer
    whole = call.op("round_even", result)
    off = call.op("abs", call.op("sub", result, whole))
    near = call.op("le", off, call.op("mul", call.op("abs", result), _POWER_ERROR))
    return wrap(call.cast(call.op("select", near, whole, result), "integer"), x.dtype, call)


#: the relative error of a power on a GPU
_POWER_ERROR = 4e-6
#: the square root of the largest 32-bit integer
_LARGEST_ROOT = 46340


def integer_root(call: OnnxCall, x: Value) -> Value:
    """Adds operators for the square root of integers, rounded down, and returns the result."""
    near = call.op("round_even", call.op("sqrt", call.scalar(x)))
    root = call.op("int_min", call.cast(near, "integer"), _LARGEST_ROOT)
    above = call.op("int_gt", call.op("int_mul", root, root), x)
    return call.op("select", above, call.op("int_sub", root, 1), root)


def _signed(name: str) -> Callable[[OnnxCall], Value]:
    def form(call: OnnxCall) -> Value:
        x = call[0]
        integer = x.kind == "integer"
        if integer and x.dtype.kind == "u":
            if name == "abs":
                return x
            if name == "sign":
                return call.op("int_min", x, 1).typed(x.dtype)
        if integer:
            return wrap(call.op(f"int_{name}", x), x.dtype, call)
        return call.op(name, x).typed(x.dtype)

    return form


for _name, _nnef, _unary in (
    ("Abs", "abs", np.abs),
    ("Neg", "neg", np.negative),
    ("Sign", "sign", np.sign),
):
    op(_name, nnef=f"{_nnef}, int_{_nnef}", fold=_fold(_unary))(_signed(_nnef))


def _unary_op(name: str) -> Callable[[OnnxCall], Value]:
    return lambda call: call.op(name, call.scalar(call[0])).typed(call[0].dtype)


for _name in (
    "Exp", "Log", "Sqrt", "Floor", "Ceil", "Sin", "Cos", "Tan", "Sinh", "Cosh", "Tanh",
    "Asin", "Acos", "Atan", "Asinh", "Acosh", "Atanh", "Erf",
):  # fmt: skip
    op(_name, nnef=_name.lower())(_unary_op(_name.lower()))
op("Reciprocal", nnef="rcp")(_unary_op("rcp"))
op("Round", nnef="round_even")(_unary_op("round_even"))


# -- Clip: its bounds were attributes once -------------------------------------------------------


@op("Clip", nnef="clamp", attrs={"min": FLOAT, "max": FLOAT}, until=10)
def clip_6(call: OnnxCall) -> Value:
    low, high = call.attr("min"), call.attr("max")
    low_value = None if low is None else call.emit.value(float(low))
    high_value = None if high is None else call.emit.value(float(high))
    return _clip(call, call[0], low_value, high_value)


@op("Clip", nnef="clamp, int_max, int_min", inputs=3, since=11)
def clip(call: OnnxCall) -> Value:
    low = call[1] if call.has(1) else None
    high = call[2] if call.has(2) else None
    return _clip(call, call[0], low, high)


def _clip(call: OnnxCall, x: Value, low: Value | None, high: Value | None) -> Value:
    if x.kind == "integer":
        x = x if low is None else binary(call, "max", x, low)
        return x if high is None else binary(call, "min", x, high)
    # keep NaN, which max and min would replace by a bound
    least, most = call.emit.value(-math.inf), call.emit.value(math.inf)
    if low is not None and high is not None and not _in_order(low, high):
        x, low = call.zip("clamp", x, low, most), None
    if low is None and high is None:
        return x
    return call.zip("clamp", x, low or least, high or most)


def _in_order(low: Value, high: Value) -> bool:
    """Returns True if both bounds of a Clip are known and ``low <= high``.

    For bounds in the wrong order ONNX gives the upper one, and NNEF the lower one.
    """
    return (
        low.array is not None and high.array is not None and bool(np.all(low.array <= high.array))
    )


# -- bits ----------------------------------------------------------------------------------------


def _bits(name: str) -> Callable[[OnnxCall], Value]:
    return lambda call: call.zip(name, call[0], call[1]).typed(call[0].dtype)


for _name, _nnef, _bitwise in (
    ("BitwiseAnd", "bit_and", np.bitwise_and),
    ("BitwiseOr", "bit_or", np.bitwise_or),
    ("BitwiseXor", "bit_xor", np.bitwise_xor),
):
    op(_name, nnef=_nnef, inputs=2, fold=_fold(_bitwise))(_bits(_nnef))


@op("BitwiseNot", nnef="bit_not", fold=_fold(np.bitwise_not))
def bitwise_not(call: OnnxCall) -> Value:
    return wrap(call.op("bit_not", call[0]), call[0].dtype, call)


@op(
    "BitShift",
    nnef="shift_left, shift_right",
    inputs=2,
    attrs={"direction": required(one_of("LEFT", "RIGHT"))},
)
def bit_shift(call: OnnxCall) -> Value:
    x, by = call[0], call[1]
    if call.attr("direction") == "LEFT":
        return wrap(call.zip("shift_left", x, by), x.dtype, call)
    shifted = call.zip("shift_right", x, by).typed(x.dtype)
    if x.dtype.kind == "u":
        return shifted
    # arithmetic shift: a negative number is the complement of its shifted complement
    other = call.op("bit_not", call.zip("shift_right", call.op("bit_not", x), by))
    return call.zip("select", call.op("int_lt", x, 0), other, shifted).typed(x.dtype)
