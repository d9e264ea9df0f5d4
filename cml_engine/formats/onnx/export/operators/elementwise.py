"""Exports elementwise operators."""

from __future__ import annotations

from math import log

import numpy as np

from cml_engine.formats.onnx.export.call import ExportCall
from cml_engine.formats.onnx.export.export_rules import rule

_SAME = {
    "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "pow": "Pow", "exp": "Exp",
    "log": "Log", "sin": "Sin", "cos": "Cos", "tan": "Tan", "asin": "Asin", "acos": "Acos",
    "atan": "Atan", "sinh": "Sinh", "cosh": "Cosh", "tanh": "Tanh", "asinh": "Asinh",
    "acosh": "Acosh", "atanh": "Atanh", "abs": "Abs", "neg": "Neg", "sign": "Sign",
    "floor": "Floor", "ceil": "Ceil", "rcp": "Reciprocal", "sqrt": "Sqrt", "lt": "Less",
    "gt": "Greater", "le": "LessOrEqual", "ge": "GreaterOrEqual", "eq": "Equal", "and": "And",
    "or": "Or", "not": "Not", "copy": "Identity", "relu": "Relu", "sigmoid": "Sigmoid",
    "softplus": "Softplus", "erf": "Erf", "round_even": "Round", "is_nan": "IsNaN",
    "is_inf": "IsInf",
}  # fmt: skip

for _name, _onnx in _SAME.items():

    @rule(_name, onnx=f"`{_onnx}`")
    def _same(c: ExportCall, op: str = _onnx) -> str:
        return c.add(op, *c.align_all())


@rule("ne", "int_ne", onnx="`Not` of `Equal`")
def _unequal(c: ExportCall) -> str:
    return c.add("Not", c.add("Equal", *c.align_all()))


@rule("select", onnx="`Where`; of truth values `And`, `Or`, `Not`")
def _select(c: ExportCall) -> str:
    condition, yes, no = c.align_all()
    if c.out.dtype != "logical":
        return c.where(condition, yes, no)
    return c.add(
        "Or", c.add("And", condition, yes), c.add("And", c.add("Not", condition), no)
    )  # fmt: skip


@rule("min", "max", onnx="`Where` of `Less` or `Greater`: of a NaN `Min` and `Max` make another")
def _extreme(c: ExportCall) -> str:
    x, y = c.align_all()
    compared = c.add("Less" if c.node.op == "min" else "Greater", x, y)
    return c.where(compared, x, y)


@rule("clamp", onnx="`Clip`; where the bounds are computed or cross, `Where` of comparisons")
def _clamp(c: ExportCall) -> str:
    low, high = c.value(1), c.value(2)
    if low is not None and high is not None and low.ndim == high.ndim == 0 and low <= high:
        return c.add("Clip", *c.tensors)
    x, a, b = c.align_all()
    x = c.where(c.add("Greater", x, b), b, x)
    return c.where(c.add("Less", x, a), a, x)


@rule("round", onnx="`Floor`, one more from halves on", function=True)
def _round(c: ExportCall) -> str:
    low = c.add("Floor", c.x)
    up = c.add("GreaterOrEqual", c.add("Sub", c.x, low), c.real(0.5))
    return c.where(up, c.add("Add", low, c.real(1.0)), low)


@rule("sqr", onnx="`Mul`")
def _square(c: ExportCall) -> str:
    return c.add("Mul", c.x, c.x)


@rule("rsqr", onnx="`Reciprocal` of `Mul`")
def _per_square(c: ExportCall) -> str:
    return c.add("Reciprocal", _square(c))


@rule("rsqrt", onnx="`Reciprocal` of `Sqrt`")
def _per_root(c: ExportCall) -> str:
    return c.add("Reciprocal", c.add("Sqrt", c.x))


@rule("log2", onnx="`Log`, `Mul`")
def _log2(c: ExportCall) -> str:
    return c.add("Mul", c.add("Log", c.x), c.real(1 / log(2)))


@rule("leaky_relu", "elu", onnx="`LeakyRelu`, `Elu`")
def _leaky(c: ExportCall) -> str:
    op = "Elu" if c.node.op == "elu" else "LeakyRelu"
    return c.add(op, c.x, alpha=float(c.attrs.alpha))


@rule("prelu", onnx="`PRelu`; where the slopes are of a larger shape `Where`, `Less`, `Mul`")
def _prelu(c: ExportCall) -> str:
    x, slopes = c.align_all()
    if c.fact(0) == c.out:
        return c.add("PRelu", x, slopes)
    return c.where(c.add("Less", x, c.real(0.0)), c.add("Mul", slopes, x), x)


@rule("selu", onnx="`Selu`")
def _selu(c: ExportCall) -> str:
    return c.add("Selu", c.x, alpha=float(c.attrs.alpha), gamma=float(c.attrs["lambda"]))


@rule("silu", onnx="`Mul`, `Sigmoid`")
def _silu(c: ExportCall) -> str:
    return c.add("Mul", c.x, c.add("Sigmoid", c.x))


@rule("gelu", onnx="`Mul`, `Sigmoid`: NNEF's is `x * sigmoid(1.702 x)`")
def _gelu(c: ExportCall) -> str:
    return c.add("Mul", c.x, c.add("Sigmoid", c.add("Mul", c.x, c.real(1.702))))


@rule("gelu_erf", onnx="`Gelu`; before opset 20 `Erf` and others")
def _gelu_erf(c: ExportCall) -> str:
    if c.opset >= 20:
        return c.add("Gelu", c.x, approximate="none")
    erf = c.add("Erf", c.add("Mul", c.x, c.real(0.5**0.5)))
    return c.add("Mul", c.add("Mul", c.x, c.real(0.5)), c.add("Add", erf, c.real(1.0)))


@rule("softabs", onnx="`Sqrt`, `Add`, `Mul`")
def _softabs(c: ExportCall) -> str:
    return c.add("Sqrt", c.add("Add", _square(c), c.real(c.attrs.epsilon)))


@rule("fmod", onnx="`Mod`")
def _fmod(c: ExportCall) -> str:
    return c.add("Mod", *c.align_all(), fmod=1)


@rule("batch_normalization", onnx="`BatchNormalization`; where the operands are not one value per "
      "channel, its formula")  # fmt: skip
def _batch_normalization(c: ExportCall) -> str:
    x, mean, variance, offset, scale = (c.fact(i) for i in range(5))
    channels = x.shape[1] if x.rank > 1 else 0
    per_channel = all(f.shape in ((1, channels), ()) for f in (mean, variance, offset, scale))
    if channels and x == c.out and per_channel and all(
        c.fact(i).rank or c.value(i) is not None for i in range(1, 5)
    ):  # fmt: skip
        operands = [_per_channel(c, i, channels) for i in (4, 3, 1, 2)]
        return c.add("BatchNormalization", c.x, *operands, epsilon=float(c.attrs.epsilon))
    aligned, mu, var, shift, factor = c.align_all()
    root = c.add("Sqrt", c.add("Add", var, c.real(c.attrs.epsilon)))
    scaled = c.add("Mul", factor, c.add("Sub", aligned, mu))
    return c.add("Add", shift, c.add("Div", scaled, root))


def _per_channel(c: ExportCall, position: int, channels: int) -> str:
    value = c.value(position)
    if value is None or value.size == channels:
        return c.tensor(position, (channels,))
    return c.constant(np.full(channels, value, np.float32))


@rule("to_bits", "from_bits", onnx="`BitCast`", since=26)
def _bits(c: ExportCall) -> str:
    return c.add("BitCast", c.x, to=6 if c.node.op == "to_bits" else 1)
