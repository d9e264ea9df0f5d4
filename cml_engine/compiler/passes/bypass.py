"""Removes operators that change nothing, or only the shape, so that they run no kernel."""

from __future__ import annotations

import numpy as np

from cml_engine.compiler.passes.rules import Match, Rule, rewrite_custom
from cml_engine.ir.graph import Attrs, Graph, Node


def bypass(graph: Graph) -> Graph:
    """Returns the graph without copies, empty pads, products with 1 and transposes that move
    nothing."""
    return rewrite_custom(graph, RULES)


def _empty_pad(match: Match) -> str | None:
    is_padded = any(n for pair in match.last.attrs["padding"] for n in pair)
    return None if is_padded else match.last.inputs[0]


def _product_with_one(match: Match) -> str | None:
    node = match.last
    for name, factor in (node.inputs, node.inputs[::-1]):
        value = match.constant(factor)
        if value is None or match.fact(name) != match.fact(node.outputs[0]):
            continue
        if value.size and np.all(value == 1):
            return name
    return None


def full_order(node: Node, rank: int) -> list[int]:
    """Returns the full permutation of a transpose; axes missing from its attribute keep their
    order at the end."""
    axes = [int(axis) for axis in node.attrs["axes"]]
    return [*axes, *range(len(axes), rank)]


def _still_transpose(match: Match) -> Node | str | None:
    """Returns the replacement of a transpose that does not change the order of elements in memory,
    else None.

    A transpose that moves nothing is replaced by its operand, one that moves axes of extent 1 by
    a reshape.
    """
    node = match.last
    fact = match.fact(node.inputs[0])
    order = full_order(node, fact.rank)
    if order == sorted(order):
        return node.inputs[0]
    long_axes = [axis for axis in order if fact.shape[axis] != 1]
    if long_axes != sorted(long_axes) or not fact.size:
        return None
    moved = [axis for axis, source in enumerate(order) if axis != source]
    first, end = moved[0], moved[-1] + 1
    # a quantized network is written like this, and the other axes may get other extents
    shape = list(match.fact(node.outputs[0]).shape[first:end])
    attrs = Attrs(shape=shape, axis_start=first, axis_count=end - first)
    return match.node("reshape", node.inputs, attrs)


def _two_transposes(match: Match) -> Node:
    first, second = match.nodes
    rank = match.fact(first.inputs[0]).rank
    inner = full_order(first, rank)
    axes = [inner[axis] for axis in full_order(second, rank)]
    return match.node("transpose", first.inputs, second.attrs.with_(axes=axes))


RULES = (
    Rule("copy", ("copy",), lambda match: match.last.inputs[0]),
    Rule("empty pad", ("pad",), _empty_pad),
    Rule("product with one", ("mul",), _product_with_one),
    Rule("transpose that moves nothing", ("transpose",), _still_transpose),
    Rule("two transposes", ("transpose", "transpose"), _two_transposes, shared=True),
)
