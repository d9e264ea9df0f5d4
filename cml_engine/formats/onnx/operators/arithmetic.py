"""Imports arithmetic, comparisons, logic and casts: NNEF's operators for floats, the engine's own
for integers."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import numpy as np

from cml_engine.formats.onnx.op_schemas import attribute, one_of, op
from cml_engine.formats.onnx.ranges import INT32, of_array
from cml_engine.formats.onnx.tensors import ELEMENT_TYPES, element_dtype
from cml_engine.formats.onnx.values import (
    InvalidNode,
    Value,
    elementwise,
    kind_of,
    unsupported_error,
)
from cml_engine.ir.graph import Array


def binary(name: str, x: Value, y: Value) -> Value:
    """Adds ``add``, ``sub``, ``mul``, ``div``, ``min`` or ``max`` of two values of one type.

    Returns the result. Integer results wrap around to the range of their type.
    """
    if x.kind != y.kind:
        raise InvalidNode(f"it has operands of {x.dtype} and {y.dtype}")
    is_limit = name in ("min", "max")
    if x.kind == "integer":
        x, y = (_nearest(x), _nearest(y)) if is_limit else (x, y)
        return wrap(elementwise(name, x, y), x.dtype)
    result = _with_nan(name, x, y) if is_limit else elementwise(name, x, y)
    return result.typed(x.dtype)


def _with_nan(name: str, x: Value, y: Value) -> Value:
    """Adds ``min`` or ``max`` that gives NaN where an operand is NaN, as ONNX does.

    NNEF's operators return the second operand there. Returns the result.
    """
    if y.array is not None:
        x, y = y, x
    result = elementwise(name, x, y)
    if x.array is not None and not np.isnan(x.array).any():
        return result
    return x.is_nan().select(x, result)


def _nearest(limit: Value) -> Value:
    """Returns a known limit clamped to 32 bits; a computed limit is returned unchanged.

    The clamped limit has the same effect on 32-bit values.
    """
    if limit.array is None or of_array(limit.array).within(INT32):
        return limit
    low, high = map(int, INT32)
    return Value.known(np.clip(limit.array, max(low, np.iinfo(limit.dtype).min), high), limit.name)


def wrap(value: Value, dtype: np.dtype[Any]) -> Value:
    """Adds operators that wrap integers to the range of ``dtype``; returns the result.

    Types of 32 bits and more need none.
    """
    bits = 8 * dtype.itemsize
    if bits < 32 and dtype.kind == "u":
        value = value.bit_and((1 << bits) - 1)
    elif bits < 32:
        half = 1 << (bits - 1)
        value = (value + half).bit_and((1 << bits) - 1) - half
    return value.typed(dtype)


def integer_division(x: Array, y: Array) -> Array:
    """Returns the quotient of integer arrays as ONNX does: rounded towards zero, 0 for x / 0."""
    whole = np.where(y == 0, 1, y).astype(x.dtype)
    quotient = x // whole
    cut = quotient + ((x % whole != 0) & ((x < 0) != (whole < 0)))
    return np.asarray(np.where(y == 0, 0, cut), x.dtype)


def _binary_form(name: str) -> Callable[[Value, Value], Value]:
    return lambda x, y: binary(name, x, y)


def _many_form(name: str) -> Callable[..., Value]:
    return lambda *values: reduce(partial(binary, name), values)


def _many_fold(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arrays: reduce(function, arrays)


_function: Callable[..., Any]
for _name, _nnef, _function in (
    ("Add", "add", np.add),
    ("Sub", "sub", np.subtract),
    ("Mul", "mul", np.multiply),
    ("Div", "div", integer_division),
):
    op(_name, f"{_nnef}, int_{_nnef}", fold=_function)(_binary_form(_nnef))

for _name, _nnef, _function in (
    ("Sum", "add", np.add),
    ("Max", "max", np.maximum),
    ("Min", "min", np.minimum),
):
    op(_name, _nnef, fold=_many_fold(_function))(_many_form(_nnef))


@op("Mean", "add, mul")
def mean(*values: Value) -> Value:
    return _many_form("add")(*values) * (1.0 / len(values))


def _mod_fold(x: Array, y: Array, fmod: bool) -> Any:
    return np.fmod(x, y) if fmod else np.mod(x, y)


@op("Mod", "fmod, int_mod, int_rem", fold=_mod_fold)
def mod(x: Value, y: Value, *, fmod: bool = False) -> Value:
    if x.kind == "integer":
        return (x.int_rem(y) if fmod else x.int_mod(y)).typed(x.dtype)
    rest = x.fmod(y)
    if fmod:
        return rest
    # the remainder has the divisor's sign, as in Python
    return (rest.sign() * y.sign()).lt(0.0).select(rest + y, rest)


def _pow_fold(x: Array, y: Array) -> Array:
    """Returns exact powers of integer arrays, truncated if the exponent is negative."""
    below = np.where(y < 0, np.power(x.astype(np.float64), y), 0)
    return np.asarray(np.where(y < 0, below, np.power(x, np.maximum(y, 0))), x.dtype)


@op("Pow", "pow, sqr, rcp, mul", fold=_pow_fold)
def power(x: Value, y: Value) -> Value:
    exponent = None
    if y.array is not None and y.array.size == 1 and y.rank <= x.rank:
        exponent = float(y.array.reshape(())[()])
    if x.kind == "integer":
        return _integer_power(x, y, exponent)
    # 0.5 is not sqrt: the powers of -0 and of -infinity are positive
    simple: dict[float | None, Callable[[], Value]] = {
        1.0: lambda: x, 2.0: x.sqr, 3.0: lambda: x.sqr() * x, -1.0: x.rcp, -2.0: x.rsqr,
    }  # fmt: skip
    return simple[exponent]() if exponent in simple else x.pow(y.scalar())


def _integer_power(x: Value, y: Value, exponent: float | None) -> Value:
    """Adds operators for integer powers ``x ** y``; ``exponent`` is the exponent if it is known.

    A small exponent becomes products, because floats are exact up to 2^24 only. Returns the result.
    """
    if exponent is not None and exponent == int(exponent) and 1 <= exponent <= 16:
        return reduce(partial(binary, "mul"), [x] * int(exponent))
    if exponent == 0.5:
        return integer_root(x).typed(x.dtype)
    result = x.scalar().pow(y.scalar())
    # truncate as ONNX Runtime does, but round results within the power's error of an integer
    whole = result.round_even()
    near = (result - whole).abs().le(result.abs() * _POWER_ERROR)
    return wrap(near.select(whole, result).cast("integer"), x.dtype)


#: the relative error of a power on a GPU
_POWER_ERROR = 4e-6
#: the square root of the largest 32-bit integer
_LARGEST_ROOT = 46340


def integer_root(x: Value) -> Value:
    """Adds operators for the square root of integers, rounded down, and returns the result."""
    root = x.scalar().sqrt().round_even().cast("integer").min(_LARGEST_ROOT)
    return (root * root).gt(x).select(root - 1, root)


def _signed_form(name: str) -> Callable[[Value], Value]:
    def form(x: Value) -> Value:
        if x.dtype.kind == "u" and name != "neg":
            return x if name == "abs" else x.min(1).typed(x.dtype)
        result = elementwise(name, x)
        return wrap(result, x.dtype) if x.kind == "integer" else result.typed(x.dtype)

    return form


for _name, _function in (("Abs", np.abs), ("Neg", np.negative), ("Sign", np.sign)):
    _nnef = _name.lower()
    op(_name, f"{_nnef}, int_{_nnef}", fold=_function)(_signed_form(_nnef))


def _float_form(name: str) -> Callable[[Value], Value]:
    def form(x: Value) -> Value:
        found: Value = getattr(x.scalar(), name)()
        return found.typed(x.dtype)

    return form


for _name in (
    "Exp", "Log", "Sqrt", "Floor", "Ceil", "Sin", "Cos", "Tan", "Sinh", "Cosh", "Tanh",
    "Asin", "Acos", "Atan", "Asinh", "Acosh", "Atanh", "Erf",
):  # fmt: skip
    op(_name, _name.lower())(_float_form(_name.lower()))
op("Reciprocal", "rcp")(_float_form("rcp"))
op("Round", "round_even")(_float_form("round_even"))


@op("Clip", "clamp, int_max, int_min")
def clip(
    x: Value, min: Value | None = attribute(until=10), max: Value | None = attribute(until=10)
) -> Value:
    low, high = min, max
    if x.kind == "integer":
        x = x if low is None else binary("max", x, low)
        return x if high is None else binary("min", x, high)
    # keep NaN, which max and min would replace by a bound
    if low is not None and high is not None and not _in_order(low, high):
        x, low = x.clamp(low, math.inf), None
    if low is None and high is None:
        return x
    return x.clamp(-math.inf if low is None else low, math.inf if high is None else high)


def _in_order(low: Value, high: Value) -> bool:
    """Returns True if both bounds of a Clip are known and ``low <= high``.

    For bounds in the wrong order ONNX gives the upper one, and NNEF the lower one.
    """
    return (
        low.array is not None and high.array is not None and bool(np.all(low.array <= high.array))
    )


# -- bits ----------------------------------------------------------------------------------------


def _bits_form(name: str) -> Callable[[Value, Value], Value]:
    return lambda x, y: elementwise(name, x, y).typed(x.dtype)


for _name, _nnef, _function in (
    ("BitwiseAnd", "bit_and", np.bitwise_and),
    ("BitwiseOr", "bit_or", np.bitwise_or),
    ("BitwiseXor", "bit_xor", np.bitwise_xor),
):
    op(_name, _nnef, fold=_function)(_bits_form(_nnef))


@op("BitwiseNot", "bit_not", fold=np.bitwise_not)
def bitwise_not(x: Value) -> Value:
    return wrap(x.bit_not(), x.dtype)


@op("BitShift", "shift_left, shift_right")
def bit_shift(
    x: Value, steps: Value, *, direction: str = one_of("LEFT", "RIGHT", required=True)
) -> Value:
    if direction == "LEFT":
        return wrap(x.shift_left(steps), x.dtype)
    shifted = x.shift_right(steps).typed(x.dtype)
    if x.dtype.kind == "u":
        return shifted
    # arithmetic shift: a negative number is the complement of its shifted complement
    return x.lt(0).select(x.bit_not().shift_right(steps).bit_not(), shifted).typed(x.dtype)


# -- comparisons and logic -----------------------------------------------------------------------


def _comparison(name: str) -> Callable[[Value, Value], Value]:
    """Returns the conversion of a comparison: two integers are compared as integers."""

    def form(x: Value, y: Value) -> Value:
        are_integers = x.kind == y.kind == "integer"
        return elementwise(name, *((x, y) if are_integers else (x.scalar(), y.scalar())))

    return form


for _name, _nnef, _function in (
    ("Less", "lt", np.less),
    ("LessOrEqual", "le", np.less_equal),
    ("Greater", "gt", np.greater),
    ("GreaterOrEqual", "ge", np.greater_equal),
    ("Equal", "eq", np.equal),
):
    op(_name, f"{_nnef}, int_{_nnef}", fold=_function)(_comparison(_nnef))


@op("And", "and", fold=np.logical_and)
def and_(x: Value, y: Value) -> Value:
    return x.and_(y)


@op("Or", "or", fold=np.logical_or)
def or_(x: Value, y: Value) -> Value:
    return x.or_(y)


@op("Not", "not", fold=np.logical_not)
def not_(x: Value) -> Value:
    return x.not_()


@op("Xor", "and, or, not", fold=np.logical_xor)
def xor(x: Value, y: Value) -> Value:
    both = x.and_(y)
    return x.or_(y).and_(both.not_())


@op("Where", "select", fold=np.where)
def where(condition: Value, x: Value, y: Value) -> Value:
    return condition.select(x, y).typed(x.dtype)


@op("IsNaN", "is_nan")
def is_nan(x: Value) -> Value:
    return x.is_nan()


@op("IsInf", "is_inf, gt, lt, and")
def is_inf(x: Value, *, detect_negative: bool = True, detect_positive: bool = True) -> Value:
    infinite = x.is_inf()
    if detect_positive and detect_negative:
        return infinite
    if not detect_positive and not detect_negative:
        return infinite.and_(False)
    return infinite.and_(x.gt(0.0) if detect_positive else x.lt(0.0))


# -- types ---------------------------------------------------------------------------------------


def _to_element(value: Value, element: int) -> Value:
    """Returns a value cast to ``element``, the number of an ONNX type."""
    dtype = element_dtype(element)
    if dtype is None or ELEMENT_TYPES[element] in ("uint4", "int4"):
        raise unsupported_error(f"a cast to {ELEMENT_TYPES.get(element, element)}")
    if value.array is not None:
        return Value.known(_cast_array(value.array, dtype))
    if value.kind != kind_of(dtype):
        if dtype == np.uint32 and value.kind == "scalar":
            value = _signed(value)
        value = value.cast(kind_of(dtype))
    elif value.kind == "scalar" and dtype.itemsize < value.dtype.itemsize == 4:
        value = value.copy()  # float16 and bfloat16 are computed as float32
    if dtype.kind in "iu" and dtype.itemsize < 4 and dtype != value.dtype:
        return wrap(value, dtype)
    return value.typed(dtype)


def _signed(value: Value) -> Value:
    """Adds operators that clamp floats to uint32's range and subtract 2^32 from 2^31 and more.

    A cast of the result to int32 then has the bits of the uint32.
    """
    value = value.clamp(*_ends(np.dtype(np.uint32)))
    lowered = value - 2.0**32
    return value.ge(2.0**31).select(lowered, value)


def _cast_array(array: Array, dtype: np.dtype[Any]) -> Array:
    """Returns a known array cast as the network does at run time, but exact for 64-bit types."""
    with np.errstate(all="ignore"):
        if array.dtype.kind == "f" and dtype.kind in "iu":
            whole = np.nan_to_num(array.astype(np.float64)).clip(*_ends(dtype))
            return whole.astype(np.int64).astype(dtype)
        return array.astype(dtype)


def _ends(dtype: np.dtype[Any]) -> tuple[float, float]:
    """Returns the lowest and highest float to clamp to before a cast to an integer type."""
    if dtype.itemsize == 8:
        return -(2.0**63), 2.0**63 - 1024  # the largest float64 that int64 holds
    return -(2.0**31), 2.0**32 - 256 if dtype == np.uint32 else 2.0**31 - 1


@op("Cast", "cast")
def cast(
    x: Value,
    *,
    to: int,
    saturate: int = attribute(1, since=19),
    round_mode: str = one_of("up", "down", "nearest", since=19),
) -> Value:
    return _to_element(x, to)


@op("CastLike", "cast")
def cast_like(
    x: Value, like: Value, *, saturate: int = 1, round_mode: str = one_of("up", "down", "nearest")
) -> Value:
    wanted = like.dtype.name
    return _to_element(x, next(n for n, name in ELEMENT_TYPES.items() if name == wanted))


@op("BitCast", "to_bits, from_bits", since=26)
def bit_cast(x: Value, *, to: int) -> Value:
    """Imports BitCast, which reinterprets the bits as another type of the same size."""
    dtype = element_dtype(to)
    if dtype is None or dtype.itemsize != x.dtype.itemsize:
        raise InvalidNode(f"{x.dtype} read as {ELEMENT_TYPES.get(to, to)}")
    if x.array is not None:
        return Value.known(np.ascontiguousarray(x.array).view(dtype).reshape(x.shape))
    # floats of other sizes are computed in 32 bits, and integers have at most 32 bits
    if "uint32" in (x.dtype.name, dtype.name) or (
        x.dtype.itemsize != 4 and "scalar" in (x.kind, kind_of(dtype))
    ):
        raise unsupported_error(f"{x.dtype} read as {dtype}")
    if x.kind != "logical" and x.kind != kind_of(dtype):
        return (x.to_bits() if x.kind == "scalar" else x.from_bits()).typed(dtype)
    return _to_element(x, to)
