"""Exports operators on regions of interest."""

from __future__ import annotations

import numpy as np

from cml_engine.formats.onnx.export.call import ExportCall
from cml_engine.formats.onnx.export.export_rules import rule
from cml_engine.ops.resampling.roi import LIMIT


def _batch(c: ExportCall) -> str:
    """Adds nodes that clamp the batch index of each region, the third operand, to the batch.

    Returns the result's name.
    """
    count = c.fact(1).shape[0]
    index = c.tensor(2) if c.fact(2).rank == 1 else c.tensor(2, (c.fact(2).size,))
    if c.fact(2).size != count:
        index = c.add("Expand", index, c.indices(count))
    return c.add("Clip", index, c.whole(0), c.whole(c.shape[0] - 1))


@rule("roi_align", onnx="`RoiAlign`", since=16)
def _roi_align(c: ExportCall) -> str:
    a = c.attrs
    height, width = a.output_size
    mode = "half_pixel" if a.half_pixel else "output_half_pixel"
    return c.add(
        "RoiAlign", c.x, c.tensor(1), c.cast(_batch(c), "int64"), mode=a.mode,
        output_height=int(height), output_width=int(width), spatial_scale=float(a.scale),
        sampling_ratio=int(a.sampling_ratio), coordinate_transformation_mode=mode,
    )  # fmt: skip


def _corners(c: ExportCall, axis: int) -> tuple[str, str]:
    """Returns the first and second corner of each region on a spatial axis, ``[R, 1, 1]``.

    NaN becomes 0.
    """
    spatial = len(c.shape) - 2
    rois = c.where(c.add("IsNaN", c.tensor(1)), c.real(0.0), c.tensor(1))
    rois = c.add("Clip", rois, c.real(-LIMIT), c.real(LIMIT))
    first, second = (
        c.add("Gather", rois, c.indices(axis + side * spatial), axis=1) for side in (0, 1)
    )
    return c.add("Unsqueeze", first, c.indices(2)), c.add("Unsqueeze", second, c.indices(2))


def _items(c: ExportCall) -> str:
    """Adds a gather of the batch item that each region lies in, and returns the result's name.

    The result has one item per region.
    """
    return c.add("Gather", c.x, _batch(c), axis=0)


def _shaped(c: ExportCall, weights: str, axis: int) -> str:
    """Adds a reshape of weights ``[R, results, extent]`` to broadcast along an axis.

    Returns the name.

    The other operand is ``[R, C, …, extent of axis, …]`` with one more axis in front of ``axis``.
    """
    spatial = len(c.shape) - 2
    return c.add(
        "Unsqueeze", weights, c.indices(*range(1, 2 + axis), *range(4 + axis, 3 + spatial))
    )


def _cells(c: ExportCall, axis: int) -> str:
    """Returns a mask ``[R, cells, extent]`` of the positions on an axis that a cell covers."""
    cells, extent = int(c.attrs.output_size[axis]), c.shape[2 + axis]
    first, last = (_whole(c, corner) for corner in _corners(c, axis))
    size = c.add("Max", c.add("Sub", last, first), c.real(0.0))
    share = c.add("Div", size, c.real(cells))
    step, reach = _exactly(c, "Floor", size, share, cells), _exactly(c, "Ceil", size, share, cells)
    numbers = c.constant(np.arange(cells, dtype=np.float32).reshape(1, cells, 1))
    start = c.add("Add", first, c.add("Mul", numbers, step))
    at = c.constant(np.arange(extent, dtype=np.float32).reshape(1, 1, extent))
    below = c.add("Less", at, c.add("Add", start, reach))
    return c.add("And", c.add("GreaterOrEqual", at, start), below)


def _exactly(c: ExportCall, op: str, size: str, share: str, cells: int) -> str:
    """Adds nodes for ``size / cells``, rounded by ``op``: ``"Floor"`` or ``"Ceil"``.

    Returns the name.

    Integer arithmetic avoids the rounding error of the float quotient.
    """
    whole = c.add("Div", c.cast(size, "integer"), c.whole(cells))
    low = c.cast(whole, "scalar")
    if op == "Floor":
        return low
    over = c.add("Less", c.add("Mul", low, c.real(cells)), size)
    return c.add("Add", low, c.cast(over, "scalar"))


def _whole(c: ExportCall, x: str) -> str:
    low = c.add("Floor", x)
    up = c.add("GreaterOrEqual", c.add("Sub", x, low), c.real(0.5))
    return c.where(up, c.add("Add", low, c.real(1.0)), low)


@rule("avg_roi_pool", "max_roi_pool", onnx="cells as masks of each axis, `Where`, `ReduceSum` or "
      "`ReduceMax`", function=True, empty=0.0)  # fmt: skip
def _roi_pool(c: ExportCall) -> str:
    spatial, average = len(c.shape) - 2, c.node.op == "avg_roi_pool"
    x, counts = _items(c), ""
    for axis in range(spatial):
        mask = _shaped(c, _cells(c, axis), axis)
        spread = c.add("Unsqueeze", x, c.indices(2 + axis))
        empty = c.real(0.0 if average else -np.inf)
        op = "ReduceSum" if average else "ReduceMax"
        x = c.reduce(op, c.where(mask, spread, empty), [3 + axis], keep=False)
        count = c.reduce("ReduceSum", c.cast(mask, "scalar"), [3 + axis], keep=False)
        counts = c.add("Mul", counts, count) if counts else count
    some = c.add("Greater", counts, c.real(0.0))
    if average:
        x = c.add("Div", x, c.add("Max", counts, c.real(1.0)))
    return c.where(some, x, c.real(0.0))


def _samples(c: ExportCall, counts: list[int], method: str) -> str:
    """Adds nodes that sample each region at ``counts`` positions per axis.

    Returns the result's name.

    The interpolation is linear. ``method`` places the samples: ``"symmetric"``, ``"asymmetric"`` or
    aligned.
    """
    x = _items(c)
    for axis, count in enumerate(counts):
        extent = c.shape[2 + axis]
        first, last = _corners(c, axis)
        size = c.add("Sub", last, first)
        i = np.arange(count, dtype=np.float32).reshape(1, count, 1)
        if method == "symmetric":
            moved = c.add("Mul", c.constant((i + np.float32(0.5)) / np.float32(count)), size)
            at = c.add("Add", first, c.add("Sub", moved, c.real(0.5)))
        elif method == "asymmetric":
            at = c.add("Add", first, c.add("Mul", c.constant(i / np.float32(count)), size))
        else:
            part = c.constant(i / np.float32(max(count - 1, 1)))
            at = c.add("Add", first, c.add("Mul", part, c.add("Sub", size, c.real(1.0))))
        # clamping repeats the edge values; tent weights interpolate linearly between neighbours
        at = c.add("Clip", at, c.real(0.0), c.real(extent - 1))
        numbers = c.constant(np.arange(extent, dtype=np.float32).reshape(1, 1, extent))
        apart = c.add("Abs", c.add("Sub", at, numbers))
        tent = c.add("Max", c.add("Sub", c.real(1.0), apart), c.real(0.0))
        spread = c.add("Unsqueeze", x, c.indices(2 + axis))
        weights = _shaped(c, tent, axis)
        taken = c.add("Greater", weights, c.real(0.0))
        product = c.where(taken, c.add("Mul", spread, weights), c.real(0.0))
        x = c.reduce("ReduceSum", product, [3 + axis], keep=False)
    return x


@rule("roi_resample", onnx="weights of each axis, `Mul`, `ReduceSum`", function=True)
def _roi_resample(c: ExportCall) -> str:
    return _samples(c, [int(n) for n in c.attrs.output_size], c.attrs.method)


@rule("avg_roi_align", "max_roi_align", onnx="as `roi_resample`, then `AveragePool` or `MaxPool`",
      function=True)  # fmt: skip
def _roi_align_of(c: ExportCall) -> str:
    sizes, rates = c.attrs.output_size, [int(r) for r in c.attrs.sampling_rate]
    fine = [int(n) * r for n, r in zip(sizes, rates, strict=True)]
    samples = _samples(c, fine, c.attrs.resize_method)
    op = "AveragePool" if c.node.op == "avg_roi_align" else "MaxPool"
    return c.add(op, samples, kernel_shape=rates, strides=rates)
