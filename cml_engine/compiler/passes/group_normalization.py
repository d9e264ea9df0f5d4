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

from cml_engine.compiler.passes.dead_code import eliminate_dead_code
from cml_engine.compiler.passes.infer import infer_node
from cml_engine.ir.graph import Array, Attrs, AttrValue, Fact, Graph, Node, unused_name
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
    rewriting = _Rewriter(graph)
    found = {one.last: one for one in rewriting.find_patterns()}
    if not found:
        return graph
    nodes: list[Node] = []
    for node in graph.nodes:
        one = found.get(node.outputs[0])
        nodes += rewriting.replace(one) if one else [node]
    changed = graph.with_(nodes=tuple(nodes), facts=rewriting.facts, constants=rewriting.constants)
    return eliminate_dead_code(changed)


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


class _Rewriter:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._producers = {name: node for node in graph.nodes for name in node.outputs}
        self._readers = graph.consumers()
        self._roots = set(graph.roots)
        self.facts: dict[str, Fact] = dict(graph.facts)
        self.constants: dict[str, Array] = dict(graph.constants)

    # -- matching -------------------------------------------------------------------------------

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
        numbers = [self._of_groups(name, parts[1], shape[1]) for name in (scale, offset)]
        if numbers[0] is None or numbers[1] is None:
            return None
        return self._extend_pattern(
            _GroupPattern(x, parts[1], norm, back.outputs[0], numbers[0], numbers[1])
        )

    def _only_reader(self, name: str) -> Node | None:
        readers = self._readers.get(name, ())
        return readers[0] if len(readers) == 1 and name not in self._roots else None

    def _of_groups(self, name: str, groups: int, channels: int) -> Array | None:
        """Returns a constant with one value, or one per group, repeated to one value per channel.

        Returns None if the tensor is no constant or has another shape.
        """
        value = self._graph.constants.get(name) if self._graph.is_constant(name) else None
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
            value = self._of_channels(other, self._graph.facts[one.last])
            if value is None or self._graph.facts[node.outputs[0]] != self._graph.facts[one.last]:
                break
            if op == "mul":
                one = replace(one, scale=one.scale * value, offset=one.offset * value)
            else:
                one = replace(one, offset=one.offset + value)
            one = replace(one, last=node.outputs[0])
        return one

    def _of_channels(self, name: str, fact: Fact) -> Array | None:
        value = self._graph.constants.get(name) if self._graph.is_constant(name) else None
        if value is None or value.ndim < 2 or value.size != fact.shape[1]:
            return None
        return value.reshape(-1) if value.shape[1] == fact.shape[1] else None

    # -- replacement ----------------------------------------------------------------------------

    def replace(self, one: _GroupPattern) -> list[Node]:
        make = _NewNodes(one, self.facts)
        shape = self.facts[one.x].shape
        channels = shape[1]
        mean, variance = make("moments", one.x, results=2, axes=list(range(2, len(shape))))
        if one.groups < channels:
            parts = [shape[0], one.groups, channels // one.groups]
            means, variances = (_reshape(make, name, parts) for name in (mean, variance))
            (mean,) = make("mean_reduce", means, axes=[2])
            (apart,) = make("sqr", *make("sub", means, mean))
            (variance,) = make("mean_reduce", *make("add", apart, variances), axes=[2])
            each = [shape[0], channels, *[1] * (len(shape) - 2)]
            tiled = [make("tile", name, repeats=[1, 1, parts[2]]) for name in (mean, variance)]
            mean, variance = (_reshape(make, name, each) for (name,) in tiled)
        names = [
            self._constant(one, what, value)
            for what, value in (("offset", one.offset), ("scale", one.scale))
        ]
        last = replace(one.norm, inputs=(one.x, mean, variance, *names), outputs=(one.last,))
        return [*make.nodes, last]

    def _constant(self, one: _GroupPattern, what: str, value: Array) -> str:
        name = unused_name(f"{one.last}.{what}", self.facts)
        self.constants[name] = np.asarray(value.reshape(1, -1), np.float32)
        self.facts[name] = Fact("scalar", self.constants[name].shape)
        return name


class _NewNodes:
    """Builds the small nodes that replace one normalization.

    A call appends a node of operator ``op`` to ``nodes``, adds the facts of its results, and
    returns their names.
    """

    def __init__(self, one: _GroupPattern, facts: dict[str, Fact]) -> None:
        self._one, self._facts = one, facts
        self.nodes: list[Node] = []

    def __call__(
        self, op: str, *inputs: str, results: int = 1, **attrs: AttrValue
    ) -> tuple[str, ...]:
        names: list[str] = []
        for _ in range(results):
            names.append(unused_name(f"{self._one.last}.{op}", self._facts))
            self._facts[names[-1]] = Fact("scalar", ())
        node = replace(
            self._one.norm, op=op, inputs=inputs, outputs=tuple(names), attrs=Attrs(attrs)
        )
        self._facts.update(zip(names, infer_node(node, self._facts), strict=True))
        self.nodes.append(node)
        return tuple(names)


def _reshape(make: _NewNodes, name: str, shape: list[int]) -> str:
    return make("reshape", name, shape=shape, axis_start=0, axis_count=-1)[0]


def _are_groups(shape: tuple[int, ...], parts: tuple[int, ...]) -> bool:
    """Returns True if ``parts``, the shape of a reshaped map, has the channels of ``shape`` in
    groups along its second axis."""
    if len(shape) < 3 or len(parts) < 3 or shape[0] != parts[0] or not prod(shape):
        return False
    return shape[1] % parts[1] == 0
