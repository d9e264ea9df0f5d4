"""The elementwise operators on integers, and those on floats that only integers and tests need.

An integer has 32 bits and wraps around. Unsigned numbers use the same bits, so sums, products,
logic and shifts apply to them too. The other fields of a row are as in ``elementwise.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cml_engine.ir.graph import Array
from cml_engine.ops.declaration.spec import EXACT
from cml_engine.ops.elementwise.elementwise_op import declare

_LEAST, _MOST = -(2**31), 2**31 - 1
_EDGES = tuple(
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
_HALVES = np.array(
    [-2.5, -1.5, -0.5, -0.0, 0.5, 0.49999997, 1.5, 2.5, 8388607.5, 8388609.0, np.inf], np.float32
)
_LARGE = (
    np.array([1e30, -1e30, 7.5, -7.5, 7.5, 3.0, 3.0, 0.0, 16777215.0, np.inf, 1.0], np.float32),
    np.array([0.7, 3.0, 2.0, 2.0, -2.0, np.inf, 0.0, 5.0, 0.1, 2.0, np.nan], np.float32),
)


def _divided(a: Array, b: Array) -> Array:
    """Divides integers and truncates towards zero; a division by 0 gives 0."""
    wide = np.abs(a.astype(np.int64)) // np.maximum(np.abs(b.astype(np.int64)), 1)
    return np.where(b == 0, 0, np.where((a < 0) != (b < 0), -wide, wide))


def _rest(a: Array, b: Array) -> Array:
    return np.where(b == 0, 0, a - _divided(a, b) * b)


def _modulo(a: Array, b: Array) -> Array:
    rest = _rest(a, b)
    return np.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


def _shifted(shift: Any, a: Array, count: Array) -> Array:
    inside = (count >= 0) & (count < 32)
    bits = shift(a.astype(np.uint32), np.where(inside, count, 0).astype(np.uint32))
    return np.where(inside, bits, 0).astype(np.uint32).view(np.int32)


def _integer(
    name: str,
    hlsl: str,
    function: Any,
    result: str = "integer",
    flops: float = 1,
    extra: Any = None,
) -> None:
    """Declares an exact operator on one or two integers, as ``function`` takes."""
    arity = getattr(function, "nin", 2)
    declare(
        name, hlsl, function, ("integer",) * arity, result, tolerance=EXACT, low=-40, high=40,
        flops=flops, extra=extra or (_EDGES[:arity],), brief=True,
    )  # fmt: skip


# fmt: off
_integer("int_add", "a + b", np.add)
_integer("int_sub", "a - b", np.subtract)
_integer("int_mul", "a * b", np.multiply)
_integer("int_div", "cml_int_div(a, b)", _divided, flops=8)
_integer("int_rem", "cml_int_rem(a, b)", _rest, flops=8)
_integer("int_mod", "cml_int_mod(a, b)", _modulo, flops=8)
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

declare("is_nan", "cml_isnan(a)", np.isnan, result="logical", tolerance=EXACT, extra=((_ODD,),),
    brief=True)
declare("is_inf", "cml_isinf(a)", np.isinf, result="logical", tolerance=EXACT, extra=((_ODD,),),
    brief=True)
# as NumPy's and ONNX's round; NNEF's own round lets halves go up
declare("round_even", "cml_round_even(a)", np.rint, flops=4, tolerance=EXACT,
    extra=((_HALVES,),), brief=True)
declare("fmod", "cml_fmod(a, b)", np.fmod, ("scalar",) * 2, flops=16, tolerance=EXACT,
    extra=(_LARGE,), brief=True)
# fmt: on
