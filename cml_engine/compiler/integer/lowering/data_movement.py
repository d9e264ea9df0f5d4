"""Lowers operators that move words without changing them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from cml_engine.compiler.integer.lowering.elementwise import common_scale
from cml_engine.compiler.integer.lowering.integer_builder import IntegerGraphBuilder, exact_fraction
from cml_engine.compiler.integer.lowering.pending_values import QuantizedTensor, Value
from cml_engine.compiler.integer.sum_bounds import Range
from cml_engine.errors import ModelError
from cml_engine.ir.graph import Attrs, Node
from cml_engine.ir.integer_rule import clamp, round_half_up

#: operators that read and write words of one scale; a maximum is one of the words, too
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
    found = _find_shuffle(builder, node)
    if found is None:
        return move(builder, node)
    source, factor = found
    words = builder.words(node, source)
    name = builder.add(
        node, "pixel_shuffle", (words.name,), builder.result_name(node), factor=factor
    )
    return [replace(words, name=name)]


def _find_shuffle(builder: IntegerGraphBuilder, node: Node) -> tuple[str, int] | None:
    """Returns the source tensor and the factor of the pixel shuffle that a reshape ends, or None.

    A pixel shuffle is a reshape, a transpose and a reshape that move channels to pixels. Each
    reshape may be a chain of reshapes.
    """
    facts = builder.graph.facts
    *_, before = _reshaped_from(builder, node.inputs[0])
    transpose = builder.find_producer(before, "transpose")
    if transpose is None or list(transpose.attrs["axes"]) != _SHUFFLE:
        return None
    apart = facts[transpose.inputs[0]].shape
    if len(apart) != 6 or apart[2] != apart[3]:
        return None
    batch, channels, factor, _, height, width = apart
    if facts[node.outputs[0]].shape != (batch, channels, height * factor, width * factor):
        return None
    wanted = (batch, channels * factor**2, height, width)
    sources = _reshaped_from(builder, transpose.inputs[0])
    found = next((name for name in sources if facts[name].shape == wanted), None)
    return (found, factor) if found and factor else None


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
    words = builder.words(node, node.inputs[0])
    value = round_half_up(exact_fraction(node.attrs["value"]) / words.scale)
    value = clamp(value, words.range.low, words.range.high)
    return _move_words(builder, node, Attrs({**node.attrs, "value": float(value)}))


def resize(builder: IntegerGraphBuilder, node: Node) -> list[Value]:
    if node.attrs.get("method", node.attrs.get("mode")) != "nearest":
        raise ModelError(
            f"{node.title}: integer networks resize by 'nearest' only; multilinear_upsample has "
            "factors of 2 and 4",
            node.source,
        )
    return move(builder, node)


def _move_words(builder: IntegerGraphBuilder, node: Node, attrs: Any) -> list[Value]:
    inputs, moved = [], []
    for name in node.inputs:
        if builder.graph.facts[name].dtype == "scalar":
            moved.append(builder.words(node, name))
            inputs.append(moved[-1].name)
        elif builder.is_constant(name):
            inputs.append(name)
        else:
            raise ModelError(
                f"{node.title}: '{name}' is computed, and no tensor of words", node.source
            )
    scale = common_scale(node, moved)
    words = QuantizedTensor(
        "",
        scale,
        max(w.bits for w in moved),
        any(w.signed for w in moved),
        Range(min(w.range.low for w in moved), max(w.range.high for w in moved)),
    )
    if _has_zero_border(node):
        words = replace(words, range=Range(min(words.range.low, 0), max(words.range.high, 0)))
    names = tuple(builder.result_name(node, i) for i in range(len(node.outputs)))
    builder.nodes.append(replace(node, inputs=tuple(inputs), outputs=names, attrs=Attrs(attrs)))
    return [replace(words, name=name) for name in names]


def _has_zero_border(node: Node) -> bool:
    """Returns True for ``max_pool``, whose results may be zeros of the border outside the range
    of the operand's words."""
    return node.op == "max_pool"
