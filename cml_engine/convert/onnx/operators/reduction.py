"""Reductions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from cml_engine.convert.onnx.call import OnnxCall
from cml_engine.convert.onnx.ranges.interval import EXACT, total
from cml_engine.convert.onnx.rows import op
from cml_engine.convert.onnx.values import Value

Array = np.ndarray[Any, Any]
Reduce = Callable[[OnnxCall, Value, list[int]], Value]


def _plain(name: str) -> Reduce:
    return lambda call, x, axes: call.op(name, x, axes=axes)


def _after(*unary: str) -> Reduce:
    """A sum, of the first operator's values, with the second after it."""

    def reduce(call: OnnxCall, x: Value, axes: list[int]) -> Value:
        before, after = unary
        total = call.op("sum_reduce", call.op(before, x) if before else x, axes=axes)
        return call.op(after, total) if after else total

    return reduce


def _log_sum_exp(call: OnnxCall, x: Value, axes: list[int]) -> Value:
    """Less the greatest value, where that is finite: exp would overflow."""
    top = call.op("max_reduce", x, axes=axes)
    top = call.op("select", call.op("is_inf", top), 0.0, top)
    total = call.op("sum_reduce", call.op("exp", call.op("sub", x, top)), axes=axes)
    return call.op("add", call.op("log", total), top)


@dataclass(frozen=True)
class _Reduction:
    name: str
    nnef: str
    form: Reduce
    numpy: Callable[..., Any]


def _logarithm_of_sum(x: Array, **more: Any) -> Any:
    return np.log(np.sum(x, **more))


def _limit(function: Callable[..., Any], least: bool) -> Callable[..., Any]:
    """A maximum or minimum that has a value of nothing at all too."""

    def of(x: Array, **more: Any) -> Any:
        if x.dtype.kind == "b":
            return function(x, initial=least, **more)
        low = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
        high = np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).max
        return function(x, initial=high if least else low, **more)

    return of


REDUCTIONS = (
    _Reduction("ReduceSum", "sum_reduce; or int_matmul", _plain("sum_reduce"), np.sum),
    _Reduction("ReduceMean", "mean_reduce", _plain("mean_reduce"), np.mean),
    _Reduction("ReduceMax", "max_reduce", _plain("max_reduce"), _limit(np.max, False)),
    _Reduction("ReduceMin", "min_reduce", _plain("min_reduce"), _limit(np.min, True)),
    _Reduction("ReduceProd", "prod_reduce", _plain("prod_reduce"), np.prod),
    _Reduction("ReduceL1", "abs, sum_reduce", _after("abs", ""),
               lambda x, **more: np.sum(np.abs(x), **more)),
    _Reduction("ReduceL2", "sqr, sum_reduce, sqrt", _after("sqr", "sqrt"),
               lambda x, **more: np.sqrt(np.sum(np.square(x), **more))),
    _Reduction("ReduceSumSquare", "sqr, sum_reduce", _after("sqr", ""),
               lambda x, **more: np.sum(np.square(x), **more)),
    _Reduction("ReduceLogSum", "sum_reduce, log", _after("", "log"), _logarithm_of_sum),
    _Reduction("ReduceLogSumExp", "max_reduce, sub, exp, sum_reduce, log, add", _log_sum_exp,
               lambda x, **more: np.log(np.sum(np.exp(x), **more))),
)  # fmt: skip


def _fold(reduction: _Reduction) -> Callable[..., Array]:
    def fold(call: OnnxCall, x: Array, *_: Array) -> Array:
        axes = _axes(call, x.ndim)
        keep = bool(call.attr("keepdims"))
        if axes is None:
            return x
        return np.asarray(reduction.numpy(x, axis=tuple(axes), keepdims=keep)).astype(x.dtype)

    return fold


def _axes(call: OnnxCall, rank: int) -> list[int] | None:
    """The axes to reduce; ``None`` = the tensor stays as it is."""
    if "axes" in call.attributes:
        given: Sequence[int] | None = call.attr("axes")
    else:
        given = call.ints(1, "the axes") if call.has(1) else None
    if given is not None and len(given):
        return call.axes(given, rank)
    if "noop_with_empty_axes" in call.attributes and call.attr("noop_with_empty_axes"):
        return None
    return list(range(rank))


def _form(reduction: _Reduction) -> Callable[[OnnxCall], Value]:
    def form(call: OnnxCall) -> Value:
        x, axes = call[0], _axes(call, call[0].rank)
        if axes is None:
            return x if reduction.name in _SAME else _of_nothing(call, reduction, x)
        if 0 in x.shape:
            keep = bool(call.attr("keepdims"))
            with np.errstate(all="ignore"):
                empty = reduction.numpy(np.zeros(x.shape, x.dtype), axis=tuple(axes), keepdims=keep)
            return Value.known(np.asarray(empty).astype(x.dtype))
        y = _reduced(call, reduction, x, axes)
        return y if call.attr("keepdims") else call.squeeze(y, axes)

    return form


#: what a reduction over no axes leaves as it is
_SAME = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd")


def _of_nothing(call: OnnxCall, reduction: _Reduction, x: Value) -> Value:
    """Each value by itself: an axis of 1 behind the others."""
    lifted = call.unsqueeze(call.scalar(x), [x.rank])
    y = call.squeeze(reduction.form(call, lifted, [x.rank]), [x.rank])
    return call.cast(y, x.kind).typed(x.dtype)


def _reduced(call: OnnxCall, reduction: _Reduction, x: Value, axes: list[int]) -> Value:
    if x.kind == "logical" and reduction.name in ("ReduceMax", "ReduceMin"):
        return call.op(
            "any_reduce" if reduction.name == "ReduceMax" else "all_reduce", x, axes=axes
        )
    if not axes:
        return reduction.form(call, call.scalar(x), axes)
    if x.kind == "integer" and reduction.name in EXACTLY:
        exactly, grows = EXACTLY[reduction.name]
        count = prod(x.shape[axis] for axis in axes) if grows else 1
        if not total(call.emit.intervals.of(x), count).within(EXACT):
            return exactly(call, x, axes).typed(x.dtype)
    y = reduction.form(call, call.scalar(x), axes)
    return call.cast(y, x.kind).typed(x.dtype)


# -- integers that floats do not hold -------------------------------------------------------------


def _integer_sum(call: OnnxCall, x: Value, axes: list[int]) -> Value:
    """As a product of matrices, whose sums are of integers."""
    others = [axis for axis in range(x.rank) if axis not in axes]
    count = prod(x.shape[axis] for axis in axes)
    rows = call.reshape(call.transpose(x, [*others, *axes]), [-1, count])
    ones = Value.known(np.ones((count, 1), np.int64))
    kept = [1 if axis in axes else n for axis, n in enumerate(x.shape)]
    return call.reshape(call.op("int_matmul", rows, ones), kept)


_LOW_BITS = 12


def _integer_limit(name: str) -> Callable[[OnnxCall, Value, list[int]], Value]:
    """Of the upper bits first, then of the lower ones of those that have them."""

    def limit(call: OnnxCall, x: Value, axes: list[int]) -> Value:
        def of(part: Value) -> Value:
            return call.cast(call.op(name, call.scalar(part), axes=axes), "integer")

        low = call.op("bit_and", x, (1 << _LOW_BITS) - 1)
        high = call.op("int_div", call.op("int_sub", x, low), 1 << _LOW_BITS)
        most = of(high)
        worst = -1 if name == "max_reduce" else 1 << _LOW_BITS
        rest = of(call.op("select", call.op("int_eq", high, most), low, worst))
        both = call.op("int_add", call.op("int_mul", most, 1 << _LOW_BITS), rest)
        return call.emit.intervals.bounded(both, call.emit.intervals.of(x))

    return limit


#: how integers beyond 2^24 are reduced, and whether the result grows with their number
EXACTLY: dict[str, tuple[Callable[[OnnxCall, Value, list[int]], Value], bool]] = {
    "ReduceSum": (_integer_sum, True),
    "ReduceMax": (_integer_limit("max_reduce"), False),
    "ReduceMin": (_integer_limit("min_reduce"), False),
}


_KEEP = {"keepdims": 1}
_NOOP = {**_KEEP, "noop_with_empty_axes": 0}
for _r in REDUCTIONS:
    _last = 12 if _r.name == "ReduceSum" else 17
    op(_r.name, nnef=_r.nnef, attrs={**_KEEP, "axes": None}, until=_last, fold=_fold(_r))(_form(_r))
    op(_r.name, nnef=_r.nnef, inputs=2, attrs=_NOOP, since=_last + 1, fold=_fold(_r))(_form(_r))


# -- where the greatest is -----------------------------------------------------------------------


def _arg(name: str) -> Callable[[OnnxCall], Value]:
    def form(call: OnnxCall) -> Value:
        x = call[0]
        axis = call.axis(call.attr("axis"), x.rank)
        if x.kind == "integer" and not call.emit.intervals.of(x).within(EXACT):
            limit = EXACTLY["ReduceMax" if name == "argmax_reduce" else "ReduceMin"][0]
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
