"""Imports convolutions and pooling, which share windows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypedDict, Unpack

import numpy as np

from cml_engine.formats.onnx.op_schemas import (
    MICROSOFT,
    OnnxCall,
    at_least,
    attribute,
    one_of,
    op,
    per_axis,
)
from cml_engine.formats.onnx.operators.elementwise import activate
from cml_engine.formats.onnx.operators.matrix import subtract_zero_point
from cml_engine.formats.onnx.values import (
    InvalidNode,
    Value,
    add_operator,
    allocate,
    along,
    fragment,
    per_channel,
    zeros,
)
from cml_engine.ir.graph import Array

# -- windows -------------------------------------------------------------------------------------

_SPACING = {"dilations": per_axis(1, 1), "strides": per_axis(1, 1)}
_PADS = {"pads": per_axis(0, 0, times=2)}
_WINDOW = {
    **_SPACING,
    **_PADS,
    "auto_pad": one_of("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID", ""),
}
CONV = {**_WINDOW, "group": at_least(1, 1), "kernel_shape": per_axis(1)}
POOL = {**_WINDOW, "ceil_mode": attribute(False, kind=bool),
         "kernel_shape": per_axis(1, required=True)}  # fmt: skip


class WindowAttributes(TypedDict):
    strides: list[int]
    dilations: list[int]
    pads: list[int]
    auto_pad: str


class ConvAttributes(WindowAttributes):
    group: int
    kernel_shape: list[int] | None


class PoolAttributes(WindowAttributes):
    kernel_shape: list[int]
    ceil_mode: bool


@dataclass(frozen=True, slots=True)
class SpatialWindow:
    """A window's size, stride, dilation and padding, a list with an entry per spatial axis each."""

    size: list[int]
    stride: list[int]
    dilation: list[int]
    padding: list[tuple[int, int]]

    @property
    def reach(self) -> list[int]:
        """The numbers of elements that the dilated window spans, one per spatial axis."""
        return [(k - 1) * d + 1 for k, d in zip(self.size, self.dilation, strict=True)]


def _find_window(
    extents: tuple[int, ...],
    size: list[int],
    *,
    strides: list[int],
    dilations: list[int],
    pads: list[int],
    auto_pad: str = "NOTSET",
) -> SpatialWindow:
    """Returns the window of a convolution or pooling of a given size, with resolved padding."""
    if len(size) != len(extents) or min(size, default=1) < 1:
        raise InvalidNode(f"a window {size} over {extents}")
    window = SpatialWindow(size, strides, dilations, _pairs(pads, auto_pad))
    if auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        return window
    totals = [
        max((-(-n // s) - 1) * s + r - n, 0)
        for n, s, r in zip(extents, strides, window.reach, strict=True)
    ]
    return replace(window, padding=[_halves(total, auto_pad == "SAME_UPPER") for total in totals])


def _pairs(pads: list[int], auto_pad: str = "") -> list[tuple[int, int]]:
    """Returns the padding before and after each axis; zeros for ``VALID``."""
    pads = [0] * len(pads) if auto_pad == "VALID" else pads
    half = len(pads) // 2
    return list(zip(pads[:half], pads[half:], strict=True))


def _halves(total: int, odd_at_end: bool) -> tuple[int, int]:
    """Returns ``total`` padding elements split into those before and those after an axis.

    An odd element goes to the end with ``odd_at_end``, else to the start.
    """
    small, large = total // 2, total - total // 2
    return (small, large) if odd_at_end else (large, small)


# -- convolutions --------------------------------------------------------------------------------


@op("Conv", "conv", attrs=CONV)
def conv(
    x: Value, weights: Value, bias: Value | None = None, **window: Unpack[ConvAttributes]
) -> Value:
    return convolve(x, weights, bias_row(bias, weights.shape[0]), **window)


def bias_row(bias: Value | None, count: int) -> Value | float:
    """Returns the bias of ``count`` channels as [1, C], or 0 if there is none."""
    return 0.0 if bias is None else per_channel(bias, count, "the bias").unsqueeze([0])


def convolve(
    x: Value, weights: Value, bias: Value | float, **window: Unpack[ConvAttributes]
) -> Value:
    """Adds a convolution and returns its result; ``bias`` is [1, C] or a number."""
    return x.conv(weights, bias, **_conv_attrs(x, weights, **window))


def _conv_attrs(
    x: Value,
    weights: Value,
    *,
    group: int,
    kernel_shape: list[int] | None,
    **window: Unpack[WindowAttributes],
) -> dict[str, Any]:
    """Returns the attributes of NNEF's convolution of ``x`` with ``weights``."""
    _check_filter(x, weights, kernel_shape)
    spatial = _find_window(x.shape[2:], list(weights.shape[2:]), **window)
    return {
        "padding": spatial.padding,
        "stride": spatial.stride,
        "dilation": spatial.dilation,
        "groups": group,
    }


def _check_filter(x: Value, weights: Value, kernel_shape: list[int] | None) -> None:
    if x.rank < 3 or weights.rank != x.rank:
        raise InvalidNode(f"a convolution of {x} with {weights}")
    if kernel_shape is not None and tuple(kernel_shape) != weights.shape[2:]:
        raise InvalidNode(f"kernel_shape {kernel_shape}, and weights {weights}")


@op("ConvTranspose", "deconv", attrs=CONV)
def conv_transpose(
    x: Value,
    weights: Value,
    bias: Value | None = None,
    *,
    output_padding: list[int] = per_axis(0, 0),
    output_shape: list[int] | None = None,
    auto_pad: str,
    strides: list[int],
    dilations: list[int],
    pads: list[int],
    group: int,
    kernel_shape: list[int] | None,
) -> Value:
    _check_filter(x, weights, kernel_shape)
    spans = [(k - 1) * d + 1 for k, d in zip(weights.shape[2:], dilations, strict=True)]
    full_extents = [(n - 1) * s + r for n, s, r in zip(x.shape[2:], strides, spans, strict=True)]
    # the numbers of elements that are cropped at each side of the full result
    if output_shape is None and auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        crops = _pairs(pads, auto_pad)
    else:
        extents = [n * s for n, s in zip(x.shape[2:], strides, strict=True)]
        extents = extents if output_shape is None else output_shape[-len(full_extents) :]
        odd_at_end = auto_pad != "SAME_LOWER" if output_shape is None else auto_pad == "SAME_UPPER"
        crops = [
            _halves(f + e - n, odd_at_end)
            for f, e, n in zip(full_extents, output_padding, extents, strict=True)
        ]
    crops = [(a, b - e) for (a, b), e in zip(crops, output_padding, strict=True)]
    row = bias_row(bias, weights.shape[1] * group)
    # a negative crop pads the full result
    is_padded = any(a < 0 or b < 0 for a, b in crops)
    result = x.deconv(
        weights, 0.0 if is_padded else row,
        padding=[(max(a, 0), max(b, 0)) for a, b in crops], stride=list(strides),
        dilation=list(dilations), groups=group,
    )  # fmt: skip
    if not is_padded:
        return result
    padding = [(0, 0), (0, 0), *((max(-a, 0), max(-b, 0)) for a, b in crops)]
    padded = result.pad(padding=padding)
    return padded if bias is None else add_operator("add", padded, row)


@op("ConvInteger", "int_sub, int_conv", attrs=CONV)
def conv_integer(
    x: Value,
    weights: Value,
    zero: Value | None = None,
    weights_zero: Value | None = None,
    **window: Unpack[ConvAttributes],
) -> Value:
    attrs = _conv_attrs(x, weights, **window)
    x = subtract_zero_point(x, zero)
    if weights_zero is not None and weights_zero.rank:
        weights_zero = weights_zero.reshape([weights_zero.shape[0], *[1] * (weights.rank - 1)])
    weights = subtract_zero_point(weights, weights_zero)
    return x.int_conv(weights, **attrs).typed(np.int32)


@op("DeformConv", "deform_columns, conv", attrs={k: v for k, v in CONV.items() if k != "auto_pad"})
def deform_conv(
    x: Value,
    weights: Value,
    offset: Value,
    bias: Value | None = None,
    mask: Value | None = None,
    *,
    offset_group: int = at_least(1, 1),
    **window: Unpack[ConvAttributes],
) -> Value:
    attrs = _conv_attrs(x, weights, **window)
    row = bias_row(bias, weights.shape[0])
    values = [x, weights, offset, 1.0 if mask is None else mask, row]
    size = list(weights.shape[2:])
    return fragment("deform_conv", values, size=size, offset_groups=offset_group, **attrs)


#: attributes per image axis: the second input's values are the image's extents
_STEPS = per_axis(1, 1, count=lambda call: call[1].size)
_OF_IMAGE = {
    "dilations": _STEPS,
    "pads": per_axis(0, 0, count=lambda call: 2 * call[1].size),
    "strides": _STEPS,
}


@op("Col2Im", "col2im", attrs=_OF_IMAGE)
def col2im(
    x: Value,
    image_shape: list[int],
    block_shape: list[int],
    *,
    dilations: list[int],
    pads: list[int],
    strides: list[int],
) -> Value:
    y = x.scalar().col2im(output_size=image_shape, size=block_shape, padding=_pairs(pads),
                          stride=strides, dilation=dilations)  # fmt: skip
    return y.like(x)


@op("FusedConv", "conv, and its activation", attrs=CONV, domain=MICROSOFT)
def fused_conv(
    x: Value,
    weights: Value,
    bias: Value | None = None,
    addend: Value | None = None,
    *,
    activation: str = "",
    activation_params: list[float] | None = None,
    **window: Unpack[ConvAttributes],
) -> Value:
    result = conv(x, weights, bias, **window)
    result = result if addend is None else result + addend
    return activate(result, activation, activation_params or [])


# -- pooling -------------------------------------------------------------------------------------


def _pool_window(
    x: Value, *, kernel_shape: list[int], ceil_mode: bool, **window: Unpack[WindowAttributes]
) -> SpatialWindow:
    """Returns the window of a pooling node of ``x``, with its padding resolved.

    With ``ceil_mode`` the padding is extended to the end of the last window.
    """
    if x.rank < 3:
        raise InvalidNode(f"it wants [batch, channels, …], got {x}")
    spatial = _find_window(x.shape[2:], list(kernel_shape), **window)
    if not ceil_mode:
        return spatial
    padding = []
    axes = zip(x.shape[2:], spatial.stride, spatial.reach, spatial.padding, strict=True)
    for n, step, span, (before, after) in axes:
        count = -(-(n + before + after - span) // step) + 1
        if (count - 1) * step >= n + before:  # a window that starts in the padding at the end
            count -= 1
        padding.append((before, (count - 1) * step + span - n - before))
    return replace(spatial, padding=padding)


def _pool_attrs(shape: SpatialWindow, border: str) -> dict[str, object]:
    """Returns a window as attributes of NNEF's pools, which also cover batch and channels."""
    return {
        "size": [1, 1, *shape.size],
        "padding": [(0, 0), (0, 0), *shape.padding],
        "stride": [1, 1, *shape.stride],
        "dilation": [1, 1, *shape.dilation],
        "border": border,
    }


@op("MaxPool", "max_pool; or argmax_pool, sample and integers", attrs=POOL)
def max_pool(
    call: OnnxCall, x: Value, *, storage_order: bool = False, **pool: Unpack[PoolAttributes]
) -> list[Value | None]:
    numbers = x.scalar()
    shape = _pool_window(numbers, **pool)
    attrs = _pool_attrs(shape, "ignore")
    if not call.wants(1):
        return [numbers.max_pool(**attrs).like(x), None]
    index = numbers.argmax_pool(**attrs)
    y = numbers.sample(index, **attrs)
    flat_indices = _flat_places(index, shape, x.shape, storage_order)
    return [y.like(x), flat_indices]


def _flat_places(
    index: Value, shape: SpatialWindow, extents: tuple[int, ...], by_columns: bool
) -> Value:
    """Adds operators that turn indices within windows into flat indices into the whole tensor.

    Returns the result, of int64.
    """
    spatial = extents[2:]
    steps = np.cumprod([1, *spatial[:0:-1]])[::-1]  # the stride of each axis in the tensor
    if by_columns:
        steps = np.cumprod([1, *spatial[:-1]])
    taps = np.indices(shape.size).reshape(len(spatial), -1)  # the coordinates of each tap
    offsets = sum(t * d * s for t, d, s in zip(taps, shape.dilation, steps, strict=True))
    first: Array = np.arange(extents[0] * extents[1]).reshape(*extents[:2]) * prod(spatial)
    first = first.reshape(*extents[:2], *[1] * len(spatial))
    axes = zip(steps, shape.stride, shape.padding, strict=True)
    for axis, (step, stride, (before, _)) in enumerate(axes, 2):
        axis_offsets = (np.arange(index.shape[axis]) * stride - before) * step
        first = first + axis_offsets.reshape(along(axis, len(extents)))
    window_offsets = Value.known(np.asarray(offsets, np.int64)).gather(index, axis=0)
    return (window_offsets + Value.known(first)).typed(np.int64)


@op("AveragePool", "avg_pool, pad", attrs=POOL)
def average_pool(
    x: Value, *, count_include_pad: bool = False, **pool: Unpack[PoolAttributes]
) -> Value:
    shape = _pool_window(x, **pool)
    if count_include_pad:
        # padding counts in the mean, but the extra part that ceil_mode adds does not
        floor_padding = _pool_window(x, **(pool | {"ceil_mode": False})).padding
        inner = [
            (a, min(b, d)) for (a, b), (_, d) in zip(floor_padding, shape.padding, strict=True)
        ]
        if any(a or b for a, b in inner):
            x = x.pad(padding=[(0, 0), (0, 0), *inner])
        extra_padding = [(0, d - b) for (_, b), (_, d) in zip(inner, shape.padding, strict=True)]
        shape = replace(shape, padding=extra_padding)
    return x.avg_pool(**_pool_attrs(shape, "ignore"))


@op("LpPool", "abs, sqr or pow; box; sqrt or pow", attrs=POOL)
def lp_pool(x: Value, *, p: int = at_least(1, 2), **pool: Unpack[PoolAttributes]) -> Value:
    attrs = _pool_attrs(_pool_window(x, **pool), "constant")
    return _root(_power(x, p).box(**attrs), p)


def _power(x: Value, p: int) -> Value:
    if p == 2:
        return x.sqr()
    return x.abs() if p == 1 else x.abs().pow(float(p))


def _root(x: Value, p: int) -> Value:
    if p == 1:
        return x
    return x.sqrt() if p == 2 else x.pow(1 / p)


@op("GlobalAveragePool", "mean_reduce")
def global_average_pool(x: Value) -> Value:
    return x.mean_reduce(axes=list(range(2, x.rank)))


@op("GlobalMaxPool", "max_reduce")
def global_max_pool(x: Value) -> Value:
    return x.max_reduce(axes=list(range(2, x.rank)))


@op("GlobalLpPool", "abs, sqr or pow; sum_reduce; sqrt or pow")
def global_lp_pool(x: Value, *, p: int = at_least(1, 2)) -> Value:
    return _root(_power(x, p).sum_reduce(axes=list(range(2, x.rank))), p)


@op("MaxUnpool", "scatter_elements, pad", attrs={**_PADS, "strides": _SPACING["strides"]})
def max_unpool(
    x: Value,
    indices: Value,
    output_shape: list[int] | None = None,
    *,
    kernel_shape: list[int] = per_axis(1, required=True),
    pads: list[int],
    strides: list[int],
) -> Value:
    axes = zip(x.shape[2:], strides, _pairs(pads), kernel_shape, strict=True)
    shape = allocate([*x.shape[:2], *((n - 1) * s - a - b + k for n, s, (a, b), k in axes)], 4)
    if indices.shape != x.shape:
        raise InvalidNode(f"indices {indices} of {x}")
    indices_flat = indices.reshape([x.size])
    flat = zeros([prod(shape)]).scatter_elements(indices_flat, x.reshape([x.size]), axis=0)
    y = flat.reshape(shape)
    padding = [(0, w - n) for w, n in zip(output_shape or shape, shape, strict=True)]
    if not any(after for _, after in padding):
        return y
    return y.pad(padding=padding)
