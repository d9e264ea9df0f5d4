"""Exports matrix products and convolutions."""

from __future__ import annotations

from itertools import product
from math import prod

from cml_engine.formats.onnx.export.call import ExportCall, ExportTensor, rule
from cml_engine.formats.onnx.export.operators.movement import pad_axes, window_attributes
from cml_engine.ir.graph import Attrs, Fact
from cml_engine.ops.conv.shapes import conv_shape, deconv_shape


@rule("matmul", onnx="`MatMul`, `Transpose`")
def _matmul(c: ExportCall) -> ExportTensor:
    return _turned(c, 0, c.attrs.transposeA).MatMul(_turned(c, 1, c.attrs.transposeB))


def _turned(c: ExportCall, position: int, is_transposed: bool) -> ExportTensor:
    rank = c.fact(position).rank
    order = [*range(rank - 2), rank - 1, rank - 2]
    return c.tensor(position).transpose(order) if is_transposed else c.tensor(position)


@rule("int_matmul", onnx="`MatMul`")
def _int_matmul(c: ExportCall) -> ExportTensor:
    return c.fill(0) if c.shape[-1] == 0 else c.add("MatMul", *c.tensors)


@rule("linear", onnx="`Gemm`")
def _linear(c: ExportCall) -> ExportTensor:
    return c.x.Gemm(c.tensor(1), *_bias(c, None), transB=1)


def _bias(c: ExportCall, channels: int | None) -> list[ExportTensor]:
    """Returns a list with the bias, which is the third operand; an empty list if it is all zero.

    With ``channels`` a single value is repeated for every channel.
    """
    value = c.value(2)
    if value is not None and not value.any():
        return []
    return [c.per_channel(2, c.fact(2).size if channels is None else channels)]


@rule("conv", onnx="`Conv`; after `Pad` or `Gather` where the border is not zeros")
def _conv(c: ExportCall) -> ExportTensor:
    shape = conv_shape(c.attrs, c.fact(0), c.fact(1), c.fact(2))
    if c.is_empty:
        return _empty_sum(c, shape.out_channels)
    pairs = [(a.before, a.after) for a in shape.axes]
    x = c.x
    if shape.border != "constant" or min(map(min, pairs)) < 0:
        x = pad_axes(x, c.shape, [(0, 0), (0, 0), *pairs], shape.border)
        pairs = [(0, 0)] * len(pairs)
    bias = _bias(c, shape.out_channels)
    window = window_attributes(shape.axes, pairs)
    return x.Conv(c.tensor(1), *bias, **window, group=shape.groups)


def _empty_sum(c: ExportCall, channels: int) -> ExportTensor:
    """Adds nodes for a convolution that sums over no elements: the bias, or zeros."""
    bias = _bias(c, channels)
    if not bias:
        return c.fill(0.0)
    column = bias[0].reshape((1, channels, *[1] * (c.out.rank - 2)))
    return column.Expand(c.indices(*c.out.shape))


@rule("deconv", onnx="`ConvTranspose`; where the output is larger than its windows, `Pad` behind")
def _deconv(c: ExportCall) -> ExportTensor:
    shape = deconv_shape(c.attrs, c.fact(0), c.fact(1), c.fact(2))
    if c.is_empty:
        return _empty_sum(c, shape.out_channels)
    full_extents = [(a.narrow - 1) * a.stride + a.reach for a in shape.axes]
    pairs = [
        (a.before, n - a.before - a.wide) for a, n in zip(shape.axes, full_extents, strict=True)
    ]
    extra = [max(-after, 0) for _, after in pairs]
    cropped = [(before, max(after, 0)) for before, after in pairs]
    fits = all(n < a.stride for n, a in zip(extra, shape.axes, strict=True))
    if fits and all(before >= 0 for before, _ in pairs):
        bias = _bias(c, shape.out_channels)
        window = window_attributes(shape.axes, cropped)
        return c.x.ConvTranspose(c.tensor(1), *bias, **window, group=shape.groups,
                                 output_padding=extra if any(extra) else None)  # fmt: skip
    window = window_attributes(shape.axes, [(0, 0)] * len(pairs))
    uncropped = c.x.ConvTranspose(c.tensor(1), **window, group=shape.groups)
    extents = (shape.batch, shape.out_channels, *full_extents)
    padding = [(0, 0), (0, 0), *((-before, -after) for before, after in pairs)]
    uncropped = pad_axes(uncropped, extents, padding, "constant")
    bias = _bias(c, shape.out_channels)
    return uncropped + bias[0].reshape((1, -1, *[1] * len(full_extents))) if bias else uncropped


@rule("int_conv", onnx="`Slice` and `MatMul` of each tap, `Add`", function=True)
def _int_conv(c: ExportCall) -> ExportTensor:
    attrs = Attrs({**c.attrs, "border": "constant"})
    shape = conv_shape(attrs, *(Fact("scalar", c.fact(i).shape) for i in (0, 1)))
    pairs = [(0, 0), (0, 0), *((a.before, a.after) for a in shape.axes)]
    x = pad_axes(c.x, c.shape, pairs, "constant")
    n_positions = prod(shape.narrow)
    grouped_shape = (shape.groups, shape.group_out, shape.group_in)
    total: ExportTensor | None = None
    for tap in product(*(range(a.size) for a in shape.axes)):
        tap_ranges = {
            i: (t * a.dilation, a.narrow, a.stride)
            for i, (t, a) in enumerate(zip(tap, shape.axes, strict=True), 2)
        }
        tap_index = {i: (t, 1, 1) for i, t in enumerate(tap, 2)}
        values = x.slice(tap_ranges).reshape((shape.batch, *grouped_shape[::2], n_positions))
        term = c.tensor(1).slice(tap_index).reshape(grouped_shape).MatMul(values)
        total = term if total is None else total + term
    assert total is not None
    return total.reshape(c.out.shape)
