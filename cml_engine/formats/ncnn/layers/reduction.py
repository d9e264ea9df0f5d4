"""Reductions along axes."""

from __future__ import annotations

from collections.abc import Callable

from cml_engine.formats.ncnn.conversion import Conversion
from cml_engine.formats.ncnn.layer_types import layer
from cml_engine.formats.ncnn.param import NcnnLayer

_Reduce = Callable[[Conversion, str, list[int]], str]


def _sum(to: Conversion, x: str, axes: list[int]) -> str:
    return to.op("sum_reduce", x, axes=axes)


def _log_sum_exp(to: Conversion, x: str, axes: list[int]) -> str:
    """Computes log(sum(exp(x))), shifted by the maximum to avoid overflow."""
    most = to.op("max_reduce", x, axes=axes)
    summed = _sum(to, to.op("exp", to.op("sub", x, most)), axes)
    return to.op("add", to.op("log", summed), most)


#: The reductions by ncnn's numbers.
_KINDS: tuple[_Reduce, ...] = (
    _sum,
    lambda to, x, axes: _sum(to, to.op("abs", x), axes),
    lambda to, x, axes: _sum(to, to.op("sqr", x), axes),
    lambda to, x, axes: to.op("mean_reduce", x, axes=axes),
    lambda to, x, axes: to.op("max_reduce", x, axes=axes),
    lambda to, x, axes: to.op("min_reduce", x, axes=axes),
    lambda to, x, axes: to.op("prod_reduce", x, axes=axes),
    lambda to, x, axes: _sum(to, to.op("abs", x), axes),
    lambda to, x, axes: to.op("sqrt", _sum(to, to.op("sqr", x), axes)),
    lambda to, x, axes: to.op("log", _sum(to, x, axes)),
    _log_sum_exp,
)


@layer("Reduction", params="0-5")
def _reduction(one: NcnnLayer, to: Conversion, x: str) -> str:
    kind, extents = one.whole(0), to.extents(x)
    if not 0 <= kind < len(_KINDS):
        raise one.unsupported(f"operation {kind}")
    every = list(range(1, 1 + len(extents)))
    axes = every if one.whole(1, 1) else sorted({to.axis(x, a) for a in one.wholes(3)})
    if not axes:
        raise one.damaged("no axes")
    result = _KINDS[kind](to, x, axes)
    factor = one.number(2, 1.0)
    if factor != 1:
        result = to.op("mul", result, factor)
    if one.whole(4):
        return result
    kept = [n for axis, n in enumerate(extents, 1) if axis not in axes]
    return to.reshaped(result, kept or [1])
