"""Exports resizing, sampling between elements, and regions of interest."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, floor

import numpy as np

from cml_engine.formats.onnx import same_operators as same
from cml_engine.formats.onnx.export.call import ExportCall, ExportTensor, rule
from cml_engine.formats.onnx.export.operators.elementwise import round_half_up
from cml_engine.formats.onnx.export.operators.movement import window_attributes
from cml_engine.ir.graph import Array, Attrs
from cml_engine.ops.common.window import resolve_window, volume
from cml_engine.ops.resampling.resampling import linear_taps
from cml_engine.ops.resampling.resize import axis_taps
from cml_engine.ops.resampling.roi import LIMIT

#: runtimes compute positions in float32, which on longer axes are off by 0.01 and more
_MOST_EXTENT = 1 << 14

#: pairs of indices and weights of one axis
Taps = Iterable[tuple[Array, Array]]


def _weighted(x: ExportTensor, axis: int, taps: Taps, extent: int) -> ExportTensor:
    """Adds nodes for weighted sums of values at fixed indices along an axis.

    ``taps`` yields pairs of arrays, the indices and the weights of all results; indices are
    clamped.
    """
    pairs = list(taps)
    table = np.stack([indices.clip(0, extent - 1) for indices, _ in pairs], axis=1)
    weights = np.stack([weight for _, weight in pairs], axis=1).astype(np.float32)
    gathered = x.gather(table, axis)
    weights = weights.reshape(*weights.shape, *[1] * (len(x.call.shape) - axis - 1))
    return (gathered * x.call.constant(weights)).reduce("ReduceSum", [axis + 1], keepdims=False)


@rule("nearest_upsample", onnx="`Resize`")
def _nearest_upsample(c: ExportCall) -> ExportTensor:
    if all(f == 1 for f in c.attrs.factor):
        return c.x
    if c.out.dtype == "scalar":
        return c.x.Resize(
            None, None, c.indices(*c.out.shape), mode="nearest",
            coordinate_transformation_mode="asymmetric", nearest_mode="floor",
        )  # fmt: skip
    x = c.x
    for axis, (extent, factor) in enumerate(zip(c.shape[2:], c.attrs.factor, strict=True), 2):
        if factor > 1:
            x = x.gather(np.arange(extent).repeat(factor), axis)
    return x


@rule("nearest_downsample", onnx="`Slice`")
def _nearest_downsample(c: ExportCall) -> ExportTensor:
    pairs = zip(c.out.shape[2:], c.attrs.factor, strict=True)
    return c.x.slice({axis: (0, n, int(f)) for axis, (n, f) in enumerate(pairs, 2) if f > 1})


@rule("multilinear_upsample", onnx="`Resize`; with zeros around `ConvTranspose`; with border "
      "reflect `Gather`, `Mul`, `ReduceSum`")  # fmt: skip
def _multilinear_upsample(c: ExportCall) -> ExportTensor:
    a, x = c.attrs, c.x
    has_native_border = a.method == "aligned" or a.border in ("replicate", "reflect-even")
    if has_native_border and max(c.out.shape[2:]) <= _MOST_EXTENT:
        resize_attrs = Attrs(coordinates=a.method, method="linear", output_size=c.out.shape[2:])
        return _resized(c, resize_attrs)
    if a.border == "constant" and not has_native_border:
        return _spread(c)
    for axis, (extent, factor) in enumerate(zip(c.shape[2:], a.factor, strict=True), 2):
        if factor > 1:
            x = _weighted(x, axis, linear_taps(a, extent, int(factor)), extent)
    return x


def _spread(c: ExportCall) -> ExportTensor:
    """Adds a transposed convolution with a tent filter, which upsamples linearly.

    Values outside are 0.
    """
    rows, pads_before, pads_after = list[Array](), list[int](), list[int]()
    for f in (int(f) for f in c.attrs.factor):
        centre = (f - 1) / 2 if c.attrs.method == "symmetric" else 0.0
        offsets = np.arange(floor(centre - f) + 1, ceil(centre + f))
        rows.append((1 - np.abs(offsets - centre) / f).astype(np.float32))
        pads_before.append(-int(offsets[0]))
        pads_after.append(len(offsets) - f + int(offsets[0]))
    filter = rows[0]
    for row in rows[1:]:
        filter = np.multiply.outer(filter, row)
    channels = c.shape[1]
    weights = np.tile(filter, (channels, 1, *[1] * len(rows)))
    return c.x.ConvTranspose(
        c.constant(weights), kernel_shape=list(filter.shape),
        strides=[int(f) for f in c.attrs.factor], pads=[*pads_before, *pads_after], group=channels,
    )  # fmt: skip


@rule("resize", onnx="`Resize`; where its rounding could choose another neighbour, `Gather`; a "
      "cubic of other than two axes `Gather`, `Mul`, `ReduceSum`")  # fmt: skip
def _resize(c: ExportCall) -> ExportTensor:
    a, x = c.attrs, c.x
    is_small = max(c.out.shape) <= _MOST_EXTENT
    if is_small and (a.method == "linear" or (a.method == "cubic" and len(c.shape) == 4)):
        return _resized(c, a)
    axes = [(extent, int(size)) for extent, size in zip(c.shape[2:], a.output_size, strict=True)]
    if a.method == "nearest" and all(_rounds_right(a, *axis) for axis in axes):
        return _resized(c, a)
    for axis, (extent, size) in enumerate(axes, 2):
        taps = axis_taps(a, extent, size)
        if a.method == "nearest":
            x = x.gather(taps[0][0].clip(0, extent - 1), axis)
        else:
            x = _weighted(x, axis, taps, extent)
    return x


def _resized(c: ExportCall, a: Attrs) -> ExportTensor:
    nearest, cubic = a.method == "nearest", a.method == "cubic"
    return c.x.Resize(
        None, None, c.indices(*c.out.shape), mode=a.method,
        coordinate_transformation_mode=same.onnx_names(same.COORDINATES)[a.coordinates],
        nearest_mode=same.onnx_names(same.ROUNDINGS)[a.rounding] if nearest else None,
        cubic_coeff_a=float(a.cubic_coefficient) if cubic else None,
    )  # fmt: skip


def _rounds_right(a: Attrs, extent: int, size: int) -> bool:
    """Returns True if float32 positions select the exact nearest neighbours on one axis.

    The scale is also tried one float32 step below and above, because runtimes round it differently.
    """
    expected = axis_taps(a, extent, size)[0][0].clip(0, extent - 1)
    scale = np.float32(size / extent)
    i = np.arange(size, dtype=np.float32)
    for nearby_scale in (
        np.nextafter(scale, np.float32(0)),
        scale,
        np.nextafter(scale, np.float32(2**24)),
    ):
        positions = _position(a.coordinates, i, nearby_scale, extent, size)
        if (_rounded(a.rounding, positions).clip(0, extent - 1) != expected).any():
            return False
    return True


def _position(coordinates: str, i: Array, scale: np.float32, extent: int, size: int) -> Array:
    if coordinates == "symmetric":
        return np.asarray((i + np.float32(0.5)) / scale - np.float32(0.5))
    if coordinates == "asymmetric":
        return np.asarray(i / scale)
    # the scale is not used here: its three values stand for the rounding of the quotient
    scale_error = scale / np.float32(size / extent)
    return np.asarray(i * np.float32(extent - 1) / np.float32(max(size - 1, 1)) * scale_error)


def _rounded(rounding: str, positions: Array) -> Array:
    if rounding in ("half_down", "half_up"):
        return np.ceil(positions - 0.5) if rounding == "half_down" else np.floor(positions + 0.5)
    return np.floor(positions) if rounding == "floor" else np.ceil(positions)


# -- computed positions --------------------------------------------------------------------------


@rule("grid_sample", onnx="`GridSample`", since=16)
def _grid_sample(c: ExportCall) -> ExportTensor:
    a, spatial = c.attrs, len(c.shape) - 2
    if spatial == 3:
        c.require_opset(20, "three spatial axes")
    mode = a.method if c.opset >= 20 else same.onnx_names(same.METHODS)[a.method]
    border = same.onnx_names(same.GRID_BORDERS)[a.border]
    options = {"mode": mode, "padding_mode": border, "align_corners": int(a.align_corners)}
    if a.method == "cubic" and spatial != 2:
        raise c.unsupported_error(
            f"GridSample is cubic on two axes only, here are {spatial}: use linear"
        )
    if spatial != 1:
        return c.x.GridSample(c.tensor(1), **options)
    # a 1-D signal is sampled as an image of one row
    image = c.x.reshape((*c.shape[:2], 1, c.shape[2]))
    grid_shape = c.fact(1).shape
    grid = c.tensor(1).reshape((grid_shape[0], 1, *grid_shape[1:]))
    grid = grid.Pad(c.indices(*[0] * 7, 1), 0.0, mode="constant")
    return image.GridSample(grid, **options).reshape(c.out.shape)


@rule("col2im", onnx="`Col2Im`", since=18)
def _col2im(c: ExportCall) -> ExportTensor:
    a, spatial = c.attrs, len(c.attrs.size)
    pairs = a.padding
    if not pairs:
        raise c.unsupported_error("state its padding")
    if min(min(pair) for pair in pairs) < 0:
        raise c.unsupported_error("its padding is negative: crop the result (slice)")
    return c.x.Col2Im(
        c.indices(*a.output_size), c.indices(*a.size),
        dilations=list(a.dilation or [1] * spatial), strides=list(a.stride or [1] * spatial),
        pads=[int(pair[side]) for side in (0, 1) for pair in pairs],
    )  # fmt: skip


@rule("deform_columns", onnx="`DeformConv` by a filter that takes each tap by itself", since=19,
      function=True)  # fmt: skip
def _deform_columns(c: ExportCall) -> ExportTensor:
    a, channels = c.attrs, c.shape[1]
    window = resolve_window(c.shape[2:], a.size, a.padding, a.stride, a.dilation)
    size, taps = [axis.size for axis in window], volume(window)
    filter = np.tile(np.eye(taps, dtype=np.float32), (channels, 1)).reshape(-1, 1, *size)
    mask, is_map = c.value(2), c.fact(2).rank
    result = c.x.DeformConv(
        c.constant(filter), c.tensor(1), *([None, c.tensor(2)] if is_map else []),
        **window_attributes(window, [(axis.before, axis.after) for axis in window]),
        group=channels, offset_group=int(a.offset_groups),
    )  # fmt: skip
    return result if is_map or (mask is not None and mask == 1) else result * c.tensor(2)


# -- regions of interest -------------------------------------------------------------------------


def _batch(c: ExportCall) -> ExportTensor:
    """Adds nodes that clamp the batch index of each region, the third operand, to the batch."""
    count, index_fact = c.fact(1).shape[0], c.fact(2)
    index = c.tensor(2) if index_fact.rank == 1 else c.tensor(2, (index_fact.size,))
    if index_fact.size != count:
        index = index.Expand(c.indices(count))
    return index.Clip(0, c.shape[0] - 1)


@rule("roi_align", onnx="`RoiAlign`", since=16)
def _roi_align(c: ExportCall) -> ExportTensor:
    a = c.attrs
    height, width = a.output_size
    mode = "half_pixel" if a.half_pixel else "output_half_pixel"
    return c.x.RoiAlign(
        c.tensor(1), _batch(c).cast("int64"), mode=a.mode,
        output_height=int(height), output_width=int(width), spatial_scale=float(a.scale),
        sampling_ratio=int(a.sampling_ratio), coordinate_transformation_mode=mode,
    )  # fmt: skip


def _corners(c: ExportCall, axis: int) -> list[ExportTensor]:
    """Returns the first and second corner of each region on a spatial axis, ``[R, 1, 1]``.

    NaN becomes 0.
    """
    spatial = len(c.shape) - 2
    rois = c.tensor(1).IsNaN().Where(0.0, c.tensor(1)).Clip(-float(LIMIT), float(LIMIT))
    corners = [rois.Gather(c.indices(axis + side * spatial), axis=1) for side in (0, 1)]
    return [corner.unsqueeze(2) for corner in corners]


def _items(c: ExportCall) -> ExportTensor:
    """Adds a gather of the batch item that each region lies in, one item per region."""
    return c.x.Gather(_batch(c), axis=0)


def _shaped(c: ExportCall, weights: ExportTensor, axis: int) -> ExportTensor:
    """Adds a reshape of weights ``[R, results, extent]`` to broadcast along an axis.

    The other operand is ``[R, C, …, extent of axis, …]`` with one more axis in front of ``axis``.
    """
    return weights.unsqueeze(*range(1, 2 + axis), *range(4 + axis, 1 + len(c.shape)))


def _numbers(c: ExportCall, count: int, *shape: int) -> ExportTensor:
    return c.constant(np.arange(count, dtype=np.float32).reshape(shape))


def _cells(c: ExportCall, axis: int) -> ExportTensor:
    """Returns a mask ``[R, cells, extent]`` of the positions on an axis that a cell covers."""
    cells, extent = int(c.attrs.output_size[axis]), c.shape[2 + axis]
    first, last = map(round_half_up, _corners(c, axis))
    size = (last - first).Max(0.0)
    # integer arithmetic avoids the rounding error of the float quotients
    step = (size.cast("integer") / cells).cast("scalar")
    cell_size = step + (step * float(cells) < size).cast("scalar")
    start = first + _numbers(c, cells, 1, cells, 1) * step
    positions = _numbers(c, extent, 1, 1, extent)
    is_before_end = positions < start + cell_size
    return (positions >= start) & is_before_end


@rule("avg_roi_pool", "max_roi_pool", onnx="cells as masks of each axis, `Where`, `ReduceSum` or "
      "`ReduceMax`", function=True, empty=0.0)  # fmt: skip
def _roi_pool(c: ExportCall) -> ExportTensor:
    average = c.node.op == "avg_roi_pool"
    x, counts = _items(c), list[ExportTensor]()
    for axis in range(len(c.shape) - 2):
        mask = _shaped(c, _cells(c, axis), axis)
        cell_values = mask.Where(x.unsqueeze(2 + axis), 0.0 if average else -np.inf)
        x = cell_values.reduce("ReduceSum" if average else "ReduceMax", [3 + axis], keepdims=False)
        count = mask.cast("scalar").reduce("ReduceSum", [3 + axis], keepdims=False)
        counts = [counts[0] * count if counts else count]
    has_values = counts[0] > 0.0
    return has_values.Where(x / counts[0].Max(1.0) if average else x, 0.0)


def _samples(c: ExportCall, counts: list[int], method: str) -> ExportTensor:
    """Adds nodes that sample each region at ``counts`` positions per axis.

    The interpolation is linear. ``method`` places the samples: ``"symmetric"``, ``"asymmetric"`` or
    aligned.
    """
    x = _items(c)
    for axis, count in enumerate(counts):
        extent = c.shape[2 + axis]
        first, last = _corners(c, axis)
        size = last - first
        i = np.arange(count, dtype=np.float32).reshape(1, count, 1)
        if method == "symmetric":
            scaled = c.constant((i + np.float32(0.5)) / np.float32(count)) * size
            positions = first + (scaled - 0.5)
        elif method == "asymmetric":
            positions = first + c.constant(i / np.float32(count)) * size
        else:
            fraction = c.constant(i / np.float32(max(count - 1, 1)))
            positions = first + fraction * (size - 1.0)
        # clamping repeats the edge values; tent weights interpolate linearly between neighbours
        distance = (
            positions.Clip(0.0, float(extent - 1)) - _numbers(c, extent, 1, 1, extent)
        ).Abs()
        weights = _shaped(c, (1.0 - distance).Max(0.0), axis)
        expanded = x.unsqueeze(2 + axis)
        product = (weights > 0.0).Where(expanded * weights, 0.0)
        x = product.reduce("ReduceSum", [3 + axis], keepdims=False)
    return x


@rule("roi_resample", onnx="weights of each axis, `Mul`, `ReduceSum`", function=True)
def _roi_resample(c: ExportCall) -> ExportTensor:
    return _samples(c, [int(n) for n in c.attrs.output_size], c.attrs.method)
