"""Imports normalization."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cml_engine.formats.onnx.attributes import Attr, at_least, required
from cml_engine.formats.onnx.call import OnnxCall
from cml_engine.formats.onnx.op_schemas import MICROSOFT, op
from cml_engine.formats.onnx.values import Value


@op("BatchNormalization", nnef="batch_normalization", inputs=5,
    attrs={"epsilon": 1e-5, "momentum": 0.9, "spatial": 1}, until=8)  # fmt: skip
@op("BatchNormalization", nnef="batch_normalization", inputs=5,
    attrs={"epsilon": 1e-5, "momentum": 0.9, "training_mode": 0}, since=9)  # fmt: skip
def batch_normalization(call: OnnxCall) -> list[Value | None]:
    x = call[0]
    if call.opset < 9 and not call.attr("spatial"):
        raise call.unsupported_error("spatial=0")
    scale, offset, mean, variance = (call.unsqueeze(call[i], [0]) for i in range(1, 5))
    results: list[Value | None] = []
    if call.opset >= 14 and call.attr("training_mode"):
        axes = [a for a in range(x.rank) if a != 1]
        old, keep = (mean, variance), call.attr("momentum")
        new = call.ops("moments", 2, x, axes=axes)
        mean, variance = (call.reshape(v, [1, x.shape[1]]) for v in new)
        for before, now in zip(old, (mean, variance), strict=True):
            mixed = call.op("add", call.op("mul", before, keep), call.op("mul", now, 1 - keep))
            results.append(call.squeeze(mixed, [0]))
    elif call.wants(1):
        raise call.unsupported_error("an output besides the first without training_mode")
    y = call.op(
        "batch_normalization", x, mean, variance, offset, scale, epsilon=call.attr("epsilon")
    )
    return [y, *results]


def normalize(
    call: OnnxCall, x: Value, axes: Sequence[int], epsilon: float, scale: Value, offset: Value
) -> tuple[Value, Value, Value]:
    """Adds operators for (x - mean) / sqrt(variance + epsilon) * scale + offset.

    Returns the result, the mean and the variance over the axes.
    """
    mean, variance = call.ops("moments", 2, x, axes=list(axes))
    y = call.op("batch_normalization", x, mean, variance, offset, scale, epsilon=epsilon)
    return y, mean, variance


@op("InstanceNormalization", nnef="moments, batch_normalization", inputs=3, attrs={"epsilon": 1e-5})
def instance_normalization(call: OnnxCall) -> Value:
    x, scale, offset = call[0], call.unsqueeze(call[1], [0]), call.unsqueeze(call[2], [0])
    return normalize(call, x, range(2, x.rank), call.attr("epsilon"), scale, offset)[0]


_GROUPS = {"epsilon": 1e-5, "num_groups": required(at_least(1)), "stash_type": 1}


@op("GroupNormalization", nnef="moments, batch_normalization", inputs=3, attrs=_GROUPS)
def group_normalization(call: OnnxCall) -> Value:
    x, groups = call[0], call.attr("num_groups")
    channels = x.shape[1]
    scale, offset = call[1], call[2]
    if call.opset < 21 and scale.shape == (groups,):  # one scale per group, not per channel
        each = channels // groups
        scale, offset = (
            call.reshape(call.expand(call.reshape(v, [groups, 1]), [groups, each]), [channels])
            for v in (scale, offset)
        )
    return normalize_groups(call, x, groups, call.attr("epsilon"), scale, offset)


def normalize_groups(
    call: OnnxCall, x: Value, groups: int, epsilon: float, scale: Value, offset: Value
) -> Value:
    if groups < 1 or x.shape[1] % groups:
        raise call.shape_error(f"{groups} groups of {x.shape[1]} channels")
    flat = call.reshape(x, [x.shape[0], groups, -(-int(np.prod(x.shape[1:])) // groups)])
    zero, one = call.emit.value(0.0), call.emit.value(1.0)
    even = normalize(call, flat, [2], epsilon, one, zero)[0]
    y = call.op("mul", call.reshape(even, x.shape), call.unsqueeze(scale, [0]))
    return call.op("add", y, call.unsqueeze(offset, [0]))


@op("GroupNorm", nnef="moments, batch_normalization, silu", inputs=3, domain=MICROSOFT,
    attrs={"activation": 0, "channels_last": 1, "epsilon": 1e-5,
           "groups": required(at_least(1))})  # fmt: skip
def group_norm(call: OnnxCall) -> Value:
    x, last = call[0], call.attr("channels_last")
    if last:
        x = call.transpose(x, [0, x.rank - 1, *range(1, x.rank - 1)])
    y = normalize_groups(call, x, call.attr("groups"), call.attr("epsilon"), call[1], call[2])
    y = call.op("silu", y) if call.attr("activation") else y
    return call.transpose(y, [0, *range(2, y.rank), 1]) if last else y


# -- over the last axes --------------------------------------------------------------------------


def _lift(call: OnnxCall, value: Value, rank: int) -> Value:
    """Returns a value with axes of 1 prepended up to ``rank``: NNEF aligns shapes from the left."""
    return call.unsqueeze(value, list(range(rank - value.rank)))


@op("LayerNormalization", nnef="moments, batch_normalization", inputs=3,
    attrs={"axis": -1, "epsilon": 1e-5, "stash_type": 1})  # fmt: skip
def layer_normalization(call: OnnxCall) -> list[Value | None]:
    x, epsilon = call[0], call.attr("epsilon")
    axes = range(call.axis(call.attr("axis"), x.rank), x.rank)
    scale = _lift(call, call[1], x.rank)
    offset = _lift(call, call.get(2, 0.0), x.rank) if call.has(2) else call.emit.value(0.0)
    y, mean, variance = normalize(call, x, axes, epsilon, scale, offset)
    if not call.wants(1) and not call.wants(2):
        return [y, None, None]
    return [y, mean, call.op("rsqrt", call.op("add", variance, epsilon))]


@op("RMSNormalization", nnef="sqr, mean_reduce, add, rsqrt, mul", inputs=2,
    attrs={"axis": -1, "epsilon": 1e-5, "stash_type": 1})  # fmt: skip
@op("SimplifiedLayerNormalization", nnef="sqr, mean_reduce, add, rsqrt, mul", inputs=2,
    attrs={"axis": -1, "epsilon": 1e-5, "stash_type": 1})  # fmt: skip
def rms_normalization(call: OnnxCall) -> Value:
    x = call[0]
    axes = list(range(call.axis(call.attr("axis"), x.rank), x.rank))
    return rms(call, x, axes, call.attr("epsilon"), call[1])


def rms(call: OnnxCall, x: Value, axes: Sequence[int], epsilon: float, scale: Value) -> Value:
    mean = call.op("mean_reduce", call.op("sqr", x), axes=list(axes))
    even = call.op("mul", x, call.op("rsqrt", call.op("add", mean, epsilon)))
    return call.zip("mul", even, scale)


@op("SkipLayerNormalization", nnef="add, moments, batch_normalization", inputs=5,
    attrs={"epsilon": 1e-12}, domain=MICROSOFT)  # fmt: skip
def skip_layer_normalization(call: OnnxCall) -> list[Value | None]:
    total = call.zip("add", call[0], call[1])
    if call.has(4):
        total = call.zip("add", total, call[4])
    scale = _lift(call, call[2], total.rank)
    offset = _lift(call, call[3], total.rank) if call.has(3) else call.emit.value(0.0)
    last = [total.rank - 1]
    y, _, _ = normalize(call, total, last, call.attr("epsilon"), scale, offset)
    return [y, None, None, total]


@op("SkipSimplifiedLayerNormalization", nnef="add, sqr, mean_reduce, rsqrt, mul", inputs=4,
    attrs={"epsilon": 1e-12}, domain=MICROSOFT)  # fmt: skip
def skip_rms_normalization(call: OnnxCall) -> list[Value | None]:
    total = call.zip("add", call[0], call[1])
    if call.has(3):
        total = call.zip("add", total, call[3])
    y = rms(call, total, [total.rank - 1], call.attr("epsilon"), call[2])
    return [y, None, None, total]


@op("BiasGelu", nnef="add, gelu_erf", inputs=2, domain=MICROSOFT)
def bias_gelu(call: OnnxCall) -> Value:
    return call.op("gelu_erf", call.zip("add", call[0], call[1]))


# -- others --------------------------------------------------------------------------------------


@op("MeanVarianceNormalization", nnef="moments, batch_normalization", attrs={"axes": [0, 2, 3]})
def mean_variance_normalization(call: OnnxCall) -> Value:
    x = call[0]
    mean, variance = call.ops("moments", 2, x, axes=call.axes(call.attr("axes"), x.rank))
    deviation = call.op("add", call.op("sqrt", variance), 1e-9)
    return call.op("div", call.op("sub", x, mean), deviation)


@op(
    "LpNormalization",
    nnef="abs, sqr, sum_reduce, sqrt, div, select",
    attrs={"axis": -1, "p": Attr(int, 2, among=(1, 2))},
)
def lp_normalization(call: OnnxCall) -> Value:
    x, axes = call[0], [call.axis(call.attr("axis"), call[0].rank)]
    if call.attr("p") == 1:
        norm = call.op("sum_reduce", call.op("abs", x), axes=axes)
    elif call.attr("p") == 2:
        norm = call.op("sqrt", call.op("sum_reduce", call.op("sqr", x), axes=axes))
    else:
        raise call.unsupported_error(f"p={call.attr('p')}")
    return call.op("select", call.op("eq", norm, 0.0), 0.0, call.op("div", x, norm))


@op("LRN", nnef="sqr, box, mul, add, pow, div",
    attrs={"alpha": 1e-4, "beta": 0.75, "bias": 1.0, "size": required(at_least(1))})  # fmt: skip
def lrn(call: OnnxCall) -> Value:
    x, size = call[0], call.attr("size")
    before = (size - 1) // 2
    sides = [(0, 0), (before, size - 1 - before)] + [(0, 0)] * (x.rank - 2)
    extents = [1, size] + [1] * (x.rank - 2)
    total = call.op("box", call.op("sqr", x), size=extents, padding=sides, stride=[], dilation=[],
                    border="constant")  # fmt: skip
    scaled = call.op("add", call.op("mul", total, call.attr("alpha") / size), call.attr("bias"))
    return call.op("div", x, call.op("pow", scaled, call.attr("beta")))
