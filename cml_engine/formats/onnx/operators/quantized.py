"""Imports quantized operators, whose integers represent floats.

QLinear* operators compute with the dequantized floats; products of the integers themselves are
computed in integers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cml_engine.formats.onnx.attributes import at_least
from cml_engine.formats.onnx.call import OnnxCall
from cml_engine.formats.onnx.op_schemas import op
from cml_engine.formats.onnx.operators.convolution import CONV, convolve
from cml_engine.formats.onnx.operators.matrix import matmul
from cml_engine.formats.onnx.tensors import ELEMENT_TYPES, element_dtype
from cml_engine.formats.onnx.values import Value


def _ranged(call: OnnxCall, value: Value, x: Value, block: int = 0) -> Value:
    """Returns a scale or zero point reshaped to broadcast with ``x``.

    It is one number, or one per element of the attribute ``axis``, or one per ``block`` elements.
    """
    if value.array is not None and value.array.size == 1:
        return Value.known(value.array.reshape(()))
    if value.rank == 0:
        return value
    axis = call.axis(call.attributes.get("axis", 1), x.rank)
    if block:
        return _blocks(call, value, x, axis, block)
    if value.rank != 1:
        return call.reshape(value, [1] * (x.rank - value.rank) + list(value.shape))
    if value.shape == (1,):
        return call.reshape(value, [])
    return call.reshape(value, [value.shape[0] if a == axis else 1 for a in range(x.rank)])


def _blocks(call: OnnxCall, value: Value, x: Value, axis: int, block: int) -> Value:
    if value.rank != x.rank or -(-x.shape[axis] // block) != value.shape[axis]:
        raise call.shape_error(f"{value} of {x} in blocks of {block}")
    shape = list(value.shape)
    each = call.unsqueeze(value, [axis + 1])
    each = call.expand(each, [*shape[: axis + 1], block, *shape[axis + 1 :]])
    whole = call.reshape(each, [*shape[:axis], shape[axis] * block, *shape[axis + 1 :]])
    return call.slice(whole, axis, 0, x.shape[axis])


def dequantize(call: OnnxCall, x: Value, scale: Value, zero: Value | None, block: int = 0) -> Value:
    """Adds operators for (x - zero) * scale and returns the result.

    The result is known at import if all operands are.
    """
    scale = _ranged(call, scale, x, block)
    known = x.array is not None and scale.array is not None
    if zero is not None:
        zero = _ranged(call, zero, x, block)
        known = known and zero.array is not None
    if known:
        assert x.array is not None and scale.array is not None
        whole = x.array.astype(np.float64)
        whole = whole if zero is None or zero.array is None else whole - zero.array
        return Value.known((whole * scale.array).astype(np.float32), x.name)
    y = call.scalar(x)
    if zero is not None and not (zero.array is not None and not zero.array.any()):
        y = call.zip("sub", y, call.scalar(zero))
    return call.zip("mul", y, scale)


def quantize(
    call: OnnxCall, x: Value, scale: Value, zero: Value | None, dtype: np.dtype[Any], block: int = 0
) -> Value:
    """Adds operators for x / scale, rounded to even, plus zero, clamped to the range of ``dtype``.

    Returns the integers.
    """
    limits = np.iinfo(dtype)
    y = call.op("round_even", call.zip("div", call.scalar(x), _ranged(call, scale, x, block)))
    if zero is not None:
        y = call.zip("add", y, call.scalar(_ranged(call, zero, x, block)))
    y = call.op("clamp", y, float(limits.min), float(limits.max))
    return call.cast(y, "integer").typed(dtype)


_NNEF = "div, round_even, add, clamp, cast"
_QUANTIZE = {
    "axis": 1,
    "block_size": at_least(0, 0),
    "output_dtype": 0,
    "precision": 0,
    "saturate": 1,
}


@op("QuantizeLinear", nnef=_NNEF, inputs=3, attrs={}, until=12)
@op(
    "QuantizeLinear",
    nnef=_NNEF,
    inputs=3,
    attrs={"axis": 1},
    since=13,
    until=18,
)
@op("QuantizeLinear", nnef=_NNEF, inputs=3, attrs=_QUANTIZE, since=19)
def quantize_linear(call: OnnxCall) -> Value:
    zero = call[2] if call.has(2) else None
    element = call.attributes.get("output_dtype") or 2
    kind = ELEMENT_TYPES.get(element, "")
    dtype = zero.dtype if zero is not None else element_dtype(element)
    if dtype is None or dtype.kind not in "iu" or kind in ("int4", "uint4"):
        raise call.unsupported_error(f"quantizing to {kind}")
    block = call.attributes.get("block_size") or 0
    return quantize(call, call[0], call[1], zero, dtype, block)


@op("DequantizeLinear", nnef="cast, sub, mul", inputs=3, attrs={}, until=12)
@op("DequantizeLinear", nnef="cast, sub, mul", inputs=3, attrs={"axis": 1}, since=13, until=20)
@op("DequantizeLinear", nnef="cast, sub, mul", inputs=3,
    attrs={"axis": 1, "block_size": at_least(0, 0), "output_dtype": 0}, since=21)  # fmt: skip
def dequantize_linear(call: OnnxCall) -> Value:
    zero = call[2] if call.has(2) else None
    return dequantize(call, call[0], call[1], zero, call.attributes.get("block_size") or 0)


@op("DynamicQuantizeLinear",
    nnef="max_reduce, min_reduce, div, select, round_even, clamp, cast")  # fmt: skip
def dynamic_quantize_linear(call: OnnxCall) -> list[Value]:
    x = call[0]
    axes = list(range(x.rank))
    top = call.op("max", call.squeeze(call.op("max_reduce", x, axes=axes), axes), 0.0)
    low = call.op("min", call.squeeze(call.op("min_reduce", x, axes=axes), axes), 0.0)
    # divide, because a product with the reciprocal would round ties differently
    step = call.op("div", call.op("sub", top, low), 255.0)
    scale = call.op("select", call.op("gt", step, 0.0), step, 1.0)
    start = call.op("clamp", call.op("round_even", call.op("div", call.op("neg", low), scale)),
                    0.0, 255.0)  # fmt: skip
    zero = call.cast(start, "integer").typed(np.uint8)
    return [quantize(call, x, scale, zero, np.dtype(np.uint8)), scale, zero]


# -- products ------------------------------------------------------------------------------------


@op("QLinearMatMul", nnef="cast, sub, mul, matmul, round_even, clamp", inputs=8)
def qlinear_matmul(call: OnnxCall) -> Value:
    a = dequantize(call, call[0], _row(call, call[1], call[0]), _row(call, call[2], call[0]))
    b = dequantize(call, call[3], call[4], call[5])
    return quantize(call, matmul(call, a, b), call[6], call[7], call[7].dtype)


def _row(call: OnnxCall, value: Value, x: Value) -> Value:
    """Returns a vector with one number per row of ``x`` reshaped to broadcast with it."""
    if value.rank != 1 or value.shape == (1,):
        return value
    return call.reshape(value, [*([1] * (x.rank - 2)), value.shape[0], 1])


@op("QLinearConv", nnef="cast, sub, mul, conv, round_even, clamp", inputs=9, attrs=CONV)
def qlinear_conv(call: OnnxCall) -> Value:
    x = dequantize(call, call[0], call[1], call[2])
    weights = call[3]
    scale, zero = (_channel(call, call[i], weights) for i in (4, 5))
    weights = dequantize(call, weights, scale, zero)
    bias = call.emit.value(0.0)
    if call.has(8):
        of_x, of_weights = (call.reshape(call[i], [int(np.prod(call[i].shape))]) for i in (1, 4))
        bias = call.zip("mul", call.zip("mul", call.scalar(call[8]), of_weights), of_x)
        bias = call.unsqueeze(bias, [0])
    y = convolve(call, x, weights, bias)
    return quantize(call, y, call[6], call[7], call[7].dtype)


def _channel(call: OnnxCall, value: Value, weights: Value) -> Value:
    """Returns a vector with a number per output channel reshaped to broadcast with weights."""
    if value.rank != 1 or value.shape == (1,):
        return value
    return call.reshape(value, [value.shape[0], *[1] * (weights.rank - 1)])
