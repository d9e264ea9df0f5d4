"""Reads and writes an integer network's lines of ``graph.quant``, and bounds its sums.

docs/integer.md describes the lines under "The file".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from math import prod

import numpy as np

from cml_engine.errors import ModelError, RangeError, Source, located
from cml_engine.ir.graph import Array, Attrs, AttrValue, Fact, Graph, Node, place_of
from cml_engine.ir.integer_rule import (
    FLOAT_BOUND,
    INT_BOUND,
    LARGE_TABLE,
    LEAST_SCALE,
    MOST_SCALE,
    RULE_VERSION,
    SMALL_TABLE,
    fraction_of,
)

#: the numbers of low bits that the second of two passes may take
_LOW_BITS = (8, 4)


@dataclass(frozen=True, slots=True)
class Range:
    """The least and the largest word of a tensor."""

    low: int
    high: int

    @property
    def magnitude(self) -> int:
        """The largest absolute value of a word."""
        return max(abs(self.low), abs(self.high))

    def part(self, take: str, bits: int) -> Range:
        """Returns the range of the upper bits of the words, of their lower ``bits`` bits, or of all
        bits.

        ``take`` is ``"upper"``, ``"lower"`` or ``"all"``.
        """
        if take == "all":
            return self
        if take == "lower":
            return Range(0, (1 << bits) - 1)
        return Range(self.low >> bits, self.high >> bits)


@dataclass(frozen=True, slots=True)
class SumPass:
    """One pass over the products of a sum: its weights, its bias and the bits of the words that it
    reads.

    ``take`` is ``"all"``, ``"upper"`` or ``"lower"``.
    """

    take: str
    weights: Array
    bias: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ExactSum:
    """The one or two passes that compute the sums of a node exactly.

    ``bound`` is the largest bound of any channel, ``carrier`` the type that holds it:
    ``"float32"`` or ``"int32"``. With two ``parts`` the result of the first is multiplied by
    ``2^bits``, and the result of the second is added.
    """

    carrier: str
    bound: int
    parts: tuple[SumPass, ...]
    bits: int = 0


def row_magnitudes(weights: Array) -> list[int]:
    """Returns the exact sum of the absolute values of each row of integer weights."""
    rows = np.abs(weights.astype(np.int64)).reshape(len(weights), -1)
    return [int(total) for total in rows.sum(1)]


def bounds(weights: Array, bias: Sequence[int], input_range: Range) -> list[int]:
    """Returns for each channel the bound ``|b| + max|q| * sum|w|`` of its sums.

    ``weights`` has one row per channel, ``bias`` one integer per channel; ``input_range`` is the
    range of ``q``.
    """
    return [
        abs(b) + input_range.magnitude * w
        for b, w in zip(bias, row_magnitudes(weights), strict=True)
    ]


def plan_exact_sum(
    title: str,
    weights: Array,
    bias: Sequence[int],
    input_range: Range,
    source: Source | None = None,
    sums_in_int32: bool = False,
) -> ExactSum:
    """Returns the one or two passes that compute a node's sums exactly.

    ``weights`` are integers, one row per channel; ``bias`` has one integer per channel;
    ``input_range`` is the range of the input's words. With ``sums_in_int32`` the kernel sums in
    int32 and needs one pass only. Raises :class:`RangeError` if the sums do not fit.
    """
    totals = bounds(weights, bias, input_range)
    bound = max(totals, default=0)
    if bound < FLOAT_BOUND:
        return ExactSum("float32", bound, (SumPass("all", weights, tuple(bias)),))
    if sums_in_int32 and bound < INT_BOUND:
        return ExactSum("int32", bound, (SumPass("all", weights, tuple(bias)),))
    if bound >= INT_BOUND:
        raise sum_overflow_error(title, totals.index(bound), bound, input_range, source)
    for split, bits in product((_split_words, _split_weights), _LOW_BITS):
        parts = split(weights, bias, bits)
        ranges = [input_range.part(part.take, bits) for part in parts]
        largest = [max(bounds(p.weights, p.bias, r)) for p, r in zip(parts, ranges, strict=True)]
        if max(largest) < FLOAT_BOUND:
            return ExactSum("int32", bound, parts, bits)
    raise RangeError(
        f"{title}: channel {totals.index(bound)} sums to {bound:,} at most, and neither its words' "
        "nor its weights' bytes sum below 2^24: quantize it with 8 bits, or with fewer weights",
        source,
    )


def sum_overflow_error(
    title: str, channel: int, bound: int, input_range: Range, source: Source | None = None
) -> RangeError:
    """Returns the error for a channel whose sum does not fit into 32 bits; its message proposes
    changes."""
    return RangeError(
        f"{title}: channel {channel} sums to {bound:,} at most, wanted below 2^31 = {INT_BOUND:,}: "
        f"its input has words up to {input_range.magnitude}; quantize that with 8 bits, or "
        "make the weights' scale larger",
        source,
    )


def check_shift(
    title: str, bound: int, before: int, result_range: Range, source: Source | None = None
) -> None:
    """Raises :class:`RangeError` if a sum of up to ``bound``, shifted left by ``before`` bits,
    does not fit into 31 bits."""
    if bound << before >= INT_BOUND:
        raise RangeError(
            f"{title}: sums up to {bound:,} are shifted left by {before} bits, which do not fit "
            f"into 31; its result of {result_range.low} to {result_range.high} is finer than its "
            "sums: give it a larger scale",
            source,
        )


def _split_words(weights: Array, bias: Sequence[int], bits: int) -> tuple[SumPass, ...]:
    upper, lower = _split_bias(bias, bits)
    return SumPass("upper", weights, upper), SumPass("lower", weights, lower)


def _split_weights(weights: Array, bias: Sequence[int], bits: int) -> tuple[SumPass, ...]:
    integers, half = weights.astype(np.int64), 1 << (bits - 1)
    remainder = ((integers + half) & ((1 << bits) - 1)) - half
    upper, lower = _split_bias(bias, bits)
    return SumPass("all", (integers - remainder) >> bits, upper), SumPass("all", remainder, lower)


def _split_bias(bias: Sequence[int], bits: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(b >> bits for b in bias), tuple(b & ((1 << bits) - 1) for b in bias)


def find_range_violation(name: str, values: Array, limits: Range) -> str:
    """Returns a description of the first value of ``values`` that is no whole number or is outside
    ``limits``.

    ``values`` is the result ``name`` of an exact operator. Returns an empty string if all values
    are valid.
    """
    for violations, problem in (
        (values != np.rint(values), "exact=True says that it gives whole numbers"),
        ((values < limits.low) | (values > limits.high), f"wanted {limits.low} to {limits.high}"),
    ):
        if violations.any():
            index = tuple(int(i) for i in np.argwhere(violations)[0])
            return f"gives {values[index]} in '{name}', at {list(index)}: {problem}"
    return ""


# -- quant params ---------------------------------------------------------------------------------

#: the NNEF operator of all lines
OPERATOR = "zero_point_linear_quantize"
_BITS = (8, 16, 32)


@dataclass(frozen=True, slots=True)
class QuantParams:
    """The quantization of one tensor, as its line in ``graph.quant`` states it.

    ``scales`` are in row-major order of an array of shape ``extents``, which is empty for one
    scale. A word has ``bits`` bits. ``table`` has the words of a function, and is empty for
    other tensors.
    """

    name: str
    scales: tuple[Fraction, ...]
    extents: tuple[int, ...]
    bits: int
    signed: bool
    table: tuple[int, ...] = ()
    source: Source | None = None

    def error(self, problem: str) -> ModelError:
        """Returns a :class:`ModelError` with the text ``problem`` about this line of
        ``graph.quant``."""
        error = _params_error(self.name, problem)
        error.source = self.source
        return error

    @property
    def scale(self) -> Fraction:
        """The only scale of the tensor; raises :class:`ModelError` if it has several."""
        if len(self.scales) != 1:
            raise self.error(f"{len(self.scales)} scales: wanted one, as all but weights")
        return self.scales[0]

    @property
    def range(self) -> Range:
        return word_range(self.bits, self.signed)

    def scales_along(self, shape: Sequence[int], axis: int) -> tuple[Fraction, ...]:
        """Returns one scale for each index of ``axis`` of a tensor of shape ``shape``; a single
        scale is repeated.

        Raises :class:`ModelError` if the scales belong to another axis or are of another number.
        """
        count = shape[axis] if shape else 1
        if len(self.scales) == 1:
            return self.scales * count
        scale_shape = (*self.extents, *(1,) * (len(shape) - len(self.extents)))
        if prod(scale_shape) != scale_shape[axis] or scale_shape[axis] != count:
            raise self.error(
                f"scales of shape {list(self.extents)}; wanted one, or one for each of the "
                f"{count} indices of axis {axis} of {list(shape)}"
            )
        return self.scales


def word_range(bits: int, signed: bool) -> Range:
    """Returns the range of words of ``bits`` bits; a signed range is symmetric (-127 to 127 for
    8 bits)."""
    largest = (1 << (bits - 1)) - 1
    return Range(-largest, largest) if signed else Range(0, (1 << bits) - 1)


def quant_attrs(scale: object, bits: int, signed: bool = True, **others: AttrValue) -> Attrs:
    """Returns the attributes of a line of ``graph.quant`` with this scale and word type.

    ``scale`` is a number or nested lists of :func:`nest_scales`.
    """
    return Attrs(
        {
            "op": OPERATOR,
            "zero_point": 0,
            "scale": scale,
            "bits": bits,
            "signed": signed,
            "symmetric": signed,
            **others,
        }
    )


def assemble_integer_graph(
    graph: Graph,
    nodes: Sequence[Node],
    constants: Mapping[str, Array],
    lines: Mapping[str, Attrs],
    *,
    facts: Mapping[str, Fact] | None = None,
    float_tail: bool = False,
) -> Graph:
    """Returns the integer network of a float network, with the new nodes, constants and lines.

    ``facts`` also has those of tensors that ``graph`` lacks, if there are any. Constants that no
    node reads, and their lines, are left out.
    """
    used_names = {name for node in nodes for name in node.inputs}
    arrays = {name: array for name, array in constants.items() if name in used_names}
    kept_facts = {n: f for n, f in (facts or graph.facts).items() if n not in constants}
    for name, array in arrays.items():
        has_fact = name in graph.facts and name not in lines
        kept_facts[name] = graph.facts[name] if has_fact else Fact("scalar", array.shape)
    lines = {n: line for n, line in lines.items() if n not in constants or n in arrays}
    labels = {n: n for n in lines if n in arrays} | dict(graph.labels)
    return graph.with_(
        nodes=tuple(nodes),
        constants=arrays,
        facts=kept_facts,
        labels={name: label for name, label in labels.items() if name in arrays},
        quantization=lines,
        integer=RULE_VERSION,
        float_tail=float_tail,
    )


def nest_scales(scales: Sequence[float], axis: int, rank: int) -> AttrValue:
    """Returns the ``scale`` attribute of a line in ``graph.quant`` for one scale per index of
    ``axis``.

    It is nested in one list per axis before ``axis``, so that it broadcasts from the left.
    Returns a single number if all scales are equal.
    """
    if len(set(scales)) == 1:
        return scales[0]
    nested: AttrValue = list(scales)
    for _ in range(axis % rank):
        nested = [nested]
    return nested


def read_quant_params(graph: Graph) -> Mapping[str, QuantParams]:
    """Returns the parsed lines of ``graph.quant`` by tensor name; lines of unknown tensors are left
    out.

    Raises :class:`ModelError` for an invalid line.
    """
    params = {}
    for name, attrs in graph.quantization.items():
        if name in graph.facts:
            source = place_of(attrs)
            with located(source):
                params[name] = replace(_parse_params(name, attrs), source=source)
    return params


def _parse_params(name: str, attrs: Attrs) -> QuantParams:
    if attrs["op"] != OPERATOR:
        raise _params_error(name, f"quantised by {attrs['op']}: integer networks want {OPERATOR}")
    parameters = {"op", "zero_point", "scale", "bits", "signed", "symmetric", "table"}
    if unknown := set(attrs) - parameters:
        raise _params_error(name, f"{OPERATOR} has no parameter '{min(unknown)}'")
    if attrs.get("zero_point", 0) != 0:
        raise _params_error(name, f"zero_point {attrs['zero_point']}: wanted 0")
    bits, signed = attrs.get("bits"), attrs.get("signed", True)
    if bits not in _BITS or not isinstance(signed, bool):
        raise _params_error(
            name, f"bits {bits}, signed {signed}: wanted 8, 16 or 32, and true or false"
        )
    if "scale" not in attrs:
        raise _params_error(name, "has no scale: wanted scale = …")
    values, extents = _flatten_scales(name, attrs["scale"])
    return QuantParams(
        name, tuple(values), extents, bits, signed, _parse_table(name, attrs.get("table", []))
    )


def _flatten_scales(name: str, scale: object) -> tuple[list[Fraction], tuple[int, ...]]:
    """Returns all scales of a number or a nested list in row-major order, and the shape of the
    list.

    Raises :class:`ModelError` if the list is empty or its rows differ in shape.
    """
    if not isinstance(scale, list):
        return [_parse_scale(name, scale)], ()
    parts = [_flatten_scales(name, item) for item in scale]
    if not parts or any(extents != parts[0][1] for _, extents in parts):
        raise _params_error(name, "'scale' wants numbers in equal rows")
    return [value for values, _ in parts for value in values], (len(parts), *parts[0][1])


def _parse_scale(name: str, value: object) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _params_error(name, f"scale {value!r}: wanted a number")
    try:
        fraction = fraction_of(value)
    except ValueError:
        raise _params_error(name, f"scale {value!r}: wanted a finite number") from None
    if fraction <= 0:
        raise _params_error(name, f"scale {value!r}: wanted one above 0")
    return fraction


def _parse_table(name: str, table: object) -> tuple[int, ...]:
    if not isinstance(table, list):
        raise _params_error(name, f"table {table!r}: wanted whole numbers in brackets")
    if wrong := [v for v in table if isinstance(v, bool) or not isinstance(v, int)]:
        raise _params_error(name, f"its table has {wrong[0]!r}: wanted whole numbers")
    if table and len(table) not in (SMALL_TABLE, LARGE_TABLE):
        raise _params_error(
            name,
            f"a table of {len(table)} entries: wanted {SMALL_TABLE} for words of 8 bits, "
            f"{LARGE_TABLE} points for words of 16",
        )
    return tuple(table)


def check_scale(name: str, scale: Fraction) -> None:
    """Raises :class:`ModelError` if a scale is not from 2^-40 to 2^40, outside of which float32
    loses digits."""
    if not LEAST_SCALE <= scale <= MOST_SCALE:
        raise _params_error(name, f"scale {float(scale):.3g}: wanted 2^-40 to 2^40")


def _params_error(name: str, problem: str) -> ModelError:
    return ModelError(f"the line of '{name}' in graph.quant: {problem}")
