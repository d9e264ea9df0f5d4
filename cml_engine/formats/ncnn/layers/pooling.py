"""Pooling in one, two and three dimensions: windowed, global, and to a fixed size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cml_engine.formats.ncnn.conversion import Conversion
from cml_engine.formats.ncnn.layer_types import layer
from cml_engine.formats.ncnn.layers.convolution import SAME_LOWER, SAME_UPPER, halves
from cml_engine.formats.ncnn.param import MISSING, NcnnLayer

#: Ids of kernel, stride, padding before and after, and output size, for width, height, depth.
_IDS = ((1, 2, 3, 14, 8), (11, 12, 13, 15, 18), (21, 22, 23, 16, 28))

#: "Same" padding with the odd value at the end or at the start.
_SAME = {2: SAME_UPPER, 3: SAME_LOWER}

#: ncnn's maximum of a window that lies entirely in the padding.
_LEAST = -float(np.finfo(np.float32).max)


@layer("Pooling1D", params="0-8 14")
@layer("Pooling", params="0-8 11-15 18")
@layer("Pooling3D", params="0-8 11-16 18 21-23 28")
def _pooling(one: NcnnLayer, to: Conversion, x: str) -> str:
    count = {"Pooling1D": 1, "Pooling": 2}.get(one.type, 3)
    if one.whole(0) not in (0, 1):
        raise one.unsupported(f"pooling type {one.whole(0)}")
    if len(to.extents(x)) != 1 + count:
        raise one.damaged(f"an input of {len(to.extents(x))} axes: wanted {1 + count}")
    if count == 3 and one.whole(5) == 3:
        raise one.unsupported("the odd padding at the start, in three dimensions,")
    average = one.whole(0) == 1
    if one.whole(4):
        axes = list(range(2, 2 + count))
        return to.op("squeeze", _reduced(to, x, average, axes), axes=axes)
    if one.whole(7):
        return _adaptive(one, to, x, average, count)
    windows = [_window(one, ids, to.extents(x)[-1 - i]) for i, ids in enumerate(_IDS[:count])]
    size, stride, padding = (list(part) for part in zip(*windows[::-1], strict=True))
    # with "same" padding ncnn always divides by the whole window
    whole = average and (one.whole(6) or one.whole(5) in _SAME)
    result = to.op(
        "avg_pool" if average else "max_pool",
        x,
        size=[1, 1, *size],
        stride=[1, 1, *stride],
        padding=[(0, 0), (0, 0), *padding],
        border="constant" if whole else "ignore",
    )
    outside = any(max(sides) >= k for k, sides in zip(size, padding, strict=True))
    return to.op("max", result, _LEAST) if outside and not average else result


def _reduced(to: Conversion, x: str, average: bool, axes: Sequence[int]) -> str:
    return to.op("mean_reduce" if average else "max_reduce", x, axes=list(axes))


def _window(one: NcnnLayer, ids: Sequence[int], extent: int) -> tuple[int, int, tuple[int, int]]:
    """Returns kernel, stride and padding along an axis of the given extent."""
    width = [one.whole(key, default) for key, default in zip(_IDS[0], (0, 1, 0), strict=False)]
    kernel, stride, before = (
        one.whole(key, default) for key, default in zip(ids[:3], width, strict=True)
    )
    behind = one.whole(ids[3], before)
    if kernel < 1 or stride < 1 or before < 0 or behind < 0:
        raise one.damaged(f"kernel {kernel}, stride {stride}, padding {before}, {behind}")
    mode = one.whole(5)
    if mode not in _SAME and extent + before + behind < kernel:
        raise one.damaged(f"a kernel of {kernel} over {extent} values")
    if mode == 0:  # the output's size is rounded up
        behind += -(extent + before + behind - kernel) % stride
    elif mode in _SAME:
        total = kernel + (extent - 1) // stride * stride - extent
        if total < 0:
            raise one.unsupported("'same' padding of windows smaller than their stride")
        before, behind = halves(total, _SAME[mode])
    elif mode != 1:
        raise one.unsupported(f"padding mode {mode}")
    return kernel, stride, (before, behind)


def _adaptive(one: NcnnLayer, to: Conversion, x: str, average: bool, count: int) -> str:
    """Pools to a fixed size, axis by axis, with windows of nearly equal size."""
    width = one.whole(8)
    for i, ids in enumerate(_IDS[:count]):
        axis = count + 1 - i
        extent, wanted = to.extents(x)[axis - 1], one.whole(ids[4], width)
        if wanted in (MISSING, extent):
            continue
        if not 1 <= wanted <= 4096:
            raise one.damaged(f"an output of {wanted}")
        parts = [
            _part(to, x, axis, i * extent // wanted, -(-(i + 1) * extent // wanted), average)
            for i in range(wanted)
        ]
        x = parts[0] if len(parts) == 1 else to.op("concat", *parts, axis=axis)
    return x


def _part(to: Conversion, x: str, axis: int, begin: int, end: int, average: bool) -> str:
    part = to.op("slice", x, axes=[axis], begin=[begin], end=[end])
    return _reduced(to, part, average, [axis])
