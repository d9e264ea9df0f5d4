"""Exports resizing, and sampling between elements."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, floor, prod

import numpy as np

from cml_engine.formats.onnx.export.call import ExportCall
from cml_engine.formats.onnx.export.export_rules import rule
from cml_engine.formats.onnx.export.operators.movement import slice_axes
from cml_engine.ir.graph import Array, Attrs
from cml_engine.ops.resampling.resampling import linear_taps
from cml_engine.ops.resampling.resize import axis_taps

_COORDINATES = {
    "symmetric": "half_pixel", "asymmetric": "asymmetric", "aligned": "align_corners",
}  # fmt: skip
_ROUNDINGS = {
    "half_down": "round_prefer_floor", "half_up": "round_prefer_ceil", "floor": "floor",
    "ceil": "ceil",
}  # fmt: skip
_METHODS = {"nearest": "nearest", "linear": "linear", "cubic": "cubic"}

#: runtimes compute positions in float32, which on longer axes are off by 0.01 and more
_MOST_EXTENT = 1 << 14

#: pairs of indices and weights of one axis
Taps = Iterable[tuple[Array, Array]]


def _weighted(c: ExportCall, x: str, axis: int, taps: Taps, extent: int) -> str:
    """Adds nodes for weighted sums of values at fixed indices along an axis.

    ``taps`` yields pairs of arrays, the indices and the weights of all results; indices are
    clamped. Returns the result's name.
    """
    pairs = list(taps)
    table = np.stack([at.clip(0, extent - 1) for at, _ in pairs], axis=1)
    weights = np.stack([weight for _, weight in pairs], axis=1).astype(np.float32)
    found = c.add("Gather", x, c.constant(table.astype(np.int64)), axis=axis)
    rank = len(c.shape)
    weights = weights.reshape(*weights.shape, *[1] * (rank - axis - 1))
    product = c.add("Mul", found, c.constant(weights))
    return c.reduce("ReduceSum", product, [axis + 1], keep=False)


@rule("nearest_upsample", onnx="`Resize`")
def _nearest_upsample(c: ExportCall) -> str:
    if all(f == 1 for f in c.attrs.factor):
        return c.x
    if c.out.dtype != "scalar":
        return _repeated(c)
    return c.add(
        "Resize", c.x, "", "", c.indices(*c.out.shape), mode="nearest",
        coordinate_transformation_mode="asymmetric", nearest_mode="floor",
    )  # fmt: skip


def _repeated(c: ExportCall) -> str:
    x = c.x
    for axis, (extent, factor) in enumerate(zip(c.shape[2:], c.attrs.factor, strict=True), 2):
        if factor > 1:
            at = np.arange(extent, dtype=np.int64).repeat(factor)
            x = c.add("Gather", x, c.constant(at), axis=axis)
    return x


@rule("nearest_downsample", onnx="`Slice`")
def _nearest_downsample(c: ExportCall) -> str:
    pairs = zip(c.out.shape[2:], c.attrs.factor, strict=True)
    taken = {axis: (0, n, int(f)) for axis, (n, f) in enumerate(pairs, 2) if f > 1}
    return slice_axes(c, c.x, taken)


@rule("area_downsample", onnx="`AveragePool`")
def _area_downsample(c: ExportCall) -> str:
    factor = [int(f) for f in c.attrs.factor]
    return c.add("AveragePool", c.x, kernel_shape=factor, strides=factor)


@rule("multilinear_upsample", onnx="`Resize`; with zeros around `ConvTranspose`; with border "
      "reflect `Gather`, `Mul`, `ReduceSum`")  # fmt: skip
def _multilinear_upsample(c: ExportCall) -> str:
    a, x = c.attrs, c.x
    near = a.method == "aligned" or a.border in ("replicate", "reflect-even")
    if near and max(c.out.shape[2:]) <= _MOST_EXTENT:
        whole = Attrs(coordinates=a.method, method="linear", output_size=c.out.shape[2:])
        return _resized(c, whole)
    if a.border == "constant" and not near:
        return _spread(c)
    for axis, (extent, factor) in enumerate(zip(c.shape[2:], a.factor, strict=True), 2):
        if factor > 1:
            x = _weighted(c, x, axis, linear_taps(a, extent, int(factor)), extent)
    return x


def _spread(c: ExportCall) -> str:
    """Adds a transposed convolution with a tent filter, which upsamples linearly; returns the name.

    Values outside are 0.
    """
    rows, before, after = list[Array](), list[int](), list[int]()
    for f in (int(f) for f in c.attrs.factor):
        centre = (f - 1) / 2 if c.attrs.method == "symmetric" else 0.0
        offsets = np.arange(floor(centre - f) + 1, ceil(centre + f))
        rows.append((1 - np.abs(offsets - centre) / f).astype(np.float32))
        before.append(-int(offsets[0]))
        after.append(len(offsets) - f + int(offsets[0]))
    filter = rows[0]
    for row in rows[1:]:
        filter = np.multiply.outer(filter, row)
    channels = c.shape[1]
    weights = np.tile(filter, (channels, 1, *[1] * len(rows)))
    return c.add(
        "ConvTranspose", c.x, c.constant(weights), kernel_shape=list(filter.shape),
        strides=[int(f) for f in c.attrs.factor], pads=[*before, *after], group=channels,
    )  # fmt: skip


@rule("resize", onnx="`Resize`; where its rounding could choose another neighbour, `Gather`; a "
      "cubic of other than two axes `Gather`, `Mul`, `ReduceSum`")  # fmt: skip
def _resize(c: ExportCall) -> str:
    a, x = c.attrs, c.x
    few = max(c.out.shape) <= _MOST_EXTENT
    if few and (a.method == "linear" or (a.method == "cubic" and len(c.shape) == 4)):
        return _resized(c, a)
    if a.method == "nearest" and _is_exact(c):
        return _resized(c, a)
    for axis, (extent, size) in enumerate(zip(c.shape[2:], a.output_size, strict=True), 2):
        taps = axis_taps(a, extent, int(size))
        if a.method == "nearest":
            at = taps[0][0].clip(0, extent - 1).astype(np.int64)
            x = c.add("Gather", x, c.constant(at), axis=axis)
        else:
            x = _weighted(c, x, axis, taps, extent)
    return x


def _resized(c: ExportCall, a: Attrs) -> str:
    nearest, cubic = a.method == "nearest", a.method == "cubic"
    return c.add(
        "Resize", c.x, "", "", c.indices(*c.out.shape), mode=_METHODS[a.method],
        coordinate_transformation_mode=_COORDINATES[a.coordinates],
        nearest_mode=_ROUNDINGS[a.rounding] if nearest else None,
        cubic_coeff_a=float(a.cubic_coefficient) if cubic else None,
    )  # fmt: skip


def _is_exact(c: ExportCall) -> bool:
    """Returns True if float32 positions select the exact nearest neighbours on every axis."""
    return all(
        _rounds_right(c.attrs, extent, int(size))
        for extent, size in zip(c.shape[2:], c.attrs.output_size, strict=True)
    )


def _rounds_right(a: Attrs, extent: int, size: int) -> bool:
    """Returns True if float32 positions select the exact nearest neighbours on one axis.

    The scale is also tried one float32 step below and above, because runtimes round it differently.
    """
    wanted = axis_taps(a, extent, size)[0][0].clip(0, extent - 1)
    scale = np.float32(size / extent)
    i = np.arange(size, dtype=np.float32)
    for near in (np.nextafter(scale, np.float32(0)), scale, np.nextafter(scale, np.float32(2**24))):
        at = _position(a.coordinates, i, near, extent, size)
        if (_rounded(a.rounding, at).clip(0, extent - 1) != wanted).any():
            return False
    return True


def _position(coordinates: str, i: Array, scale: np.float32, extent: int, size: int) -> Array:
    if coordinates == "symmetric":
        return np.asarray((i + np.float32(0.5)) / scale - np.float32(0.5))
    if coordinates == "asymmetric":
        return np.asarray(i / scale)
    # the scale is not used here: its three values stand for the rounding of the quotient
    off = scale / np.float32(size / extent)
    return np.asarray(i * np.float32(extent - 1) / np.float32(max(size - 1, 1)) * off)


def _rounded(rounding: str, at: Array) -> Array:
    if rounding == "floor":
        return np.floor(at)
    if rounding == "ceil":
        return np.ceil(at)
    if rounding == "half_down":
        return np.ceil(at - 0.5)
    return np.floor(at + 0.5)


@rule("grid_sample", onnx="`GridSample`", since=16)
def _grid_sample(c: ExportCall) -> str:
    a, spatial = c.attrs, len(c.shape) - 2
    modes = {"nearest": "nearest", "linear": "bilinear", "cubic": "bicubic"}
    if c.opset >= 20:
        modes = {"nearest": "nearest", "linear": "linear", "cubic": "cubic"}
    elif spatial == 3:
        c.require_opset(20, "three spatial axes")
    borders = {"constant": "zeros", "replicate": "border", "reflect": "reflection"}
    how = {"mode": modes[a.method], "padding_mode": borders[a.border],
           "align_corners": int(a.align_corners)}  # fmt: skip
    if a.method == "cubic" and spatial != 2:
        raise c.unsupported_error(
            f"GridSample is cubic on two axes only, here are {spatial}: use linear"
        )
    if spatial != 1:
        return c.add("GridSample", c.x, c.tensor(1), **how)
    # a 1-D signal is sampled as an image of one row
    image = c.reshape(c.x, (*c.shape[:2], 1, c.shape[2]))
    places = c.fact(1).shape
    grid = c.reshape(c.tensor(1), (places[0], 1, *places[1:]))
    pads = c.indices(*[0] * 7, 1)
    grid = c.add("Pad", grid, pads, c.real(0.0), mode="constant")
    return c.reshape(c.add("GridSample", image, grid, **how), c.out.shape)


@rule("col2im", onnx="`Col2Im`", since=18)
def _col2im(c: ExportCall) -> str:
    a, spatial = c.attrs, len(c.attrs.size)
    pairs = a.padding
    if not pairs:
        raise c.unsupported_error("state its padding")
    if min(min(pair) for pair in pairs) < 0:
        raise c.unsupported_error("its padding is negative: crop the result (slice)")
    return c.add(
        "Col2Im", c.x, c.indices(*a.output_size), c.indices(*a.size),
        dilations=list(a.dilation or [1] * spatial), strides=list(a.stride or [1] * spatial),
        pads=[int(pair[side]) for side in (0, 1) for pair in pairs],
    )  # fmt: skip


@rule("deform_columns", onnx="`DeformConv` by a filter that takes each tap by itself", since=19,
      function=True)  # fmt: skip
def _deform_columns(c: ExportCall) -> str:
    a, (channels, height, width) = c.attrs, c.shape[1:]
    size = [int(n) for n in a.size]
    taps = prod(size)
    pairs = a.padding or _same_padding(c, size, (height, width))
    filter = np.tile(np.eye(taps, dtype=np.float32), (channels, 1)).reshape(-1, 1, *size)
    inputs = [c.x, c.constant(filter), c.tensor(1)]
    mask = c.value(2)
    if c.fact(2).rank:
        inputs += ["", c.tensor(2)]
    result = c.add(
        "DeformConv", *inputs, kernel_shape=size, strides=list(a.stride or (1, 1)),
        dilations=list(a.dilation or (1, 1)), group=channels,
        offset_group=int(a.offset_groups),
        pads=[int(pair[side]) for side in (0, 1) for pair in pairs],
    )  # fmt: skip
    if c.fact(2).rank or (mask is not None and mask == 1):
        return result
    return c.add("Mul", result, c.tensor(2))


def _same_padding(
    c: ExportCall, size: list[int], extents: tuple[int, int]
) -> list[tuple[int, int]]:
    found = []
    for i, extent in enumerate(extents):
        stride = int(c.attrs.stride[i]) if c.attrs.stride else 1
        dilation = int(c.attrs.dilation[i]) if c.attrs.dilation else 1
        reach = (size[i] - 1) * dilation + 1
        total = max((c.out.shape[2 + i] - 1) * stride + reach - extent, 0)
        found.append((total // 2, total - total // 2))
    return found
