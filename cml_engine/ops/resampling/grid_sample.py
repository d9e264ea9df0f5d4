"""The operator ``grid_sample``: reads a feature map at the positions in another tensor.

A position has a number for each spatial axis, the innermost axis first, from -1 (the first
value) to 1 (the last one). Positions are computed data: NaN counts as 0, and positions beyond
the range of exact integers in float32 are clamped to it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from math import prod

import numpy as np

from cml_engine.errors import ShapeError
from cml_engine.ir.graph import Array, Attrs, Fact
from cml_engine.ops.common.shapes import check_spatial, check_word, inner_first
from cml_engine.ops.declaration.lowering import Lowering, for_each
from cml_engine.ops.declaration.registry import define
from cml_engine.ops.declaration.spec import (
    POSITION,
    Case,
    Dispatch,
    OpSpec,
    Random,
    engine_kernel,
    numbers,
    sampling_cost,
)
from cml_engine.ops.resampling.resize import METHODS, TAPS, tap_weights

BORDERS = ("constant", "replicate", "reflect")
_LIMIT = np.float32(2.0**22)
_CUBIC = -0.75
_CHANNELS = 4


def _infer(attrs: Attrs, x: Fact, grid: Fact) -> Fact:
    check_spatial("grid_sample", x)
    spatial = x.rank - 2
    if grid.rank != x.rank or grid.shape[0] != x.shape[0] or grid.shape[-1] != spatial:
        raise ShapeError(
            f"grid is {grid}, wanted [{x.shape[0]}, {spatial} output extents, {spatial}]: a "
            f"position of {spatial} numbers for each result"
        )
    check_word("method", attrs.method, METHODS)
    check_word("border", attrs.border, BORDERS)
    shape = (*x.shape[:2], *grid.shape[1:-1])
    if prod(shape) > 0 and 0 in x.shape[2:]:
        raise ShapeError(f"grid_sample of {x}, which is empty: there is nothing to read")
    return Fact("scalar", shape)


# --- on the CPU ---------------------------------------------------------------------------------


def _positions(grid: Array, extent: int, attrs: Attrs) -> Array:
    """Converts an axis' grid positions, -1 to 1, to indices; "nearest" rounds them.

    NaN counts as 0.
    """
    positions = np.where(np.isnan(grid), np.float32(0), grid) + np.float32(1)
    if attrs.align_corners:
        positions = positions * np.float32((extent - 1) / 2)
    else:
        positions = (positions * np.float32(extent) - np.float32(1)) * np.float32(0.5)
    positions = np.clip(positions, -_LIMIT, _LIMIT)
    return np.rint(positions) if attrs.method == "nearest" else positions


def _bordered(positions: Array, extent: int, attrs: Attrs) -> Array:
    """Returns the positions with those outside the axis moved inside, as the border demands.

    With a constant border they stay outside. So do cubic positions beyond a repeated edge, because
    each of their taps is clamped by itself, as in PyTorch and ONNX Runtime.
    """
    low = 0.0 if attrs.align_corners else -0.5
    high = extent - 1 - low
    outside = (positions < low) | (positions > high)
    if attrs.border == "replicate" and attrs.method != "cubic":
        return np.where(outside, positions.clip(0, extent - 1), positions)
    if attrs.border == "reflect":
        return np.where(outside, _reflected(positions, low, high), positions)
    return positions


def _reflected(positions: Array, low: float, high: float) -> Array:
    size = np.float32(high - low)
    if size == 0:
        return np.full_like(positions, low)
    distance = np.abs(positions - np.float32(low))
    reflections = np.floor(distance / size)
    remainder = distance - reflections * size
    return np.asarray(np.where(reflections % 2 == 1, high - remainder, low + remainder), np.float32)


def _cpu(attrs: Attrs, x: Array, grid: Array) -> Array:
    extents, method = x.shape[2:], attrs.method
    positions = grid.reshape(len(x), prod(grid.shape[1:-1]), len(extents))[..., ::-1]
    axis_positions = [
        _bordered(_positions(positions[..., d], n, attrs), n, attrs) for d, n in enumerate(extents)
    ]
    low = [np.floor(p) for p in axis_positions]
    weights = [
        tap_weights(method, p - first, _CUBIC) for p, first in zip(axis_positions, low, strict=True)
    ]
    batch = np.arange(len(x))[:, None]
    values: Array = np.moveaxis(x, 1, -1)
    y = np.zeros((*positions.shape[:2], x.shape[1]))
    for taps in itertools.product(range(TAPS[method]), repeat=len(extents)):
        weight, inside, index = np.ones(positions.shape[:2]), np.full(positions.shape[:2], True), []
        for d, tap in enumerate(taps):
            weight = weight * weights[d][tap]
            i = low[d].astype(np.int64) + tap - (method == "cubic")
            if attrs.border == "reflect":
                edge = 0.0 if attrs.align_corners else -0.5
                i = _reflected(i.astype(np.float32), edge, extents[d] - 1 - edge).astype(np.int64)
            inside &= (i >= 0) & (i < extents[d])
            index.append(i.clip(0, extents[d] - 1))
        values_at = values[(batch, *index)] * weight[..., None]
        y += values_at if attrs.border != "constant" else np.where(inside[..., None], values_at, 0)
    shape = (len(x), *grid.shape[1:-1], x.shape[1])
    return np.asarray(np.moveaxis(y.reshape(shape), -1, 1), np.float32)


# --- on the GPU ---------------------------------------------------------------------------------


def _lower(op: Lowering) -> Iterator[Dispatch]:
    x, attrs = op.inputs[0], op.attrs
    spatial = x.rank - 2
    blocks = -(-x.shape[1] // _CHANNELS)
    positions = prod(op.outputs[0].shape[2:])
    params = {
        "places": positions,
        "blocks": blocks,
        "channels": x.shape[1],
        "spatial": spatial,
        "in_extent": inner_first(x.shape[2:]),
        "method": METHODS.index(attrs.method),
        "border": BORDERS.index(attrs.border),
        "align": int(attrs.align_corners),
    }
    yield for_each(op, x.shape[0] * blocks * positions, params, numbers(METHODS) | numbers(BORDERS))


_KERNEL = engine_kernel(
    "resampling/grid_sample.hlsl",
    "n:u places:u blocks:u channels:u spatial:u in_extent:u3 method:u border:u align:u",
    lower=_lower,
)


def _cases() -> Iterator[Case]:
    for i, (method, border, align) in enumerate(itertools.product(METHODS, BORDERS, (False, True))):
        attrs = {"method": method, "border": border, "align_corners": align}
        positions = Random((2, 3, 23, 2), -1.7, 1.7)
        yield Case(((2, 3 + i % 4, 5, 7), positions), attrs, "beyond the edges")
    attrs = {"method": "linear", "border": "constant", "align_corners": False}
    yield Case(((1, 5, 3, 4, 5), Random((1, 2, 3, 4, 3), -1.4, 1.4)), attrs, "a volume")
    yield Case(((2, 2, 9), Random((2, 7, 1), -1.4, 1.4)), {**attrs, "method": "cubic"}, "a line")
    for border in BORDERS:
        outside_positions = np.array(
            [[[[9.0, -7.5], [np.nan, 1.0], [-1.0, 1.0], [3.0, 0.1]]]], np.float32
        )
        bordered = {**attrs, "border": border, "align_corners": border == "reflect"}
        yield Case(((1, 1, 3, 3), outside_positions), bordered, "far outside, NaN and corners")
    cubic = {**attrs, "border": "reflect", "align_corners": True, "method": "cubic"}
    yield Case(((1, 1, 1, 1), Random((1, 2, 2, 2), -2, 2)), cubic, "extent 1")
    yield Case(((1, 2, 3, 3), (1, 0, 4, 2)), attrs, "no results")


define(
    OpSpec(
        "grid_sample",
        infer=_infer,
        cpu=_cpu,
        kernel=_KERNEL,
        cost=sampling_cost(2.0, lambda attrs, axes: TAPS[attrs.method] ** axes),
        tolerance=POSITION,
        cases=list(_cases()),
    )
)
