"""The elementwise operators: each with its HLSL, its NumPy function and its tolerance.

``elementwise_op.py`` derives the rest. If HLSL's own function is missing, imprecise or
wrong at the edges, the expression calls one of ``shaders_hlsl/include/pointwise.hlsli``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, wraps

import numpy as np

from cml_engine.ir.graph import Array
from cml_engine.ops.declaration.spec import EXACT, Tolerance
from cml_engine.ops.elementwise import in_place
from cml_engine.ops.elementwise.elementwise_op import declare

#: erf(5) differs from 1 by 1.5e-12; between knots of this distance the cubic is off by 2e-9
_END, _KNOTS = 5.0, 320
#: elements at a time: a dozen arrays of them stay in a cache
_BLOCK = 8192


@cache
def _knots() -> tuple[Array, Array]:
    """Returns the values of erf and of its slope at equidistant points from 0 to ``_END``."""
    x = np.linspace(0.0, _END, _KNOTS + 1)
    slope = 2 / math.sqrt(math.pi) * np.exp(-x * x)
    return np.array([math.erf(v) for v in x]), slope


def _in_blocks(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Returns a function that applies an elementwise ``function`` in pieces and returns float64.

    On large arrays this is three times as fast.
    """

    @wraps(function)
    def pieces(x: Array) -> Array:
        flat, result = np.reshape(x, -1), np.empty(np.size(x))
        for start in range(0, flat.size, _BLOCK):
            result[start : start + _BLOCK] = function(flat[start : start + _BLOCK])
        return result.reshape(np.shape(x))

    return pieces


@_in_blocks
def erf(x: Array) -> Array:
    """Computes erf in float64, which NumPy lacks, by cubic interpolation of ``math.erf``."""
    value, slope = _knots()
    step = _END / _KNOTS
    clipped = np.nan_to_num(np.abs(x).astype(np.float64), nan=0.0).clip(0, _END * (1 - 1e-12))
    i = (clipped / step).astype(np.int64)
    t = clipped / step - i
    start = value[i] * (1 + 2 * t) * (1 - t) ** 2 + slope[i] * step * t * (1 - t) ** 2
    end = value[i + 1] * t * t * (3 - 2 * t) + slope[i + 1] * step * t * t * (t - 1)
    magnitude = np.where(np.abs(x) < _END, start + end, 1.0)
    return np.where(np.isnan(x), x, np.copysign(magnitude, x))


@_in_blocks
def _gelu(x: Array) -> Array:
    return np.asarray(0.5 * x.astype(np.float64) * (1 + erf(x * math.sqrt(0.5))))


_ERF_EDGES = np.array(
    [-30.0, -6.0, -1.0, -0.5, -1e-6, -0.0, 0.0, 1e-6, 0.49, 0.5, 3.0, 6.0], np.float32
)
_FIT = Tolerance(4e-6, 1e-6, "a fit that is off by 1.5e-7, and its rounding")

declare("erf", "cml_erf(a)", erf, flops=24, tolerance=_FIT, low=-4, high=4, extra=((_ERF_EDGES,),))
declare(
    "gelu_erf", "0.5 * a * (1.0 + cml_erf(0.70710678 * a))", _gelu, flops=28,
    tolerance=Tolerance(4e-6, 2e-6, "as erf, times half of x"), low=-5, high=5,
    extra=((_ERF_EDGES,),), fusable=True,
)  # fmt: skip


FUNCTION = Tolerance(
    4e-6, 2e-6, "exp and log may be off by a few units in the last place (Vulkan: 3 + 2|x| for exp)"
)
POWER = Tolerance(
    2e-5, 2e-6, "2^(y log2 x) multiplies the rounding of log2 by y, and values here reach 64"
)
TRIGONOMETRIC = Tolerance(
    4e-6, 1e-6, "own polynomials, 6e-9 off; the rest is the rounding of a few operations"
)
STEEP = Tolerance(
    2e-5, 2e-6, "the argument's rounding is multiplied by the slope, up to 20 in these tests"
)
DIVISION = Tolerance(1e-6, 1e-7, "Vulkan allows a division and a square root 2.5 units each")


def _floats(*values: float) -> Array:
    return np.array(values, np.float32)


_EDGES = _floats(-100.0, -20.0, -1.0, -1e-6, -0.0, 0.0, 1e-6, 0.5, 1.0, 20.0, 100.0)
_HALVES = _floats(-2.5, -1.5, -1.0, -0.5, -0.0, 0.0, 0.49, 0.5, 1.0, 1.5, 2.5, 8388609.0)
_TIES = (_floats(1, 2, 2, -1), _floats(2, 1, 2, -1))
_POWERS = (
    _floats(-2, -2, -2, 0, 0, 3, 4, -1.5, 0.25, 1, 2),
    _floats(2, 3, -1, 0, 2, -2, 0.5, 5, 1.5, 9, 10),
)
_ROOTS = (_floats(-np.inf, -0.0, 0, np.inf, 4), _floats(0.5))


# ---------------------------------------------------------------- NumPy definitions


def _sigmoid(x: Array) -> Array:
    # the exponent is never positive, so nothing overflows
    t: Array = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, t, np.float32(1)) / (1 + t))


def _round(x: Array) -> Array:
    low = np.floor(x)
    return np.where(x - low >= 0.5, low + 1, low)


def _clamp(x: Array, low: Array, high: Array) -> Array:
    """Clamps ``x``; a NaN in ``x`` stays NaN, and a bound that is NaN has no effect."""
    y = np.where(x > high, high, x)
    return np.where(y < low, low, y)


def _pow(x: Array, y: Array) -> Array:
    """Computes ``x ** y``, with the values of a power at an exponent of 0.5.

    NumPy computes that exponent as a square root, which differs at -0 and -infinity.
    """
    power = np.power(x, y)
    if np.size(y) == 1 and np.all(y == 0.5):
        power = np.where(np.isneginf(x), np.inf, power + 0.0)
    return power


def _batch_normalization(
    x: Array, mean: Array, variance: Array, offset: Array, scale: Array, epsilon: np.float32
) -> Array:
    return offset + scale * ((x - mean) / np.sqrt(variance + epsilon))


def _prelu(x: Array, slope: Array | np.float32) -> Array:
    if np.all((slope > 0) & (slope <= 1)):
        return np.maximum(x, slope * x)  # the same of every value, ten times as fast
    return np.where(x < 0, slope * x, x)


def _elu(x: Array, alpha: np.float32) -> Array:
    return np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x)


def _selu(x: Array, alpha: np.float32, scale: np.float32) -> Array:
    return scale * _elu(x, alpha)


# ---------------------------------------------------------------- the table

_TWO = ("scalar",) * 2
_LOGICAL = ("logical",) * 2

# fmt: off

declare("add", "a + b", np.add, _TWO, fusable=True, commutative=True)
declare("sub", "a - b", np.subtract, _TWO, fusable=True)
declare("mul", "a * b", np.multiply, _TWO, fusable=True, commutative=True)
declare("div", "a / b", np.divide, _TWO, tolerance=DIVISION, low=0.5, fusable=True)
declare("pow", "cml_pow(a, b)", _pow, _TWO, flops=20, tolerance=POWER, low=0.1,
    extra=(_POWERS, _ROOTS))
# NNEF's own definition, select(x < y, x, y): where x is NaN the result is y
declare("min", "cml_min(a, b)", lambda x, y: np.where(x < y, x, y), _TWO, tolerance=EXACT)
declare("max", "cml_max(a, b)", lambda x, y: np.where(x > y, x, y), _TWO, tolerance=EXACT)

for _name, _hlsl, _function in (
    ("lt", "a < b", np.less),
    ("gt", "a > b", np.greater),
    ("le", "a <= b", np.less_equal),
    ("ge", "a >= b", np.greater_equal),
    ("eq", "a == b", np.equal),
    ("ne", "cml_unequal(a, b)", np.not_equal),
):
    declare(_name, _hlsl, _function, _TWO, "logical", tolerance=EXACT, extra=(_TIES,))

declare("and", "a & b", np.logical_and, _LOGICAL, "logical", tolerance=EXACT)
declare("or", "a | b", np.logical_or, _LOGICAL, "logical", tolerance=EXACT)
declare("not", "a == 0u", np.logical_not, ("logical",), "logical", tolerance=EXACT)
declare("select", "a != 0u ? b : c", np.where, ("logical", "?", "?"), "?", tolerance=EXACT,
    extra=((np.array([True, False]), np.array([1, -2], np.int32), np.array(7, np.int32)),
           (np.array([True, False]), np.array([False, True]), np.array([True, True]))))
declare("copy", "a", np.array, ("?",), "?", flops=0, tolerance=EXACT,
    extra=((np.array([-7, 2**31 - 1, 0], np.int32),), (np.array([[True], [False]]),)))

declare("abs", "abs(a)", np.abs, tolerance=EXACT)
declare("neg", "-a", np.negative, tolerance=EXACT)
declare("sign", "cml_sign(a)", np.sign, tolerance=EXACT, extra=((_EDGES,),))
declare("floor", "floor(a)", np.floor, tolerance=EXACT, extra=((_HALVES,),))
declare("ceil", "ceil(a)", np.ceil, tolerance=EXACT, extra=((_HALVES,),))
# NNEF: halves go up, which is neither C's round nor NumPy's
declare("round", "cml_round(a)", _round,
    tolerance=EXACT, extra=((_HALVES,),))
declare("rcp", "1.0 / a", np.reciprocal, tolerance=DIVISION, low=0.1)
declare("sqr", "a * a", np.square)
declare("sqrt", "sqrt(a)", np.sqrt, tolerance=DIVISION, low=0.0)
declare("rsqr", "1.0 / (a * a)", lambda x: 1 / (x * x), flops=2, tolerance=DIVISION, low=0.1)
declare("rsqrt", "1.0 / sqrt(a)", lambda x: 1 / np.sqrt(x), flops=2, tolerance=DIVISION, low=0.1)
declare("clamp", "cml_clamp(a, b, c)",
    _clamp, ("scalar",) * 3, flops=2, tolerance=EXACT, fusable=True, in_place=in_place.clamp,
    extra=((_EDGES, _floats(0.0), _floats(1.0)),))

declare("exp", "exp(a)", np.exp, flops=8, tolerance=FUNCTION)
declare("log", "log(a)", np.log, flops=8, tolerance=FUNCTION, low=0.01, high=100.0)
declare("log2", "log2(a)", np.log2, flops=8, tolerance=FUNCTION, low=0.01, high=100.0)
declare("sin", "cml_sin(a)", np.sin, flops=16, tolerance=TRIGONOMETRIC, low=-30, high=30)
declare("cos", "cml_cos(a)", np.cos, flops=16, tolerance=TRIGONOMETRIC, low=-30, high=30)
declare("tan", "cml_tan(a)", np.tan, flops=33, tolerance=STEEP, low=-1.5, high=1.5)
declare("asin", "cml_asin(a)", np.arcsin, flops=20, tolerance=TRIGONOMETRIC, low=-1, high=1)
declare("acos", "cml_acos(a)", np.arccos, flops=20, tolerance=TRIGONOMETRIC, low=-1, high=1)
declare("atan", "cml_atan(a)", np.arctan, flops=16, tolerance=TRIGONOMETRIC, extra=((_EDGES,),))
declare("sinh", "cml_sinh(a)", np.sinh, flops=14, tolerance=FUNCTION, low=-10, high=10)
declare("cosh", "cml_cosh(a)", np.cosh, flops=14, tolerance=FUNCTION, low=-10, high=10)
declare("tanh", "cml_tanh(a)", np.tanh, flops=16, tolerance=FUNCTION, extra=((_EDGES,),),
    fusable=True)
declare("asinh", "cml_asinh(a)", np.arcsinh, flops=20, tolerance=FUNCTION,
    extra=((_EDGES,), (_floats(1e20, -1e20),)))
declare("acosh", "cml_acosh(a)", np.arccosh, flops=20, tolerance=FUNCTION, low=1.0, high=50.0,
    extra=((_floats(1.0, 1.0001, 1e20),),))
declare("atanh", "cml_atanh(a)", np.arctanh, flops=16, tolerance=STEEP, low=-0.97, high=0.97)

# a NaN stays one
declare("relu", "cml_negative(a) ? 0.0 : a", lambda x: np.maximum(x, 0), tolerance=EXACT,
    fusable=True, in_place=in_place.relu)
declare("leaky_relu", "a < 0.0 ? {alpha} * a : a", _prelu, flops=2,
    attrs={"alpha": (0.1, 0.0, 2.0)}, fusable=True, in_place=in_place.leaky_relu)
declare("prelu", "a < 0.0 ? b * a : a", _prelu, _TWO, flops=2, fusable=True,
    in_place=in_place.prelu)
declare("elu", "cml_elu(a, {alpha})", _elu, flops=10, tolerance=FUNCTION,
    attrs={"alpha": (1.0, 0.5)}, extra=((_EDGES,),))
declare("selu", "{lambda} * cml_elu(a, {alpha})", _selu, flops=11, tolerance=FUNCTION,
    attrs={"alpha": (1.67326319, 1.0), "lambda": (1.05070102, 2.0)}, extra=((_EDGES,),))
# NNEF's gelu is this approximation, not the one by erf
declare("gelu", "a * cml_sigmoid(1.702 * a)", lambda x: x * _sigmoid(np.float32(1.702) * x),
    flops=13, tolerance=FUNCTION, extra=((_EDGES,),), fusable=True)
declare("silu", "a * cml_sigmoid(a)", lambda x: x * _sigmoid(x), flops=12, tolerance=FUNCTION,
    extra=((_EDGES,),), fusable=True)
declare("sigmoid", "cml_sigmoid(a)", _sigmoid, flops=11, tolerance=FUNCTION, extra=((_EDGES,),),
    fusable=True)
declare("softplus", "cml_softplus(a)", lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))),
    flops=20, tolerance=FUNCTION, extra=((_EDGES,),))
declare("softabs", "sqrt(a * a + {epsilon})", lambda x, epsilon: np.sqrt(x * x + epsilon),
    flops=3, tolerance=DIVISION, attrs={"epsilon": (1e-3, 1.0)})
declare("batch_normalization", "d + e * ((a - b) / sqrt(c + {epsilon}))", _batch_normalization,
    ("scalar",) * 5, flops=6, tolerance=Tolerance(
        3e-6, 4e-6, "offset + scale * x cancels: the error is relative to its terms"),
    attrs={"epsilon": (1e-5, 1e-3)}, low=0.2)
# fmt: on


# --- integers -----------------------------------------------------------------------------------
#
# An integer has 32 bits and wraps around. Unsigned numbers use the same bits, so sums, products,
# logic and shifts apply to them too.

_LEAST, _MOST = -(2**31), 2**31 - 1
_INTEGER_EDGES = tuple(
    np.array(values, np.int32)
    for values in (
        [_LEAST, _LEAST, _MOST, _MOST, 7, -7, 7, -7, 6, -6, 5, 0, _LEAST, 1],
        [-1, 2, 2, _MOST, 3, 3, -3, -3, 3, -3, 0, 0, 0, _LEAST],
    )
)
_COUNTS = (
    np.array([1, -1, 3, -8, _LEAST, 5, 5, 5], np.int32),
    np.array([31, 1, 0, 4, 31, 32, -1, 40], np.int32),
)
_ODD = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 3.4e38, -1e-40, -1.5], np.float32)
_EVEN_HALVES = np.array(
    [-2.5, -1.5, -0.5, -0.0, 0.5, 0.49999997, 1.5, 2.5, 8388607.5, 8388609.0, np.inf], np.float32
)
_LARGE = (
    np.array([1e30, -1e30, 7.5, -7.5, 7.5, 3.0, 3.0, 0.0, 16777215.0, np.inf, 1.0], np.float32),
    np.array([0.7, 3.0, 2.0, 2.0, -2.0, np.inf, 0.0, 5.0, 0.1, 2.0, np.nan], np.float32),
)


def _divided(a: Array, b: Array) -> Array:
    """Divides integers and truncates towards zero; a division by 0 gives 0."""
    quotient = np.abs(a.astype(np.int64)) // np.maximum(np.abs(b.astype(np.int64)), 1)
    return np.where(b == 0, 0, np.where((a < 0) != (b < 0), -quotient, quotient))


def _remainder(a: Array, b: Array) -> Array:
    return np.where(b == 0, 0, a - _divided(a, b) * b)


def _modulo(a: Array, b: Array) -> Array:
    remainder = _remainder(a, b)
    return np.where((remainder != 0) & ((remainder < 0) != (b < 0)), remainder + b, remainder)


def _unsigned(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """Returns a function of integers that reads their 32 bits as unsigned; with 0 it gives 0."""

    def of_bits(a: Array, b: Array) -> Array:
        divisor = b.astype(np.uint32)
        result = function(a.astype(np.uint32), np.maximum(divisor, 1))
        return np.where(divisor == 0, 0, result).astype(np.uint32).view(np.int32)

    return of_bits


def _shifted(shift: np.ufunc, a: Array, count: Array) -> Array:
    inside = (count >= 0) & (count < 32)
    bits = shift(a.astype(np.uint32), np.where(inside, count, 0).astype(np.uint32))
    return np.where(inside, bits, 0).astype(np.uint32).view(np.int32)


#: the five operands of random_bits; the first four elements are the published words of zeros
_COUNTERS = tuple(
    np.array([*values, *range(number, 2000)], np.int32)[:2000]
    for number, values in enumerate((
        [0, 1, 2, 3, 6, -7], [0, 0, 0, 0, 1, 9], [0, 0, 0, 0, 5, -1], [0, 0, 0, 0, -1, 7],
        [0, 0, 0, 0, 3, _LEAST],
    ))
)  # fmt: skip
_ROUNDS = 10
#: the multipliers of Philox4x32, and what its two keys grow by in every round
_MULTIPLIERS, _WEYL = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)


def _random_bits(row: Array, column: Array, draw: Array, seed: Array, stream: Array) -> Array:
    """Returns words of Philox4x32-10: word ``i % 4`` at the counter (i / 4, draw, 0, 0).

    ``i`` is row + column, and the key is (seed, stream).
    """
    operands = np.broadcast_arrays(row + column, draw, seed, stream)
    index, drawn, *key = (operand.astype(np.uint32).astype(np.uint64) for operand in operands)
    low = np.uint64(0xFFFFFFFF)
    zero = np.zeros_like(index)
    words = [index >> np.uint64(2), drawn, zero, zero]
    for _ in range(_ROUNDS):
        products = [words[2 * i] * np.uint64(m) for i, m in enumerate(_MULTIPLIERS)]
        high = [product >> np.uint64(32) for product in products]
        words = [
            high[1] ^ words[1] ^ key[0], products[1] & low,
            high[0] ^ words[3] ^ key[1], products[0] & low,
        ]  # fmt: skip
        key = [(k + np.uint64(w)) & low for k, w in zip(key, _WEYL, strict=True)]
    chosen = np.choose((index & np.uint64(3)).astype(np.intp), words)
    return np.asarray(chosen, np.uint64).astype(np.uint32).view(np.int32)


def _integer(
    name: str,
    hlsl: str,
    function: Callable[..., object],
    result: str = "integer",
    flops: float = 1,
    extra: Sequence[tuple[Array, ...]] = (),
) -> None:
    """Declares an exact operator on one or two integers, as ``function`` takes."""
    arity = getattr(function, "nin", 2)
    declare(
        name, hlsl, function, ("integer",) * arity, result, tolerance=EXACT, low=-40, high=40,
        flops=flops, extra=extra or (_INTEGER_EDGES[:arity],), brief=True,
    )  # fmt: skip


# fmt: off
_integer("int_add", "a + b", np.add)
_integer("int_sub", "a - b", np.subtract)
_integer("int_mul", "a * b", np.multiply)
_integer("int_div", "cml_int_div(a, b)", _divided, flops=8)
_integer("int_rem", "cml_int_rem(a, b)", _remainder, flops=8)
_integer("int_mod", "cml_int_mod(a, b)", _modulo, flops=8)
_integer("uint_div", "cml_uint_div(a, b)", _unsigned(np.floor_divide), flops=8)
_integer("uint_mod", "cml_uint_mod(a, b)", _unsigned(np.remainder), flops=8)
_integer("int_min", "min(a, b)", np.minimum)
_integer("int_max", "max(a, b)", np.maximum)
_integer("int_neg", "0 - a", np.negative)
_integer("int_abs", "abs(a)", np.abs)
_integer("int_sign", "sign(a)", np.sign)
_integer("int_lt", "a < b", np.less, "logical")
_integer("int_gt", "a > b", np.greater, "logical")
_integer("int_le", "a <= b", np.less_equal, "logical")
_integer("int_ge", "a >= b", np.greater_equal, "logical")
_integer("int_eq", "a == b", np.equal, "logical")
_integer("int_ne", "a != b", np.not_equal, "logical")
_integer("bit_and", "a & b", np.bitwise_and)
_integer("bit_or", "a | b", np.bitwise_or)
_integer("bit_xor", "a ^ b", np.bitwise_xor)
_integer("bit_not", "~a", np.invert)
_integer("shift_left", "cml_shift_left(a, b)", lambda a, b: _shifted(np.left_shift, a, b),
     extra=(_COUNTS,))
_integer("shift_right", "cml_shift_right(a, b)", lambda a, b: _shifted(np.right_shift, a, b),
     extra=(_COUNTS,))

declare("random_bits", "cml_random_bits(a, b, c, d, e)", _random_bits, ("integer",) * 5,
    "integer", tolerance=EXACT, low=-40, high=40, flops=200, brief=True, extra=(_COUNTERS,))

declare("is_nan", "cml_isnan(a)", np.isnan, result="logical", tolerance=EXACT, extra=((_ODD,),),
    brief=True)
declare("is_inf", "cml_isinf(a)", np.isinf, result="logical", tolerance=EXACT, extra=((_ODD,),),
    brief=True)
# as NumPy's and ONNX's round; NNEF's own round lets halves go up
declare("round_even", "cml_round_even(a)", np.rint, flops=4, tolerance=EXACT,
    extra=((_EVEN_HALVES,),), brief=True)
declare("fmod", "cml_fmod(a, b)", np.fmod, ("scalar",) * 2, flops=16, tolerance=EXACT,
    extra=(_LARGE,), brief=True)
# fmt: on
