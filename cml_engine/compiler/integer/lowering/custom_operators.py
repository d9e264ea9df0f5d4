"""Lowers a game's operators that are registered with ``exact=True``."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cml_engine.compiler.integer.lowering.elementwise import common_scale
from cml_engine.compiler.integer.lowering.integer_builder import IntegerGraphBuilder
from cml_engine.compiler.integer.lowering.pending_values import PendingSum, QuantizedTensor, Value
from cml_engine.compiler.integer.sum_bounds import Range
from cml_engine.errors import ModelError, RangeError
from cml_engine.ir.graph import Node
from cml_engine.ir.integer_rule import FLOAT_BOUND, round_half_up
from cml_engine.ops.declaration.game_functions import calling, node_fault
from cml_engine.ops.declaration.spec import IntegerFact, OpSpec


def lower_exact(builder: IntegerGraphBuilder, node: Node, spec: OpSpec) -> list[Value]:
    """Adds a game's exact operator to the new graph, on words of one scale, and returns its
    results.

    The results are words, or one pending sum for each output if the operator declares
    ``bounds``. Raises :class:`ModelError` if no operand or not every result is a tensor of
    numbers.
    """
    operands = _find_operands(builder, node)
    words = [found for found in operands if isinstance(found, QuantizedTensor)]
    results = [builder.graph.facts[name] for name in node.outputs]
    if not words or any(fact.dtype != "scalar" for fact in results):
        raise ModelError(f"{node.title}: exact=True is for tensors of numbers", node.source)
    low, high = min(w.range.low for w in words), max(w.range.high for w in words)
    if spec.bounds is not None:
        low, high = _bounds(builder, node, spec, operands)
    inputs = tuple(found if isinstance(found, str) else found.name for found in operands)
    found = Range(low, high)
    if spec.bounds is None:
        names = tuple(builder.result_name(node, i) for i in range(len(node.outputs)))
        like = replace(
            words[0],
            bits=max(w.bits for w in words),
            signed=any(w.signed for w in words),
            range=found,
        )
        values: list[Value] = [replace(like, name=name) for name in names]
    else:
        names = tuple(builder.unique_name(f"{name}.sum") for name in node.outputs)
        values = [
            PendingSum(
                title=node.title,
                source=node.source,
                names=(name,),
                bits=0,
                scales=(words[0].scale,),
                axis=1,
                bound=found.magnitude,
                carrier="float32",
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
    if computed:
        common_scale(node, computed)
    found: list[QuantizedTensor | str] = []
    for name in node.inputs:
        if facts[name].dtype != "scalar":
            found.append(name)
        elif builder.is_constant(name) and computed:
            found.append(_convert_constant(builder, name, computed[0]))
        else:
            found.append(builder.words(node, name))
    return found


def _convert_constant(
    builder: IntegerGraphBuilder, name: str, like: QuantizedTensor
) -> QuantizedTensor:
    """Adds a constant to the new graph as words in the scale of ``like``, and returns the words.

    Halves are rounded up.
    """
    whole = [round_half_up(number / like.scale) for number in builder.exact_values(name)]
    made = builder.constant(
        f"{name}.words", np.array(whole).reshape(builder.graph.facts[name].shape)
    )
    return replace(like, name=made, range=Range(min(whole, default=0), max(whole, default=0)))


def _bounds(
    builder: IntegerGraphBuilder, node: Node, spec: OpSpec, operands: list[QuantizedTensor | str]
) -> tuple[int, int]:
    """Returns the least and the largest result that the operator's ``bounds()`` declares for these
    operands.

    Raises :class:`RangeError` unless they are in order and below 2^24 in magnitude.
    """
    assert spec.bounds is not None
    facts = [builder.graph.facts[name] for name in node.inputs]
    given = [
        fact if isinstance(found, str)
        else IntegerFact(fact.dtype, fact.shape, found.range.low, found.range.high)
        for fact, found in zip(facts, operands, strict=True)
    ]  # fmt: skip
    with calling(True, "bounds", node_fault(node)):
        low, high = (int(end) for end in spec.bounds(node.attrs, *given))
    if max(abs(low), abs(high)) >= FLOAT_BOUND or low > high:
        raise RangeError(
            f"{node.title}: its results are {low:,} to {high:,} by bounds() of '{spec.name}'; "
            f"wanted whole numbers below 2^24 = {FLOAT_BOUND:,}: quantize its input with 8 bits",
            node.source,
        )
    return low, high
