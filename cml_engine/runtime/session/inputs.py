"""Checks the inputs of a run against the inputs of the network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cml_engine.compiler.plan import InputConversion, Plan
from cml_engine.errors import InputError
from cml_engine.errors.arguments import SEED, check_input_mapping, shortened
from cml_engine.ir.arrays import as_array
from cml_engine.ir.graph import NUMPY_DTYPE, Array, Fact, Graph, Slider, check_shape
from cml_engine.ops.declaration.registry import lookup


def with_defaults(
    graph: Graph,
    facts: Mapping[str, Fact],
    retained: frozenset[str],
    inputs: Mapping[str, object],
) -> Mapping[str, Any]:
    """Returns a run's inputs of a network with the defaults of inputs that are missing.

    Sliders that are given as plain values become arrays. An input in ``retained`` keeps its last
    value instead of its default.
    """
    if not (graph.sliders or graph.defaults) or not isinstance(inputs, Mapping):
        return inputs
    values = {
        name: _slider_array(name, slider, facts[name], inputs.get(name, slider.default))
        for name, slider in graph.sliders.items()
        if name in facts and (name in inputs or name not in retained)
    }
    defaults = {n: array for n, array in graph.defaults.items() if n in facts and n not in retained}
    return {**defaults, **inputs, **values}


def _slider_array(name: str, slider: Slider, fact: Fact, value: object) -> Any:
    """Returns a plain value or a word of a slider as an array; anything else unchanged.

    Raises :class:`InputError` for an unknown word, or for another number of values.
    """
    if isinstance(value, str):
        if value not in slider.choices:
            allowed = f"one of {', '.join(slider.choices)}" if slider.choices else "numbers"
            raise InputError(f"input '{name}': wanted {allowed}, got {value!r}")
        value = slider.choices[value]
    if not isinstance(value, bool | int | float | list | tuple):
        return value
    array = as_array(f"input '{name}'", value)
    if array.size != fact.size and array.ndim:
        raise InputError(
            f"input '{name}': wanted {fact.size} numbers, got {array.size}, {shortened(str(value))}"
        )
    if fact.dtype == "scalar" and (array.dtype.kind != "b" or isinstance(slider.default, bool)):
        array = array.astype(np.float32)
    full = array.reshape(fact.shape) if array.ndim else np.broadcast_to(array, fact.shape)
    return np.array(full)


@dataclass(frozen=True, slots=True)
class Words:
    """An input of an integer network as its words of 8 bits, an array of uint8 or int8.

    The words are used as they are; a float array is multiplied by one over the scale and rounded
    (docs/integer.md). Both give the same results for the same words.

    Examples
    --------
    >>> pixels = cml.integer.Words(np.zeros((1, 3, 8, 8), np.uint8))
    """

    array: Array

    def __post_init__(self) -> None:
        dtype = getattr(self.array, "dtype", type(self.array).__name__)
        if dtype not in (np.uint8, np.int8):
            raise InputError(
                f"cml.integer.Words: wanted a NumPy array of uint8 or int8, got {dtype}. Give "
                "numbers as they are, without cml.integer.Words"
            )


def quantized_inputs(graph: Graph) -> dict[str, InputConversion]:
    """Returns the inputs of an optimized integer network, each with its conversion to words."""
    return {
        node.inputs[0]: InputConversion.of(node.attrs)
        for node in graph.nodes
        if lookup(node.op).traits.quantizes_input and node.inputs[0] in graph.inputs
    }


def take_words(graph: Graph, plan: Plan | None, inputs: Mapping[str, Any]) -> dict[str, Array]:
    """Returns the inputs that are given as :class:`Words`, as arrays for the program.

    They are numbers that round to the words, unless the plan's upload converts numbers to words.
    Raises :class:`InputError` if words do not fit the input.
    """
    arrays: dict[str, Array] = {}
    words = {name: value.array for name, value in inputs.items() if isinstance(value, Words)}
    conversions = quantized_inputs(graph) if words else {}
    for name, array in words.items():
        if name not in conversions:
            raise InputError(
                f"input '{name}': cml.integer.Words is for inputs of integer networks, which are "
                f"{', '.join(conversions) or 'none here'}. Give an array of numbers"
            )
        check_shape(name, graph.facts[name], array.shape)
        entry = conversions[name]
        if array.size and not (entry.low <= array.min() and array.max() <= entry.high):
            raise InputError(
                f"input '{name}': its words are {entry.low:.0f} to {entry.high:.0f}, got "
                f"{array.min()} to {array.max()}"
            )
        if plan is None or plan.inputs[name].conversion is None:
            array = array.astype(np.float32) / np.float32(entry.inverse)
        arrays[name] = array
    return arrays


def check_inputs(
    facts: Mapping[str, Fact],
    arrays: Mapping[str, Array],
    retained: frozenset[str] = frozenset(),
) -> dict[str, Array]:
    """Returns the given arrays by name, converted to the network's dtypes.

    Raises :class:`InputError` if an array does not fit, if a name is unknown, or if an input is
    missing that is not in ``retained``.
    """
    for name in check_input_mapping(arrays):
        if name not in facts:
            raise InputError(f"unknown input '{name}'; the model's inputs are {listed(facts)}")
    if missing := [name for name in facts if name not in arrays and name not in retained]:
        raise InputError(
            f"input {', '.join(repr(n) for n in missing)} is missing; the model's inputs are "
            f"{listed(facts)}"
        )
    return {
        name: _checked(name, fact, arrays[name]) for name, fact in facts.items() if name in arrays
    }


def with_unsigned(graph: Graph, inputs: Mapping[str, object]) -> Mapping[str, Any]:
    """Returns the inputs; where one accepts integers of 2^31 and more, they become their bits."""
    most = np.iinfo(np.int32).max
    bits: dict[str, Array] = {}
    for name, (_, high) in graph.input_ranges.items():
        array = inputs.get(name)
        if high <= most or not isinstance(array, np.ndarray) or array.dtype.kind not in "iu":
            continue
        if array.size and most < array.max() <= high and array.min() >= 0:
            bits[name] = array.astype(np.uint32).view(np.int32)
    return {**inputs, **bits} if bits else inputs


def check_ranges(graph: Graph, arrays: Mapping[str, Array]) -> None:
    """Raises :class:`InputError` if an integer is outside its input's range.

    All integers of 32 bits are inside that of an unsigned input.
    """
    for name, (low, high) in graph.input_ranges.items():
        array = arrays.get(name) if high <= np.iinfo(np.int32).max else None
        if array is not None and array.size and not low <= array.min() <= array.max() <= high:
            raise InputError(
                f"input '{name}': got integers from {array.min():,} to {array.max():,}, wanted "
                f"{low:,} to {high:,}: larger ones may exceed the 32 bits of the network's integers"
            )


def _checked(name: str, fact: Fact, value: Array) -> Array:
    array = as_array(f"input '{name}'", value)
    check_shape(name, fact, array.shape)
    expected = NUMPY_DTYPE[fact.dtype]
    kinds = {"scalar": "fiu", "integer": "iu", "logical": "b"}[fact.dtype]
    if array.dtype.kind not in kinds:
        raise InputError(
            f"input '{name}': wanted {fact.dtype} ({expected.name}), got {array.dtype.name}"
        )
    if fact.dtype == "integer" and array.size and array.dtype != expected:
        limits = np.iinfo(expected)
        if array.min() < limits.min or array.max() > limits.max:
            raise InputError(f"input '{name}': values do not fit into {expected.name}")
    return array.astype(expected, copy=False)


def random_inputs(facts: Mapping[str, Fact], seed: int = 0) -> dict[str, Array]:
    """Returns a random array for each input, by name, for measurements.

    Scalars are uniform in [0, 1); integers and logicals are 0 or 1.
    """
    generator = np.random.default_rng(SEED.check(seed, "seed"))
    arrays: dict[str, Array] = {}
    for name, fact in facts.items():
        if fact.dtype == "scalar":
            arrays[name] = generator.random(fact.shape, np.float32)
        else:
            arrays[name] = generator.integers(0, 2, fact.shape).astype(NUMPY_DTYPE[fact.dtype])
    return arrays


def listed(facts: Mapping[str, Fact]) -> str:
    """Returns a text that lists tensors with their types and shapes, for messages."""
    return ", ".join(f"{name}: {fact}" for name, fact in facts.items()) or "(none)"
