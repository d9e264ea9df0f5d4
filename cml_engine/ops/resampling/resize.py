"""The operator ``resize``: scales the spatial axes to any extents, nearest, linear or cubic.

The scale of an axis is the ratio of its extents. Nothing is smoothed before: a result depends on
one, two or four source values of each axis, as in ONNX and PyTorch without antialiasing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from cml_engine.errors import ShapeError
from cml_engine.ir.graph import Array, Attrs, Fact
from cml_engine.ops.common.shapes import check_sizes, check_spatial, check_word, inner_first
from cml_engine.ops.declaration.lowering import Lowering, for_each
from cml_engine.ops.declaration.registry import define
from cml_engine.ops.declaration.spec import (
    SUMMATION,
    Case,
    Dispatch,
    OpSpec,
    engine_kernel,
    sampling_cost,
    word,
)

METHODS = ("nearest", "linear", "cubic")
#: the source values of a result on each axis
TAPS = {"nearest": 1, "linear": 2, "cubic": 4}
COORDINATES = ("symmetric", "asymmetric", "aligned")
ROUNDINGS = ("half_down", "half_up", "floor", "ceil")


def _infer(attrs: Attrs, x: Fact) -> Fact:
    check_spatial("resize", x)
    check_sizes("output_size", attrs.output_size, x)
    check_word("method", attrs.method, METHODS)
    check_word("coordinates", attrs.coordinates, COORDINATES)
    check_word("rounding", attrs.rounding, ROUNDINGS)
    if 0 in x.shape[2:]:
        raise ShapeError(f"resize of {x}, which is empty: there is nothing to take")
    return Fact("scalar", (*x.shape[:2], *(int(n) for n in attrs.output_size)))


# --- positions of results -----------------------------------------------------------------------


def fraction(coordinates: str, i: Array, extent: int, size: int) -> tuple[Array, int]:
    """Returns the source positions of results ``i`` as integer numerators and one denominator.

    ``extent`` is the source's, ``size`` the result's. Integers are used so that a position on the
    boundary between two values does not depend on rounding.
    """
    if coordinates == "symmetric":
        return (2 * i + 1) * extent - size, 2 * size
    if coordinates == "asymmetric":
        return i * extent, size
    return i * (extent - 1), max(size - 1, 1)


def _nearest(attrs: Attrs, above: Array, below: int) -> Array:
    rounding = attrs.rounding
    if rounding == "floor":
        return above // below
    if rounding == "ceil":
        return -(-above // below)
    if rounding == "half_up":
        return (2 * above + below) // (2 * below)
    return -((below - 2 * above) // (2 * below))


def tap_weights(method: str, t: Array, a: float) -> list[Array]:
    """Returns the weights of the one, two or four values around a point.

    ``t`` is the distance of the point from the value below it, which for Keys' cubic is the second
    of four. ``a`` is the coefficient of the cubic.
    """
    if method == "nearest":
        return [np.ones_like(t)]
    if method == "linear":
        return [1 - t, t]

    def inner(s: Array) -> Array:
        return ((a + 2) * s - (a + 3)) * s * s + 1

    def outer(s: Array) -> Array:
        return ((s - 5) * s + 8) * s * a - 4 * a

    return [outer(1 + t), inner(t), inner(1 - t), outer(2 - t)]


def axis_taps(attrs: Attrs, extent: int, size: int) -> list[tuple[Array, Array]]:
    """Returns one, two or four pairs of arrays: the indices and weights of the results on an axis.

    A pair has one source value of each of the ``size`` results; indices may lie outside the axis.
    """
    above, below = fraction(attrs.coordinates, np.arange(size), extent, size)
    if attrs.method == "nearest":
        return [(_nearest(attrs, above, below), np.ones(size))]
    first, t = above // below, (above % below) / below
    weights = tap_weights(attrs.method, t, attrs.cubic_coefficient)
    start = -1 if attrs.method == "cubic" else 0
    return [(first + k, weight) for k, weight in enumerate(weights, start)]


def weigh_taps(x: Array, axis: int, taps: Iterable[tuple[Array, Array]]) -> Array:
    """Returns the sums of weighted values along an axis.

    ``taps`` are pairs of indices and weights; an index outside the axis takes the nearest value.
    """
    shape = [-1 if d == axis else 1 for d in range(x.ndim)]
    last = x.shape[axis] - 1
    return np.asarray(
        sum(x.take(index.clip(0, last), axis) * weight.reshape(shape) for index, weight in taps)
    )


def _cpu(attrs: Attrs, x: Array) -> Array:
    y = x.astype(np.float64)
    for axis, size in enumerate(attrs.output_size, 2):
        y = weigh_taps(y, axis, axis_taps(attrs, x.shape[axis], size))
    return y.astype(np.float32)


# --- on the GPU ---------------------------------------------------------------------------------


def _lower(op: Lowering) -> Iterator[Dispatch]:
    x, y = op.inputs[0].shape, op.outputs[0].shape
    if op.outputs[0].size == 0:
        return
    if max(x[2:]) * max(y[2:]) >= 1 << 30:
        raise op.refuse(f"{list(x)} to {list(y)}: positions would not fit in 32 bits")
    attrs = op.attrs
    params = {
        "in_extent": inner_first(x[2:]),
        "out_extent": inner_first(y[2:]),
        "coefficient": attrs.cubic_coefficient,
    }
    defines = {
        "SPATIAL": len(x) - 2,
        **word("method", attrs.method),
        **word("coordinates", attrs.coordinates),
        **(word("rounding", attrs.rounding) if attrs.method == "nearest" else {}),
    }
    yield for_each(op, op.outputs[0].size, params, defines)


def _cases() -> Iterator[Case]:
    defaults = {"rounding": "half_down", "cubic_coefficient": -0.75}
    for method in METHODS:
        for coordinates in COORDINATES:
            attrs = {"method": method, "coordinates": coordinates, **defaults}
            yield Case(((1, 3, 5, 7),), {"output_size": [8, 10], **attrs}, "larger")
            yield Case(((2, 2, 9, 8),), {"output_size": [4, 3], **attrs}, "smaller")
            yield Case(((1, 2, 7),), {"output_size": [16], **attrs}, "one spatial axis")
            yield Case(((1, 2, 3, 4, 5),), {"output_size": [4, 2, 9], **attrs}, "volume")
            yield Case(((1, 1, 6, 1),), {"output_size": [1, 5], **attrs}, "extents of one")
    for rounding in ROUNDINGS:
        for coordinates in COORDINATES:
            options = {"method": "nearest", "coordinates": coordinates, "rounding": rounding}
            yield Case(((1, 1, 6, 9),), {**defaults, "output_size": [9, 6], **options}, "halves")
    attrs = {"method": "cubic", "coordinates": "symmetric", **defaults, "cubic_coefficient": -0.5}
    yield Case(((1, 8, 12, 12),), {"output_size": [31, 7], **attrs}, "another cubic")
    yield Case(((0, 3, 4, 4),), {"output_size": [2, 2], **attrs}, "no batch")


define(
    OpSpec(
        "resize",
        infer=_infer,
        cpu=_cpu,
        kernel=engine_kernel(
            "resampling/resize.hlsl",
            "n:u in_extent:u3 out_extent:u3 coefficient:f",
            lower=_lower,
        ),
        cost=sampling_cost(2.0, lambda attrs, axes: TAPS[attrs.method] ** axes),
        tolerance=SUMMATION,
        cases=list(_cases()),
    )
)
