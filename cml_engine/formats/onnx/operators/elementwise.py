"""Imports elementwise operators, softmax and losses: NNEF's operators for floats, the engine's own
for integers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from inspect import signature

import numpy as np

from cml_engine.formats.onnx import same_operators as same
from cml_engine.formats.onnx.counted_axes import masked
from cml_engine.formats.onnx.op_schemas import MICROSOFT, ML, Attr, attribute, one_of, op
from cml_engine.formats.onnx.ranges import INT32, INT64, Interval, of_array, of_dtype
from cml_engine.formats.onnx.tensors import ELEMENT_TYPES, element_dtype
from cml_engine.formats.onnx.values import (
    InvalidNode,
    Value,
    add_operator,
    bounded,
    checked_axis,
    current_import,
    elementwise,
    expandable,
    fits_in,
    interval_of,
    kind_of,
    per_channel,
    unsupported_error,
)
from cml_engine.ir.graph import Array, DType
from cml_engine.ir.single_value import distinct, filled, is_single_value


def binary(name: str, x: Value, y: Value) -> Value:
    """Adds ``add``, ``sub``, ``mul``, ``div``, ``min`` or ``max`` of two values of one type.

    Returns the result. Integer results wrap around to the range of their type.
    """
    if x.kind != y.kind:
        raise InvalidNode(f"it has operands of {x.dtype} and {y.dtype}")
    is_limit = name in ("min", "max")
    if x.kind == "integer":
        if is_limit:
            x, y = _nearest(x, y), _nearest(y, x)
        return wrap(elementwise(name, x, y), x.dtype)
    can_be_nan = is_limit and not current_import().is_integer
    result = _with_nan(name, x, y) if can_be_nan else elementwise(name, x, y)
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


def _nearest(limit: Value, x: Value) -> Value:
    """Returns a known limit clamped to the bounds of ``x``; a computed limit is returned unchanged.

    The clamped limit has the same effect on ``x``.
    """
    if limit.array is None or x.array is not None or of_array(limit.array).within(INT32):
        return limit
    low, high = map(int, interval_of(x))
    return Value.known(np.clip(limit.array, low, high).astype(limit.dtype), limit.name)


def wrap(value: Value, dtype: DType) -> Value:
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
    divisor = np.where(y == 0, 1, y).astype(x.dtype)
    quotient = x // divisor
    truncated = quotient + ((x % divisor != 0) & ((x < 0) != (divisor < 0)))
    return np.asarray(np.where(y == 0, 0, truncated), x.dtype)


def _of_many(name: str, *values: Value) -> Value:
    return reduce(partial(binary, name), values)


def _many_fold(function: Callable[..., object]) -> Callable[..., object]:
    return lambda *arrays: reduce(function, arrays)


#: the NumPy functions of known integers and truth values, by NNEF's operator
_FOLDS: dict[str, Callable[..., object]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": integer_division,
    "abs": np.abs, "neg": np.negative, "sign": np.sign, "max": np.maximum, "min": np.minimum,
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal,
    "and": np.logical_and, "or": np.logical_or, "bit_and": np.bitwise_and,
    "bit_or": np.bitwise_or, "bit_xor": np.bitwise_xor,
}  # fmt: skip


def _declare(
    table: Mapping[str, str], form: Callable[..., Value], has_integers: bool = False
) -> None:
    """Declares the operators of a table, which one function imports by NNEF's name of each.

    With ``has_integers`` NNEF has another operator for integers, such as ``int_add``.
    """
    for name, nnef in table.items():
        listed = f"{nnef}, int_{nnef}" if has_integers else nnef
        op(name, listed, fold=_FOLDS.get(nnef))(partial(form, nnef))


_declare(same.ARITHMETIC, binary, has_integers=True)

for _name, _nnef in (("Sum", "add"), *same.LIMITS.items()):
    op(_name, _nnef, fold=_many_fold(_FOLDS[_nnef]))(partial(_of_many, _nnef))


@op("Mean", "add, mul")
def mean(*values: Value) -> Value:
    return _of_many("add", *values) * (1.0 / len(values))


def _are_powers_of_2(array: Array) -> bool:
    """Returns True if all elements are: a remainder then is the dividend's low bits."""
    return bool(np.all((array > 0) & (array & (array - 1) == 0)))


@op(
    "Mod", "bit_and, fmod, int_mod, int_rem",
    fold=lambda x, y, fmod: np.fmod(x, y) if fmod else np.mod(x, y),
)  # fmt: skip
def mod(x: Value, y: Value, *, fmod: bool = False) -> Value:
    if x.kind == "integer":
        if (
            y.array is not None
            and (not fmod or interval_of(x).low >= 0)
            and _are_powers_of_2(y.array)
        ):
            return x.bit_and(Value.known(y.array - 1)).typed(x.dtype)
        return (x.int_rem(y) if fmod else x.int_mod(y)).typed(x.dtype)
    remainder = x.fmod(y)
    if fmod:
        return remainder
    # the remainder has the divisor's sign, as in Python
    return (remainder.sign() * y.sign()).lt(0.0).select(remainder + y, remainder)


def _pow_fold(x: Array, y: Array) -> Array:
    """Returns exact powers of integer arrays, truncated if the exponent is negative."""
    fractions = np.where(y < 0, np.power(x.astype(np.float64), y), 0)
    return np.asarray(np.where(y < 0, fractions, np.power(x, np.maximum(y, 0))), x.dtype)


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
    nearest = result.round_even()
    is_integer = (result - nearest).abs().le(result.abs() * _POWER_ERROR)
    return wrap(is_integer.select(nearest, result).cast("integer"), x.dtype)


#: the relative error of a power on a GPU
_POWER_ERROR = 4e-6


def integer_root(x: Value) -> Value:
    """Adds operators for the square root of integers, rounded down, and returns the result."""
    largest = math.isqrt(int(min(max(0, interval_of(x).high), INT64.high)))
    root = x.scalar().sqrt().round_even().cast("integer").max(0).min(largest)
    return (root * root).gt(x).select(root - 1, root)


def _signed(name: str, x: Value) -> Value:
    if x.kind == "integer" and name != "neg" and interval_of(x).low >= 0:
        return x if name == "abs" else x.ne(0).cast("integer").typed(x.dtype)
    result = elementwise(name, x)
    return wrap(result, x.dtype) if x.kind == "integer" else result.typed(x.dtype)


_declare(same.SIGNED, _signed, has_integers=True)


def _of_floats(name: str, x: Value) -> Value:
    return add_operator(name, x.scalar()).typed(x.dtype)


_declare(same.FLOATS, _of_floats)


@op("Clip", "clamp, int_max, int_min")
def clip(
    x: Value, min: Value | None = attribute(until=10), max: Value | None = attribute(until=10)
) -> Value:
    low, high = (
        None if v is None else expandable(v, [1], "a bound").reshape([]) for v in (min, max)
    )
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


def _of_bits(name: str, x: Value, y: Value) -> Value:
    return elementwise(name, x, y).typed(x.dtype)


_declare({**same.BITS, **same.LOGIC}, _of_bits)


@op("BitwiseNot", "bit_not", fold=np.bitwise_not)
def bitwise_not(x: Value) -> Value:
    return wrap(x.bit_not(), x.dtype)


@op("BitShift", "shift_left, shift_right")
def bit_shift(
    x: Value, steps: Value, *, direction: str = one_of("LEFT", "RIGHT", required=True)
) -> Value:
    if direction == "LEFT":
        return wrap(x.shift_left(steps), x.dtype)
    if interval_of(x).low >= 0:
        return x.shift_right(steps).typed(x.dtype)
    # arithmetic shift: a negative number is the complement of its shifted complement
    is_negative = x.lt(0)
    positive = bounded(is_negative.select(x.bit_not(), x), Interval(0, INT32.high))
    shifted = positive.shift_right(steps)
    return is_negative.select(shifted.bit_not(), shifted).typed(x.dtype)


# -- comparisons and logic -----------------------------------------------------------------------


def _comparison(name: str, x: Value, y: Value) -> Value:
    """Adds a comparison: two integers are compared as integers."""
    are_integers = x.kind == y.kind == "integer"
    return elementwise(name, *((x, y) if are_integers else (x.scalar(), y.scalar())))


_declare(same.COMPARISONS, _comparison, has_integers=True)


@op("Not", "not", fold=np.logical_not)
def not_(x: Value) -> Value:
    return x.not_()


@op("Xor", "and, or, not", fold=np.logical_xor)
def xor(x: Value, y: Value) -> Value:
    are_both = x.and_(y)
    return x.or_(y).and_(are_both.not_())


@op("Where", "select", fold=np.where)
def where(condition: Value, x: Value, y: Value) -> Value:
    known = condition.array
    if known is not None and known.all() == known.any() and not (x.counts or y.counts):
        chosen = x if known.all() else y  # JAX writes a variance as Where(True, variance, NaN)
        if x.dtype == y.dtype and all(fits_in(v, chosen.shape) for v in (condition, x, y)):
            return chosen
    return condition.select(x, y).typed(x.dtype)


op("IsNaN", "is_nan")(lambda x: x.is_nan())


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
        cast = _cast_array(distinct(value.array), dtype)
        is_single = is_single_value(value.array)
        return Value.known(filled(cast, value.shape) if is_single else cast)
    if value.kind != kind_of(dtype):
        if dtype == np.uint32 and value.kind == "scalar":
            value = _as_signed(value)
        value = value.cast(kind_of(dtype))
    elif value.kind == "scalar" and dtype.itemsize < value.dtype.itemsize == 4:
        value = value.copy()  # float16 and bfloat16 are computed as float32
    if dtype.kind in "iu" and dtype.itemsize < 4 and dtype != value.dtype:
        return wrap(value, dtype)
    if value.kind == "integer" and not interval_of(value).within(of_dtype(dtype)):
        value = value.copy()  # its bounds become those of the type, around which it wraps
    return value.typed(dtype)


def _as_signed(value: Value) -> Value:
    """Adds operators that clamp floats to uint32's range and subtract 2^32 from 2^31 and more.

    A cast of the result to int32 then has the bits of the uint32.
    """
    value = value.clamp(*_ends(np.dtype(np.uint32)))
    lowered = value - 2.0**32
    return value.ge(2.0**31).select(lowered, value)


def _cast_array(array: Array, dtype: DType) -> Array:
    """Returns a known array cast as the network does at run time, but exact for 64-bit types."""
    with np.errstate(all="ignore"):
        if array.dtype.kind == "f" and dtype.kind in "iu":
            clamped = np.nan_to_num(array.astype(np.float64)).clip(*_ends(dtype))
            return clamped.astype(np.int64).astype(dtype)
        return array.astype(dtype)


def _ends(dtype: DType) -> tuple[float, float]:
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
    type_name = like.dtype.name
    return _to_element(x, next(n for n, name in ELEMENT_TYPES.items() if name == type_name))


@op("BitCast", "to_bits, from_bits", since=26)
def bit_cast(x: Value, *, to: int) -> Value:
    """Imports BitCast, which reinterprets the bits as another type of the same size."""
    dtype = element_dtype(to)
    if dtype is None or dtype.itemsize != x.dtype.itemsize:
        raise InvalidNode(f"{x.dtype} read as {ELEMENT_TYPES.get(to, to)}")
    if x.array is not None:
        return Value.known(np.ascontiguousarray(x.array).view(dtype).reshape(x.shape))
    # floats of other sizes are computed in 32 bits, and integers have at most 32 bits
    if x.dtype.itemsize != 4 and "scalar" in (x.kind, kind_of(dtype)):
        raise unsupported_error(f"{x.dtype} read as {dtype}")
    if x.kind != "logical" and x.kind != kind_of(dtype):
        return (x.to_bits() if x.kind == "scalar" else x.from_bits()).typed(dtype)
    return _to_element(x, to)


_SQRT_2_OVER_PI = float(np.sqrt(2 / np.pi))


def _declare_activation(name: str, nnef: str, attributes: Mapping[str, tuple[str, float]]) -> None:
    attrs = {key: Attr(float, default) for key, (_, default) in attributes.items()}

    @op(name, nnef, attrs=attrs)
    def activation(x: Value, **values: float) -> Value:
        return x.apply(nnef, x, **{attributes[key][0]: value for key, value in values.items()})


for _name, (_nnef, _attributes) in same.ACTIVATIONS.items():
    _declare_activation(_name, _nnef, _attributes)


@op("Relu", "relu, int_max")
def relu(x: Value) -> Value:
    return x.max(0).typed(x.dtype) if x.kind == "integer" else x.relu()


@op("PRelu", "prelu, leaky_relu")
def prelu(x: Value, slope: Value) -> Value:
    if x.kind == "integer":
        return x.lt(0).select(x * slope, x).typed(x.dtype)
    return x.prelu(slope)


@op("HardSigmoid", "mul, add, clamp")
def hard_sigmoid(x: Value, *, alpha: float = 0.2, beta: float = 0.5) -> Value:
    return (x * alpha + beta).clamp(0.0, 1.0)


op("HardSwish", "mul, add, clamp")(lambda x: x * hard_sigmoid(x, alpha=1 / 6))
op("Mish", "softplus, tanh, mul")(lambda x: x * x.softplus().tanh())


@op("Gelu", "gelu_erf; or mul, tanh, add")
def gelu(x: Value, *, approximate: str = one_of("none", "tanh")) -> Value:
    """Imports Gelu; by tanh it is x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""
    if approximate == "none":
        return x.gelu_erf()
    angle = x * (x.sqr() * 0.044715 + 1.0) * _SQRT_2_OVER_PI
    return x * 0.5 * (angle.tanh() + 1.0)


op("Gelu", "gelu_erf", domain=MICROSOFT)(lambda x: x.gelu_erf())
op("BiasGelu", "add, gelu_erf", domain=MICROSOFT)(lambda x, bias: (x + bias).gelu_erf())


@op("FastGelu", "add, mul, tanh", domain=MICROSOFT)
def fast_gelu(x: Value, bias: Value | None = None) -> Value:
    return gelu(x if bias is None else x + bias, approximate="tanh")


@op("Swish", "silu; or mul, sigmoid")
def swish(x: Value, *, alpha: float = 1.0) -> Value:
    return x.silu() if alpha == 1.0 else x * (x * alpha).sigmoid()


op("QuickGelu", "silu; or mul, sigmoid", domain=MICROSOFT)(
    lambda x, *, alpha=1.702: swish(x, alpha=alpha)
)
op("SwiGLU", "silu, mul")(lambda x, gate, *, alpha=1.0: swish(x, alpha=alpha) * gate)


@op("Celu", "mul, elu; or exp, sub, select")
def celu(x: Value, *, alpha: float = 1.0) -> Value:
    scaled = x * (1 / alpha)
    if alpha > 0:
        return scaled.elu(alpha=1.0) * alpha
    return x.lt(0.0).select((scaled.exp() - 1.0) * alpha, x)


@op("Softsign", "abs, add, div")
def softsign(x: Value) -> Value:
    return x / (x.abs() + 1.0)


op("ThresholdedRelu", "gt, select")(lambda x, *, alpha=1.0: x.gt(alpha).select(x, 0.0))


@op("Shrink", "lt, gt, add, sub, select")
def shrink(x: Value, *, bias: float = 0.0, lambd: float = 0.5) -> Value:
    y = x.scalar()
    upper = y.gt(lambd).select(y - bias, 0.0)
    return y.lt(-lambd).select(y + bias, upper).like(x)


@op("Binarizer", "gt, select", domain=ML)
def binarizer(x: Value, *, threshold: float = 0.0) -> Value:
    return x.scalar().gt(threshold).select(1.0, 0.0).like(x)


@op("Scaler", "sub, mul", domain=ML)
def scaler(
    x: Value,
    *,
    offset: list[float] = attribute(required=True),
    scale: list[float] = attribute(required=True),
) -> Value:
    offsets, scales = (Value.known(np.array(numbers, np.float32)) for numbers in (offset, scale))
    for numbers, name in ((offsets, "the offset"), (scales, "the scale")):
        expandable(numbers, x.shape[-1:], name)
    return (x.scalar() - offsets) * scales


#: the activations that fused and recurrent operators name: each takes some of two parameters
_NAMED: dict[str, Callable[..., Value]] = {
    "": lambda x: x,
    "relu": lambda x: x.relu(),
    "sigmoid": lambda x: x.sigmoid(),
    "tanh": lambda x: x.tanh(),
    "softplus": lambda x: x.softplus(),
    "softsign": softsign,
    "leakyrelu": lambda x, alpha=0.01: x.leaky_relu(alpha=alpha),
    "elu": lambda x, alpha=1.0: x.elu(alpha=alpha),
    "thresholdedrelu": lambda x, alpha=1.0: x.gt(alpha).select(x, 0.0),
    "hardsigmoid": lambda x, alpha=0.2, beta=0.5: hard_sigmoid(x, alpha=alpha, beta=beta),
    "clip": lambda x, low, high: x.clamp(float(low), float(high)),
    "affine": lambda x, alpha, beta: x * alpha + beta,
    "scaledtanh": lambda x, alpha, beta: (x * beta).tanh() * alpha,
}


def parameter_count(name: str) -> int:
    """Returns the number of parameters of the activation with the given ONNX name."""
    activation = _NAMED.get(name.lower())
    return len(signature(activation).parameters) - 1 if activation else 0


def activate(x: Value, name: str, parameters: Sequence[float] = ()) -> Value:
    """Adds the activation with the given ONNX name and parameters, and returns its result.

    Fused and recurrent operators name activations by an attribute; "" is none.
    """
    if name.lower() not in _NAMED:
        raise unsupported_error(f"the activation '{name.lower()}'")
    return _NAMED[name.lower()](x, *parameters)


# -- over an axis --------------------------------------------------------------------------------


def _log_softmax(x: Value, axes: list[int]) -> Value:
    """Adds operators for x - max - log(sum(exp(x - max))), finite where the softmax is 0."""
    shifted = x - x.max_reduce(axes=axes)
    return shifted - shifted.exp().sum_reduce(axes=axes).log()


def _hardmax(x: Value, axes: list[int]) -> Value:
    """Adds operators for Hardmax: 1 at the first maximum and 0 elsewhere."""
    if 0 in x.shape:
        return x
    counts = x.counts
    x = masked(x, axes, -math.inf)
    order = [*(a for a in range(x.rank) if a not in axes), *axes]
    transposed = x.transpose(order)
    flat = transposed.reshape(
        [*transposed.shape[: -len(axes)], math.prod(x.shape[a] for a in axes)]
    )
    best_index = flat.argmax_reduce(axes=[flat.rank - 1])
    indices = np.arange(flat.shape[-1]).reshape([1] * (flat.rank - 1) + [-1])
    is_best = add_operator("int_eq", Value.known(indices), best_index)
    y = is_best.select(1.0, 0.0).reshape(transposed.shape)
    return y.transpose(np.argsort(order).tolist()).counted(counts)


def _over_axes(name: str, nnef: str, function: Callable[[Value, list[int]], Value]) -> None:
    """Declares an operator over the attribute ``axis``: before opset 13 over all axes from it."""

    @op(name, nnef, until=12)
    def over_all(x: Value, *, axis: int = 1) -> Value:
        return function(x, list(range(checked_axis(axis, x.rank), x.rank)))

    @op(name, nnef, since=13)
    def over_one(x: Value, *, axis: int = -1) -> Value:
        return function(x, [checked_axis(axis, x.rank)])


_over_axes("Softmax", "softmax", lambda x, axes: x.softmax(axes=axes))
_over_axes("LogSoftmax", "max_reduce, sub, exp, sum_reduce, log", _log_softmax)
_over_axes("Hardmax", "argmax_reduce, int_eq, select", _hardmax)


# -- losses --------------------------------------------------------------------------------------

_REDUCTION = one_of("mean", "sum", "none")


@op("NegativeLogLikelihoodLoss", "gather_elements, gather, mul, sum_reduce")
def nll_loss(
    logs: Value,
    target: Value,
    weights: Value | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = _REDUCTION,
) -> Value:
    """Imports the weighted negative log-likelihood of the targets by log-probabilities."""
    if target.shape != (*logs.shape[:1], *logs.shape[2:]):
        raise InvalidNode(f"the target {target} of {logs}")
    if weights is not None:
        per_channel(weights, logs.shape[1], "the weight")
    is_ignored: Value | None = None
    if ignore_index is not None:
        is_ignored = target.eq(ignore_index)
        target = is_ignored.select(0, target)
    loss = -logs.gather_elements(target.unsqueeze([1]), axis=1).squeeze([1])
    factors = None if weights is None else weights.gather(target, axis=0)
    loss = loss if factors is None else loss * factors
    if is_ignored is not None:  # not by a factor of 0: what is ignored may be infinite or NaN
        loss = is_ignored.select(0.0, loss)
        factors = is_ignored.select(0.0, 1.0 if factors is None else factors)
    if reduction == "none":
        return loss
    total = _sum_of_all(loss)
    if reduction == "sum":
        return total
    return total * (1.0 / loss.size) if factors is None else total / _sum_of_all(factors)


def _sum_of_all(x: Value) -> Value:
    axes = list(range(x.rank))
    return x.sum_reduce(axes=axes).squeeze(axes)


@op("SoftmaxCrossEntropyLoss", "log_softmax, gather_elements, mul, sum_reduce")
def cross_entropy_loss(
    scores: Value,
    target: Value,
    weights: Value | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = _REDUCTION,
) -> list[Value]:
    logs = _log_softmax(scores, [1])
    loss = nll_loss(logs, target, weights, ignore_index=ignore_index, reduction=reduction)
    return [loss, logs]
