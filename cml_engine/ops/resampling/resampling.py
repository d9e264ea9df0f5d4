"""The operators that resample the spatial axes up or down by integer factors.

The nearest ones only move elements: they are strided copies. All support feature maps in blocks
of four channels, where one item holds the values of four channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from operator import floordiv, mul

import numpy as np
from numpy.lib.stride_tricks import as_strided

from cml_engine.errors import ShapeError
from cml_engine.ir.graph import Array, Attrs, Fact
from cml_engine.ops.common.shapes import (
    check_sizes,
    check_spatial,
    check_word,
    contiguous_strides,
)
from cml_engine.ops.common.window import gather_rows, scale_rows
from cml_engine.ops.declaration.lowering import Lowering
from cml_engine.ops.declaration.registry import define
from cml_engine.ops.declaration.scratch import Scratch
from cml_engine.ops.declaration.spec import (
    EXACT,
    SUMMATION,
    Case,
    Cpu,
    Dispatch,
    Kernel,
    OperandRows,
    OpSpec,
    RowMapping,
    Tolerance,
    Traits,
    elementwise_cost,
    integers,
    moving_cost,
    selection_cost,
)
from cml_engine.ops.movement.strided_copy import KERNEL as STRIDED_COPY
from cml_engine.ops.movement.strided_copy import (
    box,
    copy_regions,
    memory_shape,
)
from cml_engine.ops.resampling.resample import KERNEL, half_of_area, lower_area, lower_multilinear
from cml_engine.ops.resampling.resize import weigh_taps

_METHODS = ("symmetric", "asymmetric", "aligned")
_BORDERS = ("replicate", "constant", "reflect", "reflect-even")


# --- shapes -------------------------------------------------------------------------------------


def _factors(attrs: Attrs, x: Fact) -> list[int]:
    """Returns one factor for each spatial axis.

    Raises :class:`ShapeError` if they do not fit ``x``.
    """
    check_spatial("resampling", x)
    check_sizes("factor", attrs.factor, x)
    return [int(f) for f in attrs.factor]


def _up_infer(attrs: Attrs, x: Fact) -> Fact:
    spatial = map(mul, x.shape[2:], _factors(attrs, x))
    return Fact(x.dtype, (*x.shape[:2], *spatial))


def _down_infer(attrs: Attrs, x: Fact) -> Fact:
    factors = _factors(attrs, x)
    for axis, (extent, factor) in enumerate(zip(x.shape[2:], factors, strict=True), 2):
        if extent % factor:
            raise ShapeError(
                f"axis {axis} of {x} does not divide by its factor: {extent} / {factor} leaves "
                f"{extent % factor}; crop it (slice) or pad it to a multiple of {factor}"
            )
    spatial = map(floordiv, x.shape[2:], factors)
    return Fact(x.dtype, (*x.shape[:2], *spatial))


def _multilinear_infer(attrs: Attrs, x: Fact) -> Fact:
    check_word("multilinear_upsample method", attrs.method, _METHODS)
    check_word("multilinear_upsample border", attrs.border, _BORDERS)
    return _up_infer(attrs, x)


def _factor_rows(
    rows: Callable[[Attrs, int, int], RowMapping], attrs: Attrs, facts: Sequence[Fact], axis: int
) -> RowMapping:
    return rows(attrs, axis, int(attrs.factor[axis - 2]) if axis > 1 else 1)


_up_rows, _down_rows = partial(_factor_rows, scale_rows), partial(_factor_rows, gather_rows)


def _multilinear_rows(attrs: Attrs, facts: Sequence[Fact], axis: int) -> RowMapping | None:
    """Returns the row mapping of multilinear upsampling; None for channels and for "aligned".

    Neighbouring rows are computed too, and then discarded.
    """
    if attrs.method == "aligned" or axis < 2:
        return None  # with "aligned", the weights of a row depend on the number of rows
    factor, extent = int(attrs.factor[axis - 2]), facts[0].shape[axis]

    def need(begin: int, end: int) -> OperandRows:
        first, last = max(begin // factor - 1, 0), min((end - 1) // factor + 2, extent)
        return OperandRows(((first, last),), attrs, (first * factor, last * factor))

    return RowMapping(axis, need)


# --- on the CPU ---------------------------------------------------------------------------------


def _nearest_up_cpu(attrs: Attrs, x: Array) -> Array:
    for axis, factor in enumerate(attrs.factor, 2):
        x = x.repeat(factor, axis)
    return x


def prepare_nearest_upsample(
    attrs: Attrs, facts: Sequence[Fact], constants: Sequence[Array | None], scratch: Scratch
) -> Cpu | None:
    """Returns a function that upsamples by copying every value to its block; None if not floats.

    None selects the operator's definition.
    """
    if facts[0].dtype != "scalar":
        return None
    extents = list(zip(facts[0].shape, (1, 1, *attrs["factor"]), strict=True))
    shape = tuple(n * factor for n, factor in extents)
    blocks = [extent for pair in extents for extent in pair]
    split_shape = [extent for n, _ in extents for extent in (n, 1)]

    def upsample(attrs: Attrs, x: Array) -> Array:
        out = scratch.result_as(x, shape)
        pairs = zip(out.strides, extents, strict=True)
        strides = [stride for s, (_, factor) in pairs for stride in (s * factor, s)]
        as_strided(out, blocks, strides)[:] = x.reshape(split_shape)
        return out

    return upsample


def _nearest_down_cpu(attrs: Attrs, x: Array) -> Array:
    for axis, factor in enumerate(attrs.factor, 2):
        x = x.take(range(0, x.shape[axis], factor), axis)
    return x


def _area_cpu(attrs: Attrs, x: Array) -> Array:
    factors = list(attrs.factor)
    halves = [part for e, f in zip(x.shape[2:], factors, strict=True) for part in (e // f, f)]
    blocks = x.reshape(*x.shape[:2], *halves)
    axes = tuple(range(3, blocks.ndim, 2))
    return np.asarray((blocks.sum(axes, dtype=np.float64) / prod(factors)).astype(np.float32))


def _multilinear_cpu(attrs: Attrs, x: Array) -> Array:
    y = x.astype(np.float64)
    for axis, factor in enumerate(attrs.factor, 2):
        extent = x.shape[axis]
        if extent == 0:
            y = y.repeat(factor, axis)
            continue
        y = weigh_taps(y, axis, linear_taps(attrs, extent, factor))
    return y.astype(np.float32)


def linear_taps(attrs: Attrs, extent: int, factor: int) -> Iterator[tuple[Array, Array]]:
    """Yields the indices and weights of the lower, then of the upper neighbour of all results."""
    t = source_position(attrs.method, np.arange(extent * factor), extent, factor)
    first = np.floor(t).astype(np.int64)
    for index, weight in ((first, 1 - (t - first)), (first + 1, t - first)):
        if attrs.border == "constant" and attrs.method != "aligned":
            weight = np.where((index < 0) | (index >= extent), 0.0, weight)
        yield _inside(attrs.border, index, extent), weight


def _inside(border: str, index: Array, extent: int) -> Array:
    """Returns indices with those one step outside of the axis moved inside.

    'reflect' mirrors them; any other border takes the edge's own value. With 'constant' the
    caller sets their weight to 0.
    """
    if border == "reflect":
        index = np.where(
            index < 0, -index, np.where(index >= extent, 2 * extent - 2 - index, index)
        )
    return index.clip(0, extent - 1)


def source_position(method: str, i: Array, extent: int, factor: int) -> Array:
    """Returns the position of result ``i`` of an axis in the source, as a fractional index."""
    if method == "symmetric":
        return np.asarray((i - (factor - 1) / 2) / factor)
    if method == "asymmetric":
        return np.asarray(i / factor)
    return np.asarray(i * (extent - 1) / max(extent * factor - 1, 1))


# --- on the GPU ---------------------------------------------------------------------------------


def _nearest_lower(up: bool, op: Lowering) -> Iterator[Dispatch]:
    source, target = op.in_names[0], op.out_names[0]
    x, y = memory_shape(op, source), memory_shape(op, target)
    factors = [1, 1, *op.attrs.factor, 1][: len(x)]
    dims = []
    for i, (src, dst) in enumerate(zip(contiguous_strides(x), contiguous_strides(y), strict=True)):
        if up:  # the same source again, factor times
            dims += [(x[i], src, factors[i] * dst), (factors[i], 0, dst)]
        else:
            dims.append((y[i], factors[i] * src, dst))
    extents, src_steps, dst_steps = zip(*dims, strict=True)
    return copy_regions(op, source, target, box(extents, src_steps, dst_steps))


def _nearest_kernel(up: bool) -> Kernel:
    lower = partial(_nearest_lower, up)
    return replace(STRIDED_COPY, lower=lower, half="alike", layouts="copies")


# --- the operators ------------------------------------------------------------------------------


_UP_CASES = (
    Case(((1, 3, 5, 7),), {"factor": [2, 2]}, "an odd image"),
    Case(((2, 8, 3, 4),), {"factor": [4, 4]}, "blocks of channels"),
    Case(((1, 4, 1, 6),), {"factor": [3, 1]}, "a factor and an extent of one"),
    Case(((2, 3, 9),), {"factor": [5]}, "one spatial axis"),
    Case(((1, 4, 2, 3, 5),), {"factor": [2, 3, 2]}, "three spatial axes"),
    Case(((1, 4, 0, 5),), {"factor": [2, 2]}, "empty"),
    Case(((1, 2, 3, 3),), {"factor": [1, 1]}, "nothing to do"),
)
_DOWN_CASES = (
    Case(((1, 3, 26, 30),), {"factor": [2, 2]}, "an image"),
    Case(((2, 8, 8, 4),), {"factor": [4, 4]}, "blocks of channels"),
    Case(((1, 4, 3, 5),), {"factor": [3, 1]}, "a factor and an extent of one"),
    Case(((2, 3, 45),), {"factor": [5]}, "one spatial axis"),
    Case(((1, 4, 4, 3, 10),), {"factor": [2, 3, 2]}, "three spatial axes"),
    Case(((1, 4, 0, 6),), {"factor": [2, 2]}, "empty"),
)


def _linear_cases() -> Iterator[Case]:
    for method in _METHODS:
        for border in _BORDERS:
            attrs = {"method": method, "border": border}
            yield Case(((1, 3, 5, 7),), {"factor": [2, 2], **attrs}, "an odd image")
            yield Case(((2, 4, 3, 6),), {"factor": [3, 4], **attrs}, "odd and even factors")
            yield Case(((1, 2, 9),), {"factor": [5], **attrs}, "one spatial axis")
            yield Case(((1, 4, 1, 1),), {"factor": [2, 1], **attrs}, "a factor and extents of one")
    for method, border in zip(_METHODS, _BORDERS[1:], strict=True):
        attrs = {"method": method, "border": border}
        yield Case(((1, 4, 2, 3, 4),), {"factor": [2, 3, 2], **attrs}, "three spatial axes")
    attrs = {"method": "symmetric", "border": "replicate"}
    yield Case(((1, 4, 0, 5),), {"factor": [2, 2], **attrs}, "empty")
    attrs = {"method": "aligned", "border": "replicate"}
    yield Case(((1, 1, 70001),), {"factor": [2], **attrs}, "i (x - 1) is past 32 bits")


define(
    OpSpec(
        "nearest_upsample",
        infer=_up_infer,
        cpu=_nearest_up_cpu,
        prepare=prepare_nearest_upsample,
        kernel=_nearest_kernel(up=True),
        cost=elementwise_cost(0),
        tolerance=EXACT,
        traits=Traits(rows=_up_rows),
        cases=[*_UP_CASES, Case((integers(1, 2, 3, 3),), {"factor": [2, 2]})],
    ),
    any_type=True,
)
define(
    OpSpec(
        "nearest_downsample",
        infer=_down_infer,
        cpu=_nearest_down_cpu,
        kernel=_nearest_kernel(up=False),
        cost=selection_cost,
        tolerance=EXACT,
        traits=Traits(rows=_down_rows),
        cases=_DOWN_CASES,
    ),
    any_type=True,
)
define(
    OpSpec(
        "area_downsample",
        infer=_down_infer,
        cpu=_area_cpu,
        kernel=replace(KERNEL, lower=lower_area, half=half_of_area),
        cost=moving_cost(lambda attrs, inputs, outputs: inputs[0].size),
        tolerance=SUMMATION,
        traits=Traits(rows=_down_rows),
        cases=_DOWN_CASES,
    )
)
define(
    OpSpec(
        "multilinear_upsample",
        infer=_multilinear_infer,
        cpu=_multilinear_cpu,
        kernel=replace(KERNEL, lower=lower_multilinear, half="each"),
        cost=moving_cost(
            lambda attrs, inputs, outputs: 3.0 * 2 ** (inputs[0].rank - 2) * outputs[0].size
        ),
        tolerance=Tolerance(
            2e-6, 2e-6, "weights are quotients rounded to 2^-24; 'aligned' rounds its position too"
        ),
        traits=Traits(rows=_multilinear_rows),
        cases=list(_linear_cases()),
    )
)
