"""Imports pooling."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from cml_engine.formats.onnx.attributes import at_least, per_axis, required
from cml_engine.formats.onnx.call import OnnxCall
from cml_engine.formats.onnx.op_schemas import op
from cml_engine.formats.onnx.operators.windows import WINDOW, SpatialWindow, window
from cml_engine.formats.onnx.values import Value

_POOL = {**WINDOW, "kernel_shape": required(per_axis(1)), "ceil_mode": 0}


def _pool_window(call: OnnxCall, x: Value) -> SpatialWindow:
    """Returns the window of a pooling node of ``x``, with its padding resolved.

    With ``ceil_mode`` the padding is extended to the end of the last window.
    """
    if x.rank < 3:
        raise call.shape_error(f"it wants [batch, channels, …], got {x}")
    found = window(call, x.shape[2:], list(call.attr("kernel_shape")))
    if not call.attr("ceil_mode"):
        return found
    padding = []
    extents = x.shape[2:]
    for n, step, reach, (before, after) in zip(
        extents, found.stride, found.reach, found.padding, strict=True
    ):
        count = -(-(n + before + after - reach) // step) + 1
        if (count - 1) * step >= n + before:  # a window that starts in the padding at the end
            count -= 1
        padding.append((before, (count - 1) * step + reach - n - before))
    return replace(found, padding=padding)


def _attrs(shape: SpatialWindow, border: str) -> dict[str, Any]:
    """Returns a window as attributes of NNEF's pools, which also cover batch and channels."""
    return {
        "size": [1, 1, *shape.size],
        "padding": [(0, 0), (0, 0), *shape.padding],
        "stride": [1, 1, *shape.stride],
        "dilation": [1, 1, *shape.dilation],
        "border": border,
    }


@op("MaxPool", nnef="max_pool; or argmax_pool, sample and integers",
    attrs={**_POOL, "storage_order": 0})  # fmt: skip
def max_pool(call: OnnxCall) -> list[Value | None]:
    x = call.scalar(call[0])
    shape = _pool_window(call, x)
    attrs = _attrs(shape, "ignore")
    if not call.wants(1):
        y = call.op("max_pool", x, **attrs)
        return [call.cast(y, call[0].kind).typed(call[0].dtype), None]
    index = call.op("argmax_pool", x, **attrs)
    y = call.op("sample", x, index, **attrs)
    places = _places(call, index, shape, x.shape)
    return [call.cast(y, call[0].kind).typed(call[0].dtype), places]


def _places(call: OnnxCall, index: Value, shape: SpatialWindow, extents: tuple[int, ...]) -> Value:
    """Adds operators that turn indices within windows into flat indices into the whole tensor.

    Returns the result, of int64.
    """
    spatial = extents[2:]
    steps = np.cumprod([1, *spatial[:0:-1]])[::-1]  # the stride of each axis in the tensor
    if call.attr("storage_order"):
        steps = np.cumprod([1, *spatial[:-1]])
    taps = np.indices(shape.size).reshape(len(spatial), -1)  # the coordinates of each tap
    offsets = sum(t * d * s for t, d, s in zip(taps, shape.dilation, steps, strict=True))
    first: Any = np.arange(extents[0] * extents[1]).reshape(*extents[:2]) * int(np.prod(spatial))
    first = first.reshape(*extents[:2], *[1] * len(spatial))
    for axis, (step, stride, (before, _)) in enumerate(
        zip(steps, shape.stride, shape.padding, strict=True)
    ):
        along = (np.arange(index.shape[2 + axis]) * stride - before) * step
        first = first + along.reshape([-1 if a == 2 + axis else 1 for a in range(len(extents))])
    moved = call.op("gather", Value.known(np.asarray(offsets, np.int64)), index, axis=0)
    return call.zip("int_add", moved, Value.known(first)).typed(np.int64)


@op("AveragePool", nnef="avg_pool, pad", attrs={**_POOL, "count_include_pad": 0})
def average_pool(call: OnnxCall) -> Value:
    x = call[0]
    shape = _pool_window(call, x)
    if call.attr("count_include_pad"):
        # padding counts in the mean, but the extra part that ceil_mode adds does not
        plain = window(call, x.shape[2:], shape.size).padding
        inner = [(a, min(b, d)) for (a, b), (_, d) in zip(plain, shape.padding, strict=True)]
        if any(a or b for a, b in inner):
            sides = [(0, 0), (0, 0), *inner]
            x = call.op("pad", x, padding=sides, border="constant", value=0.0)
        rest = [(0, d - b) for (_, b), (_, d) in zip(inner, shape.padding, strict=True)]
        shape = replace(shape, padding=rest)
    return call.op("avg_pool", x, **_attrs(shape, "ignore"))


@op("LpPool", nnef="abs, sqr or pow; box; sqrt or pow", attrs={**_POOL, "p": at_least(1, 2)})
def lp_pool(call: OnnxCall) -> Value:
    x = call[0]
    attrs = _attrs(_pool_window(call, x), "constant")
    return _root(call, call.op("box", _power(call, x), **attrs))


def _power(call: OnnxCall, x: Value) -> Value:
    p = call.attr("p")
    if p == 2:
        return call.op("sqr", x)
    return call.op("abs", x) if p == 1 else call.op("pow", call.op("abs", x), float(p))


def _root(call: OnnxCall, x: Value) -> Value:
    p = call.attr("p")
    if p == 1:
        return x
    return call.op("sqrt", x) if p == 2 else call.op("pow", x, 1 / p)


def _global(call: OnnxCall, name: str, x: Value) -> Value:
    return call.op(name, x, axes=list(range(2, x.rank)))


op("GlobalAveragePool", nnef="mean_reduce")(lambda call: _global(call, "mean_reduce", call[0]))
op("GlobalMaxPool", nnef="max_reduce")(lambda call: _global(call, "max_reduce", call[0]))


@op("GlobalLpPool", nnef="abs, sqr or pow; sum_reduce; sqrt or pow", attrs={"p": at_least(1, 2)})
def global_lp_pool(call: OnnxCall) -> Value:
    return _root(call, _global(call, "sum_reduce", _power(call, call[0])))
