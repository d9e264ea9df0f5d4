"""Imports convolutions."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from cml_engine.formats.onnx.attributes import FLOATS, INTS, Attr, at_least, per_axis
from cml_engine.formats.onnx.call import OnnxCall
from cml_engine.formats.onnx.op_schemas import MICROSOFT, op
from cml_engine.formats.onnx.operators.matrix import subtract_zero_point
from cml_engine.formats.onnx.operators.windows import (
    WINDOW,
    explicit_padding,
    halves,
    window,
)
from cml_engine.formats.onnx.values import Value

CONV = {**WINDOW, "group": at_least(1, 1), "kernel_shape": per_axis(1)}


@op("Conv", nnef="conv", inputs=3, attrs=CONV)
def conv(call: OnnxCall) -> Value:
    return convolve(call, call[0], call[1], find_bias(call, 2))


def find_bias(call: OnnxCall, position: int) -> Value:
    """Returns the bias at input ``position`` as [1, C], or 0 if the node has none."""
    if not call.has(position):
        return call.emit.value(0.0)
    return call.unsqueeze(call[position], [0])


def convolve(call: OnnxCall, x: Value, weights: Value, bias: Value) -> Value:
    if x.rank < 3 or weights.rank != x.rank:
        raise call.shape_error(f"a convolution of {x} with {weights}")
    shape = window(call, x.shape[2:], list(weights.shape[2:]))
    given = call.attr("kernel_shape")
    if given is not None and tuple(given) != weights.shape[2:]:
        raise call.shape_error(f"kernel_shape {given}, and weights {weights}")
    return call.op(
        "conv",
        x,
        weights,
        bias,
        border="constant",
        padding=shape.padding,
        stride=shape.stride,
        dilation=shape.dilation,
        groups=call.attr("group"),
    )


@op(
    "ConvTranspose",
    nnef="deconv",
    inputs=3,
    attrs={**CONV, "output_padding": per_axis(0, 0), "output_shape": INTS},
)
def conv_transpose(call: OnnxCall) -> Value:
    x, weights = call[0], call[1]
    if x.rank < 3 or weights.rank != x.rank:
        raise call.shape_error(f"a convolution of {x} with {weights}")
    stride, dilation, extra = (call.attr(k) for k in ("strides", "dilations", "output_padding"))
    reach = [(k - 1) * d + 1 for k, d in zip(weights.shape[2:], dilation, strict=True)]
    full = [(n - 1) * s + r for n, s, r in zip(x.shape[2:], stride, reach, strict=True)]
    padding = _up_padding(call, full, stride, extra)
    # a negative crop pads the full result
    result = call.op(
        "deconv",
        x,
        weights,
        find_bias(call, 2) if all(a >= 0 and b >= 0 for a, b in padding) else 0.0,
        border="constant",
        padding=[(max(a, 0), max(b, 0)) for a, b in padding],
        stride=list(stride),
        dilation=list(dilation),
        groups=call.attr("group"),
    )
    if all(a >= 0 and b >= 0 for a, b in padding):
        return result
    sides = [(0, 0), (0, 0), *((max(-a, 0), max(-b, 0)) for a, b in padding)]
    padded = call.op("pad", result, padding=sides, border="constant", value=0.0)
    return call.op("add", padded, find_bias(call, 2)) if call.has(2) else padded


def _up_padding(
    call: OnnxCall, full: list[int], stride: list[int], extra: list[int]
) -> list[tuple[int, int]]:
    """Returns the numbers of elements cropped at each side of a deconvolution's full result.

    ``full`` is the size without padding. ``extra`` is the output padding, which reduces the crop
    at the end.
    """
    wanted, mode = call.attr("output_shape"), call.attr("auto_pad")
    if wanted is not None:
        wanted = wanted[-len(full) :]
        totals = [f + e - w for f, e, w in zip(full, extra, wanted, strict=True)]
    elif mode in ("SAME_UPPER", "SAME_LOWER"):
        extents = [n * s for n, s in zip(call[0].shape[2:], stride, strict=True)]
        totals = [f + e - w for f, e, w in zip(full, extra, extents, strict=True)]
    else:
        sides = explicit_padding(call)
        return [(a, b - e) for (a, b), e in zip(sides, extra, strict=True)]
    upper = mode != "SAME_LOWER" if wanted is None else mode == "SAME_UPPER"
    split = [halves(total, upper) for total in totals]
    return [(a, b - e) for (a, b), e in zip(split, extra, strict=True)]


@op("ConvInteger", nnef="int_sub, int_conv", inputs=4, attrs=CONV)
def conv_integer(call: OnnxCall) -> Value:
    x, weights = call[0], call[1]
    if call.has(2):
        x = subtract_zero_point(call, x, call[2])
    if call.has(3):
        zero, rank = call[3], weights.rank
        each = call.reshape(zero, [zero.shape[0], *[1] * (rank - 1)]) if zero.rank else zero
        weights = subtract_zero_point(call, weights, each)
    shape = window(call, x.shape[2:], list(weights.shape[2:]))
    y = call.op(
        "int_conv",
        x,
        weights,
        padding=shape.padding,
        stride=shape.stride,
        dilation=shape.dilation,
        groups=call.attr("group"),
    )
    return y.typed(np.int32)


_DEFORM = {**{k: v for k, v in CONV.items() if k != "auto_pad"}, "offset_group": at_least(1, 1)}


@op("DeformConv", nnef="deform_columns, conv", inputs=5, attrs=_DEFORM)
def deform_conv(call: OnnxCall) -> Value:
    x, weights = call[0], call[1]
    rank = x.rank - 2
    columns = call.op(
        "deform_columns",
        x,
        call[2],
        call.get(4, 1.0),
        size=list(weights.shape[2:]),
        padding=explicit_padding(call),
        stride=call.attr("strides"),
        dilation=call.attr("dilations"),
        offset_groups=call.attr("offset_group"),
    )
    flat = call.reshape(weights, [weights.shape[0], int(np.prod(weights.shape[1:])), 1, 1])
    return call.op(
        "conv",
        columns,
        flat,
        find_bias(call, 3),
        border="constant",
        padding=[(0, 0)] * rank,
        stride=[1] * rank,
        dilation=[1] * rank,
        groups=call.attr("group"),
    )


def _of_image(attr: Attr, times: int = 1) -> Attr:
    """Returns a copy of the attribute with ``times`` entries per image axis.

    The second input's values are the image's extents, so its length is the number of axes.
    """
    return replace(attr, count=lambda node: times * math.prod(node[1].shape))


_COL2IM = {
    "dilations": _of_image(per_axis(1, 1)),
    "pads": _of_image(per_axis(0, 0), times=2),
    "strides": _of_image(per_axis(1, 1)),
}


@op("Col2Im", nnef="col2im", inputs=3, attrs=_COL2IM)
def col2im(call: OnnxCall) -> Value:
    extents, size = call.ints(1, "the image's shape"), call.ints(2, "the block's shape")
    return call.op(
        "col2im",
        call[0],
        output_size=extents,
        size=size,
        padding=explicit_padding(call),
        stride=call.attr("strides"),
        dilation=call.attr("dilations"),
    )


_FUSED = {**CONV, "activation": "", "activation_params": FLOATS}


@op("FusedConv", nnef="conv, and its activation", inputs=4, attrs=_FUSED, domain=MICROSOFT)
def fused_conv(call: OnnxCall) -> Value:
    result = convolve(call, call[0], call[1], find_bias(call, 2))
    if call.has(3):
        result = call.zip("add", result, call[3])
    return apply_activation(
        call, result, call.attr("activation"), call.attr("activation_params") or []
    )


def apply_activation(call: OnnxCall, x: Value, name: str, params: list[float]) -> Value:
    """Adds the activation with the given ONNX name and parameters, and returns its result.

    Fused and recurrent operators name activations by an attribute; "" is none.
    """
    name = name.lower()
    if name in ("", "relu", "sigmoid", "tanh", "softplus", "softsign"):
        if name == "softsign":
            return call.op("div", x, call.op("add", call.op("abs", x), 1.0))
        return call.op(name, x) if name else x
    if name == "leakyrelu":
        return call.op("leaky_relu", x, alpha=params[0] if params else 0.01)
    if name == "elu":
        return call.op("elu", x, alpha=params[0] if params else 1.0)
    if name == "clip":
        return call.op("clamp", x, float(params[0]), float(params[1]))
    if name == "affine":
        return call.op("add", call.op("mul", x, params[0]), params[1])
    if name == "hardsigmoid":
        alpha, beta = params or [0.2, 0.5]
        return call.op("clamp", call.op("add", call.op("mul", x, alpha), beta), 0.0, 1.0)
    if name == "thresholdedrelu":
        bound = params[0] if params else 1.0
        return call.op("select", call.op("gt", x, bound), x, 0.0)
    if name == "scaledtanh":
        return call.op("mul", call.op("tanh", call.op("mul", x, params[1])), params[0])
    raise call.unsupported_error(f"the activation '{name}'")
