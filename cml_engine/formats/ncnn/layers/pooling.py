"""Converts pooling in one, two and three dimensions: windowed, global, and to a fixed size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cml_engine.formats.ncnn.conversion import Conversion
from cml_engine.formats.ncnn.layer_types import converts
from cml_engine.formats.ncnn.layers.convolution import SAME_LOWER, SAME_UPPER, halves
from cml_engine.formats.ncnn.param import MISSING, NcnnLayer

#: Ids of kernel, stride, padding before and after, and output size, for width, height, depth.
_IDS = ((1, 2, 3, 14, 8), (11, 12, 13, 15, 18), (21, 22, 23, 16, 28))

#: "Same" padding with the odd value at the end or at the start.
_SAME = {2: SAME_UPPER, 3: SAME_LOWER}

#: ncnn's maximum of a window that lies entirely in the padding.
_LEAST = -float(np.finfo(np.float32).max)


@converts("Pooling1D", params="0-8 14")
@converts("Pooling", params="0-8 11-15 18")
@converts("Pooling3D", params="0-8 11-16 18 21-23 28")
def _pooling(layer: NcnnLayer, graph: Conversion, x: str) -> str:
    count = {"Pooling1D": 1, "Pooling": 2}.get(layer.type, 3)
    if layer.integer(0) not in (0, 1):
        raise layer.unsupported_error(f"pooling type {layer.integer(0)}")
    if len(graph.extents(x)) != 1 + count:
        raise layer.damaged_error(f"an input of {len(graph.extents(x))} axes: wanted {1 + count}")
    if count == 3 and layer.integer(5) == 3:
        raise layer.unsupported_error("the odd padding at the start, in three dimensions,")
    average = layer.integer(0) == 1
    if layer.integer(4):
        axes = list(range(2, 2 + count))
        return graph.op("squeeze", _reduced(graph, x, average, axes), axes=axes)
    if layer.integer(7):
        return _adaptive(layer, graph, x, average, count)
    windows = [_window(layer, ids, graph.extents(x)[-1 - i]) for i, ids in enumerate(_IDS[:count])]
    size, stride, padding = (list(part) for part in zip(*windows[::-1], strict=True))
    # with "same" padding ncnn always divides by the whole window
    whole = average and (layer.integer(6) or layer.integer(5) in _SAME)
    result = graph.op(
        "avg_pool" if average else "max_pool",
        x,
        size=[1, 1, *size],
        stride=[1, 1, *stride],
        padding=[(0, 0), (0, 0), *padding],
        border="constant" if whole else "ignore",
    )
    outside = any(max(sides) >= k for k, sides in zip(size, padding, strict=True))
    return graph.op("max", result, _LEAST) if outside and not average else result


def _reduced(graph: Conversion, x: str, average: bool, axes: Sequence[int]) -> str:
    return graph.op("mean_reduce" if average else "max_reduce", x, axes=list(axes))


def _window(layer: NcnnLayer, ids: Sequence[int], extent: int) -> tuple[int, int, tuple[int, int]]:
    """Returns an axis's kernel, stride, and padding before and after its ``extent`` elements."""
    width = [layer.integer(key, default) for key, default in zip(_IDS[0], (0, 1, 0), strict=False)]
    kernel, stride, before = (
        layer.integer(key, default) for key, default in zip(ids[:3], width, strict=True)
    )
    behind = layer.integer(ids[3], before)
    if kernel < 1 or stride < 1 or before < 0 or behind < 0:
        raise layer.damaged_error(f"kernel {kernel}, stride {stride}, padding {before}, {behind}")
    mode = layer.integer(5)
    if mode not in _SAME and extent + before + behind < kernel:
        raise layer.damaged_error(f"a kernel of {kernel} over {extent} values")
    if mode == 0:  # the output's size is rounded up
        behind += -(extent + before + behind - kernel) % stride
    elif mode in _SAME:
        total = kernel + (extent - 1) // stride * stride - extent
        if total < 0:
            raise layer.unsupported_error("'same' padding of windows smaller than their stride")
        before, behind = halves(total, _SAME[mode])
    elif mode != 1:
        raise layer.unsupported_error(f"padding mode {mode}")
    return kernel, stride, (before, behind)


def _adaptive(layer: NcnnLayer, graph: Conversion, x: str, average: bool, count: int) -> str:
    """Adds operators that pool the last ``count`` axes to fixed sizes; returns the result's name.

    The windows of an axis have nearly equal size.
    """
    width = layer.integer(8)
    for i, ids in enumerate(_IDS[:count]):
        axis = count + 1 - i
        extent, wanted = graph.extents(x)[axis - 1], layer.integer(ids[4], width)
        if wanted in (MISSING, extent):
            continue
        if not 1 <= wanted <= 4096:
            raise layer.damaged_error(f"an output of {wanted}")
        parts = [
            _part(graph, x, axis, i * extent // wanted, -(-(i + 1) * extent // wanted), average)
            for i in range(wanted)
        ]
        x = parts[0] if len(parts) == 1 else graph.op("concat", *parts, axis=axis)
    return x


def _part(graph: Conversion, x: str, axis: int, begin: int, end: int, average: bool) -> str:
    part = graph.op("slice", x, axes=[axis], begin=[begin], end=[end])
    return _reduced(graph, part, average, [axis])
