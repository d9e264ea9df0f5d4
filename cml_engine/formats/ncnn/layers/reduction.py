"""Converts reductions along axes."""

from __future__ import annotations

from collections.abc import Callable

from cml_engine.formats.ncnn.conversion import Conversion
from cml_engine.formats.ncnn.layer_types import converts
from cml_engine.formats.ncnn.param import NcnnLayer

_Reduce = Callable[[Conversion, str, list[int]], str]


def _sum(graph: Conversion, x: str, axes: list[int]) -> str:
    return graph.op("sum_reduce", x, axes=axes)


def _log_sum_exp(graph: Conversion, x: str, axes: list[int]) -> str:
    """Adds operators that compute log(sum(exp(x))) over axes and returns the result's name.

    The exponents are shifted by the maximum to avoid overflow.
    """
    most = graph.op("max_reduce", x, axes=axes)
    summed = _sum(graph, graph.op("exp", graph.op("sub", x, most)), axes)
    return graph.op("add", graph.op("log", summed), most)


#: The reductions by ncnn's numbers.
_KINDS: tuple[_Reduce, ...] = (
    _sum,
    lambda graph, x, axes: _sum(graph, graph.op("abs", x), axes),
    lambda graph, x, axes: _sum(graph, graph.op("sqr", x), axes),
    lambda graph, x, axes: graph.op("mean_reduce", x, axes=axes),
    lambda graph, x, axes: graph.op("max_reduce", x, axes=axes),
    lambda graph, x, axes: graph.op("min_reduce", x, axes=axes),
    lambda graph, x, axes: graph.op("prod_reduce", x, axes=axes),
    lambda graph, x, axes: _sum(graph, graph.op("abs", x), axes),
    lambda graph, x, axes: graph.op("sqrt", _sum(graph, graph.op("sqr", x), axes)),
    lambda graph, x, axes: graph.op("log", _sum(graph, x, axes)),
    _log_sum_exp,
)


@converts("Reduction", params="0-5")
def _reduction(layer: NcnnLayer, graph: Conversion, x: str) -> str:
    kind, extents = layer.integer(0), graph.extents(x)
    if not 0 <= kind < len(_KINDS):
        raise layer.unsupported_error(f"operation {kind}")
    every = list(range(1, 1 + len(extents)))
    axes = every if layer.integer(1, 1) else sorted({graph.axis(x, a) for a in layer.integers(3)})
    if not axes:
        raise layer.damaged_error("no axes")
    result = _KINDS[kind](graph, x, axes)
    factor = layer.number(2, 1.0)
    if factor != 1:
        result = graph.op("mul", result, factor)
    if layer.integer(4):
        return result
    kept = [n for axis, n in enumerate(extents, 1) if axis not in axes]
    return graph.reshape(result, kept or [1])
