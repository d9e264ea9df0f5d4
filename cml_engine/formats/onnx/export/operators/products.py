"""Exports matrix products and convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from cml_engine.formats.onnx.export.call import ExportCall
from cml_engine.formats.onnx.export.export_rules import rule
from cml_engine.formats.onnx.export.operators.movement import pad_axes, slice_axes
from cml_engine.ir.graph import Attrs, AttrValue, Fact
from cml_engine.ops.conv.shapes import ConvShape, conv_shape, deconv_shape


@rule("matmul", onnx="`MatMul`, `Transpose`")
def _matmul(c: ExportCall) -> str:
    return c.add("MatMul", _turned(c, 0, c.attrs.transposeA), _turned(c, 1, c.attrs.transposeB))


def _turned(c: ExportCall, position: int, turn: bool) -> str:
    if not turn:
        return c.tensor(position)
    rank = c.fact(position).rank
    return c.transpose(c.tensor(position), [*range(rank - 2), rank - 1, rank - 2])


@rule("int_matmul", onnx="`MatMul`")
def _int_matmul(c: ExportCall) -> str:
    if c.shape[-1] == 0:
        return c.fill(0)
    return c.add("MatMul", *c.tensors)


@rule("linear", onnx="`Gemm`")
def _linear(c: ExportCall) -> str:
    return c.add("Gemm", c.x, c.tensor(1), *_bias(c, None), transB=1)


def _bias(c: ExportCall, channels: int | None) -> list[str]:
    """Returns a list with the bias, which is the third operand; an empty list if it is all zero.

    With ``channels`` a single value is repeated for every channel.
    """
    value, size = c.value(2), c.fact(2).size
    if value is not None and not value.any():
        return []
    if channels is None or size == channels:
        return [c.tensor(2, (size,))]
    if value is not None:
        return [c.constant(np.full(channels, value, np.float32))]
    return [c.add("Expand", c.tensor(2, (1,)), c.indices(channels))]


@rule("conv", onnx="`Conv`; after `Pad` or `Gather` where the border is not zeros")
def _conv(c: ExportCall) -> str:
    shape = conv_shape(c.attrs, c.fact(0), c.fact(1), c.fact(2))
    if c.fact(0).size == 0:
        return _bias_alone(c, shape.out_channels)
    pairs = [(a.before, a.after) for a in shape.axes]
    x = c.x
    if shape.border != "constant" or min(map(min, pairs)) < 0:
        x = pad_axes(c, x, c.shape, [(0, 0), (0, 0), *pairs], shape.border)
        pairs = [(0, 0)] * len(pairs)
    bias = _bias(c, shape.out_channels)
    return c.add("Conv", x, c.tensor(1), *bias, **_geometry(shape, pairs))


def _bias_alone(c: ExportCall, channels: int) -> str:
    """Adds nodes for a convolution that sums over no elements: the bias, or zeros.

    Returns the name.
    """
    bias = _bias(c, channels)
    if not bias:
        return c.fill(0.0)
    column = c.reshape(bias[0], (1, channels, *[1] * (c.out.rank - 2)))
    return c.add("Expand", column, c.indices(*c.out.shape))


def _geometry(shape: ConvShape, pairs: Sequence[tuple[int, int]]) -> dict[str, AttrValue]:
    return {
        "kernel_shape": [a.size for a in shape.axes],
        "strides": [a.stride for a in shape.axes],
        "dilations": [a.dilation for a in shape.axes],
        "pads": [*(p for p, _ in pairs), *(q for _, q in pairs)],
        "group": shape.groups,
    }


@rule("deconv", onnx="`ConvTranspose`; where the output is larger than its windows, `Pad` behind")
def _deconv(c: ExportCall) -> str:
    shape = deconv_shape(c.attrs, c.fact(0), c.fact(1), c.fact(2))
    if c.fact(0).size == 0:
        return _bias_alone(c, shape.out_channels)
    full = [(a.narrow - 1) * a.stride + a.reach for a in shape.axes]
    pairs = [(a.before, n - a.before - a.wide) for a, n in zip(shape.axes, full, strict=True)]
    more = [max(-after, 0) for _, after in pairs]
    cropped = [(before, max(after, 0)) for before, after in pairs]
    fits = all(n < a.stride for n, a in zip(more, shape.axes, strict=True))
    if fits and all(before >= 0 for before, _ in pairs):
        given = _geometry(shape, cropped)
        added = more if any(more) else None
        bias = _bias(c, shape.out_channels)
        return c.add("ConvTranspose", c.x, c.tensor(1), *bias, **given, output_padding=added)
    spread = c.add("ConvTranspose", c.x, c.tensor(1), **_geometry(shape, [(0, 0)] * len(pairs)))
    extents = (shape.batch, shape.out_channels, *full)
    fitted = [(0, 0), (0, 0), *((-before, -after) for before, after in pairs)]
    spread = pad_axes(c, spread, extents, fitted, "constant")
    bias = _bias(c, shape.out_channels)
    if not bias:
        return spread
    return c.add("Add", spread, c.reshape(bias[0], (1, -1, *[1] * len(full))))


@rule("int_conv", onnx="`Slice` and `MatMul` of each tap, `Add`", function=True)
def _int_conv(c: ExportCall) -> str:
    attrs = Attrs({**c.attrs, "border": "constant"})
    shape = conv_shape(attrs, *(Fact("scalar", c.fact(i).shape) for i in (0, 1)))
    pairs = [(0, 0), (0, 0), *((a.before, a.after) for a in shape.axes)]
    x = pad_axes(c, c.x, c.shape, pairs, "constant")
    places = int(np.prod(shape.narrow))
    parted = (shape.groups, shape.group_out, shape.group_in)
    total = ""
    for tap in product(*(range(a.size) for a in shape.axes)):
        taken = {
            i: (t * a.dilation, a.narrow, a.stride)
            for i, (t, a) in enumerate(zip(tap, shape.axes, strict=True), 2)
        }
        one = {i: (t, 1, 1) for i, t in enumerate(tap, 2)}
        values = c.reshape(slice_axes(c, x, taken), (shape.batch, *parted[::2], places))
        weights = c.reshape(slice_axes(c, c.tensor(1), one), parted)
        term = c.add("MatMul", weights, values)
        total = c.add("Add", total, term) if total else term
    return c.reshape(total, c.out.shape)


@rule("matmul_nbits", onnx="the codes by `BitShift`, their matrix, `MatMul`", function=True,
      since=18)  # fmt: skip
def _matmul_nbits(c: ExportCall) -> str:
    bits, block = int(c.attrs.bits), int(c.attrs.block_size)
    (rows, words), blocks, inner = c.fact(1).shape, c.fact(2).shape[1], c.shape[-1]
    shifts = c.constant(np.arange(0, 32, bits, dtype=np.uint32))
    lanes = c.reshape(c.cast(c.tensor(1), "uint32"), (rows, words, 1))
    mask = c.constant(np.array(2**bits - 1, np.uint32))
    codes = c.add("BitwiseAnd", c.add("BitShift", lanes, shifts, direction="RIGHT"), mask)
    codes = c.cast(c.reshape(codes, (rows, blocks, block)), "scalar")
    zero = c.tensor(3, (rows, blocks, 1)) if c.fact(3).rank else c.tensor(3)
    scaled = c.add("Mul", c.add("Sub", codes, zero), c.tensor(2, (rows, blocks, 1)))
    matrix = slice_axes(c, c.reshape(scaled, (rows, blocks * block)), {1: (0, inner, 1)})
    return c.add("MatMul", c.x, c.transpose(matrix, (1, 0)))
