"""The operator ``roi_align``, as ONNX and PyTorch define it.

A row of ``rois`` is ``x0 y0 x1 y1``. Every result is the average (or the greatest) of samples
inside its cell; their number may depend on the region's size. A region longer than two maps takes
as many samples as one of two.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cml_engine.errors import ShapeError
from cml_engine.ir.graph import Array, Attrs, Fact
from cml_engine.ops.common.shapes import check_sizes, check_word
from cml_engine.ops.declaration.lowering import LOOP_ITERATIONS, MAX_ITERATIONS, Lowering, for_each
from cml_engine.ops.declaration.registry import define
from cml_engine.ops.declaration.spec import (
    POSITION,
    Case,
    Dispatch,
    OpSpec,
    Random,
    engine_kernel,
    sampling_cost,
)
from cml_engine.ops.resampling.roi import LIMIT, check_inputs, items

MODES = ("avg", "max")


def _infer(attrs: Attrs, x: Fact, rois: Fact, batch_index: Fact) -> Fact:
    if x.rank != 4:
        raise ShapeError(f"roi_align of {x}, wanted [batch, channels, height, width]")
    check_inputs(x, rois, batch_index)
    check_sizes("output_size", attrs.output_size, x)
    check_word("mode", attrs.mode, MODES)
    if attrs.sampling_ratio < 0:
        raise ShapeError(f"sampling_ratio {attrs.sampling_ratio}, wanted 1 or more, or 0: by size")
    if not abs(attrs.scale) <= LIMIT:
        raise ShapeError(f"scale {attrs.scale}, wanted a number of at most {LIMIT:,.0f}")
    if rois.shape[0] and 0 in (x.shape[0], *x.shape[2:]):
        raise ShapeError(f"{rois} of {x}, which is empty: there is nothing to take")
    return Fact("scalar", (rois.shape[0], x.shape[1], *(int(n) for n in attrs.output_size)))


# --- on the CPU ---------------------------------------------------------------------------------


def _max_samples(extent: int, cells: int) -> int:
    """Returns the largest number of samples per result on an axis, if it is not fixed.

    It then depends on the region's size.
    """
    return -(-2 * extent // cells)


def _samples(
    attrs: Attrs, first: np.float32, last: np.float32, cells: int, extent: int
) -> tuple[Array, int]:
    """Returns the positions of a roi's samples on one axis, and the number of samples per cell.

    ``first`` and ``last`` are the roi's corners.
    """
    shift = np.float32(0.5 if attrs.half_pixel else 0.0)
    start = first * np.float32(attrs.scale) - shift
    size = last * np.float32(attrs.scale) - shift - start
    if not attrs.half_pixel:
        size = max(size, np.float32(1))
    count = attrs.sampling_ratio or min(max(-int(-size // cells), 0), _max_samples(extent, cells))
    cell = size / np.float32(cells)
    cell_index, sample = np.divmod(np.arange(cells * count), max(count, 1))
    offsets = cell_index * cell + (sample + np.float32(0.5)) * cell / np.float32(max(count, 1))
    return start + offsets.astype(np.float32), count


def _neighbours(positions: Array, extent: int) -> tuple[Array, Array, Array, Array]:
    """Returns the lower indices, the upper indices and their weights for linear interpolation.

    Both weights are 0 at positions more than one value outside.
    """
    inside = (positions >= -1) & (positions <= extent)
    positions = positions.clip(0, extent - 1)
    low = np.floor(positions).astype(np.int64)
    part = positions - low
    return low, np.minimum(low + 1, extent - 1), (1 - part) * inside, part * inside


def _weighted(values: Array, weights: Array) -> Array:
    """Returns the products; a weight of 0 gives 0, for the value may be outside and not finite."""
    return np.multiply(values, weights, out=np.zeros_like(values), where=weights != 0)


def _cpu(attrs: Attrs, x: Array, rois: Array, batch_index: Array) -> Array:
    y = np.zeros((len(rois), x.shape[1], *attrs.output_size), np.float32)
    corners = np.nan_to_num(rois, nan=0.0, posinf=LIMIT, neginf=-LIMIT).clip(-LIMIT, LIMIT)
    for n, item in enumerate(items(x, rois, batch_index)):
        x0, y0, x1, y1 = corners[n].astype(np.float32)
        rows, by_row = _samples(attrs, y0, y1, attrs.output_size[0], x.shape[2])
        columns, by_column = _samples(attrs, x0, x1, attrs.output_size[1], x.shape[3])
        if not by_row * by_column:
            continue
        ya, yb, upper_weights, lower_weights = _neighbours(rows, x.shape[2])
        xa, xb, left_weights, right_weights = _neighbours(columns, x.shape[3])
        terms = [
            _weighted(item[:, i[:, None], j], v[:, None] * w)
            for i, v in ((ya, upper_weights), (yb, lower_weights))
            for j, w in ((xa, left_weights), (xb, right_weights))
        ]
        combined = sum(terms) if attrs.mode == "avg" else np.maximum.reduce(terms)
        cells = np.asarray(combined).reshape(
            len(item), attrs.output_size[0], by_row, attrs.output_size[1], by_column
        )
        y[n] = cells.mean((2, 4)) if attrs.mode == "avg" else cells.max((2, 4))
    return y


# --- on the GPU ---------------------------------------------------------------------------------


def _lower(op: Lowering) -> Iterator[Dispatch]:
    x, _, batch_index = op.inputs
    result, attrs = op.outputs[0], op.attrs
    if result.size == 0:
        return
    sizes = list(zip(attrs.output_size, x.shape[2:], strict=True))
    rows, columns = (attrs.sampling_ratio or _max_samples(extent, cells) for cells, extent in sizes)
    step = MAX_ITERATIONS // (columns + LOOP_ITERATIONS)
    if step < 1:
        raise op.refuse(f"{columns} samples in a row of one result, wanted less")
    for begin in range(0, rows, step):
        params = {
            "batch": x.shape[0],
            "channels": x.shape[1],
            "per_roi": int(batch_index.rank > 0),
            "in_extent": x.shape[:1:-1],
            "out_extent": attrs.output_size[::-1],
            "ratio": attrs.sampling_ratio,
            "most": [columns, rows],
            "begin": begin,
            "end": begin + step,
            "last": int(begin + step >= rows),
            "scale": attrs.scale,
            "half_pixel": int(attrs.half_pixel),
            "greatest": int(attrs.mode == "max"),
        }
        yield for_each(op, result.size, params, {"T2_TYPE": "int"})


_KERNEL = engine_kernel(
    "resampling/roi_align.hlsl",
    "n:u batch:u channels:u per_roi:u in_extent:u2 out_extent:u2 ratio:u most:u2 begin:u "
    "end:u last:u scale:f half_pixel:u greatest:u",
    lower=_lower,
)


def _cases() -> Iterator[Case]:
    rois = np.array([[0, 0, 6, 5], [-3, -1, 4.5, 9], [2, 3, 2.5, 3.25], [5, 4, 1, 1]], np.float32)
    index = np.array([0, 1, 1, 7])
    for mode in MODES:
        for half_pixel in (True, False):
            for ratio in (0, 2):
                attrs = {"output_size": [3, 2], "sampling_ratio": ratio, "scale": 0.75,
                         "half_pixel": half_pixel, "mode": mode}  # fmt: skip
                yield Case(((2, 3, 7, 5), rois, index), attrs, "inside, beyond, small, reversed")
    extreme = np.array([[np.nan, -1, 3, np.inf], [-1e9, 0, 1e9, 3], [9, 9, 12, 12]], np.float32)
    plain = {"output_size": [2, 2], "sampling_ratio": 0, "scale": 1.0, "half_pixel": True,
             "mode": "avg"}  # fmt: skip
    yield Case(((1, 1, 4, 3), extreme, np.array(0)), plain, "NaN, infinite, far outside")
    yield Case(((1, 2, 1, 1), Random((3, 4), -1, 2), np.zeros(3, np.int32)), plain, "extent 1")
    yield Case(((1, 2, 3, 3), np.zeros((0, 4), np.float32), np.zeros(0, np.int32)), plain, "none")


define(
    OpSpec(
        "roi_align",
        infer=_infer,
        cpu=_cpu,
        kernel=_KERNEL,
        # four samples per result if their number is not fixed
        cost=sampling_cost(3.0, lambda attrs, axes: 4 * (attrs.sampling_ratio**2 or 4)),
        tolerance=POSITION,
        cases=list(_cases()),
    )
)
