"""Imports quantized operators, whose integers represent floats.

QLinear* operators compute with the dequantized floats; products of the integers themselves are
computed in integers.
"""

from __future__ import annotations

from typing import Unpack

import numpy as np

from cml_engine.formats.onnx.op_schemas import MICROSOFT, OnnxCall, at_least, attribute, op
from cml_engine.formats.onnx.operators.convolution import CONV, ConvAttributes, convolve
from cml_engine.formats.onnx.operators.indexing import gather
from cml_engine.formats.onnx.operators.matrix import matmul
from cml_engine.formats.onnx.ranges import of_dtype
from cml_engine.formats.onnx.tensors import bits_of, element_dtype, type_name
from cml_engine.formats.onnx.values import (
    InvalidNode,
    Value,
    checked_axis,
    expandable,
    per_channel,
    unsupported_error,
)
from cml_engine.ir.block_weights import Blocks, scales_shape
from cml_engine.ir.graph import Array, DType


def _ranged(value: Value, x: Value, axis: int, block: int) -> Value:
    """Returns a scale or zero point reshaped to broadcast with ``x``.

    It is one number, or one per element of ``axis``, or one per ``block`` elements.
    """
    if value.array is not None and value.array.size == 1:
        return Value.known(value.array.reshape(()))
    if value.size == 1 and value.rank < 2:
        return value.reshape([])
    axis = checked_axis(axis, x.rank)
    if block:
        return _blocks(value, x, axis, block)
    if value.rank != 1:
        return expandable(value, x.shape, "a scale or zero point").lift(x.rank)
    per_channel(value, x.shape[axis], "a scale or zero point")
    return value.reshape([value.shape[0] if a == axis else 1 for a in range(x.rank)])


#: the position of the weights' scale in products of integers
_WEIGHTS_SCALE = 4
#: the positions of the scales, which zero points follow, by operators of ONNX
_SCALES = {
    "QuantizeLinear": (1,),
    "DequantizeLinear": (1,),
    "QLinearConv": (1, _WEIGHTS_SCALE, 6),
    "QLinearMatMul": (1, _WEIGHTS_SCALE, 6),
}
#: the positions of zero points that a node cannot leave out
_REQUIRED = {
    "QLinearConv": (2, 5, 7),
    "QLinearMatMul": (2, 5, 7),
    "QLinearWhere": (3, 6, 8),
    "QLinearConcat": (1,),
    "QGemm": (2, 5),
}


def check_zero_points(call: OnnxCall) -> None:
    """Raises :class:`InvalidNode` unless each zero point of a node has the shape of its scale.

    One number may be of the shape [] or [1]. Weights of products may have one number beside
    several, which ONNX forbids and ONNX Runtime takes. Raises it too if a zero point is missing
    that the operator requires.
    """
    for position in _REQUIRED.get(call.node.op, ()):
        call[position]
    for position in _SCALES.get(call.node.op, ()):
        if not call.has(position + 1):
            continue
        scale, zero = call[position], call[position + 1]
        counts = sorted(value.size if value.rank < 2 else 0 for value in (scale, zero))
        fits = counts[0] == 1 if position == _WEIGHTS_SCALE else counts == [1, 1]
        if zero.shape != scale.shape and not fits:
            raise InvalidNode(
                f"input {position + 2}, the zero point, is {zero}, wanted the shape of its scale, "
                f"{scale}"
            )


def _blocks(value: Value, x: Value, axis: int, block: int) -> Value:
    if value.shape != scales_shape(x.shape, axis, block):
        raise InvalidNode(f"{value} of {x} in blocks of {block}")
    before, count, after = value.shape[:axis], value.shape[axis], value.shape[axis + 1 :]
    repeated = value.unsqueeze([axis + 1]).expand([*before, count, block, *after])
    return repeated.reshape([*before, count * block, *after]).slice(axis, 0, x.shape[axis])


def dequantize(x: Value, scale: Value, zero: Value | None, axis: int = 1, block: int = 0) -> Value:
    """Adds operators for (x - zero) * scale and returns the result.

    The result is known at import if all operands are. Blocks of integers of 8 bits stay integers.
    """
    scales = scale.array
    scale = _ranged(scale, x, axis, block)
    zero = None if zero is None else _ranged(zero, x, axis, block)
    if x.array is not None and scale.array is not None and (zero is None or zero.array is not None):
        integers = x.array.astype(np.float64)
        integers = integers if zero is None or zero.array is None else integers - zero.array
        block_axis = checked_axis(axis, x.rank) if block else 0
        is_whole = block and x.dtype.kind in "iu" and x.size
        if (
            is_whole
            and scales is not None
            and scales.shape == scales_shape(x.shape, block_axis, block)
        ):
            low, high = integers.min(), integers.max()
            if low >= -128 and high <= 127:
                bits = 4 if low >= -8 and high <= 7 else 8
                parts = (integers.astype(np.int8), scales.astype(np.float32))
                stored = Blocks(*parts, block_axis, min(block, x.shape[block_axis]), bits)
                return Value.known(stored.values(), x.name)
        return Value.known((integers * scale.array).astype(np.float32), x.name)
    y = x.scalar()
    if zero is not None and (zero.array is None or zero.array.any()):
        y = y - zero.scalar()
    return y * scale


def quantize(
    x: Value,
    scale: Value,
    zero: Value | None,
    axis: int = 1,
    block: int = 0,
    output_dtype: int = 0,
) -> Value:
    """Adds operators for x / scale, rounded to even, plus zero, clamped to the range of the result.

    Its type is :func:`quantized_dtype`. Returns the integers.
    """
    dtype = quantized_dtype(zero, output_dtype)
    limits = of_dtype(dtype)
    y = (x.scalar() / _ranged(scale, x, axis, block)).round_even()
    y = y if zero is None else y + _ranged(zero, x, axis, block).scalar()
    return y.clamp(float(limits.low), float(limits.high)).cast("integer").typed(dtype)


def quantized_dtype(zero: Value | None, output_dtype: int) -> DType:
    """Returns the type of the integers of a QuantizeLinear: its zero point's, or the stated one.

    An ``output_dtype`` of 0 means uint8.
    """
    dtype = zero.dtype if zero is not None else element_dtype(output_dtype or 2)
    if dtype is None or dtype.kind not in "iu":
        raise unsupported_error(f"quantizing to {type_name(output_dtype or 2)}")
    return dtype


@op("QuantizeLinear", "div, round_even, add, clamp, cast", domain=MICROSOFT)
def microsoft_quantize_linear(
    call: OnnxCall, x: Value, scale: Value, zero: Value | None = None, *, axis: int = 1
) -> Value:
    check_zero_points(call)
    return quantize(x, scale, zero, axis)


@op("DequantizeLinear", "cast, sub, mul", domain=MICROSOFT)
def microsoft_dequantize_linear(
    call: OnnxCall, x: Value, scale: Value, zero: Value | None = None, *, axis: int = 1
) -> Value:
    check_zero_points(call)
    return dequantize(x, scale, zero, axis)


@op("QuantizeLinear", "div, round_even, add, clamp, cast")
def quantize_linear(
    call: OnnxCall,
    x: Value,
    scale: Value,
    zero: Value | None = None,
    *,
    axis: int = attribute(1, since=13),
    block_size: int = at_least(0, 0, since=19),
    output_dtype: int = attribute(0, since=19),
    precision: int = attribute(0, since=19),
    saturate: int = attribute(1, since=19),
) -> Value:
    check_zero_points(call)
    return quantize(x, scale, zero, axis, block_size, output_dtype)


@op("DequantizeLinear", "cast, sub, mul")
def dequantize_linear(
    call: OnnxCall,
    x: Value,
    scale: Value,
    zero: Value | None = None,
    *,
    axis: int = attribute(1, since=13),
    block_size: int = at_least(0, 0, since=21),
    output_dtype: int = attribute(0, since=21),
) -> Value:
    check_zero_points(call)
    return dequantize(x, scale, zero, axis, block_size)


@op("DynamicQuantizeLinear", "max_reduce, min_reduce, div, select, round_even, clamp, cast")
def dynamic_quantize_linear(x: Value) -> list[Value]:
    axes = list(range(x.rank))
    top = x.max_reduce(axes=axes).squeeze(axes).max(0.0)
    low = x.min_reduce(axes=axes).squeeze(axes).min(0.0)
    # divide, because a product with the reciprocal would round ties differently
    step = (top - low) / 255.0
    scale = step.gt(0.0).select(step, 1.0)
    zero_float = (-low / scale).round_even().clamp(0.0, 255.0)
    zero = zero_float.cast("integer").typed(np.uint8)
    return [quantize(x, scale, zero), scale, zero]


# -- products ------------------------------------------------------------------------------------


@op("QLinearConv", "cast, sub, mul, conv, round_even, clamp", attrs=CONV)
def qlinear_conv(
    call: OnnxCall, x: Value, x_scale: Value, x_zero: Value, weights: Value, w_scale: Value,
    w_zero: Value,
    y_scale: Value, y_zero: Value, bias: Value | None = None, **window: Unpack[ConvAttributes],
) -> Value:  # fmt: skip
    check_zero_points(call)
    numbers = dequantize(x, x_scale, x_zero)
    weight_values = dequantize(weights, w_scale, w_zero, 0)
    bias_row: Value | float = 0.0
    if bias is not None:
        per_channel(bias, weights.shape[0], "the bias")
        input_scale, weight_scale = (v.reshape([v.size]) for v in (x_scale, w_scale))
        bias_row = (bias.scalar() * weight_scale * input_scale).unsqueeze([0])
    y = convolve(numbers, weight_values, bias_row, **window)
    return quantize(y, y_scale, y_zero)


_SIZES = {"K": at_least(1, required=True), "N": at_least(1, required=True)}


@op("MatMulNBits", "matmul; or mul, sum_reduce, add", attrs=_SIZES, domain=MICROSOFT)
def matmul_nbits(
    x: Value,
    weights: Array,
    scales: Value,
    zero_points: Array | None = None,
    g_idx: Value | None = None,
    bias: Value | None = None,
    *,
    accuracy_level: int = 0,
    bits: int = attribute(4, among=(2, 4, 8)),
    block_size: int = at_least(1, required=True),
    weight_prepacked: int = attribute(0, among=(0,)),
    **sizes: int,
) -> Value:
    """Imports MatMulNBits, a product by weights of a few bits with a scale per block.

    The weights become integers that start at their middle code, as blocks. What other zero points
    add to a block is a number times the sum of the block's inputs.
    """
    rows, inner, middle = sizes["N"], sizes["K"], 1 << (bits - 1)
    if g_idx is not None and g_idx.shape != (0,):
        raise unsupported_error("g_idx")
    blocks = -(-inner // block_size)
    codes = _unpack_codes(weights, rows, bits)
    if codes.shape[1] != blocks * block_size:
        raise InvalidNode(f"{codes.shape[1]} codes a row, wanted {blocks} times {block_size}")
    factors = scales.reshape([rows, blocks])
    centred = Value.known((codes[:, :inner].astype(np.int16) - middle).astype(np.int8))
    y = matmul(x, dequantize(centred, factors, None, 1, block_size), turn_y=True)
    if zero_points is not None:
        is_float = zero_points.dtype.kind == "f"
        zeros = zero_points if is_float else _unpack_codes(zero_points, rows, bits)[:, :blocks]
        shifts = factors * Value.known(np.float32(middle) - zeros.reshape(rows, blocks))
        padding = [(0, 0)] * (x.rank - 1) + [(0, blocks * block_size - inner)]
        padded = x if not padding[-1][1] else x.pad(padding=padding)
        parts = padded.reshape([*x.shape[:-1], blocks, block_size])
        y = y + matmul(parts.sum_reduce(axes=[x.rank]).squeeze([x.rank]), shifts, turn_y=True)
    return y if bias is None else y + bias


@op("GatherBlockQuantized", "gather", domain=MICROSOFT)
def gather_block_quantized(
    data: Array,
    indices: Value,
    scales: Value,
    zero_points: Array | None = None,
    *,
    bits: int = attribute(4, among=(2, 4, 8)),
    block_size: int = at_least(1, 128),
    gather_axis: int = 0,
    quantize_axis: int = 1,
) -> Value:
    """Imports GatherBlockQuantized: elements of a table of integers with a scale per block.

    Integers of the type uint8 lie in the bits of the last axis.
    """
    zero = np.zeros((), np.int8) if zero_points is None else zero_points
    if data.dtype == np.uint8 and bits_of(data.dtype) == 8:
        data = _unpack_last_axis(data, bits)
        if zero_points is None:
            zero = np.array(1 << (bits - 1))
        else:
            zero = _unpack_last_axis(zero, bits)[..., : scales.shape[-1]]
    codes = Value.known(data)
    table = dequantize(codes, scales, Value.known(zero), quantize_axis, block_size)
    return gather(table.typed(scales.dtype), indices, axis=gather_axis)


def _unpack_last_axis(stored: Array, bits: int) -> Array:
    return _unpack_codes(stored, stored.size // stored.shape[-1], bits).reshape(
        *stored.shape[:-1], -1
    )


def _unpack_codes(stored: Array, rows: int, bits: int) -> Array:
    """Returns the codes of each row, which are packed into bytes from the lowest bits on."""
    bits_of_rows = np.unpackbits(
        stored.reshape(rows, -1).astype(np.uint8), axis=1, bitorder="little"
    )
    numbers = bits_of_rows[:, : bits_of_rows.shape[1] // bits * bits].reshape(rows, -1, bits)
    return np.asarray(numbers @ (1 << np.arange(bits)))
