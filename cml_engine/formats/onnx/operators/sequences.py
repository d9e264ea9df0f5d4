"""Imports operators of sequences, lists of tensors whose length is known at import, and of optional
values, of which it is known whether they have an element.

They leave no operators but the splits and concatenations of their tensors.
"""

from __future__ import annotations

import numpy as np

from cml_engine.formats.onnx.model import OnnxGraph, ValueInfo
from cml_engine.formats.onnx.op_schemas import OnnxCall, element_type, op
from cml_engine.formats.onnx.values import (
    EmptyOptional,
    InvalidNode,
    SequenceValue,
    Value,
    as_value,
    checked_axis,
    concat,
    ints,
    unsupported_error,
)
from cml_engine.io.load_limits import current_budget
from cml_engine.ir.graph import DType

_KNOWN = "known"


def _checked_position(position: int, count: int) -> int:
    """Returns a position of ``count`` places, counted from the front."""
    if not -count <= position < count:
        raise InvalidNode(f"position {position} of {count}")
    return position % count


@op("SequenceConstruct", _KNOWN)
def sequence_construct(*elements: Value) -> Value:
    return SequenceValue(elements)


@op("SequenceEmpty", _KNOWN)
def sequence_empty(*, dtype: DType = element_type(1)) -> Value:
    return SequenceValue([])


@op("SequenceAt", _KNOWN, takes_sequences=True)
def sequence_at(sequence: SequenceValue, position: int) -> Value:
    return sequence.elements[_checked_position(position, len(sequence.elements))]


@op("SequenceInsert", _KNOWN, takes_sequences=True)
def sequence_insert(sequence: SequenceValue, element: Value, position: int | None = None) -> Value:
    count = len(sequence.elements)
    if position is not None and not -count <= position <= count:
        raise InvalidNode(f"position {position} of {count + 1}")
    elements = list(sequence.elements)
    elements.insert(count if position is None else position, element)
    return SequenceValue(elements)


@op("SequenceErase", _KNOWN, takes_sequences=True)
def sequence_erase(sequence: SequenceValue, position: int = -1) -> Value:
    elements = list(sequence.elements)
    del elements[_checked_position(position, len(elements))]
    return SequenceValue(elements)


@op("SequenceLength", _KNOWN, takes_sequences=True)
def sequence_length(sequence: SequenceValue) -> Value:
    return Value.known(np.array(len(sequence.elements), np.int64))


@op("Optional", "nothing", takes_sequences=True)
def optional(element: Value | None = None, *, type: ValueInfo | None = None) -> Value:
    return EmptyOptional([]) if element is None else element


@op("OptionalHasElement", _KNOWN, takes_sequences=True)
def optional_has_element(value: Value | None = None) -> Value:
    return as_value(value is not None and not isinstance(value, EmptyOptional))


@op("OptionalGetElement", "nothing", takes_sequences=True)
def optional_get_element(value: Value) -> Value:
    if isinstance(value, EmptyOptional):
        raise InvalidNode(f"its input is a {value}")
    return value


@op("SplitToSequence", "split, slice, squeeze")
def split_to_sequence(
    x: Value, sizes: Value | None = None, *, axis: int = 0, keepdims: bool = True
) -> Value:
    axis = checked_axis(axis, x.rank)
    extent = x.shape[axis]
    current_budget().check_nodes(extent if sizes is None else 0, "the operator")
    if sizes is None:
        parts = x.split(axis, [1] * extent) if extent else []
        return SequenceValue(parts if keepdims else [part.squeeze([axis]) for part in parts])
    numbers = ints(sizes, "the split")
    if not sizes.rank:  # the size of every part, of which the last may be smaller
        if numbers[0] < 1:
            raise InvalidNode(f"parts of {numbers[0]} elements")
        current_budget().check_nodes(extent // numbers[0], "the operator")
        numbers = [min(numbers[0], extent - first) for first in range(0, extent, numbers[0])]
    if min(numbers, default=0) < 0 or sum(numbers) != extent:
        raise InvalidNode(f"parts of {numbers[:8]} elements of {extent}")
    return SequenceValue(x.split(axis, numbers) if numbers else [])


@op("ConcatFromSequence", "concat, unsqueeze", takes_sequences=True)
def concat_from_sequence(sequence: SequenceValue, *, axis: int, new_axis: bool = False) -> Value:
    if not sequence.elements:
        raise unsupported_error("a concatenation of no tensors")
    axis = checked_axis(axis, sequence.elements[0].rank + new_axis)
    elements = sequence.elements
    return concat([v.unsqueeze([axis]) for v in elements] if new_axis else elements, axis)


@op("SequenceMap", "its body, for each tensor", takes_sequences=True)
def sequence_map(
    call: OnnxCall, sequence: SequenceValue, *more: Value, body: OnnxGraph
) -> list[Value]:
    lists: list[list[Value]] = [[] for _ in body.outputs]
    for i in range(len(sequence.elements)):
        current_budget().charge_nodes(1, f"tensor {i:,} of the sequence")
        inputs = [
            value.elements[i] if isinstance(value, SequenceValue) else value
            for value in (sequence, *more)
        ]
        results = call.inner(body, inputs, f"{i}_")
        for elements, result in zip(lists, results, strict=True):
            elements.append(result)
    return [SequenceValue(elements) for elements in lists]
