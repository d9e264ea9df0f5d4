"""Converts activations, both as separate layers and as part of another layer (parameters 9, 10)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from cml_engine.formats.ncnn.conversion import Conversion
from cml_engine.formats.ncnn.layer_types import Convert, converts
from cml_engine.formats.ncnn.param import NcnnLayer

#: An activation with its parameters: ``make(to, x, *parameters)``.
Make: TypeAlias = Callable[..., str]

#: Bounds beyond this count as infinite: ncnn writes its largest number for a missing bound.
_UNBOUNDED = 3.4e38


def relu(graph: Conversion, x: str, slope: float = 0.0) -> str:
    return graph.op("leaky_relu", x, alpha=slope) if slope else graph.op("relu", x)


def clip(graph: Conversion, x: str, low: float, high: float) -> str:
    """Adds operators that clamp ``x`` to two bounds, one or both of which may be infinite.

    If the bounds are in the wrong order, the upper bound takes precedence. Returns the result's
    name.
    """
    if low > high:
        return graph.op("min", graph.op("max", x, low), high)
    if low > -_UNBOUNDED and high < _UNBOUNDED:
        return graph.op("clamp", x, low, high)
    if low > -_UNBOUNDED:
        return graph.op("max", x, low)
    return graph.op("min", x, high) if high < _UNBOUNDED else x


def sigmoid(graph: Conversion, x: str) -> str:
    return graph.op("sigmoid", x)


def mish(graph: Conversion, x: str) -> str:
    return graph.op("mul", x, graph.op("tanh", graph.op("softplus", x)))


def hard_sigmoid(graph: Conversion, x: str, alpha: float, beta: float) -> str:
    return graph.op("clamp", graph.op("add", graph.op("mul", x, alpha), beta), 0.0, 1.0)


def hard_swish(graph: Conversion, x: str, alpha: float, beta: float) -> str:
    return graph.op("mul", x, hard_sigmoid(graph, x, alpha, beta))


#: The function and its number of parameters, by ncnn's activation number.
_FUSED: dict[int, tuple[Make, int]] = {
    1: (relu, 0),
    2: (relu, 1),
    3: (clip, 2),
    4: (sigmoid, 0),
    5: (mish, 0),
    6: (hard_swish, 2),
}


def apply_activation(layer: NcnnLayer, graph: Conversion, x: str) -> str:
    """Adds the activation that a layer states for its result ``x``.

    Returns the new result's name.
    """
    kind, params = layer.integer(9), [float(value) for value in layer.values(10)]
    if kind == 0:
        return x
    make, count = _FUSED.get(kind, (relu, 0))
    if kind not in _FUSED or len(params) < count:
        raise layer.unsupported_error(f"the activation {kind} with {len(params)} parameters")
    return make(graph, x, *params[:count])


def _plain(op: str) -> Convert:
    def convert(layer: NcnnLayer, graph: Conversion, x: str) -> str:
        return graph.op(op, x)

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
    converts(_name)(_plain(_op))


@converts("ReLU", params="0")
def _relu(layer: NcnnLayer, graph: Conversion, x: str) -> str:
    return relu(graph, x, layer.number(0))


@converts("PReLU", params="0")
def _prelu(layer: NcnnLayer, graph: Conversion, x: str) -> str:
    count = layer.integer(0)
    if count not in (1, graph.extents(x)[0]):
        raise layer.damaged_error(f"{count} slopes for {graph.extents(x)[0]} channels")
    return graph.op("prelu", x, graph.raw(count, "alpha"))


@converts("Clip", params="0-1")
def _clip(layer: NcnnLayer, graph: Conversion, x: str) -> str:
    return clip(graph, x, layer.number(0, -math.inf), layer.number(1, math.inf))


@converts("ELU", params="0")
def _elu(layer: NcnnLayer, graph: Conversion, x: str) -> str:
    return graph.op("elu", x, alpha=layer.number(0, 0.1))


@converts("CELU", params="0")
def _celu(layer: NcnnLayer, graph: Conversion, x: str) -> str:
    alpha = layer.number(0, 1.0)
    return graph.op("mul", graph.op("elu", graph.op("div", x, alpha), alpha=1.0), alpha)


@converts("SELU", params="0-1")
def _selu(layer: NcnnLayer, graph: Conversion, x: str) -> str:
    alpha, factor = layer.number(0, 1.67326324), layer.number(1, 1.050700987)
    return graph.op("selu", x, **{"alpha": alpha, "lambda": factor})


@converts("GELU", params="0")
def _gelu(layer: NcnnLayer, graph: Conversion, x: str) -> str:
    if not layer.integer(0):
        return graph.op("gelu_erf", x)
    cube = graph.op("mul", graph.op("mul", graph.op("sqr", x), x), 0.044715)
    inner = graph.op("mul", graph.op("add", x, cube), 0.79788452)
    return graph.op("mul", graph.op("mul", x, 0.5), graph.op("add", graph.op("tanh", inner), 1.0))


@converts("Mish")
def _mish(layer: NcnnLayer, graph: Conversion, x: str) -> str:
    return mish(graph, x)


@converts("HardSigmoid", params="0-1")
def _hard_sigmoid(layer: NcnnLayer, graph: Conversion, x: str) -> str:
    return hard_sigmoid(graph, x, layer.number(0, 0.2), layer.number(1, 0.5))


@converts("HardSwish", params="0-1")
def _hard_swish(layer: NcnnLayer, graph: Conversion, x: str) -> str:
    return hard_swish(graph, x, layer.number(0, 0.2), layer.number(1, 0.5))


@converts("GLU", params="0")
def _glu(layer: NcnnLayer, graph: Conversion, x: str) -> str:
    axis = graph.axis(x, layer.integer(0))
    value, gate = graph.ops("split", 2, x, axis=axis, ratios=[1, 1])
    return graph.op("mul", value, graph.op("sigmoid", gate))


@converts("Shrink", params="0-1")
def _shrink(layer: NcnnLayer, graph: Conversion, x: str) -> str:
    bias, threshold = layer.number(0), layer.number(1, 0.5)
    below = graph.op("select", graph.op("lt", x, -threshold), graph.op("add", x, bias), 0.0)
    return graph.op("select", graph.op("gt", x, threshold), graph.op("sub", x, bias), below)


@converts("Threshold", params="0")
def _threshold(layer: NcnnLayer, graph: Conversion, x: str) -> str:
    return graph.op("select", graph.op("gt", x, layer.number(0)), 1.0, 0.0)


@converts("Softmax", params="0-1")
def _softmax(layer: NcnnLayer, graph: Conversion, x: str) -> str:
    return graph.op("softmax", x, axes=[graph.axis(x, layer.integer(0))])
