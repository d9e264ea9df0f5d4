"""Lowers operators that compute sums: convolutions, matrix products, windows, reductions and
upsampling."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import reduce
from math import prod

import numpy as np

from cml_engine.compiler.integer.lowering.builder import (
    IntegerGraphBuilder,
    NoIntegerForm,
    PendingSum,
    QuantizedTensor,
    Value,
)
from cml_engine.compiler.integer.lowering.elementwise import check_resampling
from cml_engine.compiler.integer.quant_params import ExactSum, SumPass, plan_exact_sum
from cml_engine.errors import ModelError, RangeError
from cml_engine.ir.graph import Array, AttrValue, Fact, Node
from cml_engine.ops.common.window import window_of
from cml_engine.ops.conv.shapes import deconv_shape

#: emits the nodes of one pass from the name of its words, the pass and the name of its result
Emit = Callable[[str, SumPass, str], None]


def _emit_sum(
    builder: IntegerGraphBuilder,
    node: Node,
    quantized: QuantizedTensor,
    plan: ExactSum,
    scales: tuple[Fraction, ...],
    axis: int,
    emit: Emit,
) -> PendingSum:
    """Adds one node for each pass of ``plan``, and returns the pending sum of their results.

    ``emit(words, pass, result)`` adds the node. ``scales`` are the scales of the sums along
    ``axis``.
    """
    names = []
    for part in plan.parts:
        name = builder.unused_name(f"{node.outputs[0]}.sum")
        emit(builder.split_words(node, quantized, part.take, plan.bits), part, name)
        names.append(name)
    return PendingSum(
        title=node.title,
        source=node.source,
        names=tuple(names),
        bits=plan.bits,
        scales=scales,
        axis=axis,
        bound=plan.bound,
        carrier=plan.carrier,
    )


def _bias(
    builder: IntegerGraphBuilder, node: Node, name: str, scales: Sequence[Fraction]
) -> list[int]:
    """Returns the integers of the bias ``name``, one for each of ``scales``, which are the scales
    of the sums.

    A bias of zeros needs no line in ``graph.quant``. Raises :class:`ModelError` if the bias has
    other scales than the sums.
    """
    array = builder.graph.constants.get(name)
    if array is not None and name not in builder.quant_params and not array.any():
        return [0] * len(scales)
    integers, line = builder.integer_constant(node, name, "bias")
    bias_scales = [*line.scales] * (len(scales) if len(line.scales) == 1 else 1)
    if bias_scales != list(scales):
        wrong = next(
            (i for i, (a, b) in enumerate(zip(bias_scales, scales, strict=False)) if a != b), 0
        )
        raise ModelError(
            f"{node.title}: the scale of its bias '{name}' is {float(bias_scales[wrong]):.9g} at "
            f"channel {wrong}; wanted the input's times the filter's, {float(scales[wrong]):.9g}",
            node.source,
        )
    values = [int(v) for v in integers.reshape(-1)]
    return values * len(scales) if len(values) == 1 else values


def _weighted_sum(
    builder: IntegerGraphBuilder,
    node: Node,
    role: str,
    scale_axis: int,
    to_rows: Callable[[Array], Array] = lambda weights: weights,
    from_rows: Callable[[Array], Array] = lambda weights: weights,
    sum_axis: int = 1,
    groups: int = 1,
    **extra_attrs: AttrValue,
) -> PendingSum:
    """Lowers an operator whose second operand are weights, and returns its pending sum.

    A conv whose sums need int32 is not added to the new graph yet: its rounding point adds it, with
    the rounding as its first epilogue. ``role`` names the weights in messages. ``scale_axis`` is
    the axis of the weights that their scales belong to; all ``groups`` share them. ``to_rows``
    permutes weights so that output channels come first; ``from_rows`` is the inverse.
    ``extra_attrs`` are attributes besides the node's own.
    """
    quantized = builder.words(node, node.inputs[0])
    weights, line = builder.integer_constant(node, node.inputs[1], role)
    scales = tuple(
        quantized.scale * s for s in line.scales_along(weights.shape, scale_axis) * groups
    )
    has_bias, sums_in_int32 = len(node.inputs) > 2, node.op == "conv"
    bias = _bias(builder, node, node.inputs[2], scales) if has_bias else [0] * len(scales)
    plan = plan_exact_sum(
        node.title, to_rows(weights), bias, quantized.range, node.source, sums_in_int32
    )
    if sums_in_int32 and plan.carrier == "int32":
        return PendingSum(
            title=node.title,
            source=node.source,
            scales=scales,
            bound=plan.bound,
            carrier=plan.carrier,
            made_by=_integer_conv(builder, node, quantized, weights, bias),
        )

    def emit(x: str, part: SumPass, out: str) -> None:
        operands = [x, builder.constant(f"{node.inputs[1]}.words", from_rows(part.weights))]
        if has_bias:
            operands.append(builder.constant(f"{out}.bias", np.array(part.bias).reshape(1, -1)))
        builder.add(node, node.op, operands, out, **{**node.attrs, **extra_attrs})

    return _emit_sum(builder, node, quantized, plan, scales, sum_axis, emit)


def conv(builder: IntegerGraphBuilder, node: Node) -> list[Value]:
    return [_weighted_sum(builder, node, "filter", 0, exact=True)]


def deconv(builder: IntegerGraphBuilder, node: Node) -> list[Value]:
    facts = builder.graph.facts_of(node.inputs)
    shape, extents = deconv_shape(node.attrs, *facts), facts[1].shape

    def to_rows(filter: Array) -> Array:
        grouped = filter.reshape(shape.groups, shape.group_in, shape.group_out, *extents[2:])
        return grouped.swapaxes(1, 2).reshape(shape.out_channels, shape.group_in, *extents[2:])

    def from_rows(filter: Array) -> Array:
        grouped = filter.reshape(shape.groups, shape.group_out, shape.group_in, *extents[2:])
        return grouped.swapaxes(1, 2).reshape(extents)

    pending = _weighted_sum(
        builder, node, "filter", 1, to_rows, from_rows, groups=shape.groups, exact=True
    )
    return [pending]


def _integer_conv(
    builder: IntegerGraphBuilder,
    node: Node,
    quantized: QuantizedTensor,
    filter: Array,
    bias: Sequence[int],
) -> Node:
    """Returns a conv node that sums in int32, for sums beyond float32; the rounding point adds the
    node and its epilogue.

    The integer filter and bias are added to the new graph as constants.
    """
    name = node.outputs[0]
    filter_ = builder.constant(f"{node.inputs[1]}.words", filter)
    bias_ = builder.constant(f"{name}.sum.bias", np.array(bias).reshape(1, -1), np.int32)
    attrs = node.attrs.with_(exact=True, carrier="int32")
    return replace(node, inputs=(quantized.name, filter_, bias_), attrs=attrs)


def linear(builder: IntegerGraphBuilder, node: Node) -> list[Value]:
    return [_weighted_sum(builder, node, "filter", 0)]


def matmul(builder: IntegerGraphBuilder, node: Node) -> list[Value]:
    a, b = node.inputs
    if builder.is_constant(b):
        return [_multiply_by_constant(builder, node, b)]
    left, right = builder.words(node, a), builder.words(node, b)
    fact = builder.graph.facts[a]
    inner = fact.shape[-2 if node.attrs["transposeA"] else -1]
    plan = _plan_count(node, left, inner * right.range.magnitude)

    def emit(x: str, part: SumPass, out: str) -> None:
        builder.add(node, "matmul", (x, right.name), out, **node.attrs)

    scales = (left.scale * right.scale,)
    return [_emit_sum(builder, node, left, plan, scales, fact.rank - 1, emit)]


def _multiply_by_constant(builder: IntegerGraphBuilder, node: Node, b: str) -> PendingSum:
    shape = builder.graph.facts[b].shape
    if prod(shape[:-2]) != 1:
        raise ModelError(
            f"{node.title}: its matrix '{b}' is {shape[:-2]} matrices, wanted one", node.source
        )
    axis, last = len(shape) - (2 if node.attrs["transposeB"] else 1), len(shape) - 1

    def to_rows(matrix: Array) -> Array:
        return np.moveaxis(matrix, axis, 0)

    def from_rows(matrix: Array) -> Array:
        return np.moveaxis(matrix, 0, axis)

    return _weighted_sum(builder, node, "matrix", axis, to_rows, from_rows, last)


def _plan_count(node: Node, quantized: QuantizedTensor, count: int) -> ExactSum:
    """Returns the passes for sums of words whose absolute weights add up to ``count``.

    Raises :class:`RangeError` if neither the words nor two parts of them have sums that fit.
    """
    plan = plan_exact_sum(node.title, np.array([[count]]), [0], quantized.range, node.source)
    if len(plan.parts) == 2 and plan.parts[0].take == "all":
        raise RangeError(
            f"{node.title}: sums of up to {plan.bound:,} cannot be carried in two parts: quantize "
            "its input with 8 bits, or sum fewer",
            node.source,
        )
    return plan


def _emit_plain_sum(
    builder: IntegerGraphBuilder,
    node: Node,
    count: int,
    op: str,
    attrs: Mapping[str, AttrValue],
    mean: bool,
) -> PendingSum:
    """Adds the operator ``op``, which takes no weights, to sum ``count`` words, and returns the
    pending sum.

    With ``mean`` the scale of the sum is divided by ``count``.
    """
    quantized = builder.words(node, node.inputs[0])
    plan = _plan_count(node, quantized, count)

    def emit(x: str, part: SumPass, out: str) -> None:
        builder.add(node, op, (x,), out, **attrs)

    scale = quantized.scale / count if mean else quantized.scale
    return _emit_sum(builder, node, quantized, plan, (scale,), 1, emit)


def reduce_sum(builder: IntegerGraphBuilder, node: Node) -> list[Value]:
    """Lowers ``sum_reduce`` and ``mean_reduce``, and returns their pending sum."""
    shape = builder.graph.facts[node.inputs[0]].shape
    count = prod(shape[axis] for axis in node.attrs["axes"])
    mean = node.op == "mean_reduce" or bool(node.attrs.get("normalize", False))
    attrs = {"axes": node.attrs["axes"], "normalize": False}
    return [_emit_plain_sum(builder, node, count, "sum_reduce", attrs, mean)]


def check_mean(node: Node, fact: Fact) -> None:
    """Raises :class:`NoIntegerForm` for a mean of windows whose numbers of values differ.

    They do with border ``ignore`` and padding. ``fact`` is of the operand of ``node``.
    """
    mean = node.op == "avg_pool" or (node.op == "box" and bool(node.attrs["normalize"]))
    if (
        mean
        and node.attrs["border"] == "ignore"
        and any(
            a.before > 0 or (a.narrow - 1) * a.stride + a.reach - a.before > a.wide
            for a in window_of(node.attrs, fact.shape)
        )
    ):
        raise NoIntegerForm(
            f"{node.title} has no integer form: border 'ignore' divides by another count at the "
            "edges. Use another border, or no padding, or let the network end in floats "
            "(--float-tail)",
            node.source,
        )


def box(builder: IntegerGraphBuilder, node: Node) -> list[Value]:
    """Lowers ``box`` and ``avg_pool``, and returns their pending sum."""
    check_mean(node, builder.graph.facts[node.inputs[0]])
    mean = node.op == "avg_pool" or bool(node.attrs["normalize"])
    attrs = {**node.attrs, "normalize": False}
    return [_emit_plain_sum(builder, node, prod(node.attrs["size"]), "box", attrs, mean)]


def area_downsample(builder: IntegerGraphBuilder, node: Node) -> list[Value]:
    block = [1, 1, *node.attrs["factor"]]
    attrs: dict[str, AttrValue] = {
        "size": block,
        "stride": block,
        "padding": [(0, 0)] * len(block),
        "dilation": [1] * len(block),
        "border": "constant",
        "normalize": False,
    }
    return [_emit_plain_sum(builder, node, prod(block), "box", attrs, True)]


def multilinear_upsample(builder: IntegerGraphBuilder, node: Node) -> list[Value]:
    """Lowers an upsampling to a depthwise deconv with integer weights (1, 3, 3, 1 for a factor of
    2), and returns its pending sum.

    Raises :class:`NoIntegerForm` unless the factors are 1, 2 or 4 and the method is not
    ``aligned``.
    """
    check_resampling(node)
    attrs, quantized = node.attrs, builder.words(node, node.inputs[0])
    factors, method = [int(f) for f in attrs["factor"]], attrs["method"]
    kernels = [_tent(f, method) for f in factors]
    steps = prod(sum(taps) // f for taps, f in zip(kernels, factors, strict=True))
    channels = builder.graph.facts[node.inputs[0]].shape[1]
    plan = _plan_count(node, quantized, steps)
    stencil = reduce(np.multiply.outer, [np.array(taps) for taps in kernels])
    filter_ = np.broadcast_to(stencil, (channels, 1, *stencil.shape))
    border_extents = [(0, 0), (0, 0)] + [(1, 1)] * len(factors)
    crop_extents = []
    for factor, taps in zip(factors, kernels, strict=True):
        # the padding adds one pixel before the map
        before = 3 * factor // 2 if method == "symmetric" else 2 * factor - 1
        crop_extents.append((before, factor + len(taps) - before))

    def emit(x: str, part: SumPass, out: str) -> None:
        padded = builder.unused_name(f"{out}.padded")
        builder.add(
            node, "pad", (x,), padded, padding=border_extents, border=attrs["border"], value=0.0
        )
        weights = builder.constant(f"{out}.filter", filter_)
        builder.add(
            node,
            "deconv",
            (padded, weights, builder.constant(f"{out}.bias", 0.0)),
            out,
            border="constant",
            padding=crop_extents,
            stride=factors,
            dilation=[1] * len(factors),
            output_shape=[],
            groups=channels,
            exact=True,
        )

    return [_emit_sum(builder, node, quantized, plan, (quantized.scale / steps,), 1, emit)]


def _tent(factor: int, method: str) -> list[int]:
    """Returns the interpolation weights along one axis as integers, scaled to the smallest whole
    numbers: 1, 3, 3, 1."""
    if factor == 1:
        return [1]
    if method == "symmetric":
        return [2 * factor - abs(2 * k - 2 * factor + 1) for k in range(2 * factor)]
    return [factor - abs(k - factor + 1) for k in range(2 * factor - 1)]
