"""Adds rounding points: each is one node of the new graph that rounds a pending value to words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from cml_engine.compiler.integer.lowering.integer_builder import IntegerGraphBuilder
from cml_engine.compiler.integer.lowering.pending_values import (
    PendingAddition,
    PendingProduct,
    PendingSum,
    PendingValue,
    QuantizedTensor,
    RoundingPoint,
)
from cml_engine.compiler.integer.quant_params import QuantParams, check_scale
from cml_engine.compiler.integer.sum_bounds import Range, check_shift
from cml_engine.errors import ModelError, RangeError, located
from cml_engine.ir.graph import Attrs, Epilogue, Node
from cml_engine.ir.integer_rule import (
    INT_BOUND,
    LARGE_TABLE,
    Multiplier,
    multiplier,
    pair,
    round_half_up,
)


def round_value(
    builder: IntegerGraphBuilder, node: Node, name: str, pending: PendingValue, line: QuantParams
) -> QuantizedTensor:
    """Adds the rounding point of tensor ``name`` to the new graph, and returns the words of
    ``pending``.

    ``line`` is the tensor's line in ``graph.quant``. Raises :class:`ModelError` if its bits or
    its scale are invalid.
    """
    with located(line.source):
        check_scale(name, line.scale)
    if line.bits == 32:
        raise line.error("bits 32 are for a bias; wanted 8 or 16")
    low, high = _word_limits(pending, line)
    words = QuantizedTensor(
        builder.words_name(name), line.scale, line.bits, line.signed, Range(low, high)
    )
    ends = {"low": float(low), "high": float(high)}
    if line.table:
        bound, carrier = _round_by_table(builder, node, pending, line, words), "table"
    elif isinstance(pending, PendingSum):
        bound, carrier = _round_sum(builder, node, pending, words, ends), pending.carrier
    elif isinstance(pending, PendingAddition):
        bound, carrier = _round_addition(builder, node, pending, words, ends), "int32"
    elif isinstance(pending, PendingProduct):
        bound, carrier = _round_product(builder, node, pending, words, ends), "int32"
    else:
        raise ModelError(
            f"{pending.title}: a function of one tensor wants a table, and the line of '{name}' in "
            "graph.quant has none (cml quantize makes one)",
            pending.source,
        )
    shape = builder.graph.facts[name].shape
    builder.points.append(
        RoundingPoint(
            name, pending.title, line.bits, line.signed, line.scale, carrier, bound, shape
        )
    )
    return words


def _word_limits(pending: PendingValue, line: QuantParams) -> tuple[int, int]:
    """Returns the least and the largest word of a rounding point, within the word type and the
    value's bounds."""
    low, high = line.range.low, line.range.high
    if pending.low is not None:
        low = min(max(low, round_half_up(pending.low / line.scale)), high)
    if pending.high is not None:
        high = max(min(high, round_half_up(pending.high / line.scale)), low)
    return low, high


def _round_sum(
    builder: IntegerGraphBuilder,
    node: Node,
    pending: PendingSum,
    words: QuantizedTensor,
    ends: dict[str, float],
) -> int:
    factors = [[scale / words.scale for scale in pending.scales]]
    if pending.negative:
        count = max(len(pending.scales), len(pending.negative))
        scales, slopes = (_repeat(v, count) for v in (pending.scales, pending.negative))
        factors = [
            [scale / words.scale for scale in scales],
            [s * slope / words.scale for s, slope in zip(scales, slopes, strict=True)],
        ]
    codes = [_codes(builder, pending, words, ratios) for ratios in factors]
    if pending.made_by is not None:
        op = "requantize" + "_signed" * bool(pending.negative)
        rounding = Epilogue(op, tuple(codes), Attrs(ends))
        maker = replace(pending.made_by, outputs=(words.name,), epilogues=(rounding,))
        builder.nodes.append(maker)
        return pending.bound
    wide = len(pending.names) == 2
    op = "requantize" + "_wide" * wide + "_signed" * bool(pending.negative)
    more = {"factor": float(1 << pending.bits)} if wide else {}
    builder.add(node, op, (*pending.names, *codes), words.name, **more, **ends)
    return pending.bound


def _repeat(values: Sequence[Fraction], count: int) -> list[Fraction]:
    return list(values) * count if len(values) == 1 else list(values)


def _codes(
    builder: IntegerGraphBuilder,
    pending: PendingSum,
    words: QuantizedTensor,
    ratios: Sequence[Fraction],
) -> str:
    """Adds the encoded multipliers of ``ratios`` as a constant to the new graph, and returns its
    name.

    The constant has a single value if all are equal, else one per index of the sum's axis.
    Raises :class:`RangeError` if a sum does not fit after the multiplier's left shift.
    """
    found = [_multiplier(pending, ratio) for ratio in ratios]
    before = max(m.before for m in found)
    check_shift(pending.title, pending.bound, before, words.range, pending.source)
    codes = np.array([m.code for m in found], np.float32)
    if len(set(found)) == 1:
        return builder.constant(f"{words.name}.multiplier", codes[0])
    lead = (1,) * pending.axis
    return builder.constant(f"{words.name}.multipliers", codes.reshape(*lead, -1))


def _multiplier(pending: PendingValue, ratio: Fraction) -> Multiplier:
    try:
        return multiplier(ratio)
    except RangeError as error:
        raise RangeError(f"{pending.title}: {error.message}", pending.source) from None


def _round_addition(
    builder: IntegerGraphBuilder,
    node: Node,
    pending: PendingAddition,
    words: QuantizedTensor,
    ends: dict[str, float],
) -> int:
    a, b = pending.a, pending.b
    ratios = a.scale / words.scale, pending.sign * b.scale / words.scale
    try:
        by = pair(*ratios, (a.range.magnitude, b.range.magnitude))
    except RangeError as error:
        raise RangeError(f"{pending.title}: {error.message}", pending.source) from None
    numbers = [
        builder.constant(f"{words.name}.{what}", value)
        for what, value in (("first", by.first), ("second", by.second), ("shift", by.shift))
    ]
    builder.add(node, "requantize_pair", (a.name, b.name, *numbers), words.name, **ends)
    most = abs(by.first) * a.range.magnitude + abs(by.second) * b.range.magnitude
    return most + (1 << (by.shift - 1))


def _round_product(
    builder: IntegerGraphBuilder,
    node: Node,
    pending: PendingProduct,
    words: QuantizedTensor,
    ends: dict[str, float],
) -> int:
    a, b = pending.a, pending.b
    bound = a.range.magnitude * b.range.magnitude
    if bound >= INT_BOUND:
        raise RangeError(
            f"{pending.title}: products of words up to {a.range.magnitude} and {b.range.magnitude} "
            "do not fit into 32 bits: quantize one of them as signed, or with 8 bits",
            pending.source,
        )
    by = _multiplier(pending, a.scale * b.scale / words.scale)
    check_shift(pending.title, bound, by.before, words.range, pending.source)
    code = builder.constant(f"{words.name}.multiplier", by.code)
    builder.add(node, "requantize_product", (a.name, b.name, code), words.name, **ends)
    return bound


def _round_by_table(
    builder: IntegerGraphBuilder,
    node: Node,
    pending: PendingValue,
    line: QuantParams,
    words: QuantizedTensor,
) -> int:
    base = pending.base
    if base is None:
        raise ModelError(
            f"{pending.title}: the line of '{line.name}' in graph.quant has a table, which is for "
            "a function of one tensor",
            pending.source,
        )
    wanted = 16 if len(line.table) == LARGE_TABLE else 8
    if base.bits != wanted:
        raise ModelError(
            f"{pending.title}: the table of '{line.name}' has {len(line.table)} entries, for words "
            f"of {wanted} bits; those of '{base.name}' have {base.bits}",
            pending.source,
        )
    last = base.first + (1 << base.bits) - 1
    if not base.first <= base.range.low <= base.range.high <= last:
        raise ModelError(
            f"{pending.title}: '{base.name}' has words of {base.range.low} to {base.range.high}, "
            f"the table of '{line.name}' is for {base.first} to {last}: give '{base.name}' a line",
            pending.source,
        )
    if not all(line.range.low <= entry <= line.range.high for entry in line.table):
        raise line.error(
            f"its table has {min(line.table)} to {max(line.table)}; wanted words of "
            f"{line.range.low} to {line.range.high}"
        )
    table = builder.constant(f"{words.name}.table", line.table)
    builder.add(node, "integer_table", (base.name, table), words.name, first=base.first)
    return max(map(abs, line.table))


def pending_of_words(
    builder: IntegerGraphBuilder, node: Node, words: QuantizedTensor
) -> PendingValue:
    """Returns words as a pending value with the same scale, so that they can be rounded to
    another one."""
    return builder.scale_words(node, words, (Fraction(1),))
