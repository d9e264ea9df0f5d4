"""Rewrites a normalization by groups of channels as a normalization of the map itself.

Exporters reshape the map to ``[N, groups, rest]``, normalize it, reshape it back, and scale and
shift every channel. That prevents the C4 layout of the map and takes several passes over it. The
mean and variance of a group follow from those of its channels, ``v = mean(v_c) + mean((m_c -
m)^2)``. Only tensors with one value per channel are reshaped here, and ``batch_normalization``
reads the map in its own shape.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from cml_engine.compiler.passes.replacement import replace_nodes
from cml_engine.ir.construction import GraphRewriter
from cml_engine.ir.graph import Array, Attrs, AttrValue, Fact, Graph, Node
from cml_engine.ops.declaration.registry import is_builtin

_OPS = (
    *("reshape", "moments", "batch_normalization", "mul", "add"),
    *("mean_reduce", "sub", "sqr", "tile"),
)


def normalize_groups(graph: Graph) -> Graph:
    """Returns the graph with every normalization of a reshaped map rewritten as a
    ``batch_normalization`` of the map itself."""
    if not any(node.op == "batch_normalization" for node in graph.nodes) or not is_builtin(*_OPS):
        return graph
    found = [_find_pattern(graph, node) for node in graph.nodes]
    return replace_nodes(graph, {pattern.last: pattern for pattern in found if pattern}, _replace)


@dataclass(frozen=True, slots=True)
class _GroupPattern:
    """A normalization of the map ``x`` in ``groups`` groups of channels, found in a graph; ``norm``
    is its node.

    ``scale`` and ``offset`` have one value per channel; ``last`` is the tensor after both are
    applied.
    """

    x: str
    groups: int
    norm: Node
    last: str
    scale: Array
    offset: Array


def _find_pattern(graph: Graph, norm: Node) -> _GroupPattern | None:
    """Returns the pattern around a batch normalization, or None if it is none of groups."""
    if norm.op != "batch_normalization" or norm.epilogues:
        return None
    grouped, mean, variance, offset, scale = norm.inputs
    grouping, moments = graph.producers.get(grouped), graph.producers.get(mean)
    ungrouping = _only_reader(graph, norm.outputs[0])
    if grouping is None or grouping.op != "reshape" or moments is None or ungrouping is None:
        return None
    x = grouping.inputs[0]
    shape, parts = graph.facts[x].shape, graph.facts[grouped].shape
    if ungrouping.op != "reshape" or graph.facts[ungrouping.outputs[0]].shape != shape:
        return None
    has_moments = moments.op == "moments" and moments.outputs == (mean, variance)
    if not has_moments or moments.inputs[0] != grouped or not _are_groups(shape, parts):
        return None
    if sorted(moments.attrs["axes"]) != list(range(2, len(parts))):
        return None
    numbers = [
        _per_channel_from_groups(graph, name, parts[1], shape[1]) for name in (scale, offset)
    ]
    if numbers[0] is None or numbers[1] is None:
        return None
    return _extend_pattern(
        graph, _GroupPattern(x, parts[1], norm, ungrouping.outputs[0], numbers[0], numbers[1])
    )


def _only_reader(graph: Graph, name: str) -> Node | None:
    return graph.consumers[name][0] if graph.is_read_once(name) else None


def _per_channel_from_groups(graph: Graph, name: str, groups: int, channels: int) -> Array | None:
    """Returns a constant with one value, or one per group, repeated to one value per channel.

    Returns None if the tensor is no constant or has another shape.
    """
    value = graph.constant(name)
    if value is None or value.size not in (1, groups) or (value.ndim > 1 and value.shape[0] != 1):
        return None
    return np.repeat(np.broadcast_to(value.reshape(-1), (groups,)), channels // groups)


def _extend_pattern(graph: Graph, pattern: _GroupPattern) -> _GroupPattern:
    """Returns the pattern extended by a following product, and a sum after it, with per-channel
    constants.

    Both are merged into its scale and offset. Returns the pattern unchanged if no product
    follows.
    """
    for op in ("mul", "add"):
        node = _only_reader(graph, pattern.last)
        if node is None or node.op != op or node.epilogues or len(set(node.inputs)) != 2:
            break
        (operand,) = set(node.inputs) - {pattern.last}
        value = _per_channel(graph, operand, graph.facts[pattern.last])
        facts = graph.facts
        if value is None or facts[node.outputs[0]] != facts[pattern.last]:
            break
        if op == "mul":
            scale, offset = pattern.scale * value, pattern.offset * value
        else:
            scale, offset = pattern.scale, pattern.offset + value
        pattern = replace(pattern, scale=scale, offset=offset, last=node.outputs[0])
    return pattern


def _per_channel(graph: Graph, name: str, fact: Fact) -> Array | None:
    value = graph.constant(name)
    if value is None or value.ndim < 2 or value.size != fact.shape[1]:
        return None
    return value.reshape(-1) if value.shape[1] == fact.shape[1] else None


def _replace(rewriter: GraphRewriter, _: Node, pattern: _GroupPattern) -> None:
    """Adds the small nodes that replace one normalization."""

    def add(op: str, *inputs: str, results: int = 1, **attrs: AttrValue) -> tuple[str, ...]:
        names = tuple(rewriter.unused_name(f"{pattern.last}.{op}") for _ in range(results))
        return rewriter.append(Node(op, inputs, names, Attrs(attrs), pattern.norm.source))

    def reshape(name: str, shape: list[int]) -> str:
        return add("reshape", name, shape=shape, axis_start=0, axis_count=-1)[0]

    shape = rewriter.facts[pattern.x].shape
    channels = shape[1]
    mean, variance = add("moments", pattern.x, results=2, axes=list(range(2, len(shape))))
    if pattern.groups < channels:
        parts = [shape[0], pattern.groups, channels // pattern.groups]
        means, variances = (reshape(name, parts) for name in (mean, variance))
        (mean,) = add("mean_reduce", means, axes=[2])
        (squared_difference,) = add("sqr", *add("sub", means, mean))
        (variance,) = add("mean_reduce", *add("add", squared_difference, variances), axes=[2])
        channel_shape = [shape[0], channels, *[1] * (len(shape) - 2)]
        tiled = [add("tile", name, repeats=[1, 1, parts[2]]) for name in (mean, variance)]
        mean, variance = (reshape(name, channel_shape) for (name,) in tiled)
    names = [
        rewriter.constant(f"{pattern.last}.{suffix}", value.reshape(1, -1))
        for suffix, value in (("offset", pattern.offset), ("scale", pattern.scale))
    ]
    inputs = (pattern.x, mean, variance, *names)
    rewriter.append(replace(pattern.norm, inputs=inputs, outputs=(pattern.last,)))


def _are_groups(shape: tuple[int, ...], parts: tuple[int, ...]) -> bool:
    """Returns True if ``parts``, the shape of a reshaped map, has the channels of ``shape`` in
    groups along its second axis."""
    if len(shape) < 3 or len(parts) < 3 or shape[0] != parts[0] or not prod(shape):
        return False
    return shape[1] % parts[1] == 0
