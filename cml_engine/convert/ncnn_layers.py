"""What each ncnn layer is in NNEF operators; the numbers are ncnn's parameter ids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cml_engine.convert import ncnn_moves as moves
from cml_engine.convert.conversion import MISSING, Conversion, pair
from cml_engine.convert.ncnn_files import Layer
from cml_engine.errors import InputError

#: "Same" padding, the odd pixel at the end or at the start.
_SAME_UPPER, _SAME_LOWER = -233, -234

# -- inputs and names --------------------------------------------------------------------------


def _input(layer: Layer, to: Conversion) -> None:
    stored = tuple(layer.whole(key) for key in (2, 1, 0))
    shape = to.shape or ((1, *stored) if all(n > 0 for n in stored) else None)
    if shape is None:
        message = f"{layer.source}: the file does not hold the input's size: give --shape 1,3,H,W"
        raise InputError(message)
    if len(shape) != 4:
        raise InputError(f"the shape {shape} has {len(shape)} numbers: wanted 4, like 1,3,64,64")
    to.put(layer, to.builder.input(layer.outputs[0], shape), rank=4)


def _memory_data(layer: Layer, to: Conversion) -> None:
    extents = [n for n in (layer.whole(2), layer.whole(1), layer.whole(0)) if n]
    if any(n < 0 for n in extents):
        raise layer.damaged(f"the shape {extents}")
    values = to.weights.raw(int(np.prod(extents, dtype=object)), layer)
    name = to.builder.variable(layer.name, values.reshape(1, *extents))
    to.put(layer, name, rank=1 + len(extents))


def _alias(layer: Layer, to: Conversion, x: str) -> None:
    to.put(layer, *[x] * len(layer.outputs))


def _dropout(layer: Layer, to: Conversion, x: str) -> None:
    scale = layer.number(0, 1.0)
    if scale != 1.0:
        x = to.builder.node("mul", [x, to.builder.literal(scale)], layer.outputs[0])
    to.put(layer, x)


# -- products ----------------------------------------------------------------------------------


def _convolution(layer: Layer, to: Conversion, x: str) -> None:
    groups = layer.whole(7, 1) if layer.type == "ConvolutionDepthWise" else 1
    count, kernel = _kernel(layer)
    per_group = _fits(layer, layer.whole(6), count * kernel[0] * kernel[1], "weights")
    weights = to.weights.flagged(layer.whole(6), layer).reshape(count, per_group, *kernel)
    inputs = [x, to.builder.variable(f"{layer.name}_filter", weights), _bias(layer, to, count)]
    attrs = _window(layer, groups)
    to.put(layer, _activated(layer, to, "conv", inputs, **attrs), rank=4)


def _deconvolution(layer: Layer, to: Conversion, x: str) -> None:
    groups = layer.whole(7, 1) if layer.type == "DeconvolutionDepthWise" else 1
    count, kernel = _kernel(layer)
    if any(layer.whole(key) > 0 for key in (20, 21)):
        raise layer.unsupported("a fixed output size")
    per_group = _fits(layer, layer.whole(6), count * kernel[0] * kernel[1], "weights")
    _fits(layer, count, groups, "outputs")
    weights = to.weights.flagged(layer.whole(6), layer)
    weights = weights.reshape(groups, count // groups, per_group, *kernel).swapaxes(1, 2)
    weights = weights.reshape(groups * per_group, count // groups, *kernel)
    inputs = [x, to.builder.variable(f"{layer.name}_filter", weights), _bias(layer, to, count)]
    attrs = _window(layer, groups)
    if not attrs["padding"]:
        raise layer.unsupported("automatic padding")
    (top, bottom), (left, right) = attrs["padding"]
    attrs["padding"] = [(top, bottom - layer.whole(19)), (left, right - layer.whole(18))]
    to.put(layer, _activated(layer, to, "deconv", inputs, **attrs), rank=4)


def _inner_product(layer: Layer, to: Conversion, x: str) -> None:
    count = layer.whole(0)
    width = _fits(layer, layer.whole(2), count, "weights")
    if layer.whole(8):
        raise layer.unsupported("int8 weights")
    weights = to.weights.flagged(layer.whole(2), layer).reshape(count, width)
    bias = _bias(layer, to, count, key=1)
    if to.rank(layer) > 2:
        x = to.flattened(x, f"{layer.outputs[0]}_flat")
    inputs = [x, to.builder.variable(f"{layer.name}_filter", weights), bias]
    to.put(layer, _activated(layer, to, "linear", inputs), rank=2)


def _kernel(layer: Layer) -> tuple[int, tuple[int, int]]:
    """The output channels, and the kernel's height and width."""
    if layer.whole(8):
        raise layer.unsupported("int8 weights")
    count, width = layer.whole(0), layer.whole(1)
    kernel = (layer.whole(11, width), width)
    if count <= 0 or min(kernel) <= 0:
        raise layer.damaged(f"{count} outputs of kernel {kernel}")
    return count, kernel


def _fits(layer: Layer, count: int, unit: int, what: str) -> int:
    if unit <= 0 or count <= 0 or count % unit:
        raise layer.damaged(f"{count} {what} are no multiple of {unit}")
    return count // unit


def _bias(layer: Layer, to: Conversion, count: int, key: int = 5) -> str:
    if not layer.whole(key):
        return to.builder.literal(0.0)
    return to.builder.variable(f"{layer.name}_bias", to.weights.raw(count, layer)[None])


def _window(layer: Layer, groups: int) -> dict[str, Any]:
    """The attributes that convolution and deconvolution share."""
    if layer.type.startswith("Conv") and (layer.number(18) or layer.whole(19)):
        raise layer.unsupported("padding with a value, or weights that are computed")
    left = layer.whole(4)
    top = layer.whole(14, left)
    if left == _SAME_LOWER:
        raise layer.unsupported("padding with the odd pixel at the start")
    padding = [(top, layer.whole(16, top)), (left, layer.whole(15, left))]
    return {
        "padding": [] if left == _SAME_UPPER else padding,
        "stride": pair(layer, 3, 13),
        "dilation": pair(layer, 2, 12),
        "groups": groups,
    }


def _activated(layer: Layer, to: Conversion, op: str, inputs: list[str], **attrs: Any) -> str:
    """An operator, and the activation that ncnn has fused to it (9 and 10)."""
    kind, params = layer.whole(9), layer.values(10)
    output = layer.outputs[0]
    if kind == 0:
        return to.builder.node(op, inputs, output, **attrs)
    x = to.builder.node(op, inputs, f"{output}_{op}", **attrs)
    if kind == 1:
        return to.builder.node("relu", [x], output)
    if kind == 2 and len(params) == 1:
        return to.builder.node("leaky_relu", [x], output, alpha=float(params[0]))
    if kind == 3 and len(params) == 2:
        return to.builder.node("clamp", [x, *map(to.builder.literal, params)], output)
    if kind == 4:
        return to.builder.node("sigmoid", [x], output)
    raise layer.unsupported(f"the activation {kind} with {len(params)} parameters")


# -- elementwise -------------------------------------------------------------------------------


def _relu(layer: Layer, to: Conversion, x: str) -> None:
    slope = layer.number(0)
    if slope == 0:
        to.put(layer, to.builder.node("relu", [x], layer.outputs[0]))
    else:
        to.put(layer, to.builder.node("leaky_relu", [x], layer.outputs[0], alpha=slope))


def _prelu(layer: Layer, to: Conversion, x: str) -> None:
    slopes = to.weights.raw(layer.whole(0), layer)
    alpha = to.builder.variable(f"{layer.name}_alpha", slopes[None])
    to.put(layer, to.builder.node("prelu", [x, alpha], layer.outputs[0]))


def _clip(layer: Layer, to: Conversion, x: str) -> None:
    low, high = (to.builder.literal(layer.number(key)) for key in (0, 1))
    to.put(layer, to.builder.node("clamp", [x, low, high], layer.outputs[0]))


def _unary(op: str) -> Convert:
    def convert(layer: Layer, to: Conversion, x: str) -> None:
        to.put(layer, to.builder.node(op, [x], layer.outputs[0]))

    return convert


def _unary_op(layer: Layer, to: Conversion, x: str) -> None:
    _unary(_choice(layer, _UNARY))(layer, to, x)


def _binary_op(layer: Layer, to: Conversion, *inputs: str) -> None:
    op, operands = _choice(layer, _BINARY), list(inputs)
    if layer.whole(1):
        operands.append(to.builder.literal(layer.number(2)))
    if len(operands) != 2:
        raise layer.damaged(f"{len(inputs)} inputs")
    if op.startswith("r"):
        op, operands = op[1:], operands[::-1]
    to.put(layer, to.builder.node(op, operands, layer.outputs[0]))


def _eltwise(layer: Layer, to: Conversion, *inputs: str) -> None:
    op, coefficients = _choice(layer, ("mul", "add", "max")), layer.values(1)
    if len(inputs) < 2 or (coefficients and len(coefficients) != len(inputs)):
        raise layer.damaged(f"{len(inputs)} inputs, {len(coefficients)} coefficients")
    operands = list(inputs)
    if op == "add" and coefficients:
        operands = [_scaled(layer, to, x, c) for x, c in zip(inputs, coefficients, strict=True)]
    result, output = operands[0], layer.outputs[0]
    for operand in operands[1:-1]:
        result = to.builder.node(op, [result, operand], f"{output}_{op}")
    to.put(layer, to.builder.node(op, [result, operands[-1]], output))


def _scaled(layer: Layer, to: Conversion, x: str, factor: float) -> str:
    if factor == 1:
        return x
    return to.builder.node("mul", [x, to.builder.literal(factor)], f"{layer.outputs[0]}_scaled")


def _choice(layer: Layer, ops: tuple[str, ...]) -> str:
    kind = layer.whole(0)
    if not 0 <= kind < len(ops):
        raise layer.unsupported(f"operation {kind}")
    return ops[kind]


# -- normalisation -----------------------------------------------------------------------------


def _batch_norm(layer: Layer, to: Conversion, x: str) -> None:
    names = ("scale", "mean", "variance", "offset")
    values = {name: to.weights.raw(layer.whole(0), layer)[None] for name in names}
    tensors = {n: to.builder.variable(f"{layer.name}_{n}", v) for n, v in values.items()}
    inputs = [x, *(tensors[name] for name in ("mean", "variance", "offset", "scale"))]
    epsilon = layer.number(1)
    to.put(layer, to.builder.node("batch_normalization", inputs, layer.outputs[0], epsilon=epsilon))


def _scale(layer: Layer, to: Conversion, x: str) -> None:
    count = layer.whole(0)
    if count == MISSING:
        raise layer.unsupported("a scale that is computed")
    scale = to.builder.variable(f"{layer.name}_scale", to.weights.raw(count, layer)[None])
    output = layer.outputs[0]
    if not layer.whole(1):
        to.put(layer, to.builder.node("mul", [x, scale], output))
        return
    bias = to.builder.variable(f"{layer.name}_bias", to.weights.raw(count, layer)[None])
    scaled = to.builder.node("mul", [x, scale], f"{output}_mul")
    to.put(layer, to.builder.node("add", [scaled, bias], output))


def _softmax(layer: Layer, to: Conversion, x: str) -> None:
    axis = to.axis(layer.whole(0), layer)
    to.put(layer, to.builder.node("softmax", [x], layer.outputs[0], axes=[axis]))


Convert = Callable[..., None]

_BINARY = ("add", "sub", "mul", "div", "max", "min", "pow", "rsub", "rdiv")
_UNARY = (
    "abs", "neg", "floor", "ceil", "sqr", "sqrt", "rsqrt", "exp", "log",
    "sin", "cos", "tan", "asin", "acos", "atan", "rcp", "tanh",
)  # fmt: skip

LAYERS: dict[str, Convert] = {
    "BatchNorm": _batch_norm,
    "BinaryOp": _binary_op,
    "Clip": _clip,
    "Concat": moves.concat,
    "Convolution": _convolution,
    "ConvolutionDepthWise": _convolution,
    "Crop": moves.crop,
    "Deconvolution": _deconvolution,
    "DeconvolutionDepthWise": _deconvolution,
    "Dropout": _dropout,
    "Eltwise": _eltwise,
    "Flatten": moves.flatten,
    "InnerProduct": _inner_product,
    "Input": _input,
    "Interp": moves.interp,
    "MemoryData": _memory_data,
    "Noop": _alias,
    "PReLU": _prelu,
    "Padding": moves.padding,
    "PixelShuffle": moves.pixel_shuffle,
    "Pooling": moves.pooling,
    "ReLU": _relu,
    "Reshape": moves.reshape,
    "Scale": _scale,
    "Sigmoid": _unary("sigmoid"),
    "Slice": moves.slice,
    "Softmax": _softmax,
    "Split": _alias,
    "TanH": _unary("tanh"),
    "UnaryOp": _unary_op,
}
