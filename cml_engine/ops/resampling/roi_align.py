"""The operator ``roi_align``: resamples and pools regions as ONNX and PyTorch do.

A row of ``rois`` is ``x0 y0 x1 y1``. Every result is the average (or the greatest value) of samples
inside its cell; their number may depend on the region's size. Rois are data that other operators
computed: a NaN is 0, numbers beyond ``LIMIT`` are brought back to it, and a region that is longer
than two maps takes no more samples than one of two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from cml_engine.errors import ShapeError
from cml_engine.ir.graph import Array, Attrs, Fact
from cml_engine.ops.common.shapes import check_sizes, check_type, check_word
from cml_engine.ops.declaration.lowering import LOOP_TURNS, MOST_TURNS, Lowering, for_each
from cml_engine.ops.declaration.registry import define
from cml_engine.ops.declaration.spec import POSITION, Case, Cost, Dispatch, Kernel, OpSpec, Random
from cml_engine.ops.resampling.roi import LIMIT, check_inputs, items

MODES = ("avg", "max")


def _infer(attrs: Attrs, x: Fact, rois: Fact, batch_index: Fact) -> Fact:
    check_type("scalar", input=x, rois=rois)
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


def _most(extent: int, cells: int) -> int:
    """Returns the largest number of samples per result on an axis, if it is not fixed.

    It then depends on the region's size.
    """
    return -(-2 * extent // cells)


def _samples(attrs: Attrs, first: Any, last: Any, cells: int, extent: int) -> tuple[Array, int]:
    """Returns the positions of a roi's samples on one axis, and the number of samples per cell.

    ``first`` and ``last`` are the roi's corners.
    """
    shift = np.float32(0.5 if attrs.half_pixel else 0.0)
    start = first * np.float32(attrs.scale) - shift
    size = last * np.float32(attrs.scale) - shift - start
    if not attrs.half_pixel:
        size = max(size, np.float32(1))
    count = attrs.sampling_ratio or min(max(-int(-size // cells), 0), _most(extent, cells))
    cell = size / np.float32(cells)
    place, sample = np.divmod(np.arange(cells * count), max(count, 1))
    at = place * cell + (sample + np.float32(0.5)) * cell / np.float32(max(count, 1))
    return start + at.astype(np.float32), count


def _neighbours(at: Array, extent: int) -> tuple[Array, Array, Array, Array]:
    """Returns the lower indices, the upper indices and their weights for linear interpolation.

    Both weights are 0 at positions more than one value outside.
    """
    inside = (at >= -1) & (at <= extent)
    at = at.clip(0, extent - 1)
    low = np.floor(at).astype(np.int64)
    part = at - low
    return low, np.minimum(low + 1, extent - 1), (1 - part) * inside, part * inside


def _cpu(attrs: Attrs, x: Array, rois: Array, batch_index: Array) -> Array:
    y = np.zeros((len(rois), x.shape[1], *attrs.output_size), np.float32)
    corners = np.nan_to_num(rois, nan=0.0, posinf=LIMIT, neginf=-LIMIT).clip(-LIMIT, LIMIT)
    for n, item in enumerate(items(x, rois, batch_index)):
        x0, y0, x1, y1 = corners[n].astype(np.float32)
        rows, by_row = _samples(attrs, y0, y1, attrs.output_size[0], x.shape[2])
        columns, by_column = _samples(attrs, x0, x1, attrs.output_size[1], x.shape[3])
        if not by_row * by_column:
            continue
        ya, yb, high, low = _neighbours(rows, x.shape[2])
        xa, xb, left, right = _neighbours(columns, x.shape[3])
        terms = [
            item[:, i[:, None], j] * (v[:, None] * w)
            for i, v in ((ya, high), (yb, low))
            for j, w in ((xa, left), (xb, right))
        ]
        met = sum(terms) if attrs.mode == "avg" else np.maximum.reduce(terms)
        cells = np.asarray(met).reshape(
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
    rows, columns = (attrs.sampling_ratio or _most(extent, cells) for cells, extent in sizes)
    step = MOST_TURNS // (columns + LOOP_TURNS)
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


_KERNEL = Kernel(
    "resampling/roi_align.hlsl",
    "n:u batch:u channels:u per_roi:u in_extent:u2 out_extent:u2 ratio:u most:u2 begin:u "
    "end:u last:u scale:f half_pixel:u greatest:u",
    lower=_lower,
    trusted=True,
)


def _cost(attrs: Attrs, inputs: Sequence[Fact], outputs: Sequence[Fact]) -> Cost:
    """Returns the cost, with four samples per result if their number is not fixed."""
    samples = attrs.sampling_ratio**2 or 4
    read = min(16.0 * samples * outputs[0].size, inputs[0].nbytes)
    return Cost(12.0 * samples * outputs[0].size, read, outputs[0].nbytes)


def _cases() -> Iterator[Case]:
    rois = np.array([[0, 0, 6, 5], [-3, -1, 4.5, 9], [2, 3, 2.5, 3.25], [5, 4, 1, 1]], np.float32)
    index = np.array([0, 1, 1, 7])
    for mode in MODES:
        for half_pixel in (True, False):
            for ratio in (0, 2):
                attrs = {"output_size": [3, 2], "sampling_ratio": ratio, "scale": 0.75,
                         "half_pixel": half_pixel, "mode": mode}  # fmt: skip
                yield Case(((2, 3, 7, 5), rois, index), attrs, "inside, beyond, small, reversed")
    odd = np.array([[np.nan, -1, 3, np.inf], [-1e9, 0, 1e9, 3], [9, 9, 12, 12]], np.float32)
    plain = {"output_size": [2, 2], "sampling_ratio": 0, "scale": 1.0, "half_pixel": True,
             "mode": "avg"}  # fmt: skip
    yield Case(((1, 1, 4, 3), odd, np.array(0)), plain, "NaN, infinite, far outside")
    yield Case(((1, 2, 1, 1), Random((3, 4), -1, 2), np.zeros(3, np.int32)), plain, "extent 1")
    yield Case(((1, 2, 3, 3), np.zeros((0, 4), np.float32), np.zeros(0, np.int32)), plain, "none")


define(
    OpSpec(
        "roi_align",
        infer=_infer,
        cpu=_cpu,
        kernel=_KERNEL,
        cost=_cost,
        tolerance=POSITION,
        cases=list(_cases()),
    )
)
