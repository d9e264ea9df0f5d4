"""Activations, as separate layers and fused to others (parameters 9 and 10)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from cml_engine.formats.ncnn.conversion import Conversion
from cml_engine.formats.ncnn.layer_types import Convert, layer
from cml_engine.formats.ncnn.param import NcnnLayer

#: An activation with its parameters: ``make(to, x, *parameters)``.
Make: TypeAlias = Callable[..., str]

#: Bounds beyond this count as infinite: ncnn writes its largest number for a missing bound.
_UNBOUNDED = 3.4e38


def relu(to: Conversion, x: str, slope: float = 0.0) -> str:
    return to.op("leaky_relu", x, alpha=slope) if slope else to.op("relu", x)


def clip(to: Conversion, x: str, low: float, high: float) -> str:
    """Clamps to two bounds, of which either may be infinite; the upper bound takes precedence."""
    if low > high:
        return to.op("min", to.op("max", x, low), high)
    if low > -_UNBOUNDED and high < _UNBOUNDED:
        return to.op("clamp", x, low, high)
    if low > -_UNBOUNDED:
        return to.op("max", x, low)
    return to.op("min", x, high) if high < _UNBOUNDED else x


def sigmoid(to: Conversion, x: str) -> str:
    return to.op("sigmoid", x)


def mish(to: Conversion, x: str) -> str:
    return to.op("mul", x, to.op("tanh", to.op("softplus", x)))


def hard_sigmoid(to: Conversion, x: str, alpha: float, beta: float) -> str:
    return to.op("clamp", to.op("add", to.op("mul", x, alpha), beta), 0.0, 1.0)


def hard_swish(to: Conversion, x: str, alpha: float, beta: float) -> str:
    return to.op("mul", x, hard_sigmoid(to, x, alpha, beta))


#: The function and its number of parameters, by ncnn's activation number.
_FUSED: dict[int, tuple[Make, int]] = {
    1: (relu, 0),
    2: (relu, 1),
    3: (clip, 2),
    4: (sigmoid, 0),
    5: (mish, 0),
    6: (hard_swish, 2),
}


def activated(one: NcnnLayer, to: Conversion, x: str) -> str:
    """Applies the activation that is fused to a layer."""
    kind, params = one.whole(9), [float(value) for value in one.values(10)]
    if kind == 0:
        return x
    make, count = _FUSED.get(kind, (relu, 0))
    if kind not in _FUSED or len(params) < count:
        raise one.unsupported(f"the activation {kind} with {len(params)} parameters")
    return make(to, x, *params[:count])


def _plain(op: str) -> Convert:
    def convert(one: NcnnLayer, to: Conversion, x: str) -> str:
        return to.op(op, x)

    return convert


for _name, _op in (
    ("AbsVal", "abs"),
    ("BNLL", "softplus"),
    ("Erf", "erf"),
    ("Sigmoid", "sigmoid"),
    ("Softplus", "softplus"),
    ("Swish", "silu"),
    ("TanH", "tanh"),
):
    layer(_name)(_plain(_op))


@layer("ReLU", params="0")
def _relu(one: NcnnLayer, to: Conversion, x: str) -> str:
    return relu(to, x, one.number(0))


@layer("PReLU", params="0")
def _prelu(one: NcnnLayer, to: Conversion, x: str) -> str:
    count = one.whole(0)
    if count not in (1, to.extents(x)[0]):
        raise one.damaged(f"{count} slopes for {to.extents(x)[0]} channels")
    return to.op("prelu", x, to.raw(count, "alpha"))


@layer("Clip", params="0-1")
def _clip(one: NcnnLayer, to: Conversion, x: str) -> str:
    return clip(to, x, one.number(0, -math.inf), one.number(1, math.inf))


@layer("ELU", params="0")
def _elu(one: NcnnLayer, to: Conversion, x: str) -> str:
    return to.op("elu", x, alpha=one.number(0, 0.1))


@layer("CELU", params="0")
def _celu(one: NcnnLayer, to: Conversion, x: str) -> str:
    alpha = one.number(0, 1.0)
    return to.op("mul", to.op("elu", to.op("div", x, alpha), alpha=1.0), alpha)


@layer("SELU", params="0-1")
def _selu(one: NcnnLayer, to: Conversion, x: str) -> str:
    alpha, factor = one.number(0, 1.67326324), one.number(1, 1.050700987)
    return to.op("selu", x, **{"alpha": alpha, "lambda": factor})


@layer("GELU", params="0")
def _gelu(one: NcnnLayer, to: Conversion, x: str) -> str:
    if not one.whole(0):
        return to.op("gelu_erf", x)
    cube = to.op("mul", to.op("mul", to.op("sqr", x), x), 0.044715)
    inner = to.op("mul", to.op("add", x, cube), 0.79788452)
    return to.op("mul", to.op("mul", x, 0.5), to.op("add", to.op("tanh", inner), 1.0))


@layer("Mish")
def _mish(one: NcnnLayer, to: Conversion, x: str) -> str:
    return mish(to, x)


@layer("HardSigmoid", params="0-1")
def _hard_sigmoid(one: NcnnLayer, to: Conversion, x: str) -> str:
    return hard_sigmoid(to, x, one.number(0, 0.2), one.number(1, 0.5))


@layer("HardSwish", params="0-1")
def _hard_swish(one: NcnnLayer, to: Conversion, x: str) -> str:
    return hard_swish(to, x, one.number(0, 0.2), one.number(1, 0.5))


@layer("GLU", params="0")
def _glu(one: NcnnLayer, to: Conversion, x: str) -> str:
    axis = to.axis(x, one.whole(0))
    value, gate = to.ops("split", 2, x, axis=axis, ratios=[1, 1])
    return to.op("mul", value, to.op("sigmoid", gate))


@layer("Shrink", params="0-1")
def _shrink(one: NcnnLayer, to: Conversion, x: str) -> str:
    bias, threshold = one.number(0), one.number(1, 0.5)
    below = to.op("select", to.op("lt", x, -threshold), to.op("add", x, bias), 0.0)
    return to.op("select", to.op("gt", x, threshold), to.op("sub", x, bias), below)


@layer("Threshold", params="0")
def _threshold(one: NcnnLayer, to: Conversion, x: str) -> str:
    return to.op("select", to.op("gt", x, one.number(0)), 1.0, 0.0)


@layer("Softmax", params="0-1")
def _softmax(one: NcnnLayer, to: Conversion, x: str) -> str:
    return to.op("softmax", x, axes=[to.axis(x, one.whole(0))])
