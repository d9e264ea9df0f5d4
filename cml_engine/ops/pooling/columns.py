"""The operators ``col2im``, which adds up windows, and ``deform_columns``, which reads them.

A window is a column: its values channel by channel, row-major in each. ``col2im`` adds columns up
at their windows' positions; ``deform_columns`` reads columns at computed positions. A convolution
is a product of its filter and columns, so a deformable one is ``deform_columns`` and a ``conv`` of
extent 1.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from cml_engine.errors import ShapeError
from cml_engine.ir.graph import Array, Attrs, AttrValue, Fact
from cml_engine.ops.common.shapes import check_length
from cml_engine.ops.common.window import (
    GEOMETRY,
    Window,
    add_tap,
    geometry,
    resolve_window,
    volume,
)
from cml_engine.ops.declaration.lowering import LOOP_ITERATIONS, MAX_ITERATIONS, Lowering, for_each
from cml_engine.ops.declaration.registry import define
from cml_engine.ops.declaration.spec import (
    POSITION,
    SUMMATION,
    Case,
    Dispatch,
    OpSpec,
    Random,
    elementwise_cost,
    engine_kernel,
    moving_cost,
)

_PARAMS = f"n:u channels:u {GEOMETRY}"


def _window(attrs: Attrs, extents: Sequence[int]) -> Window:
    check_length("size", attrs.size, len(extents), "each spatial axis")
    return resolve_window(extents, attrs.size, attrs.padding, attrs.stride, attrs.dilation)


# --- col2im -------------------------------------------------------------------------------------


def _col2im_infer(attrs: Attrs, x: Fact) -> Fact:
    if x.rank != 3 or len(attrs.output_size) not in (1, 2, 3):
        raise ShapeError(
            f"col2im of {x} to {list(attrs.output_size)}, wanted [batch, channels * taps, windows] "
            "and 1 to 3 extents"
        )
    window = _window(attrs, attrs.output_size)
    windows, taps = prod(a.narrow for a in window), volume(window)
    if x.shape[2] != windows or x.shape[1] % taps:
        raise ShapeError(
            f"col2im of {x}: wanted [batch, channels * {taps}, {windows}], for windows of "
            f"{list(attrs.size)} over {list(attrs.output_size)}"
        )
    return Fact("scalar", (x.shape[0], x.shape[1] // taps, *attrs.output_size))


def _col2im_cpu(attrs: Attrs, x: Array) -> Array:
    window = _window(attrs, attrs.output_size)
    channels = x.shape[1] // volume(window)
    y = np.zeros((x.shape[0], channels, *attrs.output_size), np.float32)
    sizes = [a.size for a in window]
    columns = x.reshape(x.shape[0], channels, *sizes, *(a.narrow for a in window))
    for tap in np.ndindex(*sizes):
        add_tap(window, columns[(slice(None), slice(None), *tap)], tap, y)
    return y


def _col2im_lower(op: Lowering) -> Iterator[Dispatch]:
    y = op.outputs[0]
    if y.size == 0:
        return
    params = geometry(_window(op.attrs, op.attrs.output_size))
    across, down, deep = params["taps"]
    iterations = ((across + LOOP_ITERATIONS) * down + LOOP_ITERATIONS) * deep
    if iterations > MAX_ITERATIONS:
        raise op.refuse(
            f"windows of {list(op.attrs.size)} take {iterations} iterations of a thread's loops, "
            f"of which there are {MAX_ITERATIONS}: use smaller windows"
        )
    yield for_each(op, y.size, {"channels": y.shape[1], **params}, {"COL2IM": 1})


def _col2im_cases() -> Iterator[Case]:
    plain: dict[str, AttrValue] = {"padding": [(0, 0)] * 2, "stride": [], "dilation": []}
    yield Case(((2, 3 * 6, 4 * 3),), {**plain, "output_size": [5, 5], "size": [2, 3]}, "overlaps")
    yield Case(((1, 4, 9),), {
        "padding": [(1, 0), (2, 1)], "stride": [2, 3], "dilation": [2, 1], "output_size": [6, 6],
        "size": [2, 2],
    }, "stride, dilation, padding")  # fmt: skip
    yield Case(((1, 6, 3),), {**plain, "padding": [(0, 0)], "output_size": [5], "size": [3]},
               "a line")  # fmt: skip
    volume_of = {**plain, "padding": [(0, 0)] * 3, "output_size": [3, 2, 4], "size": [2, 1, 2]}
    yield Case(((2, 8, 2 * 2 * 3),), volume_of, "a volume")
    padded = {**plain, "padding": [(2, 2)] * 2, "output_size": [1, 1], "size": [2, 2]}
    yield Case(((1, 4, 16),), padded, "mostly padding")
    yield Case(((0, 4, 4),), {**plain, "output_size": [3, 3], "size": [2, 2]}, "no batch")


define(
    OpSpec(
        "col2im",
        infer=_col2im_infer,
        cpu=_col2im_cpu,
        kernel=engine_kernel("pooling/columns.hlsl", _PARAMS, lower=_col2im_lower),
        cost=moving_cost(lambda attrs, inputs, outputs: inputs[0].size),
        tolerance=SUMMATION,
        cases=list(_col2im_cases()),
    )
)


# --- deform_columns -----------------------------------------------------------------------------


def _deform_infer(attrs: Attrs, x: Fact, offset: Fact, mask: Fact) -> Fact:
    if x.rank != 4:
        raise ShapeError(f"deform_columns of {x}, wanted [batch, channels, height, width]")
    window, groups = _window(attrs, x.shape[2:]), attrs.offset_groups
    if groups < 1 or x.shape[1] % groups:
        raise ShapeError(f"offset_groups {groups}, wanted a divisor of {x.shape[1]} channels")
    taps, narrow = volume(window), tuple(a.narrow for a in window)
    if offset.shape != (x.shape[0], groups * taps * 2, *narrow):
        raise ShapeError(
            f"offset is {offset}, wanted [{x.shape[0]},{groups * taps * 2},{narrow[0]},{narrow[1]}]"
            ": y and x for each tap of each group"
        )
    if mask.shape not in ((), (x.shape[0], groups * taps, *narrow)):
        raise ShapeError(
            f"mask is {mask}, wanted [{x.shape[0]},{groups * taps},{narrow[0]},{narrow[1]}] or one "
            "number"
        )
    return Fact("scalar", (x.shape[0], x.shape[1] * taps, *narrow))


def _interpolate(x: Array, y_at: Array, x_at: Array) -> Array:
    """Interpolates planes ``[N, C, H, W]`` bilinearly at positions ``[N, …]``, with zeros outside.

    All channels use the same positions; the channels are the last axis of the result.
    """
    height, width = x.shape[2:]
    item = np.arange(len(x)).reshape(-1, *[1] * (y_at.ndim - 1))
    low_y, low_x = np.floor(y_at), np.floor(x_at)
    lines: Array = np.moveaxis(x, 1, -1)
    total = np.zeros((*y_at.shape, x.shape[1]))
    for dy, dx in itertools.product((0, 1), repeat=2):
        i, j = low_y + dy, low_x + dx
        weight = (1 - np.abs(y_at - i)) * (1 - np.abs(x_at - j))
        inside = (i >= 0) & (i < height) & (j >= 0) & (j < width)
        index = (
            item,
            np.where(inside, i, 0).astype(np.int64),
            np.where(inside, j, 0).astype(np.int64),
        )
        total += np.where(inside[..., None], lines[index] * weight[..., None], 0)
    return np.moveaxis(total, -1, 1)


def _deform_cpu(attrs: Attrs, x: Array, offset: Array, mask: Array) -> Array:
    window, groups = _window(attrs, x.shape[2:]), attrs.offset_groups
    taps, narrow = volume(window), [a.narrow for a in window]
    offsets = offset.reshape(len(x), groups, taps, 2, *narrow)
    if mask.ndim:
        mask = mask.reshape(len(x), groups, 1, taps, *narrow)
    limit = [np.float32(a.wide + 1) for a in window]
    grid = np.meshgrid(*(np.arange(a.narrow) * a.stride - a.before for a in window), indexing="ij")
    parts = x.reshape(len(x), groups, -1 if x.size else x.shape[1] // groups, *x.shape[2:])
    y = np.zeros((*parts.shape[:3], taps, *narrow))
    for group, (k, tap) in itertools.product(
        range(groups), enumerate(np.ndindex(*(a.size for a in window)))
    ):
        positions = [
            (np.float32(grid[d] + tap[d] * window[d].dilation) + offsets[:, group, k, d]).clip(
                -2, limit[d]
            )
            for d in range(2)
        ]
        positions = [np.where(np.isnan(a), np.float32(-2), a) for a in positions]
        y[:, group, :, k] = _interpolate(parts[:, group], *positions)
    y = y * mask
    return y.reshape(len(x), x.shape[1] * taps, *narrow).astype(np.float32)


def _deform_lower(op: Lowering) -> Iterator[Dispatch]:
    x, _, mask = op.inputs
    params = {
        "channels": x.shape[1],
        "offset_groups": op.attrs.offset_groups,
        "masked": int(mask.rank > 0),
        **geometry(_window(op.attrs, x.shape[2:])),
    }
    yield for_each(op, op.outputs[0].size, params)


def _deform_cases() -> Iterator[Case]:
    plain: dict[str, AttrValue] = {"size": [3, 3], "padding": [], "stride": [], "dilation": [],
                             "offset_groups": 1}  # fmt: skip
    offsets = Random((2, 18, 5, 7), -1.5, 1.5)
    yield Case(((2, 3, 5, 7), offsets, np.array(1.0)), plain, "no mask")
    yield Case(((1, 4, 7, 6), Random((1, 24, 4, 5), -9, 9), (1, 12, 4, 5)), {
        "size": [2, 3], "padding": [(1, 0), (2, 1)], "stride": [2, 1], "dilation": [1, 2],
        "offset_groups": 2,
    }, "groups, a mask, far offsets")  # fmt: skip
    not_finite = np.array([np.nan, np.inf, -1e30, 0.0, 1.0, -1.0, 0.5, 2.0]).reshape(1, 2, 2, 2)
    one_tap = {**plain, "size": [1, 1]}
    yield Case(((1, 2, 2, 2), not_finite, np.array(0.5)), one_tap, "NaN and infinite offsets")
    yield Case(((1, 1, 1, 1), (1, 2, 1, 1), (1, 1, 1, 1)), one_tap, "extent 1")
    yield Case(((0, 1, 2, 2), (0, 2, 2, 2), np.array(1.0)), one_tap, "no batch")


define(
    OpSpec(
        "deform_columns",
        infer=_deform_infer,
        cpu=_deform_cpu,
        kernel=engine_kernel(
            "pooling/columns.hlsl",
            f"{_PARAMS} offset_groups:u masked:u",
            lower=_deform_lower,
        ),
        cost=elementwise_cost(16),
        tolerance=POSITION,
        cases=list(_deform_cases()),
    )
)
