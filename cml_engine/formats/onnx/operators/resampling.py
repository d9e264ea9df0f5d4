"""Imports Resize and Upsample, and sampling at computed positions.

The engine's operators are used where they compute the same. Other variants of Resize become a
constant per axis: indices to gather, and weights to multiply by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from cml_engine.formats.line_weights import taps_of
from cml_engine.formats.onnx.op_schemas import (
    MICROSOFT,
    OnnxCall,
    at_least,
    attribute,
    one_of,
    op,
)
from cml_engine.formats.onnx.same_operators import COORDINATES, GRID_BORDERS, METHODS, ROUNDINGS
from cml_engine.formats.onnx.values import (
    InvalidNode,
    Value,
    allocate,
    along,
    checked_axes,
    ints,
    numbers,
    per_channel,
    zeros,
)
from cml_engine.ir.graph import Array


@dataclass(frozen=True, slots=True)
class ResizeAxis:
    """The resize of one axis: its extent before and after, its scale, and its crop region."""

    extent: int
    size: int
    scale: float
    #: True if the model states the scale; False if the scale is the ratio of the extents
    is_scaled: bool = True
    region: tuple[float, float] = (0.0, 1.0)

    @property
    def changes(self) -> bool:
        return self.size != self.extent or self.scale != 1.0


#: the rounding of float32 positions in opsets 7 to 10, which have no attribute for it: down if an
#: axis grows, up if it shrinks
_BEFORE_11 = "before 11"
_CROP = "tf_crop_and_resize"
#: the coordinates whose positions are computed in float32 by a scale
_SINGLE = ("asymmetric", "half_pixel", "pytorch_half_pixel")
#: how far from the middle between two elements ONNX Runtime takes a position for the middle
_TIE = 1e-6


@dataclass(frozen=True, slots=True)
class ResizeRule:
    """The attributes of Resize that apply to all axes."""

    mode: str = "nearest"
    coordinates: str = "asymmetric"
    nearest: str = _BEFORE_11
    cubic: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False
    outside: float = 0.0


_NNEF = "nearest_upsample, resize; or gather, mul, sum_reduce"


@op("Resize", _NNEF, since=10, until=10)
@op("Upsample", _NNEF)
def upsample(
    x: Value,
    scales: list[float] = attribute(until=8, required=True),
    *,
    mode: str = one_of("nearest", "linear", "bilinear", "cubic"),
) -> Value:
    axes = [ResizeAxis(n, _scaled_extent(n, s), s) for n, s in zip(x.shape, scales, strict=True)]
    return _resize_axes(x, axes, ResizeRule(mode))


def _scaled_extent(extent: float, scale: float) -> int:
    """Returns an extent times a scale, rounded down.

    The product is computed in float32, as in ONNX Runtime: 10 times float32(1.3) is 13 there and
    less than 13 in float64.
    """
    return int(np.floor(np.float32(extent) * np.float32(scale)))


@op("Resize", _NNEF, since=11)
def resize(
    x: Value,
    roi: Value | None = None,
    scales: Value | None = None,
    sizes: Value | None = None,
    *,
    antialias: bool = attribute(False, since=18),
    axes: list[int] | None = attribute(since=18),
    coordinate_transformation_mode: str = one_of(
        "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
        _CROP, "tf_half_pixel_for_nn",
    ),
    cubic_coeff_a: float = -0.75,
    exclude_outside: bool = False,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = one_of("stretch", "not_larger", "not_smaller", since=18),
    mode: str = one_of("nearest", "linear", "cubic"),
    nearest_mode: str = one_of("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
) -> Value:  # fmt: skip
    resized_axes = checked_axes(axes, x.rank)
    regions = [(0.0, 1.0)] * len(resized_axes)
    if coordinate_transformation_mode == _CROP and roi is not None:
        region = numbers(roi, "the region").tolist()
        regions = list(zip(region[: len(resized_axes)], region[len(resized_axes) :], strict=True))
    extents = [x.shape[axis] for axis in resized_axes]
    if scales is not None and scales.shape == (0,):
        scales = None
    if scales is not None and sizes is None:
        factors = numbers(scales, "the scales").tolist()
        if len(factors) != len(extents):
            raise InvalidNode(f"{len(factors)} scales of {len(extents)} axes")
        lengths = [n * (end - start) for n, (start, end) in zip(extents, regions, strict=True)]
        new_extents = list(map(_scaled_extent, lengths, factors))
    elif sizes is not None and scales is None:
        new_extents = ints(sizes, "the sizes")
        factors = [new / n for new, n in zip(new_extents, extents, strict=True)]
        if keep_aspect_ratio_policy != "stretch":
            scale = (min if keep_aspect_ratio_policy == "not_larger" else max)(factors)
            new_extents = [int(np.floor(scale * n + 0.5)) for n in extents]
            factors = [scale] * len(factors)
    else:
        raise InvalidNode("it wants either scales or sizes")
    is_scaled = sizes is None or keep_aspect_ratio_policy != "stretch"
    resized = [ResizeAxis(n, n, 1.0) for n in x.shape]
    for axis, n, factor, region in zip(resized_axes, new_extents, factors, regions, strict=True):
        resized[axis] = ResizeAxis(x.shape[axis], n, factor, is_scaled, region)
    rule = ResizeRule(
        mode, coordinate_transformation_mode, nearest_mode, cubic_coeff_a, exclude_outside,
        antialias, extrapolation_value,
    )  # fmt: skip
    return _resize_axes(x, resized, rule)


# -- by the engine's own operators ---------------------------------------------------------------


def _resize_axes(x: Value, axes: Sequence[ResizeAxis], rule: ResizeRule) -> Value:
    sizes = [a.size for a in axes]
    if any(not 0 <= n <= 1 << 24 for n in sizes):
        raise InvalidNode(f"{x} to {sizes}")
    if 0 in sizes:
        return zeros(sizes, x.dtype)
    if not any(a.changes for a in axes) and rule.coordinates != _CROP:
        return x
    native = _native(x.scalar(), axes, rule)
    if native is not None:
        return native.like(x)
    return _by_axes(x, axes, rule)


def _native(x: Value, axes: Sequence[ResizeAxis], rule: ResizeRule) -> Value | None:
    """Adds the engine's operator that computes the same resize and returns its result.

    Returns None if no operator does.
    """
    coordinates = COORDINATES.get(rule.coordinates)
    if x.rank not in (3, 4, 5) or axes[0].changes or axes[1].changes or coordinates is None:
        return None
    spatial = axes[2:]
    if rule.exclude_outside or rule.antialias or not all(_is_ratio(a) for a in spatial):
        return None
    if rule.coordinates == "pytorch_half_pixel" and any(a.size == 1 for a in spatial):
        return None
    factors = [a.size // a.extent for a in spatial]
    is_multiple = all(a.size % a.extent == 0 for a in spatial)
    if rule.mode == "nearest":
        if any(a.scale * a.extent != a.size for a in spatial):
            return None
        if is_multiple and (coordinates, rule.nearest) in _REPEATS:
            return x.nearest_upsample(factor=factors)
        if rule.nearest not in ROUNDINGS:
            return None
    method = METHODS[rule.mode]
    if method == "linear" and is_multiple and coordinates != "asymmetric":
        return x.multilinear_upsample(factor=factors, method=coordinates)
    return x.resize(
        output_size=[a.size for a in spatial], method=method, coordinates=coordinates,
        rounding=ROUNDINGS.get(rule.nearest, "floor"), cubic_coefficient=rule.cubic,
    )  # fmt: skip


#: the settings that repeat every value an integer number of times
_REPEATS = (
    ("asymmetric", "floor"),
    ("asymmetric", _BEFORE_11),
    ("symmetric", "round_prefer_floor"),
    ("symmetric", "round_prefer_ceil"),
)


def _is_ratio(axis: ResizeAxis) -> bool:
    """Returns True if the scale is the ratio of the extents, as the engine's operators assume."""
    return abs(axis.scale * axis.extent - axis.size) < 1e-6 * axis.size


# -- by constants of each axis -------------------------------------------------------------------


def _by_axes(x: Value, axes: Sequence[ResizeAxis], rule: ResizeRule) -> Value:
    outside: list[tuple[int, Array]] = []
    crop, nearest = rule.coordinates == _CROP, rule.mode == "nearest"
    y = x if nearest else x.scalar()
    for axis_index, axis in enumerate(axes):
        if not axis.changes and not (crop and axis.region != (0.0, 1.0)):
            continue
        # the nearest element depends on rounding: ONNX Runtime divides by a scale in float32
        is_single = nearest and axis.is_scaled and rule.coordinates in _SINGLE
        dtype = np.float32 if is_single else np.float64
        positions = _positions(axis, rule.coordinates, dtype).astype(np.float64)
        if crop:
            outside.append((axis_index, (positions < 0) | (positions > axis.extent - 1)))
        if nearest:
            indices = _round_places(positions, rule.nearest, axis.scale).clip(0, axis.extent - 1)
            y = y.gather(Value.known(indices.astype(np.int64)), axis=axis_index)
        else:
            allocate([axis.size, axis.extent])
            y = _interpolate_lines(y, axis_index, _weights(axis, rule, positions))
    for axis_index, mask in outside:
        if mask.any():
            value = float(rule.outside) if y.kind == "scalar" else int(rule.outside)
            y = Value.known(mask.reshape(along(axis_index, y.rank))).select(value, y).typed(y.dtype)
    return y.like(x)


def _positions(axis: ResizeAxis, coordinates: str, dtype: type[np.floating]) -> Array:
    """Returns an array with the position of each result on the source axis, in source elements.

    ``coordinates`` is ONNX's ``coordinate_transformation_mode``, ``dtype`` the type of the
    arithmetic.
    """
    i: Array = np.arange(axis.size, dtype=dtype)
    n, size, scale = axis.extent, axis.size, dtype(axis.scale)

    def on_source(places: Array) -> Array:
        return places / scale if axis.is_scaled else places * n / size

    if coordinates == "asymmetric":
        return on_source(i)
    if coordinates == "align_corners":
        return i * (n - 1) / (n * scale - 1) if n * scale != 1 else np.zeros(size)
    if coordinates == _CROP:
        start, end = axis.region
        if size > 1:
            return start * (n - 1) + i * (end - start) * (n - 1) / (size - 1)
        return np.full(size, 0.5 * (start + end) * (n - 1))
    centres = on_source(i + dtype(0.5))
    if coordinates == "tf_half_pixel_for_nn":
        return centres
    if coordinates == "half_pixel_symmetric":
        return float(n / 2 * (1 - size / (n * scale))) + centres - 0.5
    if coordinates == "pytorch_half_pixel" and size == 1:
        return np.zeros(size)
    return centres - 0.5


def _round_places(positions: Array, rounding: str, scale: float) -> Array:
    if rounding == _BEFORE_11:
        rounding = "ceil" if scale < 1 else "floor"
    if rounding == "round_prefer_floor":
        return np.ceil(positions - 0.5 - _TIE)
    if rounding == "round_prefer_ceil":
        return np.floor(positions + 0.5 + _TIE)
    return np.floor(positions) if rounding == "floor" else np.ceil(positions)


def _weights(axis: ResizeAxis, rule: ResizeRule, positions: Array) -> Array:
    """Returns the interpolation weights of an axis as a float32 matrix [results, source elements].

    ``positions`` are the results' positions.
    """
    shrink = min(axis.scale, 1.0) if rule.antialias else 1.0
    radius = (2.0 if rule.mode == "cubic" else 1.0) / shrink
    matrix = np.zeros((axis.size, axis.extent))
    for i, position in enumerate(positions):
        first = int(np.floor(position - radius)) + 1
        taps = np.arange(first, int(np.ceil(position + radius)))
        if not len(taps):
            taps = np.array([int(np.floor(position))])
        weights = _kernel((taps - position) * shrink, rule)
        if rule.exclude_outside:
            weights = np.where((taps < 0) | (taps >= axis.extent), 0.0, weights)
        total = weights.sum()
        if total and (rule.antialias or rule.exclude_outside):
            weights = weights / total
        np.add.at(matrix[i], taps.clip(0, axis.extent - 1), weights)
    return matrix.astype(np.float32)


def _kernel(t: Array, rule: ResizeRule) -> Array:
    t = np.abs(t)
    if rule.mode != "cubic":
        return np.asarray(np.maximum(1 - t, 0))
    a = rule.cubic
    inner = ((a + 2) * t - (a + 3)) * t * t + 1
    outer = ((t - 5) * t + 8) * t * a - 4 * a
    return np.asarray(np.where(t <= 1, inner, np.where(t < 2, outer, 0.0)))


def _interpolate_lines(x: Value, axis: int, matrix: Array) -> Value:
    """Adds the sums of every line of ``x`` along an axis weighted by the matrix [results, extent].

    Returns the result.
    """
    outer, inner = prod(x.shape[:axis]), prod(x.shape[axis + 1 :])
    places, weights = taps_of(matrix)
    allocate([outer, places.size, inner], 4)
    lines = x.reshape([outer, x.shape[axis], inner])
    y = lines.gather(Value.known(places.ravel()), axis=1).reshape([outer, *places.shape, inner])
    y = y * Value.known(weights[None, :, :, None])
    y = y.sum_reduce(axes=[2])
    return y.reshape([*x.shape[:axis], matrix.shape[0], *x.shape[axis + 1 :]])


# -- grids and regions ---------------------------------------------------------------------------


def _declare_sampling(default: str, since: int = 1, until: int = 0, domain: str = "") -> None:
    """Declares GridSample for some opsets, with the method that is its default there."""

    @op("GridSample", "grid_sample", since=since, until=until, domain=domain)
    def grid_sample(
        x: Value,
        grid: Value,
        *,
        align_corners: bool = False,
        mode: str = one_of(default, *METHODS),
        padding_mode: str = one_of(*GRID_BORDERS),
    ) -> Value:
        floats = x.scalar() if mode == "nearest" else x  # ONNX rounds no means of integers
        y = floats.grid_sample(grid, method=METHODS[mode], border=GRID_BORDERS[padding_mode],
                               align_corners=align_corners)  # fmt: skip
        return y.like(x)


_declare_sampling("bilinear", until=19)
_declare_sampling("linear", since=20)
_declare_sampling("bilinear", domain=MICROSOFT)


@op("RoiAlign", "roi_align")
def roi_align(
    call: OnnxCall,
    x: Value,
    rois: Value,
    batch_indices: Value,
    *,
    mode: str = one_of("avg", "max"),
    output_height: int = at_least(1, 1),
    output_width: int = at_least(1, 1),
    sampling_ratio: int = at_least(0, 0),
    spatial_scale: float = 1.0,
    coordinate_transformation_mode: str = one_of("half_pixel", "output_half_pixel", since=16),
) -> Value:
    per_channel(batch_indices, rois.shape[0], "the input of batch indices")
    return x.roi_align(
        rois, batch_indices, output_size=[output_height, output_width],
        sampling_ratio=sampling_ratio, scale=spatial_scale, mode=mode,
        half_pixel=call.opset >= 16 and coordinate_transformation_mode == "half_pixel",
    )  # fmt: skip
