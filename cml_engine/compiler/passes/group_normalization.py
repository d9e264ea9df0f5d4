"""Rewrites a normalization by groups of channels as a normalization of the map itself.

Exporters reshape the map to ``[N, groups, rest]``, normalize it, reshape it back, and scale and
shift every channel. That prevents the C4 layout of the map and takes several passes over it. The
mean and variance of a group follow from those of its channels, ``v = mean(v_c) + mean((m_c -
m)^2)``. Only tensors with one value per channel are reshaped here, and ``batch_normalization``
reads the map in its own shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from cml_engine.compiler.passes.cleanup import eliminate_dead_code
from cml_engine.compiler.passes.infer import GraphRewriter
from cml_engine.ir.graph import Array, AttrValue, Fact, Graph, Node
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
    found = {one.last: one for one in _PatternFinder(graph).find_patterns()}
    if not found:
        return graph
    rewriter = GraphRewriter(graph)
    for node in graph.nodes:
        one = found.get(node.outputs[0])
        rewriter.nodes.append(_replace(rewriter, one) if one else node)
    return eliminate_dead_code(rewriter.finished())


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


class _PatternFinder:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._producers = graph.producers()
        self._readers = graph.consumers()
        self._roots = set(graph.roots)

    def find_patterns(self) -> Iterator[_GroupPattern]:
        for node in self._graph.nodes:
            if node.op == "batch_normalization" and not node.epilogues:
                one = self._groups(node)
                if one is not None:
                    yield one

    def _groups(self, norm: Node) -> _GroupPattern | None:
        grouped, mean, variance, offset, scale = norm.inputs
        before, moments = self._producers.get(grouped), self._producers.get(mean)
        back = self._only_reader(norm.outputs[0])
        if before is None or before.op != "reshape" or moments is None or back is None:
            return None
        x = before.inputs[0]
        shape, parts = self._graph.facts[x].shape, self._graph.facts[grouped].shape
        if back.op != "reshape" or self._graph.facts[back.outputs[0]].shape != shape:
            return None
        whole = moments.op == "moments" and moments.outputs == (mean, variance)
        if not whole or moments.inputs[0] != grouped or not _are_groups(shape, parts):
            return None
        if sorted(moments.attrs["axes"]) != list(range(2, len(parts))):
            return None
        numbers = [
            self._per_channel_from_groups(name, parts[1], shape[1]) for name in (scale, offset)
        ]
        if numbers[0] is None or numbers[1] is None:
            return None
        return self._extend_pattern(
            _GroupPattern(x, parts[1], norm, back.outputs[0], numbers[0], numbers[1])
        )

    def _only_reader(self, name: str) -> Node | None:
        readers = self._readers.get(name, ())
        return readers[0] if len(readers) == 1 and name not in self._roots else None

    def _per_channel_from_groups(self, name: str, groups: int, channels: int) -> Array | None:
        """Returns a constant with one value, or one per group, repeated to one value per channel.

        Returns None if the tensor is no constant or has another shape.
        """
        value = self._graph.constant(name)
        if (
            value is None
            or value.size not in (1, groups)
            or (value.ndim > 1 and value.shape[0] != 1)
        ):
            return None
        return np.repeat(np.broadcast_to(value.reshape(-1), (groups,)), channels // groups)

    def _extend_pattern(self, one: _GroupPattern) -> _GroupPattern:
        """Returns the pattern extended by a following product, and a sum after it, with per-channel
        constants.

        Both are merged into its scale and offset. Returns the pattern unchanged if no product
        follows.
        """
        for op in ("mul", "add"):
            node = self._only_reader(one.last)
            if node is None or node.op != op or node.epilogues or len(set(node.inputs)) != 2:
                break
            (other,) = set(node.inputs) - {one.last}
            value = self._per_channel(other, self._graph.facts[one.last])
            if value is None or self._graph.facts[node.outputs[0]] != self._graph.facts[one.last]:
                break
            if op == "mul":
                one = replace(one, scale=one.scale * value, offset=one.offset * value)
            else:
                one = replace(one, offset=one.offset + value)
            one = replace(one, last=node.outputs[0])
        return one

    def _per_channel(self, name: str, fact: Fact) -> Array | None:
        value = self._graph.constant(name)
        if value is None or value.ndim < 2 or value.size != fact.shape[1]:
            return None
        return value.reshape(-1) if value.shape[1] == fact.shape[1] else None


def _replace(rewriter: GraphRewriter, one: _GroupPattern) -> Node:
    """Adds the small nodes that replace one normalization, and returns the last one."""

    def add(op: str, *inputs: str, results: int = 1, **attrs: AttrValue) -> tuple[str, ...]:
        return rewriter.add(one.norm, f"{one.last}.{op}", op, *inputs, results=results, **attrs)

    def reshape(name: str, shape: list[int]) -> str:
        return add("reshape", name, shape=shape, axis_start=0, axis_count=-1)[0]

    shape = rewriter.facts[one.x].shape
    channels = shape[1]
    mean, variance = add("moments", one.x, results=2, axes=list(range(2, len(shape))))
    if one.groups < channels:
        parts = [shape[0], one.groups, channels // one.groups]
        means, variances = (reshape(name, parts) for name in (mean, variance))
        (mean,) = add("mean_reduce", means, axes=[2])
        (apart,) = add("sqr", *add("sub", means, mean))
        (variance,) = add("mean_reduce", *add("add", apart, variances), axes=[2])
        each = [shape[0], channels, *[1] * (len(shape) - 2)]
        tiled = [add("tile", name, repeats=[1, 1, parts[2]]) for name in (mean, variance)]
        mean, variance = (reshape(name, each) for (name,) in tiled)
    names = [
        rewriter.constant(f"{one.last}.{what}", value.reshape(1, -1))
        for what, value in (("offset", one.offset), ("scale", one.scale))
    ]
    return replace(one.norm, inputs=(one.x, mean, variance, *names), outputs=(one.last,))


def _are_groups(shape: tuple[int, ...], parts: tuple[int, ...]) -> bool:
    """Returns True if ``parts``, the shape of a reshaped map, has the channels of ``shape`` in
    groups along its second axis."""
    if len(shape) < 3 or len(parts) < 3 or shape[0] != parts[0] or not prod(shape):
        return False
    return shape[1] % parts[1] == 0
