"""Imports activations."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cml_engine.formats.onnx.attributes import one_of
from cml_engine.formats.onnx.call import OnnxCall
from cml_engine.formats.onnx.op_schemas import MICROSOFT, ML, op
from cml_engine.formats.onnx.values import Value

_SQRT_2_OVER_PI = float(np.sqrt(2 / np.pi))


def _plain(name: str, **attrs: str) -> Callable[[OnnxCall], Value]:
    """Returns a conversion of a node with one input to the NNEF operator ``name``.

    Keywords map NNEF's attributes to ONNX's.
    """

    def form(call: OnnxCall) -> Value:
        given = {key: call.attr(value) for key, value in attrs.items()}
        return call.op(name, call[0], **given)

    return form


op("Sigmoid", nnef="sigmoid")(_plain("sigmoid"))
op("Softplus", nnef="softplus")(_plain("softplus"))
op("LeakyRelu", nnef="leaky_relu", attrs={"alpha": 0.01})(_plain("leaky_relu", alpha="alpha"))
op("Elu", nnef="elu", attrs={"alpha": 1.0})(_plain("elu", alpha="alpha"))
op(
    "Selu",
    nnef="selu",
    attrs={"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875},
)(lambda call: call.op("selu", call[0], alpha=call.attr("alpha"), **{"lambda": call.attr("gamma")}))


@op("Relu", nnef="relu, int_max")
def relu(call: OnnxCall) -> Value:
    if call[0].kind == "integer":
        return call.op("int_max", call[0], 0).typed(call[0].dtype)
    return call.op("relu", call[0])


@op("PRelu", nnef="prelu, leaky_relu", inputs=2)
def prelu(call: OnnxCall) -> Value:
    x, slope = call[0], call[1]
    if x.kind == "integer":
        scaled = call.zip("int_mul", x, slope)
        return call.zip("select", call.op("int_lt", x, 0), scaled, x).typed(x.dtype)
    return call.zip("prelu", x, slope)


@op("HardSigmoid", nnef="mul, add, clamp", attrs={"alpha": 0.2, "beta": 0.5})
def hard_sigmoid(call: OnnxCall) -> Value:
    return _line(call, call[0], call.attr("alpha"), call.attr("beta"))


def _line(call: OnnxCall, x: Value, alpha: float, beta: float) -> Value:
    return call.op("clamp", call.op("add", call.op("mul", x, alpha), beta), 0.0, 1.0)


@op("HardSwish", nnef="mul, add, clamp")
def hard_swish(call: OnnxCall) -> Value:
    return call.op("mul", call[0], _line(call, call[0], 1 / 6, 0.5))


@op("Mish", nnef="softplus, tanh, mul")
def mish(call: OnnxCall) -> Value:
    return call.op("mul", call[0], call.op("tanh", call.op("softplus", call[0])))


@op("Gelu", nnef="gelu_erf; or mul, tanh, add", attrs={"approximate": one_of("none", "tanh")})
def gelu(call: OnnxCall) -> Value:
    if call.attr("approximate") == "none":
        return call.op("gelu_erf", call[0])
    return gelu_tanh(call, call[0])


def gelu_tanh(call: OnnxCall, x: Value) -> Value:
    """Adds operators for gelu's approximation by tanh and returns the result.

    It is x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
    """
    inner = call.op("add", call.op("mul", call.op("sqr", x), 0.044715), 1.0)
    angle = call.op("mul", call.op("mul", x, inner), _SQRT_2_OVER_PI)
    return call.op("mul", call.op("mul", x, 0.5), call.op("add", call.op("tanh", angle), 1.0))


@op("Swish", nnef="silu; or mul, sigmoid", attrs={"alpha": 1.0})
@op("QuickGelu", nnef="silu; or mul, sigmoid", attrs={"alpha": 1.702}, domain=MICROSOFT)
def swish(call: OnnxCall) -> Value:
    return swish_of(call, call[0], call.attr("alpha"))


def swish_of(call: OnnxCall, x: Value, alpha: float) -> Value:
    if alpha == 1.0:
        return call.op("silu", x)
    return call.op("mul", x, call.op("sigmoid", call.op("mul", x, alpha)))


@op("SwiGLU", nnef="silu, mul", inputs=2, attrs={"alpha": 1.0})
def swiglu(call: OnnxCall) -> Value:
    return call.zip("mul", swish_of(call, call[0], call.attr("alpha")), call[1])


@op("Celu", nnef="mul, elu", attrs={"alpha": 1.0})
def celu(call: OnnxCall) -> Value:
    """Imports Celu as the elu of x / alpha, times alpha."""
    alpha = call.attr("alpha")
    scaled = call.op("elu", call.op("mul", call[0], 1 / alpha), alpha=1.0)
    return call.op("mul", scaled, alpha)


@op("Softsign", nnef="abs, add, div")
def softsign(call: OnnxCall) -> Value:
    return call.op("div", call[0], call.op("add", call.op("abs", call[0]), 1.0))


@op("ThresholdedRelu", nnef="gt, select", attrs={"alpha": 1.0})
def thresholded_relu(call: OnnxCall) -> Value:
    above = call.op("gt", call[0], float(call.attr("alpha")))
    return call.op("select", above, call[0], 0.0)


@op("Shrink", nnef="lt, gt, add, sub, select", attrs={"bias": 0.0, "lambd": 0.5})
def shrink(call: OnnxCall) -> Value:
    x, bias, bound = call.scalar(call[0]), call.attr("bias"), call.attr("lambd")
    above = call.op("select", call.op("gt", x, bound), call.op("sub", x, bias), 0.0)
    below = call.op("select", call.op("lt", x, -bound), call.op("add", x, bias), above)
    return call.cast(below, call[0].kind).typed(call[0].dtype)


# -- over an axis --------------------------------------------------------------------------------


def _softmax(call: OnnxCall) -> Callable[[Value, list[int]], Value]:
    return lambda x, axes: call.op("softmax", x, axes=axes)


def log_softmax(call: OnnxCall) -> Callable[[Value, list[int]], Value]:
    """Returns a function that adds operators for x - max - log(sum(exp(x - max))) over axes.

    It takes a value and axes. The result stays finite where the softmax is 0.
    """

    def of(x: Value, axes: list[int]) -> Value:
        even = call.op("sub", x, call.op("max_reduce", x, axes=axes))
        total = call.op("sum_reduce", call.op("exp", even), axes=axes)
        return call.op("sub", even, call.op("log", total))

    return of


def _hardmax(call: OnnxCall) -> Callable[[Value, list[int]], Value]:
    """Returns a function that adds operators for Hardmax: 1 at the first maximum and 0 elsewhere.

    It takes a value and axes.
    """

    def of(x: Value, axes: list[int]) -> Value:
        sizes = [x.shape[a] for a in axes]
        outer = [n for a, n in enumerate(x.shape) if a not in axes]
        order = [*(a for a in range(x.rank) if a not in axes), *axes]
        flat = call.reshape(call.transpose(x, order), [*outer, int(np.prod(sizes))])
        best = call.op("argmax_reduce", flat, axes=[flat.rank - 1])
        places = np.arange(flat.shape[-1]).reshape([1] * (flat.rank - 1) + [-1])
        hit = call.op("int_eq", Value.known(places), best)
        hot = call.reshape(call.op("select", hit, 1.0, 0.0), [x.shape[a] for a in order])
        return call.transpose(hot, np.argsort(order).tolist())

    return of


_Over = Callable[[OnnxCall], Callable[[Value, list[int]], Value]]


def _together(make: _Over) -> Callable[[OnnxCall], Value]:
    """Returns the conversion for opsets before 13, which reduces several axes at once by ``make``.

    They are all axes from the attribute ``axis`` on.
    """

    def form(call: OnnxCall) -> Value:
        axis = call.axis(call.attr("axis"), call[0].rank)
        return make(call)(call[0], list(range(axis, call[0].rank)))

    return form


def _alone(make: _Over) -> Callable[[OnnxCall], Value]:
    return lambda call: make(call)(call[0], [call.axis(call.attr("axis"), call[0].rank)])


for _name, _nnef, _make in (
    ("Softmax", "softmax", _softmax),
    ("LogSoftmax", "max_reduce, sub, exp, sum_reduce, log", log_softmax),
    ("Hardmax", "argmax_reduce, int_eq, select", _hardmax),
):
    op(_name, nnef=_nnef, attrs={"axis": 1}, until=12)(_together(_make))
    op(_name, nnef=_nnef, attrs={"axis": -1}, since=13)(_alone(_make))


@op("FastGelu", nnef="add, mul, tanh", inputs=2, domain=MICROSOFT)
def fast_gelu(call: OnnxCall) -> Value:
    x = call.zip("add", call[0], call[1]) if call.has(1) else call[0]
    return gelu_tanh(call, x)


@op("Gelu", nnef="gelu_erf", domain=MICROSOFT)
def microsoft_gelu(call: OnnxCall) -> Value:
    return call.op("gelu_erf", call[0])


@op("Binarizer", nnef="gt, select", attrs={"threshold": 0.0}, domain=ML)
def binarizer(call: OnnxCall) -> Value:
    above = call.op("gt", call.scalar(call[0]), call.attr("threshold"))
    return call.cast(call.op("select", above, 1.0, 0.0), call[0].kind).typed(call[0].dtype)
