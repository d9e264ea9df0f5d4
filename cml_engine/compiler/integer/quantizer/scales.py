"""The scales of a network's tensors and weights, and lookup tables of functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import frexp

import numpy as np

from cml_engine.compiler.integer.quant_params import Range, word_range
from cml_engine.cpu.cpu_program import CpuProgram, run_node
from cml_engine.errors import InputError
from cml_engine.ir.graph import Array, Graph, Node
from cml_engine.ir.integer_rule import INT_BOUND, LARGE_TABLE, SMALL_TABLE, round_half_up

#: significant digits of a scale: a double holds all digits of the product of two
_DIGITS = 7
#: values of a tensor kept from each sample
_SAMPLE_SIZE = 4096
#: the margin for inputs beyond the samples, if words have bits to spare
_HEADROOM = 1.1
#: candidates for the largest representable value, as shares of the largest value
_SHARES = np.linspace(0.25, 1.0, 31)
_QUANTILE = 99.99


@dataclass
class ObservedValues:
    """The least and the largest value of a tensor over all samples, 0 included, and a subset of
    its values."""

    low: float = 0.0
    high: float = 0.0
    values: list[Array] = field(default_factory=list)

    def add(self, values: Array) -> None:
        flat = values.reshape(-1)
        if flat.size:
            self.low, self.high = (
                min(self.low, float(flat.min())),
                max(self.high, float(flat.max())),
            )
        step = max(1, flat.size // _SAMPLE_SIZE)
        self.values.append(np.asarray(flat[::step], np.float64))

    def joined(self, parts: Iterable[ObservedValues]) -> ObservedValues:
        joined_parts = [self, *parts]
        return ObservedValues(
            min(s.low for s in joined_parts),
            max(s.high for s in joined_parts),
            [values for s in joined_parts for values in s.values],
        )

    @property
    def all(self) -> Array:
        return np.concatenate(self.values) if self.values else np.zeros(1)


def observe_values(
    graph: Graph, samples: Sequence[Mapping[str, Array]], names: Iterable[str]
) -> dict[str, ObservedValues]:
    """Runs the float network on all samples, and returns the observed values of the named tensors.

    Raises :class:`InputError` if one of them is not finite.
    """
    observed = {name: ObservedValues() for name in names}
    program = CpuProgram(graph)

    def watch(node: Node, results: Sequence[Array]) -> None:
        for name, value in zip(node.outputs, results, strict=True):
            if name in observed:
                if not np.isfinite(value).all():
                    raise InputError(
                        f"{node.title} gives infinities or NaN of a sample: leave that sample out"
                    )
                observed[name].add(value)

    for sample in samples:
        for name in graph.inputs:
            if name in observed:
                observed[name].add(sample[name])
        program.run(sample, watch)
    return observed


def round_digits(value: float) -> float:
    """Returns a number rounded to ``_DIGITS`` significant digits; a power of two stays exact."""
    if frexp(value)[0] == 0.5:
        return float(value)
    return float(f"{value:.{_DIGITS}g}")


@dataclass(frozen=True, slots=True)
class QuantScale:
    """The type of a tensor's words: their scale, bits and signedness."""

    scale: float
    bits: int
    signed: bool

    def clipped(self, values: Array) -> float:
        """Returns the share of the values that the words cannot represent."""
        ends = word_range(self.bits, self.signed)
        integers = np.floor(values / self.scale + 0.5)
        return float(np.mean((integers < ends.low) | (integers > ends.high)))


def choose_scale(
    observed: ObservedValues, bits: int, fixed_scale: float | None = None
) -> QuantScale:
    """Returns the word type for observed values: with scale ``fixed_scale``, or with the best scale
    if that is None.

    With 8 bits the best scale has the least squared error and may clip rare large values. With
    16 bits it covers the largest value with a reserve. The words are unsigned if they have 8
    bits and no value is negative.
    """
    signed = observed.low < 0 or bits == 16
    if fixed_scale is not None:
        return QuantScale(fixed_scale, bits, signed)
    largest_word = word_range(bits, signed).high
    largest = max(abs(observed.low), abs(observed.high))
    if not largest:
        return QuantScale(1.0, bits, signed)
    if bits == 16:
        return QuantScale(round_digits(largest * _HEADROOM / largest_word), bits, signed)
    values = observed.all
    tops = [*(largest * _SHARES), float(np.percentile(np.abs(values), _QUANTILE))]
    scales = [QuantScale(round_digits(top / largest_word), bits, signed) for top in tops if top > 0]
    return min(scales, key=lambda scale: _squares(values, scale))


def _squares(values: Array, scale: QuantScale) -> float:
    ends = word_range(scale.bits, scale.signed)
    integers = np.floor(values / scale.scale + 0.5).clip(ends.low, ends.high)
    return float(np.mean((integers * scale.scale - values) ** 2))


# -- lookup tables --------------------------------------------------------------------------------


def table_words(bits: int, signed: bool) -> Array:
    """Returns the words for which a lookup table has entries, in ascending order.

    They are all words of 8 bits, or every 64th word of 16 bits.
    """
    first = -(1 << (bits - 1)) if signed else 0
    if bits == 16:
        return first + 64 * np.arange(LARGE_TABLE)
    return first + np.arange(SMALL_TABLE)


def tabulate(
    graph: Graph, base: str, name: str, numbers: Array, result_type: QuantScale
) -> list[int]:
    """Returns the lookup table of a function: the words of tensor ``name`` where ``base`` has
    ``numbers``.

    ``result_type`` is the scale and type of the returned words, which are clamped to their range.
    NaN becomes 0.
    """
    values = _evaluate(graph, base, name, numbers.astype(np.float32))
    ends = word_range(result_type.bits, result_type.signed)
    with np.errstate(invalid="ignore"):
        steps = np.floor(values.astype(np.float64) / result_type.scale + 0.5)
    entries = np.nan_to_num(steps, nan=0.0).clip(ends.low, ends.high)
    return [int(v) for v in entries]


def _evaluate(graph: Graph, base: str, name: str, numbers: Array) -> Array:
    values: dict[str, Array] = {base: numbers}
    for node in nodes_between(graph, base, name):
        operands = [
            values[n] if n in values else graph.constants[n].reshape(1) for n in node.inputs
        ]
        (values[node.outputs[0]],) = run_node(node, operands)
    return np.broadcast_to(values[name].reshape(-1), numbers.shape)


def nodes_between(graph: Graph, base: str, name: str) -> list[Node]:
    """Returns the nodes that compute tensor ``name`` from tensor ``base`` and constants, in
    execution order."""
    producers = graph.producers
    tensors, pending = set[str](), [name]
    while pending:
        tensor = pending.pop()
        if tensor in tensors or tensor == base or tensor in graph.constants:
            continue
        tensors.add(tensor)
        pending += producers[tensor].inputs
    return [node for node in graph.nodes if node.outputs[0] in tensors]


# -- weights --------------------------------------------------------------------------------------

_TYPES = {8: np.int8, 16: np.int16}
#: the used share of the range that fits: the scales are rounded, and the bias is added
_MARGIN = 0.45
#: the largest sum of absolute weights for two passes, by whether the words have 16 bits
_MAX_WEIGHT = {True: 60_000, False: 900_000}


def quantize_weights(
    rows: Array, bias: Array, input_range: Range, scale: float, bits: int
) -> tuple[Array, list[float]]:
    """Returns the integer weights, and the scale of each row, which is one output channel.

    ``input_range`` and ``scale`` are the range and the scale of the input's words. ``bias`` has one
    value per row. A row whose sum would not fit gets a larger scale and therefore fewer digits.
    """
    largest_word = (1 << (bits - 1)) - 1
    flat = np.abs(rows.reshape(len(rows), -1).astype(np.float64))
    total = min(
        _MARGIN * INT_BOUND / max(input_range.magnitude, 1),
        _MAX_WEIGHT[input_range.magnitude > 255],
    )
    steps = np.maximum.reduce(
        [
            flat.max(1, initial=0.0) / largest_word,
            flat.sum(1) / total,
            np.abs(bias) / (scale * _MARGIN * INT_BOUND),
        ]
    )
    scales = [round_digits(step * 1.0000005) if step > 0 else 1.0 for step in steps]
    integers = np.floor(rows / np.array(scales).reshape(-1, *[1] * (rows.ndim - 1)) + 0.5)
    return integers.clip(-largest_word, largest_word).astype(_TYPES[bits]), scales


def quantize_bias(bias: Array, scale: float, scales: list[float]) -> tuple[Array, list[float]]:
    """Returns the bias as int32 of shape ``[1, channels]``, and its scale for each channel.

    The scale is the exact product of the input's ``scale`` and the channel's weight scale in
    ``scales``.
    """
    exact = [Fraction(repr(scale)) * Fraction(repr(step)) for step in scales]
    values = np.broadcast_to(bias.reshape(-1), (len(scales),))
    integers = [round_half_up(Fraction(float(b)) / s) for b, s in zip(values, exact, strict=True)]
    return np.array(integers, np.int32).reshape(1, -1), [float(s) for s in exact]
