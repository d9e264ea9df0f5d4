"""The value ranges of a network's tensors on samples, and the scales derived from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from cml_engine.compiler.integer.quant_params import word_range
from cml_engine.cpu.cpu_program import CpuProgram
from cml_engine.errors import InputError
from cml_engine.ir.graph import Array, Graph, Node

#: significant digits of a scale: a double holds all digits of the product of two
_DIGITS = 7
#: values of a tensor kept from each sample
_LOOKED_AT = 4096
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
        step = max(1, flat.size // _LOOKED_AT)
        self.values.append(np.asarray(flat[::step], np.float64))

    def joined(self, others: Iterable[ObservedValues]) -> ObservedValues:
        every = [self, *others]
        return ObservedValues(
            min(s.low for s in every),
            max(s.high for s in every),
            [values for s in every for values in s.values],
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
    found = {name: ObservedValues() for name in names}
    program = CpuProgram(graph)

    def watch(node: Node, results: Sequence[Array]) -> None:
        for name, value in zip(node.outputs, results, strict=True):
            if name in found:
                if not np.isfinite(value).all():
                    raise InputError(
                        f"{node.title} gives infinities or NaN of a sample: leave that sample out"
                    )
                found[name].add(value)

    for sample in samples:
        for name in graph.inputs:
            if name in found:
                found[name].add(sample[name])
        program.run(sample, watch)
    return found


def round_digits(value: float) -> float:
    """Returns a number rounded to ``_DIGITS`` significant digits."""
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
        words = np.floor(values / self.scale + 0.5)
        return float(np.mean((words < ends.low) | (words > ends.high)))


def choose_scale(seen: ObservedValues, bits: int, given: float | None = None) -> QuantScale:
    """Returns the word type for observed values: with scale ``given``, or with the best scale if
    that is None.

    With 8 bits the best scale has the least squared error and may clip rare large values. With
    16 bits it covers the largest value with a reserve. The words are unsigned if they have 8
    bits and no value is negative.
    """
    signed = seen.low < 0 or bits == 16
    if given is not None:
        return QuantScale(given, bits, signed)
    most = word_range(bits, signed).high
    largest = max(abs(seen.low), abs(seen.high))
    if not largest:
        return QuantScale(1.0, bits, signed)
    if bits == 16:
        return QuantScale(round_digits(largest * _HEADROOM / most), bits, signed)
    values = seen.all
    tops = [*(largest * _SHARES), float(np.percentile(np.abs(values), _QUANTILE))]
    scales = [QuantScale(round_digits(top / most), bits, signed) for top in tops if top > 0]
    return min(scales, key=lambda scale: _squares(values, scale))


def _squares(values: Array, scale: QuantScale) -> float:
    ends = word_range(scale.bits, scale.signed)
    words = np.floor(values / scale.scale + 0.5).clip(ends.low, ends.high)
    return float(np.mean((words * scale.scale - values) ** 2))
