"""Lowers elementwise operators, operators that move words, and a game's operators.

Activations join a rounding point, sums and products read two tensors, constants become scales, and
every other operator becomes a function of one tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from cml_engine.compiler.integer.lowering.builder import (
    IntegerGraphBuilder,
    NoIntegerForm,
    PendingAddition,
    PendingFunction,
    PendingProduct,
    PendingSum,
    PendingValue,
    QuantizedTensor,
    Value,
    exact_fraction,
)
from cml_engine.compiler.integer.quant_params import Range
from cml_engine.errors import ModelError, RangeError
from cml_engine.ir.graph import Attrs, Node
from cml_engine.ir.integer_rule import FLOAT_BOUND, clamp, round_half_up
from cml_engine.ops.declaration.game_functions import calling, node_fault
from cml_engine.ops.declaration.spec import IntegerFact, OpSpec


def lower_function(builder: IntegerGraphBuilder, node: Node) -> PendingFunction | None:
    """Returns an elementwise node as a pending function of one tensor of words, to be tabulated.

    Returns None if the node's computed operands are not all functions of the same tensor, or a
    constant operand has several elements.
    """
    constants = [name for name in node.inputs if builder.is_constant(name)]
    values = [builder.value(node, name) for name in node.inputs if name not in constants]
    bases = [value if isinstance(value, QuantizedTensor) else value.base for value in values]
    base = bases[0] if bases else None
    if base is None or any(candidate != base for candidate in bases):
        return None
    if any(builder.graph.facts[name].size != 1 for name in constants):
        return None
    return PendingFunction(title=node.title, source=node.source, base=base)


# -- activations --------------------------------------------------------------------------------


def relu(builder: IntegerGraphBuilder, node: Node) -> list[Value]:
    value = builder.value(node, node.inputs[0])
    if isinstance(value, PendingValue):
        return [_clamp_value(node, value, Fraction(0), None)]
    range_ = Range(max(value.range.low, 0), max(value.range.high, 0))
    name = builder.add(node, "relu", (value.name,), builder.result_name(node))
    return [replace(value, name=name, range=range_)]


def lower_clamp(builder: IntegerGraphBuilder, node: Node) -> list[Value]:
    value = builder.value(node, node.inputs[0])
    low, high = (_number(builder, node, name) for name in node.inputs[1:3])
    if isinstance(value, PendingValue):
        return [_clamp_value(node, value, low, high)]
    ends = [round_half_up(bound / value.scale) for bound in (low, high)]
    ends = [max(value.range.low, min(value.range.high, end)) for end in ends]
    bounds = [builder.constant(f"{node.outputs[0]}.bound", end) for end in ends]
    name = builder.add(node, "clamp", (value.name, *bounds), builder.result_name(node))
    return [replace(value, name=name, range=Range(ends[0], max(ends)))]


def _clamp_value(
    node: Node, pending: PendingValue, low: Fraction | None, high: Fraction | None
) -> PendingValue:
    return replace(pending.with_bounds(low, high), title=f"{pending.title}, {node.op}")


def leaky_relu(builder: IntegerGraphBuilder, node: Node) -> list[Value]:
    return [_by_sign(builder, node, (exact_fraction(node.attrs["alpha"]),))]


def prelu(builder: IntegerGraphBuilder, node: Node) -> list[Value]:
    return [_by_sign(builder, node, _per_channel(builder, node, node.inputs[1]))]


def _by_sign(
    builder: IntegerGraphBuilder, node: Node, slopes: tuple[Fraction, ...]
) -> PendingValue:
    value = builder.value(node, node.inputs[0])
    if isinstance(value, QuantizedTensor):
        value = builder.scale_words(node, value)
    if (
        not isinstance(value, PendingSum)
        or value.negative
        or (value.low, value.high) != (None, None)
    ):
        if (function := lower_function(builder, node)) is not None:
            return function
        raise ModelError(
            f"{node.title}: {value.title} before it is no plain sum: give '{node.inputs[0]}' a "
            "line in graph.quant",
            node.source,
        )
    if len(slopes) > 1 and value.axis != 1:
        raise ModelError(f"{node.title}: slopes are for axis 1, the sums' channels are not")
    base = value.base if len(slopes) == 1 else None
    return replace(value, negative=slopes, base=base, title=f"{value.title}, {node.op}")


def _number(builder: IntegerGraphBuilder, node: Node, name: str) -> Fraction:
    if not builder.is_constant(name) or builder.graph.facts[name].size != 1:
        raise ModelError(f"{node.title}: '{name}' is no number that is known", node.source)
    return builder.exact_values(name)[0]


def _per_channel(builder: IntegerGraphBuilder, node: Node, name: str) -> tuple[Fraction, ...]:
    """Returns the exact values of the constant ``name``: one number, or one for each channel.

    Raises :class:`ModelError` if the tensor is computed or has another shape.
    """
    result = builder.graph.facts[node.outputs[0]]
    fact = builder.graph.facts[name]
    channels = result.shape[1] if result.rank > 1 else 1
    by_channel = fact.rank > 1 and fact.shape[1] == channels == fact.size
    if not builder.is_constant(name) or not (fact.size == 1 or by_channel):
        raise ModelError(
            f"{node.title}: '{name}' is {fact}; wanted a constant, one number or one for each of "
            f"{channels} channels",
            node.source,
        )
    return tuple(builder.exact_values(name))


# -- two tensors ----------------------------------------------------------------------------------


def add(builder: IntegerGraphBuilder, node: Node) -> list[Value]:
    return [_add_or_subtract(builder, node, 1)]


def sub(builder: IntegerGraphBuilder, node: Node) -> list[Value]:
    return [_add_or_subtract(builder, node, -1)]


def _add_or_subtract(builder: IntegerGraphBuilder, node: Node, sign: int) -> Value:
    a, b = (builder.words(node, name) for name in node.inputs)
    constant = [builder.is_constant(name) for name in node.inputs]
    single = [builder.graph.facts[name].size == 1 for name in node.inputs]
    base = a if a == b else None
    if constant[1] and single[1]:
        base = a
    elif constant[0] and single[0]:
        base = b
    return PendingAddition(title=node.title, source=node.source, a=a, b=b, sign=sign, base=base)


def mul(builder: IntegerGraphBuilder, node: Node) -> list[Value]:
    for position in (1, 0):
        name, operand = node.inputs[position], node.inputs[1 - position]
        if builder.is_constant(name) and _scales_channels(builder, node, name):
            factors = _per_channel(builder, node, name)
            return [builder.scale_words(node, builder.words(node, operand), factors)]
    a, b = (builder.words(node, name) for name in node.inputs)
    base = a if a == b else None
    return [PendingProduct(title=node.title, source=node.source, a=a, b=b, base=base)]


def div(builder: IntegerGraphBuilder, node: Node) -> list[Value]:
    name = node.inputs[1]
    if not builder.is_constant(name) or not _scales_channels(builder, node, name):
        if (function := lower_function(builder, node)) is not None:
            return [function]
        raise NoIntegerForm(
            f"{node.title}: an integer network divides by constants, one number or one for each "
            f"channel; '{name}' is {builder.graph.facts[name]}",
            node.source,
        )
    divisors = _per_channel(builder, node, name)
    if not all(divisors):
        raise ModelError(f"{node.title}: '{name}' has a 0 to divide by", node.source)
    factors = tuple(1 / divisor for divisor in divisors)
    return [builder.scale_words(node, builder.words(node, node.inputs[0]), factors)]


def _scales_channels(builder: IntegerGraphBuilder, node: Node, name: str) -> bool:
    """Returns True if the constant ``name`` has one number or one per channel, and all other
    operands have the shape of the result."""
    fact, result = builder.graph.facts[name], builder.graph.facts[node.outputs[0]]
    operands = [n for n in node.inputs if n != name]
    have_result_shape = all(builder.graph.facts[n] == result for n in operands)
    channels = fact.rank > 1 and result.rank > 1 and fact.shape[1] == result.shape[1] == fact.size
    return have_result_shape and (fact.size == 1 or channels)


def neg(builder: IntegerGraphBuilder, node: Node) -> list[Value]:
    quantized = builder.words(node, node.inputs[0])
    name = builder.add(node, "neg", (quantized.name,), builder.result_name(node))
    range_ = Range(-quantized.range.high, -quantized.range.low)
    return [replace(quantized, name=name, range=range_, signed=True)]


def absolute(builder: IntegerGraphBuilder, node: Node) -> list[Value]:
    quantized = builder.words(node, node.inputs[0])
    name = builder.add(node, "abs", (quantized.name,), builder.result_name(node))
    return [replace(quantized, name=name, range=Range(0, quantized.range.magnitude))]


def _check_scales(node: Node, tensors: Sequence[QuantizedTensor]) -> None:
    """Raises :class:`ModelError` if the scales of the tensors differ."""
    for tensor in tensors[1:]:
        if tensor.scale != tensors[0].scale:
            raise ModelError(
                f"{node.title}: its operands have scales {float(tensors[0].scale):.6g} and "
                f"{float(tensor.scale):.6g}; what is joined or compared has one (cml quantize "
                "makes it so)",
                node.source,
            )


# -- data movement --------------------------------------------------------------------------------

#: operators that read and write words of one scale, such as a maximum
MOVES = frozenset(
    "reshape squeeze unsqueeze transpose concat stack split unstack slice tile copy gather "
    "nearest_upsample nearest_downsample max_pool max_reduce min_reduce min max".split()
)

#: the order in which a pixel shuffle transposes [N, C, F, F, H, W]
_SHUFFLE = [0, 1, 4, 2, 5, 3]


def move(builder: IntegerGraphBuilder, node: Node) -> list[Value]:
    """Adds the same operator on words to the new graph, and returns the words of its results.

    Raises :class:`ModelError` if the operands have different scales.
    """
    return _move_words(builder, node, node.attrs)


def reshape(builder: IntegerGraphBuilder, node: Node) -> list[Value]:
    """Lowers a reshape and returns the words of its result.

    A reshape that ends a pixel shuffle is replaced by a ``pixel_shuffle`` node.
    """
    shuffle = _find_shuffle(builder, node)
    if shuffle is None:
        return move(builder, node)
    source, factor = shuffle
    quantized = builder.words(node, source)
    name = builder.add(
        node, "pixel_shuffle", (quantized.name,), builder.result_name(node), factor=factor
    )
    return [replace(quantized, name=name)]


def _find_shuffle(builder: IntegerGraphBuilder, node: Node) -> tuple[str, int] | None:
    """Returns the source tensor and the factor of the pixel shuffle that a reshape ends, or None.

    A pixel shuffle is a reshape, a transpose and a reshape that move channels to pixels. Each
    reshape may be a chain of reshapes.
    """
    facts = builder.graph.facts
    *_, operand = _reshaped_from(builder, node.inputs[0])
    transpose = builder.find_producer(operand, "transpose")
    if transpose is None or list(transpose.attrs["axes"]) != _SHUFFLE:
        return None
    split_shape = facts[transpose.inputs[0]].shape
    if len(split_shape) != 6 or split_shape[2] != split_shape[3]:
        return None
    batch, channels, factor, _, height, width = split_shape
    if facts[node.outputs[0]].shape != (batch, channels, height * factor, width * factor):
        return None
    source_shape = (batch, channels * factor**2, height, width)
    sources = _reshaped_from(builder, transpose.inputs[0])
    source = next((name for name in sources if facts[name].shape == source_shape), None)
    return (source, factor) if source and factor else None


def _reshaped_from(builder: IntegerGraphBuilder, name: str) -> Iterator[str]:
    """Yields the tensor ``name``, then the operand of each reshape in the chain that computes
    it, the nearest first."""
    yield name
    while (node := builder.find_producer(name, "reshape")) is not None:
        name = node.inputs[0]
        yield name


def pad(builder: IntegerGraphBuilder, node: Node) -> list[Value]:
    """Lowers a pad and returns the words of its result; the border value is rounded and clamped
    to a word."""
    quantized = builder.words(node, node.inputs[0])
    value = round_half_up(exact_fraction(node.attrs["value"]) / quantized.scale)
    value = clamp(value, quantized.range.low, quantized.range.high)
    return _move_words(builder, node, node.attrs.with_(value=float(value)))


def resize(builder: IntegerGraphBuilder, node: Node) -> list[Value]:
    check_resampling(node)
    return move(builder, node)


def check_resampling(node: Node) -> None:
    """Raises :class:`NoIntegerForm` for a resampling whose weights are no integers here."""
    attrs = node.attrs
    if node.op == "resize" and attrs.get("method", attrs.get("mode")) != "nearest":
        raise NoIntegerForm(
            f"{node.title}: integer networks resize by 'nearest' only; multilinear_upsample has "
            "factors of 2 and 4",
            node.source,
        )
    if node.op == "multilinear_upsample" and (
        attrs["method"] == "aligned" or any(f not in (1, 2, 4) for f in attrs["factor"])
    ):
        raise NoIntegerForm(
            f"{node.title}: factor {attrs['factor']}, method '{attrs['method']}'; integer networks "
            "have factors of 1, 2 and 4, 'symmetric' and 'asymmetric'",
            node.source,
        )


def _move_words(builder: IntegerGraphBuilder, node: Node, attrs: Attrs) -> list[Value]:
    inputs, operands = [], []
    for name in node.inputs:
        if builder.graph.facts[name].dtype == "scalar":
            operands.append(builder.words(node, name))
            inputs.append(operands[-1].name)
        elif builder.is_constant(name):
            inputs.append(name)
        else:
            raise ModelError(
                f"{node.title}: '{name}' is computed, and no tensor of words", node.source
            )
    _check_scales(node, operands)
    result = _common_words(operands)
    if node.op == "max_pool":  # its results may be zeros of the border
        result = replace(result, range=Range(min(result.range.low, 0), max(result.range.high, 0)))
    names = tuple(builder.result_name(node, i) for i in range(len(node.outputs)))
    builder.nodes.append(replace(node, inputs=tuple(inputs), outputs=names, attrs=attrs))
    return [replace(result, name=name) for name in names]


def _common_words(operands: Sequence[QuantizedTensor]) -> QuantizedTensor:
    """Returns the first operand with bits and a range that hold the words of all."""
    return replace(
        operands[0],
        bits=max(w.bits for w in operands),
        signed=any(w.signed for w in operands),
        range=Range(min(w.range.low for w in operands), max(w.range.high for w in operands)),
    )


# -- custom operators -----------------------------------------------------------------------------


def lower_exact(builder: IntegerGraphBuilder, node: Node, spec: OpSpec) -> list[Value]:
    """Adds a game's exact operator to the new graph, on words of one scale, and returns its
    results.

    The results are words, or one pending sum for each output if the operator declares
    ``bounds``. Raises :class:`ModelError` if no operand or not every result is a tensor of
    numbers.
    """
    operands = _find_operands(builder, node)
    words = [found for found in operands if isinstance(found, QuantizedTensor)]
    results = builder.graph.facts_of(node.outputs)
    if not words or any(fact.dtype != "scalar" for fact in results):
        raise ModelError(f"{node.title}: exact=True is for tensors of numbers", node.source)
    inputs = tuple(found if isinstance(found, str) else found.name for found in operands)
    if spec.bounds is None:
        result = _common_words(words)
        found = result.range
        names = tuple(builder.result_name(node, i) for i in range(len(node.outputs)))
        values: list[Value] = [replace(result, name=name) for name in names]
    else:
        found = _bounds(builder, node, spec, operands)
        names = tuple(builder.unused_name(f"{name}.sum") for name in node.outputs)
        values = [
            PendingSum(
                title=node.title,
                source=node.source,
                names=(name,),
                scales=(words[0].scale,),
                bound=found.magnitude,
            )
            for name in names
        ]
    builder.nodes.append(replace(node, inputs=inputs, outputs=names))
    builder.declared_ranges.update(dict.fromkeys(names, found))
    return values


def _find_operands(builder: IntegerGraphBuilder, node: Node) -> list[QuantizedTensor | str]:
    """Returns the operands of a node in order: words of one common scale for tensors of numbers,
    and names for tensors of other types.

    Constants are converted to the scale of the computed operands. Raises :class:`ModelError` if
    the computed operands have different scales.
    """
    facts = builder.graph.facts
    computed = [
        builder.words(node, name)
        for name in node.inputs
        if facts[name].dtype == "scalar" and not builder.is_constant(name)
    ]
    _check_scales(node, computed)
    operands: list[QuantizedTensor | str] = []
    for name in node.inputs:
        if facts[name].dtype != "scalar":
            operands.append(name)
        elif builder.is_constant(name) and computed:
            operands.append(_convert_constant(builder, name, computed[0]))
        else:
            operands.append(builder.words(node, name))
    return operands


def _convert_constant(
    builder: IntegerGraphBuilder, name: str, like: QuantizedTensor
) -> QuantizedTensor:
    """Adds a constant to the new graph as words in the scale of ``like``, and returns the words.

    Halves are rounded up.
    """
    integers = [round_half_up(number / like.scale) for number in builder.exact_values(name)]
    constant_name = builder.constant(
        f"{name}.words", np.array(integers).reshape(builder.graph.facts[name].shape)
    )
    return replace(
        like, name=constant_name, range=Range(min(integers, default=0), max(integers, default=0))
    )


def _bounds(
    builder: IntegerGraphBuilder, node: Node, spec: OpSpec, operands: list[QuantizedTensor | str]
) -> Range:
    """Returns the least and the largest result that the operator's ``bounds()`` declares for these
    operands.

    Raises :class:`RangeError` unless they are in order and below 2^24 in magnitude.
    """
    assert spec.bounds is not None
    facts = builder.graph.facts_of(node.inputs)
    arguments = [
        fact if isinstance(operand, str)
        else IntegerFact(fact.dtype, fact.shape, operand.range.low, operand.range.high)
        for fact, operand in zip(facts, operands, strict=True)
    ]  # fmt: skip
    with calling(True, "bounds", node_fault(node)):
        low, high = (int(end) for end in spec.bounds(node.attrs, *arguments))
    if max(abs(low), abs(high)) >= FLOAT_BOUND or low > high:
        raise RangeError(
            f"{node.title}: its results are {low:,} to {high:,} by bounds() of '{spec.name}'; "
            f"wanted whole numbers below 2^24 = {FLOAT_BOUND:,}: quantize its input with 8 bits",
            node.source,
        )
    return Range(low, high)
