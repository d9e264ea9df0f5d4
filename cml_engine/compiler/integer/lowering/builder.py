"""The state of the lowering of one integer network, and the values of its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np

from cml_engine.compiler.integer.quant_params import QuantParams, Range, check_scale
from cml_engine.errors import ModelError, Source, located
from cml_engine.ir.construction import GraphRewriter
from cml_engine.ir.graph import (
    Array,
    Graph,
    Node,
)
from cml_engine.ir.integer_rule import fraction_of, round_half_up


class NoIntegerForm(ModelError):
    """The error for an operator that cannot be lowered to whole numbers; the float tail may
    compute it."""


@dataclass(frozen=True, slots=True)
class QuantizedTensor:
    """Words: a tensor of the new graph whose whole numbers ``q`` stand for ``scale * q``.

    ``range`` bounds its words. A word has ``bits`` bits, 8 or 16.
    """

    name: str
    scale: Fraction
    bits: int
    signed: bool
    range: Range

    @property
    def first(self) -> int:
        """The least word of the type, for which the first entry of a lookup table stands."""
        return -(1 << (self.bits - 1)) if self.signed else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingValue:
    """A node's result before the rounding point that turns it into words.

    ``title`` and ``source`` are those of the node. ``low`` and ``high`` are bounds, in real
    numbers, to which activations clamp the value; None is no bound. ``base`` is the only tensor
    of words that the value is a function of, or None if there are several.
    """

    title: str
    source: Source | None = None
    low: Fraction | None = None
    high: Fraction | None = None
    base: QuantizedTensor | None = None

    def with_bounds(self, low: Fraction | None, high: Fraction | None) -> PendingValue:
        """Returns the value clamped to ``low`` and ``high`` in addition to its own bounds; None
        is no bound."""
        lows = [b for b in (self.low, low) if b is not None]
        highs = [b for b in (self.high, high) if b is not None]
        return replace(self, low=max(lows, default=None), high=min(highs, default=None))


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingSum(PendingValue):
    """A pending sum of whole numbers: one tensor, or ``2^bits * names[0] + names[1]``.

    ``scales`` has one scale, or one for each index of ``axis``. ``bound`` is the largest
    possible magnitude of a sum, ``carrier`` the type that holds it. ``negative`` has the slopes
    that multiply values below zero, one or one per index; it is empty without such slopes.
    """

    scales: tuple[Fraction, ...]
    bound: int
    names: tuple[str, ...] = ()
    bits: int = 0
    axis: int = 1
    carrier: str = "float32"
    #: the operator that computes the sum and rounds it in its first epilogue
    made_by: Node | None = None
    negative: tuple[Fraction, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingAddition(PendingValue):
    """The pending sum ``a + b`` of two tensors of words, or ``a - b`` if ``sign`` is -1."""

    a: QuantizedTensor
    b: QuantizedTensor
    sign: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingProduct(PendingValue):
    """The pending product ``a * b`` of two tensors of words."""

    a: QuantizedTensor
    b: QuantizedTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingFunction(PendingValue):
    """A pending function of the words ``base``, which the lookup table of its rounding point
    evaluates."""

    base: QuantizedTensor


Value = QuantizedTensor | PendingValue


@dataclass(frozen=True, slots=True)
class RoundingPoint:
    """A tensor that is rounded to words: its name, the title of the operator that computes it, and
    its word type.

    ``bound`` is the proven bound of its sums. ``carrier`` is the type that holds the sums, or
    ``"table"``.
    """

    name: str
    title: str
    bits: int
    signed: bool
    scale: Fraction
    carrier: str
    bound: int
    shape: tuple[int, ...]
    #: the name of the words in the lowered graph
    words: str


# -- integer builder ------------------------------------------------------------------------------

#: the largest word of constants that have no line
_CONSTANT_WORD = 32767


@dataclass
class IntegerGraphBuilder(GraphRewriter):
    """The state of lowering ``graph``: the values lowered so far, and the nodes and constants of
    the new graph.

    ``values`` maps each tensor to its words or its pending value. ``quant_params`` are the lines
    of ``graph.quant``. ``points`` are the rounding points in execution order.
    """

    graph: Graph
    quant_params: Mapping[str, QuantParams]
    values: dict[str, Value] = field(default_factory=dict)
    points: list[RoundingPoint] = field(default_factory=list)
    #: the result ranges that a game's operators declare
    declared_ranges: dict[str, Range] = field(default_factory=dict)
    _parts: dict[tuple[str, int], tuple[str, str]] = field(default_factory=dict)
    _constant_words: dict[str, QuantizedTensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__(self.graph)

    # -- names and nodes ------------------------------------------------------------------------

    def words_name(self, name: str) -> str:
        """Returns the name that the words of a tensor have in the new graph.

        It is the tensor's own name, except for inputs and for tensors that are read after a run:
        their own names stand for real numbers.
        """
        if name in self.graph.persistent or name in self.graph.inputs:
            return self.unused_name(f"{name}.words")
        return name

    def result_name(self, node: Node, i: int = 0) -> str:
        """Returns the new graph's name for result ``i`` of a node.

        The name is an unused ``….sum`` if a rounding point follows, else the name of the
        result's words.
        """
        name = node.outputs[i]
        return (
            self.unused_name(f"{name}.sum") if name in self.quant_params else self.words_name(name)
        )

    # -- operands -------------------------------------------------------------------------------

    def value(self, node: Node, name: str) -> Value:
        """Returns the words or the pending value of a tensor; a constant is converted to words.

        Raises :class:`ModelError` if the tensor does not hold numbers.
        """
        if name in self.values:
            return self.values[name]
        if name in self.graph.constants:
            if name not in self._constant_words:
                self._constant_words[name] = self._quantize_constant(node, name)
            return self._constant_words[name]
        raise ModelError(
            f"{node.title}: '{name}' is no tensor of numbers, which integer networks are of",
            node.source,
        )

    def words(self, node: Node, name: str) -> QuantizedTensor:
        value = self.value(node, name)
        if isinstance(value, QuantizedTensor):
            return value
        raise ModelError(
            f"{node.title} reads '{name}', which is not rounded: {value.title} makes sums, and "
            f"graph.quant has no line for '{name}'. Add one (cml quantize does)",
            node.source,
        )

    def is_constant(self, name: str) -> bool:
        return name in self.graph.constants and name not in self.values

    def find_producer(self, name: str, op: str) -> Node | None:
        """Returns the node that computes tensor ``name`` if its operator is ``op`` and the
        tensor is not rounded, else None."""
        node = self.graph.producers.get(name)
        return (
            node if node is not None and node.op == op and name not in self.quant_params else None
        )

    def integer_constant(self, node: Node, name: str, role: str) -> tuple[Array, QuantParams]:
        """Returns the integers of a constant as int64, and its line in ``graph.quant``.

        ``role`` names the constant's role in messages. Raises :class:`ModelError` if the tensor
        is computed or is not stored as integers.
        """
        array, line = self.graph.constants.get(name), self.quant_params.get(name)
        if array is None or line is None or array.dtype.kind not in "iu":
            state = "is computed" if array is None else "has no integers with a line in graph.quant"
            raise ModelError(f"{node.title}: its {role} '{name}' {state}", node.source)
        return array.astype(np.int64), line

    def exact_values(self, name: str) -> list[Fraction]:
        """Returns the real values of a constant as exact fractions in row-major order.

        Stored integers are multiplied by their scales.
        """
        array, line = self.graph.constants[name], self.quant_params.get(name)
        if line is not None and array.dtype.kind in "iu":
            scales = np.empty(len(line.scales), object)
            scales[:] = line.scales
            scale_shape = line.extents + (1,) * (array.ndim - len(line.extents))
            return list((array.astype(object) * scales.reshape(scale_shape or ())).reshape(-1))
        return [Fraction(float(value)) for value in array.reshape(-1)]

    def _quantize_constant(self, node: Node, name: str) -> QuantizedTensor:
        array, line = self.graph.constants[name], self.quant_params.get(name)
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ModelError(f"{node.title}: '{name}' is not finite", node.source)
        if line is not None and array.dtype.kind in "iu":
            integers, scale, bits = array.astype(np.int64), line.scale, line.bits
            signed = line.signed
        else:
            numbers = self.exact_values(name)
            largest = max(map(abs, numbers), default=Fraction(0))
            scale, bits, signed = (largest or Fraction(_CONSTANT_WORD)) / _CONSTANT_WORD, 16, True
            rounded = [round_half_up(number / scale) for number in numbers]
            integers = np.array(rounded, np.int64).reshape(array.shape)
        bounds = Range(int(integers.min(initial=0)), int(integers.max(initial=0)))
        words = self.constant(f"{name}.words", integers)
        return QuantizedTensor(words, scale, bits, signed, bounds)

    # -- parts of words -------------------------------------------------------------------------

    def split_words(self, node: Node, quantized: QuantizedTensor, take: str, bits: int) -> str:
        """Returns the name of a tensor with all bits of the words, or with their upper or lower
        bits.

        ``take`` is ``"all"``, ``"upper"`` or ``"lower"``. The upper bits are the words divided
        by ``2^bits`` and rounded down; the lower bits are the rest. The nodes that split the
        words are added once.
        """
        if take == "all":
            return quantized.name
        key = (quantized.name, bits)
        if key not in self._parts:
            step = self.constant(f"{quantized.name}.step", 2.0**-bits)
            back = self.constant(f"{quantized.name}.back", 2.0**bits)
            names = [
                self.unused_name(f"{quantized.name}.{part}")
                for part in ("scaled", "upper", "lifted")
            ]
            self.add(node, "mul", (quantized.name, step), names[0])
            self.add(node, "floor", (names[0],), names[1])
            self.add(node, "mul", (names[1], back), names[2])
            lower = self.unused_name(f"{quantized.name}.lower")
            self.add(node, "sub", (quantized.name, names[2]), lower)
            self._parts[key] = names[1], lower
        return self._parts[key][take == "lower"]

    def scale_words(
        self, node: Node, quantized: QuantizedTensor, factors: tuple[Fraction, ...] = (Fraction(1),)
    ) -> PendingSum:
        """Returns a pending sum that stands for the words multiplied by one number, or by one
        number per channel.

        No node is added: the product changes the scales only.
        """
        return PendingSum(
            title=node.title,
            source=node.source,
            base=quantized if len(factors) == 1 else None,
            names=(quantized.name,),
            scales=tuple(quantized.scale * factor for factor in factors),
            bound=quantized.range.magnitude,
        )

    def add_input(self, name: str) -> QuantizedTensor:
        """Adds the node that converts an input's real numbers to words, and returns the words.

        Raises :class:`ModelError` if the input has no line in ``graph.quant``.
        """
        line = self.quant_params.get(name)
        if line is None:
            raise ModelError(
                f"input '{name}' has no line in graph.quant: an integer network wants its scale",
                self.graph.sources.get(name),
            )
        with located(line.source):
            check_scale(name, line.scale)
        origin = Node("external", (), (name,), source=self.graph.sources.get(name))
        quantized = QuantizedTensor(
            self.unused_name(f"{name}.words"), line.scale, line.bits, line.signed, line.range
        )
        self.add(
            origin,
            "integer_words",
            (name,),
            quantized.name,
            inverse=float(1 / line.scale),
            low=float(quantized.range.low),
            high=float(quantized.range.high),
        )
        self.add_point(name, "input", quantized, "float32", 0)
        return quantized

    def add_point(
        self, name: str, title: str, quantized: QuantizedTensor, carrier: str, bound: int
    ) -> None:
        """Records the rounding point of tensor ``name``, which became ``quantized``."""
        shape = self.graph.facts[name].shape
        word_type = quantized.bits, quantized.signed, quantized.scale
        self.points.append(
            RoundingPoint(name, title, *word_type, carrier, bound, shape, quantized.name)
        )

    def add_output(self, name: str) -> None:
        """Adds the node that converts the words of ``name``, which is read after a run, to real
        numbers.

        Raises :class:`ModelError` if the tensor is not rounded.
        """
        value = self.values[name]
        if isinstance(value, PendingValue):
            raise ModelError(
                f"'{name}' of {value.title} is read after a run, and has no line in graph.quant: "
                "add one, or read what is rounded",
                value.source,
            )
        origin = Node("copy", (), (name,))
        self.add(origin, "integer_numbers", (value.name,), name, scale=float(value.scale))

    def build(self) -> Graph:
        """Returns the built graph; only inputs and constants have types and shapes yet.

        The facts of computed tensors are not inferred yet. Constants that no node reads are left
        out.
        """
        graph = self.graph
        read = {name for node in self.nodes for name in node.inputs}
        constants = {
            n: a for n, a in self.constants.items() if n in read or n not in graph.constants
        }
        facts = {name: self.facts[name] for name in (*graph.inputs, *constants)}
        return graph.with_(
            nodes=tuple(self.nodes),
            constants=constants,
            facts=facts,
            labels={},
            quantization={},
            unfused=(),
            integer=0,
            float_tail=False,
            words={
                words.name: (words.range.low, words.range.high)
                for words in self.values.values()
                if isinstance(words, QuantizedTensor)
            },
        )


def exact_fraction(value: float) -> Fraction:
    """Returns a float attribute as the fraction that its shortest decimal form denotes: 0.1
    becomes 1/10.

    As in an input, NaN counts as 0 and an infinity as the largest float.
    """
    return fraction_of(float(np.nan_to_num(value)))
