"""Imports Resize and Upsample.

The engine's operators are used where they compute the same. Other variants become a constant per
axis: indices to gather, or a matrix of weights to multiply by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cml_engine.formats.onnx.attributes import FLOATS, INTS, one_of, required
from cml_engine.formats.onnx.call import OnnxCall
from cml_engine.formats.onnx.op_schemas import op
from cml_engine.formats.onnx.values import Value
from cml_engine.ir.graph import Array


@dataclass(frozen=True, slots=True)
class ResizeAxis:
    """The resize of one axis: its extent before and after, its scale, and its crop region."""

    extent: int
    size: int
    scale: float
    region: tuple[float, float] = (0.0, 1.0)

    @property
    def changes(self) -> bool:
        return self.size != self.extent or self.scale != 1.0


#: the rounding of float32 positions in opsets 7 to 10, which have no attribute for it: down if an
#: axis grows, up if it shrinks
BEFORE_11 = "before 11"


@dataclass(frozen=True, slots=True)
class ResizeRule:
    """The attributes of Resize that apply to all axes."""

    mode: str = "nearest"
    coordinates: str = "asymmetric"
    nearest: str = "floor"
    cubic: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False
    outside: float = 0.0


_MODES_7 = one_of("nearest", "linear", "bilinear", "cubic")


@op("Upsample", nnef="nearest_upsample, resize; or gather, matmul",
    attrs={"mode": _MODES_7, "scales": required(FLOATS)}, until=8)  # fmt: skip
@op("Upsample", nnef="nearest_upsample, resize; or gather, matmul", inputs=2,
    attrs={"mode": _MODES_7}, since=9)  # fmt: skip
@op("Resize", nnef="nearest_upsample, resize; or gather, matmul", inputs=2,
    attrs={"mode": _MODES_7}, since=10, until=10)  # fmt: skip
def upsample(call: OnnxCall) -> Value:
    given = call.attributes.get("scales")
    scales = call.array(1, "the scales").tolist() if given is None else given
    mode = call.attr("mode")
    axes = [
        ResizeAxis(n, _scaled_extent(n, s), s) for n, s in zip(call[0].shape, scales, strict=True)
    ]
    return resize_axes(call, call[0], axes, ResizeRule(mode, nearest=BEFORE_11))


def _scaled_extent(extent: float, scale: float) -> int:
    """Returns an extent times a scale, rounded down.

    The product is computed in float32, as in ONNX Runtime: 10 times float32(1.3) is 13 there and
    less than 13 in float64.
    """
    return int(np.floor(np.float32(extent) * np.float32(scale)))


_COORDINATES_18 = (
    *("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"),
    "tf_crop_and_resize",
)
_RESIZE_11 = {
    "coordinate_transformation_mode": one_of(*_COORDINATES_18, "tf_half_pixel_for_nn"),
    "cubic_coeff_a": -0.75,
    "exclude_outside": 0,
    "extrapolation_value": 0.0,
    "mode": one_of("nearest", "linear", "cubic"),
    "nearest_mode": one_of("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
}
_RESIZE_18 = {
    **_RESIZE_11,
    "antialias": 0,
    "axes": INTS,
    "coordinate_transformation_mode": one_of(*_COORDINATES_18),
    "keep_aspect_ratio_policy": one_of("stretch", "not_larger", "not_smaller"),
}


@op("Resize", nnef="nearest_upsample, resize; or gather, matmul", inputs=4, attrs=_RESIZE_11,
    since=11, until=17)  # fmt: skip
@op(
    "Resize",
    nnef="nearest_upsample, resize; or gather, matmul",
    inputs=4,
    attrs=_RESIZE_18,
    since=18,
)
def resize(call: OnnxCall) -> Value:
    rule = ResizeRule(
        call.attr("mode"),
        call.attr("coordinate_transformation_mode"),
        call.attr("nearest_mode"),
        call.attr("cubic_coeff_a"),
        bool(call.attr("exclude_outside")),
        bool(call.attributes.get("antialias")),
        call.attr("extrapolation_value"),
    )
    return resize_axes(call, call[0], _axes(call, rule), rule)


def _axes(call: OnnxCall, rule: ResizeRule) -> list[ResizeAxis]:
    shape = call[0].shape
    which = call.attributes.get("axes")
    which = list(range(len(shape))) if which is None else call.axes(which, len(shape))
    regions = _regions(call, rule, which)
    scales = call.array(2, "the scales").tolist() if call.has(2) and call[2].shape != (0,) else None
    sizes = call.ints(3, "the sizes") if call.has(3) else None
    if (scales is None) == (sizes is None):
        raise call.shape_error("it wants either scales or sizes")
    axes = [ResizeAxis(n, n, 1.0) for n in shape]
    if sizes is not None:
        given = list(zip(sizes, [shape[a] for a in which], strict=True))
        scales = [size / n for size, n in given]
        policy = call.attributes.get("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            scale = min(scales) if policy == "not_larger" else max(scales)
            sizes = [int(np.floor(scale * n + 0.5)) for _, n in given]
            scales = [scale] * len(scales)
    assert scales is not None
    for i, axis in enumerate(which):
        n, (start, end) = shape[axis], regions[i]
        size = _scaled_extent(n * (end - start), scales[i]) if sizes is None else sizes[i]
        axes[axis] = ResizeAxis(n, size, scales[i], regions[i])
    return axes


def _regions(call: OnnxCall, rule: ResizeRule, which: Sequence[int]) -> list[tuple[float, float]]:
    if rule.coordinates != "tf_crop_and_resize" or not call.has(1):
        return [(0.0, 1.0)] * len(which)
    region = call.array(1, "the region").tolist()
    return list(zip(region[: len(which)], region[len(which) :], strict=True))


# -- by the engine's own operators ---------------------------------------------------------------

_COORDINATES = {"half_pixel": "symmetric", "asymmetric": "asymmetric", "align_corners": "aligned",
                "pytorch_half_pixel": "symmetric"}  # fmt: skip
_ROUNDINGS = {"round_prefer_floor": "half_down", "round_prefer_ceil": "half_up",
              "floor": "floor", "ceil": "ceil"}  # fmt: skip


def resize_axes(call: OnnxCall, x: Value, axes: Sequence[ResizeAxis], rule: ResizeRule) -> Value:
    sizes = [a.size for a in axes]
    if any(not 0 <= n <= 1 << 24 for n in sizes):
        raise call.shape_error(f"{x} to {sizes}")
    if 0 in sizes:
        return Value.known(np.zeros(sizes, x.dtype))
    if not any(a.changes for a in axes) and rule.coordinates != "tf_crop_and_resize":
        return x
    native = _native(call, call.scalar(x), axes, rule)
    if native is not None:
        return call.cast(native, x.kind).typed(x.dtype)
    return _by_axes(call, x, axes, rule)


def _native(call: OnnxCall, x: Value, axes: Sequence[ResizeAxis], rule: ResizeRule) -> Value | None:
    """Adds the engine's operator that computes the same resize and returns its result.

    Returns None if no operator does.
    """
    coordinates = _COORDINATES.get(rule.coordinates)
    if x.rank not in (3, 4, 5) or axes[0].changes or axes[1].changes or coordinates is None:
        return None
    spatial = axes[2:]
    if rule.exclude_outside or rule.antialias or not all(_is_ratio(a) for a in spatial):
        return None
    if rule.coordinates == "pytorch_half_pixel" and any(a.size == 1 for a in spatial):
        return None
    whole = [a.size // a.extent for a in spatial]
    even = all(a.size % a.extent == 0 for a in spatial)
    if rule.mode == "nearest":
        if any(a.scale * a.extent != a.size for a in spatial):
            return None
        if even and (coordinates, rule.nearest) in _REPEATS:
            return call.op("nearest_upsample", x, factor=whole)
        if rule.nearest not in _ROUNDINGS:
            return None
    if rule.mode in ("linear", "bilinear") and even and coordinates != "asymmetric":
        return call.op("multilinear_upsample", x, factor=whole, method=coordinates)
    method = {"nearest": "nearest", "linear": "linear", "bilinear": "linear", "cubic": "cubic"}
    return call.op(
        "resize",
        x,
        output_size=[a.size for a in spatial],
        method=method[rule.mode],
        coordinates=coordinates,
        rounding=_ROUNDINGS.get(rule.nearest, "floor"),
        cubic_coefficient=rule.cubic,
    )


#: the settings that repeat every value an integer number of times
_REPEATS = (
    ("asymmetric", "floor"),
    ("asymmetric", BEFORE_11),
    ("symmetric", "round_prefer_floor"),
    ("symmetric", "round_prefer_ceil"),
)


def _is_ratio(axis: ResizeAxis) -> bool:
    """Returns True if the scale is the ratio of the extents, as the engine's operators assume."""
    return abs(axis.scale * axis.extent - axis.size) < 1e-6 * axis.size


# -- by constants of each axis -------------------------------------------------------------------


def _by_axes(call: OnnxCall, x: Value, axes: Sequence[ResizeAxis], rule: ResizeRule) -> Value:
    outside: list[tuple[int, Array]] = []
    y = x if rule.mode == "nearest" else call.scalar(x)
    for position, axis in enumerate(axes):
        crop = rule.coordinates == "tf_crop_and_resize"
        if not axis.changes and not (crop and axis.region != (0.0, 1.0)):
            continue
        places = positions(axis, rule.coordinates)
        if crop:
            outside.append((position, (places < 0) | (places > axis.extent - 1)))
        if rule.mode == "nearest":
            if rule.nearest == BEFORE_11:
                places = np.arange(axis.size, dtype=np.float32) / np.float32(axis.scale)
            indices = _round_places(places, rule.nearest, axis.scale).clip(0, axis.extent - 1)
            known = Value.known(indices.astype(np.int64))
            y = call.op("gather", y, known, axis=position).typed(x.dtype)
        else:
            call.allocate([axis.size, axis.extent])
            y = _times(call, y, position, weights(axis, rule, places))
    for position, mask in outside:
        if mask.any():
            shape = [-1 if a == position else 1 for a in range(y.rank)]
            known = Value.known(mask.reshape(shape))
            value = float(rule.outside) if y.kind == "scalar" else int(rule.outside)
            y = call.op("select", known, value, y).typed(y.dtype)
    return call.cast(y, x.kind).typed(x.dtype)


def positions(axis: ResizeAxis, coordinates: str) -> Any:
    """Returns an array with the position of each result on the source axis, in source elements.

    ``coordinates`` is ONNX's ``coordinate_transformation_mode``.
    """
    i = np.arange(axis.size, dtype=np.float64)
    n, size, scale = axis.extent, axis.size, axis.scale
    if coordinates == "asymmetric":
        return i / scale
    if coordinates == "align_corners":
        return i * (n - 1) / (n * scale - 1) if n * scale != 1 else np.zeros(size)
    if coordinates == "pytorch_half_pixel":
        return (i + 0.5) / scale - 0.5 if size > 1 else np.zeros(size)
    if coordinates == "tf_half_pixel_for_nn":
        return (i + 0.5) / scale
    if coordinates == "half_pixel_symmetric":
        adjusted = n / 2 * (1 - size / (n * scale))
        return adjusted + (i + 0.5) / scale - 0.5
    if coordinates == "tf_crop_and_resize":
        start, end = axis.region
        if size > 1:
            return start * (n - 1) + i * (end - start) * (n - 1) / (size - 1)
        return np.full(size, 0.5 * (start + end) * (n - 1))
    return (i + 0.5) / scale - 0.5


def _round_places(places: Array, how: str, scale: float) -> Any:
    if how == BEFORE_11:
        how = "ceil" if scale < 1 else "floor"
    if how == "round_prefer_floor":
        return np.ceil(places - 0.5)
    if how == "round_prefer_ceil":
        return np.floor(places + 0.5)
    return np.floor(places) if how == "floor" else np.ceil(places)


def weights(axis: ResizeAxis, rule: ResizeRule, places: Array) -> Array:
    """Returns the interpolation weights of an axis as a float32 matrix [results, source elements].

    ``places`` are the results' positions.
    """
    shrink = min(axis.scale, 1.0) if rule.antialias else 1.0
    radius = (2.0 if rule.mode == "cubic" else 1.0) / shrink
    found = np.zeros((axis.size, axis.extent))
    for i, place in enumerate(places):
        first = int(np.floor(place - radius)) + 1
        taps = np.arange(first, int(np.ceil(place + radius)))
        if not len(taps):
            taps = np.array([int(np.floor(place))])
        values = _kernel((taps - place) * shrink, rule)
        if rule.exclude_outside:
            values = np.where((taps < 0) | (taps >= axis.extent), 0.0, values)
        total = values.sum()
        if rule.antialias or rule.exclude_outside:
            values = values / total if total else values
        np.add.at(found[i], taps.clip(0, axis.extent - 1), values)
    return found.astype(np.float32)


def _kernel(t: Array, rule: ResizeRule) -> Any:
    t = np.abs(t)
    if rule.mode != "cubic":
        return np.maximum(1 - t, 0)
    a = rule.cubic
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = ((t - 5) * t + 8) * t * a - 4 * a
    return np.where(t <= 1, near, np.where(t < 2, far, 0.0))


def _times(call: OnnxCall, x: Value, axis: int, matrix: Array) -> Value:
    """Adds a product of every line of ``x`` along an axis with the matrix [results, extent].

    Returns the result.
    """
    outer, inner = int(np.prod(x.shape[:axis])), int(np.prod(x.shape[axis + 1 :]))
    lines = call.reshape(x, [outer, x.shape[axis], inner])
    y = call.op("matmul", Value.known(matrix[None]), lines)
    return call.reshape(y, [*x.shape[:axis], matrix.shape[0], *x.shape[axis + 1 :]])
