"""Imports losses, which exported training models contain."""

from __future__ import annotations

import numpy as np

from cml_engine.formats.onnx.attributes import INT, one_of
from cml_engine.formats.onnx.call import OnnxCall
from cml_engine.formats.onnx.op_schemas import op
from cml_engine.formats.onnx.operators.activations import log_softmax
from cml_engine.formats.onnx.values import Value

_LOSS = {"ignore_index": INT, "reduction": one_of("mean", "sum", "none")}


@op(
    "NegativeLogLikelihoodLoss",
    nnef="gather_elements, gather, mul, sum_reduce",
    inputs=3,
    attrs=_LOSS,
)
def nll_loss(call: OnnxCall) -> Value:
    return _loss(call, call[0])


@op(
    "SoftmaxCrossEntropyLoss",
    nnef="log_softmax, gather_elements, mul, sum_reduce",
    inputs=3,
    attrs=_LOSS,
)
def cross_entropy_loss(call: OnnxCall) -> list[Value | None]:
    logs = log_softmax(call)(call[0], [1])
    return [_loss(call, logs), logs]


def _loss(call: OnnxCall, logs: Value) -> Value:
    """Adds operators for the weighted negative log-likelihood of the targets; returns the result.

    ``logs`` are log-probabilities. The result is one loss per target, or their sum or mean, by the
    attribute ``reduction``.
    """
    target, ignored = call[1], call.attr("ignore_index")
    kept: Value | None = None
    if ignored is not None:
        gone = call.op("int_eq", target, ignored)
        target = call.op("select", gone, 0, target)
        kept = call.op("select", gone, 0.0, 1.0)
    picked = call.op("gather_elements", logs, call.unsqueeze(target, [1]), axis=1)
    loss = call.op("neg", call.squeeze(picked, [1]))
    weights = call.op("gather", call[2], target, axis=0) if call.has(2) else None
    if kept is not None:
        weights = kept if weights is None else call.op("mul", weights, kept)
    if weights is not None:
        loss = call.op("mul", loss, weights)
    if call.attr("reduction") == "none":
        return loss
    total = _reduce(call, loss)
    if call.attr("reduction") == "sum":
        return total
    if weights is None:
        return call.op("mul", total, 1.0 / int(np.prod(loss.shape)))
    return call.op("div", total, _reduce(call, weights))


def _reduce(call: OnnxCall, x: Value) -> Value:
    axes = list(range(x.rank))
    return call.squeeze(call.op("sum_reduce", x, axes=axes), axes)
