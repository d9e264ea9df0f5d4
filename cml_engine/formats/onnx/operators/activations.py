"""Imports activations, and the losses that exported training models contain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature

import numpy as np

from cml_engine.formats.onnx.op_schemas import MICROSOFT, ML, one_of, op
from cml_engine.formats.onnx.values import Value, add_operator, checked_axis, unsupported_error

_SQRT_2_OVER_PI = float(np.sqrt(2 / np.pi))


@op("Sigmoid", "sigmoid")
def sigmoid(x: Value) -> Value:
    return x.sigmoid()


@op("Softplus", "softplus")
def softplus(x: Value) -> Value:
    return x.softplus()


@op("LeakyRelu", "leaky_relu")
def leaky_relu(x: Value, *, alpha: float = 0.01) -> Value:
    return x.leaky_relu(alpha=alpha)


@op("Elu", "elu")
def elu(x: Value, *, alpha: float = 1.0) -> Value:
    return x.elu(alpha=alpha)


@op("Selu", "selu")
def selu(
    x: Value,
    *,
    alpha: float = 1.67326319217681884765625,
    gamma: float = 1.05070102214813232421875,
) -> Value:
    return x.selu(alpha=alpha, **{"lambda": gamma})


@op("Relu", "relu, int_max")
def relu(x: Value) -> Value:
    return x.max(0).typed(x.dtype) if x.kind == "integer" else x.relu()


@op("PRelu", "prelu, leaky_relu")
def prelu(x: Value, slope: Value) -> Value:
    if x.kind == "integer":
        return x.lt(0).select(x * slope, x).typed(x.dtype)
    return x.prelu(slope)


@op("HardSigmoid", "mul, add, clamp")
def hard_sigmoid(x: Value, *, alpha: float = 0.2, beta: float = 0.5) -> Value:
    return (x * alpha + beta).clamp(0.0, 1.0)


@op("HardSwish", "mul, add, clamp")
def hard_swish(x: Value) -> Value:
    return x * hard_sigmoid(x, alpha=1 / 6)


@op("Mish", "softplus, tanh, mul")
def mish(x: Value) -> Value:
    return x * x.softplus().tanh()


@op("Gelu", "gelu_erf; or mul, tanh, add")
def gelu(x: Value, *, approximate: str = one_of("none", "tanh")) -> Value:
    """Imports Gelu; by tanh it is x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""
    if approximate == "none":
        return x.gelu_erf()
    angle = x * (x.sqr() * 0.044715 + 1.0) * _SQRT_2_OVER_PI
    return x * 0.5 * (angle.tanh() + 1.0)


@op("Gelu", "gelu_erf", domain=MICROSOFT)
def microsoft_gelu(x: Value) -> Value:
    return x.gelu_erf()


@op("BiasGelu", "add, gelu_erf", domain=MICROSOFT)
def bias_gelu(x: Value, bias: Value) -> Value:
    return (x + bias).gelu_erf()


@op("FastGelu", "add, mul, tanh", domain=MICROSOFT)
def fast_gelu(x: Value, bias: Value | None = None) -> Value:
    return gelu(x if bias is None else x + bias, approximate="tanh")


@op("Swish", "silu; or mul, sigmoid")
def swish(x: Value, *, alpha: float = 1.0) -> Value:
    return x.silu() if alpha == 1.0 else x * (x * alpha).sigmoid()


@op("QuickGelu", "silu; or mul, sigmoid", domain=MICROSOFT)
def quick_gelu(x: Value, *, alpha: float = 1.702) -> Value:
    return swish(x, alpha=alpha)


@op("SwiGLU", "silu, mul")
def swiglu(x: Value, gate: Value, *, alpha: float = 1.0) -> Value:
    return swish(x, alpha=alpha) * gate


@op("Celu", "mul, elu")
def celu(x: Value, *, alpha: float = 1.0) -> Value:
    return (x * (1 / alpha)).elu(alpha=1.0) * alpha


@op("Softsign", "abs, add, div")
def softsign(x: Value) -> Value:
    return x / (x.abs() + 1.0)


@op("ThresholdedRelu", "gt, select")
def thresholded_relu(x: Value, *, alpha: float = 1.0) -> Value:
    return x.gt(alpha).select(x, 0.0)


@op("Shrink", "lt, gt, add, sub, select")
def shrink(x: Value, *, bias: float = 0.0, lambd: float = 0.5) -> Value:
    y = x.scalar()
    above = y.gt(lambd).select(y - bias, 0.0)
    return y.lt(-lambd).select(y + bias, above).cast(x.kind).typed(x.dtype)


@op("Binarizer", "gt, select", domain=ML)
def binarizer(x: Value, *, threshold: float = 0.0) -> Value:
    return x.scalar().gt(threshold).select(1.0, 0.0).cast(x.kind).typed(x.dtype)


#: the activations that fused and recurrent operators name: each takes some of two parameters
_NAMED: dict[str, Callable[..., Value]] = {
    "": lambda x: x,
    "relu": lambda x: x.relu(),
    "sigmoid": lambda x: x.sigmoid(),
    "tanh": lambda x: x.tanh(),
    "softplus": lambda x: x.softplus(),
    "softsign": softsign,
    "leakyrelu": lambda x, alpha=0.01: x.leaky_relu(alpha=alpha),
    "elu": lambda x, alpha=1.0: x.elu(alpha=alpha),
    "thresholdedrelu": lambda x, alpha=1.0: x.gt(alpha).select(x, 0.0),
    "hardsigmoid": lambda x, alpha=0.2, beta=0.5: hard_sigmoid(x, alpha=alpha, beta=beta),
    "clip": lambda x, low, high: x.clamp(float(low), float(high)),
    "affine": lambda x, alpha, beta: x * alpha + beta,
    "scaledtanh": lambda x, alpha, beta: (x * beta).tanh() * alpha,
}


def parameter_count(name: str) -> int:
    """Returns the number of parameters of the activation with the given ONNX name."""
    named = _NAMED.get(name.lower())
    return len(signature(named).parameters) - 1 if named else 0


def activate(x: Value, name: str, parameters: Sequence[float] = ()) -> Value:
    """Adds the activation with the given ONNX name and parameters, and returns its result.

    Fused and recurrent operators name activations by an attribute; "" is none.
    """
    if name.lower() not in _NAMED:
        raise unsupported_error(f"the activation '{name.lower()}'")
    return _NAMED[name.lower()](x, *parameters)


# -- over an axis --------------------------------------------------------------------------------


def _softmax(x: Value, axes: list[int]) -> Value:
    return x.softmax(axes=axes)


def _log_softmax(x: Value, axes: list[int]) -> Value:
    """Adds operators for x - max - log(sum(exp(x - max))), finite where the softmax is 0."""
    even = x - x.max_reduce(axes=axes)
    return even - even.exp().sum_reduce(axes=axes).log()


def _hardmax(x: Value, axes: list[int]) -> Value:
    """Adds operators for Hardmax: 1 at the first maximum and 0 elsewhere."""
    order = [*(a for a in range(x.rank) if a not in axes), *axes]
    moved = x.transpose(order)
    flat = moved.reshape([*moved.shape[: -len(axes)], int(np.prod([x.shape[a] for a in axes]))])
    best = flat.argmax_reduce(axes=[flat.rank - 1])
    places = np.arange(flat.shape[-1]).reshape([1] * (flat.rank - 1) + [-1])
    hit = add_operator("int_eq", Value.known(places), best)
    return hit.select(1.0, 0.0).reshape(moved.shape).transpose(np.argsort(order).tolist())


def _over_axes(name: str, nnef: str, of: Callable[[Value, list[int]], Value]) -> None:
    """Declares an operator over the attribute ``axis``: before opset 13 over all axes from it."""

    @op(name, nnef, until=12)
    def over_all(x: Value, *, axis: int = 1) -> Value:
        return of(x, list(range(checked_axis(axis, x.rank), x.rank)))

    @op(name, nnef, since=13)
    def over_one(x: Value, *, axis: int = -1) -> Value:
        return of(x, [checked_axis(axis, x.rank)])


_over_axes("Softmax", "softmax", _softmax)
_over_axes("LogSoftmax", "max_reduce, sub, exp, sum_reduce, log", _log_softmax)
_over_axes("Hardmax", "argmax_reduce, int_eq, select", _hardmax)


# -- losses --------------------------------------------------------------------------------------

_REDUCTION = one_of("mean", "sum", "none")


@op("NegativeLogLikelihoodLoss", "gather_elements, gather, mul, sum_reduce")
def nll_loss(
    logs: Value,
    target: Value,
    weights: Value | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = _REDUCTION,
) -> Value:
    """Imports the weighted negative log-likelihood of the targets by log-probabilities."""
    kept: Value | None = None
    if ignore_index is not None:
        gone = target.eq(ignore_index)
        target = gone.select(0, target)
        kept = gone.select(0.0, 1.0)
    loss = -logs.gather_elements(target.unsqueeze([1]), axis=1).squeeze([1])
    factors = None if weights is None else weights.gather(target, axis=0)
    if kept is not None:
        factors = kept if factors is None else factors * kept
    loss = loss if factors is None else loss * factors
    if reduction == "none":
        return loss
    total = _sum_of_all(loss)
    if reduction == "sum":
        return total
    return total * (1.0 / loss.size) if factors is None else total / _sum_of_all(factors)


def _sum_of_all(x: Value) -> Value:
    axes = list(range(x.rank))
    return x.sum_reduce(axes=axes).squeeze(axes)


@op("SoftmaxCrossEntropyLoss", "log_softmax, gather_elements, mul, sum_reduce")
def cross_entropy_loss(
    scores: Value,
    target: Value,
    weights: Value | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = _REDUCTION,
) -> list[Value]:
    logs = _log_softmax(scores, [1])
    loss = nll_loss(logs, target, weights, ignore_index=ignore_index, reduction=reduction)
    assert isinstance(loss, Value)
    return [loss, logs]
