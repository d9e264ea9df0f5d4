"""Imports random operators, whose bits follow from a seed, the number of the run and the element.

Every step is exact in integers or in floats, so that all devices have the same numbers.
"""

from __future__ import annotations

from math import isqrt, prod
from statistics import NormalDist

import numpy as np

from cml_engine.formats.onnx.op_schemas import OnnxCall, at_least, attribute, element_type, op
from cml_engine.formats.onnx.values import (
    InvalidNode,
    Value,
    add_operator,
    allocate,
    current_import,
    unsupported_error,
    zeros,
)
from cml_engine.ir.graph import Array, DType

_FLOAT_BITS = 23


def _random_bits(call: OnnxCall, shape: list[int], seed: float | None) -> Value:
    """Adds operators for 32 random bits per element, which differ in every run; returns them.

    A node with a seed has its own sequence of numbers, which depends on the seed only. Others have
    the session's seed and a stream each. A node that a loop repeats has a stream per iteration.
    """
    emit = current_import()
    extents = list(shape) or [1]
    allocate(extents, 4)
    # indices are sums, so that no array of their full size is stored
    sizes = [prod(extents[axis:]) for axis in range(len(extents) + 1)]
    split = min(range(len(sizes)), key=lambda axis: abs(sizes[axis] - isqrt(sizes[0])))
    ones = [1] * len(extents)
    row = np.arange(sizes[0] // sizes[split]).reshape([*extents[:split], *ones[split:]])
    column = np.arange(sizes[split]).reshape([*ones[:split], *extents[split:]])
    name = "" if seed is None else f"{call.node.name} {call.node.outputs[0]}"
    stream = emit.count(f"random {name}") + (seed is None)
    if seed is None:
        seed_value = emit.variable("random_seed")
    else:
        seed_value = Value.known(np.array(np.float32(seed)).view(np.int32))
    bits = add_operator(
        "random_bits",
        Value.known(row * sizes[split]),
        Value.known(column),
        emit.variable("random_draw", 1),
        seed_value,
        stream,
    )
    return bits.reshape(shape)


def _uniform(call: OnnxCall, shape: list[int], seed: float | None) -> Value:
    """Adds operators for random multiples of 2^-24 from 0 up to, but not including 1."""
    return _random_bits(call, shape, seed).shift_right(8).scalar() * 2.0**-24


# -- the normal distribution: its quantiles, between which whole numbers are interpolated ---------

#: intervals per power of two of a probability, as bits
_INTERVAL_BITS = 6
#: bits of the place within an interval
_PLACE_BITS = 13
_SCALE = 1 << 24


def _quantiles() -> tuple[Array, Array]:
    """Returns the quantiles of probabilities m / 2^32 for m from 1 to 2^31, times 2^24, and the
    differences to the next ones.

    The m are those floats whose mantissas have ``_INTERVAL_BITS`` bits.
    """
    steps = 1 << _INTERVAL_BITS
    floats = [(1 + place / steps) * 2.0**power for power in range(31) for place in range(steps)] + [
        2.0**31,
        2.0**31,
    ]
    distribution = NormalDist()
    exact = [-distribution.inv_cdf(value / 2.0**32) * _SCALE for value in floats]
    table = np.round(np.array(exact)).astype(np.int64)
    return table[:-1], -np.diff(table)


def _normal(call: OnnxCall, shape: list[int], seed: float | None) -> Value:
    """Adds operators for random numbers of the normal distribution, and returns them.

    A quantile is off by 2e-5 at most.
    """
    bits = _random_bits(call, shape, seed)
    fraction = bits.shift_right(1).bit_or(1).scalar().to_bits()
    place = _FLOAT_BITS - _INTERVAL_BITS
    interval = fraction.shift_right(place) - (127 << _INTERVAL_BITS)
    within = fraction.shift_right(place - _PLACE_BITS).bit_and((1 << _PLACE_BITS) - 1)
    quantile, step = (Value.known(table).gather(interval, axis=0) for table in _quantiles())
    whole = quantile - (step * within).shift_right(_PLACE_BITS)
    return bits.bit_and(1).ne(0).select(-whole, whole).scalar() * (1.0 / _SCALE)


# -- the operators -------------------------------------------------------------------------------


def _scaled(x: Value, scale: float, offset: float) -> Value:
    """Adds operators for x * scale + offset, each rounded by itself on every device."""
    y = x if scale == 1.0 else x * float(np.float32(scale))
    return y if offset == 0.0 else current_import().keep_apart(y) + float(np.float32(offset))


def _typed(x: Value, dtype: DType) -> Value:
    if dtype.kind != "f":
        raise unsupported_error(f"random numbers of {dtype}")
    return x.typed(dtype)


def _declare(name: str, first: str, second: str, defaults: tuple[float, float]) -> None:
    """Declares a distribution: of a stated shape and of the shape of an input."""
    is_normal = name == "RandomNormal"
    nnef = "random_bits, gather, shift_right, mul, add" if is_normal else "random_bits, mul, add"
    parameters = {
        key: attribute(default, kind=float)
        for key, default in zip((first, second), defaults, strict=True)
    }

    def numbers(call: OnnxCall, shape: list[int], seed: float | None, a: float, b: float) -> Value:
        if 0 in shape:
            return zeros(shape)
        if is_normal:
            return _scaled(_normal(call, shape, seed), b, a)
        return _scaled(_uniform(call, shape, seed), b - a, a)

    @op(name, nnef, attrs=parameters)
    def of_shape(
        call: OnnxCall,
        *,
        dtype: DType = element_type(1),
        seed: float | None = None,
        shape: list[int],
        **more: float,
    ) -> Value:
        y = numbers(call, shape, seed, more[first], more[second])
        return _typed(y, dtype)

    @op(f"{name}Like", nnef, attrs=parameters)
    def like(
        call: OnnxCall,
        x: Value,
        *,
        dtype: DType | None = element_type(),
        seed: float | None = None,
        **more: float,
    ) -> Value:
        y = numbers(call, list(x.shape), seed, more[first], more[second])
        return _typed(y, x.dtype if dtype is None else dtype)


_declare("RandomNormal", "mean", "scale", (0.0, 1.0))
_declare("RandomUniform", "low", "high", (0.0, 1.0))


@op("Bernoulli", "random_bits, mul, lt, cast")
def bernoulli(
    call: OnnxCall, x: Value, *, dtype: DType | None = element_type(), seed: float | None = None
) -> Value:
    target = x.dtype if dtype is None else dtype
    if 0 in x.shape:
        return zeros(x.shape, target)
    is_one = _uniform(call, list(x.shape), seed).lt(x.scalar())
    return is_one if target.kind == "b" else is_one.select(1.0, 0.0).like(zeros((), target))


@op("Multinomial", "softmax, cumsum, random_bits, le, sum_reduce")
def multinomial(
    call: OnnxCall,
    x: Value,
    *,
    dtype: DType = element_type(6),
    sample_size: int = at_least(1, 1),
    seed: float | None = None,
) -> Value:
    """Imports Multinomial: the number of classes whose summed probability is not above a number."""
    if x.rank != 2:
        raise InvalidNode(f"it wants [batch, classes], got {x}")
    batch, classes = x.shape
    if dtype.kind not in "iu":
        raise unsupported_error(f"classes of {dtype}")
    sums = x.scalar().softmax(axes=[1]).cumsum(axis=1).unsqueeze([1])
    number = _uniform(call, [batch, sample_size, 1], seed) * sums.slice(2, classes - 1, classes)
    if classes < 2:
        return zeros((batch, sample_size), dtype)
    is_before = sums.slice(2, 0, classes - 1).le(number)
    count = is_before.select(1.0, 0.0).sum_reduce(axes=[2]).squeeze([2])
    return count.cast("integer").typed(dtype)
