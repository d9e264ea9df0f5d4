"""Imports reductions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from cml_engine.formats.onnx.attributes import INTS
from cml_engine.formats.onnx.call import OnnxCall
from cml_engine.formats.onnx.op_schemas import op
from cml_engine.formats.onnx.operators.arithmetic import (
    integer_division,
    integer_root,
    wrap,
)
from cml_engine.formats.onnx.ranges.interval import EXACT, sum_of
from cml_engine.formats.onnx.values import Value
from cml_engine.ir.graph import Array

Reduce = Callable[[OnnxCall, Value, list[int]], Value]


def _plain(name: str) -> Reduce:
    return lambda call, x, axes: call.op(name, x, axes=axes)


def _after(*unary: str) -> Reduce:
    """Returns a reduction that sums ``unary[0]`` of the values and applies ``unary[1]`` to the sum.

    Each is the name of an operator, or "" for none.
    """

    def reduce(call: OnnxCall, x: Value, axes: list[int]) -> Value:
        before, after = unary
        total = call.op("sum_reduce", call.op(before, x) if before else x, axes=axes)
        return call.op(after, total) if after else total

    return reduce


def _log_sum_exp(call: OnnxCall, x: Value, axes: list[int]) -> Value:
    """Adds operators for log(sum(exp(x))) over axes and returns the result.

    The exponents are shifted by the maximum, if it is finite, to avoid overflow.
    """
    top = call.op("max_reduce", x, axes=axes)
    top = call.op("select", call.op("is_inf", top), 0.0, top)
    total = call.op("sum_reduce", call.op("exp", call.op("sub", x, top)), axes=axes)
    return call.op("add", call.op("log", total), top)


@dataclass(frozen=True)
class _Reduction:
    """A reduction: its conversion for floats, its result for no elements, and its NumPy function.

    ``fold`` computes known 64-bit integers. ``nnef`` lists operators for the documentation.
    """

    name: str
    nnef: str
    form: Reduce
    empty: float
    fold: Callable[..., Any] | None = None


def _integer_mean(x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    count = np.array(prod(x.shape[a] for a in axis))
    return integer_division(np.sum(x, axis=axis, keepdims=keepdims), count)


_INF = float("inf")
REDUCTIONS = (
    _Reduction("ReduceSum", "sum_reduce; or int_matmul", _plain("sum_reduce"), 0, np.sum),
    _Reduction("ReduceMean", "mean_reduce", _plain("mean_reduce"), float("nan"), _integer_mean),
    _Reduction("ReduceMax", "max_reduce", _plain("max_reduce"), -_INF, np.max),
    _Reduction("ReduceMin", "min_reduce", _plain("min_reduce"), _INF, np.min),
    _Reduction("ReduceProd", "prod_reduce", _plain("prod_reduce"), 1, np.prod),
    _Reduction("ReduceL1", "abs, sum_reduce", _after("abs", ""), 0,
               lambda x, **more: np.sum(np.abs(x), **more)),
    _Reduction("ReduceL2", "sqr, sum_reduce, sqrt", _after("sqr", "sqrt"), 0),
    _Reduction("ReduceSumSquare", "sqr, sum_reduce", _after("sqr", ""), 0,
               lambda x, **more: np.sum(np.square(x), **more)),
    _Reduction("ReduceLogSum", "sum_reduce, log", _after("", "log"), -_INF),
    _Reduction("ReduceLogSumExp", "max_reduce, sub, exp, sum_reduce, log, add", _log_sum_exp,
               -_INF),
)  # fmt: skip


def _fold(reduction: _Reduction) -> Callable[..., Array] | None:
    if reduction.fold is None:
        return None

    def fold(call: OnnxCall, x: Array, *_: Array) -> Array:
        _check_kind(call, reduction)
        axes, keep = _axes(call, x.ndim), bool(call.attr("keepdims"))
        if any(x.shape[axis] == 0 for axis in axes):
            return _empty(x.shape, x.dtype, axes, keep, reduction)
        wide = x if x.dtype.kind == "b" else x.astype(np.int64)
        assert reduction.fold is not None
        return np.asarray(reduction.fold(wide, axis=tuple(axes), keepdims=keep)).astype(x.dtype)

    return fold


def _check_kind(call: OnnxCall, reduction: _Reduction) -> None:
    if call[0].kind == "logical" and reduction.name not in ("ReduceMax", "ReduceMin"):
        raise call.shape_error(f"it wants numbers, got {call[0]}")


def _empty(
    shape: tuple[int, ...], dtype: Any, axes: list[int], keep: bool, reduction: _Reduction
) -> Array:
    """Returns the result of reducing axes without elements, an array filled with one value.

    Integers and logicals get the nearest value that their type has.
    """
    kept = [1 if a in axes else n for a, n in enumerate(shape) if keep or a not in axes]
    value: float | bool = reduction.empty
    if dtype.kind == "b":
        value = value > 0
    elif dtype.kind in "iu":
        limits = np.iinfo(dtype)
        value = int(np.clip(np.nan_to_num(value), float(limits.min), float(limits.max)))
        value = min(max(value, limits.min), limits.max)
    return np.full(kept, value, dtype)


def _axes(call: OnnxCall, rank: int) -> list[int]:
    """Returns the axes to reduce, from an attribute or an input.

    Without axes they are all axes, or none with ``noop_with_empty_axes``.
    """
    if "axes" in call.attributes:
        given: Sequence[int] | None = call.attr("axes")
    else:
        given = call.ints(1, "the axes") if call.has(1) else None
    if given is not None and len(given):
        return call.axes(given, rank)
    return [] if call.attributes.get("noop_with_empty_axes") else list(range(rank))


def _form(reduction: _Reduction) -> Callable[[OnnxCall], Value]:
    def form(call: OnnxCall) -> Value:
        _check_kind(call, reduction)
        x, axes = call[0], _axes(call, call[0].rank)
        keep = bool(call.attr("keepdims"))
        if 0 in x.shape:
            return Value.known(_empty(x.shape, x.dtype, axes, keep, reduction))
        if not axes and reduction.name in _SAME:
            return x
        if not axes:  # reduce an appended axis of extent 1
            x, axes, keep = call.unsqueeze(x, [x.rank]), [x.rank], False
        y = _reduce(call, reduction, x, axes)
        return y if keep else call.squeeze(y, axes)

    return form


#: reductions that are the identity over no axes
_SAME = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd")


def _reduce(call: OnnxCall, reduction: _Reduction, x: Value, axes: list[int]) -> Value:
    if x.kind == "logical":
        return call.op(
            "any_reduce" if reduction.name == "ReduceMax" else "all_reduce", x, axes=axes
        )
    if x.kind == "integer" and reduction.name in EXACTLY:
        return wrap(EXACTLY[reduction.name](call, x, axes), x.dtype, call)
    y = reduction.form(call, call.scalar(x), axes)
    return y.typed(x.dtype) if x.kind == "scalar" else wrap(call.cast(y, x.kind), x.dtype, call)


# -- integers that floats do not hold -------------------------------------------------------------


def integer_sum(call: OnnxCall, x: Value, axes: list[int]) -> Value:
    """Adds operators that sum integers over axes, which stay as axes of 1; returns the result.

    They compute in floats if all sums are exact there, otherwise by an integer matrix product.
    """
    others = [axis for axis in range(x.rank) if axis not in axes]
    count = prod(x.shape[axis] for axis in axes)
    if sum_of(call.emit.intervals.of(x), count).within(EXACT):
        return call.cast(call.op("sum_reduce", call.scalar(x), axes=axes), "integer")
    rows = call.reshape(call.transpose(x, [*others, *axes]), [-1, count])
    ones = Value.known(np.ones((count, 1), np.int64))
    kept = [1 if axis in axes else n for axis, n in enumerate(x.shape)]
    return call.reshape(call.op("int_matmul", rows, ones), kept)


_LOW_BITS = 12


def _integer_limit(name: str) -> Reduce:
    """Returns a reduction that computes the exact maximum or minimum of integers.

    ``name`` is the float operator. If floats are not exact, the reduction compares the upper bits
    first, then the lower bits of the elements with the best upper bits.
    """

    def limit(call: OnnxCall, x: Value, axes: list[int]) -> Value:
        if call.emit.intervals.of(x).within(EXACT):
            return call.cast(call.op(name, call.scalar(x), axes=axes), "integer")

        def of(part: Value) -> Value:
            return call.cast(call.op(name, call.scalar(part), axes=axes), "integer")

        low = call.op("bit_and", x, (1 << _LOW_BITS) - 1)
        high = call.op("int_div", call.op("int_sub", x, low), 1 << _LOW_BITS)
        most = of(high)
        worst = -1 if name == "max_reduce" else 1 << _LOW_BITS
        rest = of(call.op("select", call.op("int_eq", high, most), low, worst))
        both = call.op("int_add", call.op("int_mul", most, 1 << _LOW_BITS), rest)
        return call.emit.intervals.with_bounds(both, call.emit.intervals.of(x))

    return limit


def _of_absolute(call: OnnxCall, x: Value, axes: list[int]) -> Value:
    return integer_sum(call, x if x.dtype.kind == "u" else call.op("int_abs", x), axes)


def _of_squares(call: OnnxCall, x: Value, axes: list[int]) -> Value:
    return integer_sum(call, call.op("int_mul", x, x), axes)


def _integer_quotient(call: OnnxCall, x: Value, axes: list[int]) -> Value:
    count = prod(x.shape[axis] for axis in axes)
    return call.op("int_div", integer_sum(call, x, axes), count)


#: the integer reductions; others are computed in floats
EXACTLY: dict[str, Reduce] = {
    "ReduceSum": integer_sum,
    "ReduceMean": _integer_quotient,
    "ReduceMax": _integer_limit("max_reduce"),
    "ReduceMin": _integer_limit("min_reduce"),
    "ReduceL1": _of_absolute,
    "ReduceL2": lambda call, x, axes: integer_root(call, _of_squares(call, x, axes)),
    "ReduceSumSquare": _of_squares,
}


_KEEP = {"keepdims": 1}
_NOOP = {**_KEEP, "noop_with_empty_axes": 0}
for _r in REDUCTIONS:
    _last = 12 if _r.name == "ReduceSum" else 17
    op(_r.name, nnef=_r.nnef, attrs={**_KEEP, "axes": INTS}, until=_last, fold=_fold(_r))(_form(_r))
    op(_r.name, nnef=_r.nnef, inputs=2, attrs=_NOOP, since=_last + 1, fold=_fold(_r))(_form(_r))


# -- where the greatest is -----------------------------------------------------------------------


def _arg(name: str) -> Callable[[OnnxCall], Value]:
    def form(call: OnnxCall) -> Value:
        x = call[0]
        axis = call.axis(call.attr("axis"), x.rank)
        if x.kind == "integer" and not call.emit.intervals.of(x).within(EXACT):
            limit = EXACTLY["ReduceMax" if name == "argmax_reduce" else "ReduceMin"]
            x = call.op("int_eq", x, limit(call, x, [axis]))
            x = call.op("select", x, 1.0 if name == "argmax_reduce" else -1.0, 0.0)
        x = call.scalar(x)
        last = bool(call.attributes.get("select_last_index"))
        if last:
            back = {"begin": [x.shape[axis] - 1], "end": [-x.shape[axis] - 1], "stride": [-1]}
            x = call.op("slice", x, axes=[axis], **back)
        y = call.op(name, x, axes=[axis])
        if last:
            y = call.op("int_sub", x.shape[axis] - 1, y)
        return (y if call.attr("keepdims") else call.squeeze(y, [axis])).typed(np.int64)

    return form


for _name, _nnef in (("ArgMax", "argmax_reduce"), ("ArgMin", "argmin_reduce")):
    _attrs = {"axis": 0, "keepdims": 1}
    op(_name, nnef=_nnef, attrs=_attrs, until=11)(_arg(_nnef))
    op(_name, nnef=_nnef, attrs={**_attrs, "select_last_index": 0}, since=12)(_arg(_nnef))
