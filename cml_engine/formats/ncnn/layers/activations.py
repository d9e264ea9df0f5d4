"""Converts activations, both as separate layers and as part of another layer (parameters 9, 10)."""

from __future__ import annotations

import math
from collections.abc import Callable

from cml_engine.formats.ncnn.conversion import Convert, NcnnLayer, NcnnTensor, converts

#: Bounds beyond this count as infinite: ncnn writes its largest number for a missing bound.
_UNBOUNDED = 3.4e38


def _relu(x: NcnnTensor, slope: float = 0.0) -> NcnnTensor:
    return x.leaky_relu(alpha=slope) if slope else x.relu()


def _clip(x: NcnnTensor, low: float, high: float) -> NcnnTensor:
    """Clamps ``x`` to two bounds, one or both of which may be infinite.

    If the bounds are in the wrong order, the upper bound takes precedence.
    """
    if low > high:
        return x.max(low).min(high)
    if low > -_UNBOUNDED and high < _UNBOUNDED:
        return x.clamp(low, high)
    if low > -_UNBOUNDED:
        return x.max(low)
    return x.min(high) if high < _UNBOUNDED else x


def _sigmoid(x: NcnnTensor) -> NcnnTensor:
    return x.sigmoid()


def _mish(x: NcnnTensor) -> NcnnTensor:
    return x * x.softplus().tanh()


def _hard_sigmoid(x: NcnnTensor, alpha: float, beta: float) -> NcnnTensor:
    return (x * alpha + beta).clamp(0.0, 1.0)


def _hard_swish(x: NcnnTensor, alpha: float, beta: float) -> NcnnTensor:
    return x * _hard_sigmoid(x, alpha, beta)


#: The function and its number of parameters, by ncnn's activation number.
_FUSED: dict[int, tuple[Callable[..., NcnnTensor], int]] = {
    1: (_relu, 0),
    2: (_relu, 1),
    3: (_clip, 2),
    4: (_sigmoid, 0),
    5: (_mish, 0),
    6: (_hard_swish, 2),
}


def apply_activation(layer: NcnnLayer, x: NcnnTensor) -> NcnnTensor:
    """Adds the activation that a layer states for its result ``x``."""
    activation, params = layer.integer(9), [float(value) for value in layer.values(10)]
    if activation == 0:
        return x
    function, count = _FUSED.get(activation, (_relu, 0))
    if activation not in _FUSED or len(params) < count:
        raise layer.unsupported_error(f"the activation {activation} with {len(params)} parameters")
    return function(x, *params[:count])


def _with_params(function: Callable[..., NcnnTensor], defaults: tuple[float, ...]) -> Convert:
    """Returns the converter for a function of a tensor and the layer's parameters 0, 1, …"""
    return lambda layer, x: function(
        x, *(layer.number(i, value) for i, value in enumerate(defaults))
    )


def _celu(x: NcnnTensor, alpha: float) -> NcnnTensor:
    if alpha <= 0:
        raise x.layer.damaged_error(f"alpha {alpha:g}: wanted more than 0")
    return x.div(alpha).elu(alpha=1.0) * alpha


def _shrink(x: NcnnTensor, bias: float, threshold: float) -> NcnnTensor:
    below = x.lt(-threshold).select(x + bias, 0.0)
    return x.gt(threshold).select(x - bias, below)


#: The function of a layer, and the defaults of its parameters.
_LAYERS: dict[str, tuple[Callable[..., NcnnTensor], tuple[float, ...]]] = {
    "AbsVal": (lambda x: x.abs(), ()),
    "BNLL": (lambda x: x.softplus(), ()),
    "CELU": (_celu, (1.0,)),
    "Clip": (_clip, (-math.inf, math.inf)),
    "ELU": (lambda x, alpha: x.elu(alpha=alpha), (0.1,)),
    "Erf": (lambda x: x.erf(), ()),
    "HardSigmoid": (_hard_sigmoid, (0.2, 0.5)),
    "HardSwish": (_hard_swish, (0.2, 0.5)),
    "Mish": (_mish, ()),
    "ReLU": (_relu, (0.0,)),
    "SELU": (
        lambda x, alpha, factor: x.selu(**{"alpha": alpha, "lambda": factor}),
        (1.67326324, 1.050700987),
    ),
    "Shrink": (_shrink, (0.0, 0.5)),
    "Sigmoid": (_sigmoid, ()),
    "Softplus": (lambda x: x.softplus(), ()),
    "Swish": (lambda x: x.silu(), ()),
    "TanH": (lambda x: x.tanh(), ()),
    "Threshold": (lambda x, level: x.gt(level).select(1.0, 0.0), (0.0,)),
}
for _name, (_make, _defaults) in _LAYERS.items():
    _ids = " ".join(map(str, range(len(_defaults))))
    converts(_name, params=_ids)(_with_params(_make, _defaults))


@converts("PReLU", params="0")
def _prelu(layer: NcnnLayer, x: NcnnTensor) -> NcnnTensor:
    count = layer.integer(0)
    if count not in (1, x.extents[0]):
        raise layer.damaged_error(f"{count} slopes for {x.extents[0]} channels")
    return x.prelu(layer.raw("alpha", 1, count))


@converts("GELU", params="0")
def _gelu(layer: NcnnLayer, x: NcnnTensor) -> NcnnTensor:
    if not layer.integer(0):
        return x.gelu_erf()
    inner = (x + x.sqr() * x * 0.044715) * 0.79788452
    return x * 0.5 * (inner.tanh() + 1.0)


@converts("GLU", params="0")
def _glu(layer: NcnnLayer, x: NcnnTensor) -> NcnnTensor:
    value, gate = x.split(x.axis(layer.integer(0)), [1, 1])
    return value * gate.sigmoid()


@converts("Softmax", params="0-1", limits="an axis of the old format")
def _softmax(layer: NcnnLayer, x: NcnnTensor) -> NcnnTensor:
    if layer.integer(0) and not layer.integer(1):
        raise layer.unsupported_error("an axis of the old format (parameter 1 is not 1)")
    return x.softmax(axes=[x.axis(layer.integer(0))])
