"""Which numbers the tensors of a network have, of samples; and scales by which words hold them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from cml_engine.compiler.integer.lines import word_range
from cml_engine.cpu.cpu import CpuProgram
from cml_engine.errors import InputError
from cml_engine.ir.graph import Array, Graph, Node

#: digits of a scale: of the product of two, a double holds all
_DIGITS = 7
#: values of a tensor that are looked at, of each sample
_LOOKED_AT = 4096
#: what unseen inputs may have besides, where words have digits to spare
_HEADROOM = 1.1
#: ends of words that are tried: shares of the largest value
_SHARES = np.linspace(0.25, 1.0, 31)
_QUANTILE = 99.99


@dataclass
class Seen:
    """The numbers of a tensor, in all samples."""

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

    def joined(self, others: Iterable[Seen]) -> Seen:
        every = [self, *others]
        return Seen(
            min(s.low for s in every),
            max(s.high for s in every),
            [values for s in every for values in s.values],
        )

    @property
    def all(self) -> Array:
        return np.concatenate(self.values) if self.values else np.zeros(1)


def seen_of(
    graph: Graph, samples: Sequence[Mapping[str, Array]], names: Iterable[str]
) -> dict[str, Seen]:
    """What the network of floats computes; :class:`InputError` where that is not finite."""
    found = {name: Seen() for name in names}
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


def decimal(value: float) -> float:
    """A number of few digits."""
    return float(f"{value:.{_DIGITS}g}")


@dataclass(frozen=True, slots=True)
class Scale:
    """How a tensor's words stand for its numbers."""

    scale: float
    bits: int
    signed: bool

    def clipped(self, values: Array) -> float:
        """The share of the values that the words cannot hold."""
        ends = word_range(self.bits, self.signed)
        words = np.floor(values / self.scale + 0.5)
        return float(np.mean((words < ends.low) | (words > ends.high)))


def scale_of(seen: Seen, bits: int, given: float | None = None) -> Scale:
    """The scale that is given, else the one with the least squared error: of 8 bits that cuts off
    rare large values."""
    signed = seen.low < 0 or bits == 16
    if given is not None:
        return Scale(given, bits, signed)
    most = word_range(bits, signed).high
    largest = max(abs(seen.low), abs(seen.high))
    if not largest:
        return Scale(1.0, bits, signed)
    if bits == 16:
        return Scale(decimal(largest * _HEADROOM / most), bits, signed)
    values = seen.all
    tops = [*(largest * _SHARES), float(np.percentile(np.abs(values), _QUANTILE))]
    scales = [Scale(decimal(top / most), bits, signed) for top in tops if top > 0]
    return min(scales, key=lambda scale: _squares(values, scale))


def _squares(values: Array, scale: Scale) -> float:
    ends = word_range(scale.bits, scale.signed)
    words = np.floor(values / scale.scale + 0.5).clip(ends.low, ends.high)
    return float(np.mean((words * scale.scale - values) ** 2))
