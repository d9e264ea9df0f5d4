"""Converts inputs and outputs to the layout of textures: channels last, optionally 3 padded to 4.

The network itself keeps its layout; conversion operators are added at its ends, and the passes
fuse them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cml_engine.errors import InputError
from cml_engine.formats.builder import rename_in_graph
from cml_engine.ir.graph import Attrs, AttrValue, Fact, Graph, Node, unused_name

_TO_NCHW, _TO_NHWC = [0, 3, 1, 2], [0, 2, 3, 1]
_NONE = (0, 0)


def channels_last(graph: Graph, *, rgba: bool = False) -> Graph:
    """Returns the graph with all inputs and outputs of rank 4 in N, H, W, C, not N, C, H, W.

    The names stay. With ``rgba`` float tensors of 3 channels get a fourth, which is ignored in
    inputs and 1 in outputs. Raises :class:`InputError` if there is no tensor to change.
    """
    edges = [n for n in (*graph.inputs, *graph.outputs) if graph.facts[n].rank == 4]
    if not edges:
        raise InputError("no input or output has four axes (N, C, H, W): leave --layout nhwc out")
    widened = [name for name in edges if rgba and _is_rgb(graph.facts[name])]
    if rgba and not widened:
        descriptions = ", ".join(f"{name}: {graph.facts[name]}" for name in edges)
        raise InputError(
            f"no input or output has 3 channels of floats ({descriptions}): leave --rgba out"
        )
    inner: dict[str, str] = {}
    for name in edges:
        inner[name] = unused_name(f"{name}_nchw", graph.facts, inner.values())
    return _Edges(rename_in_graph(graph, inner), inner, widened).graph(graph.inputs, graph.outputs)


class _Edges:
    """A network to which operators are added that convert its inputs and outputs."""

    def __init__(self, graph: Graph, inner: Mapping[str, str], widened: list[str]) -> None:
        self._graph = graph
        self._inner, self._widened = inner, widened
        self._facts = dict(graph.facts)

    def graph(self, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Graph:
        before = [node for name in inputs if name in self._inner for node in self._input(name)]
        after = [node for name in outputs if name in self._inner for node in self._output(name)]
        return self._graph.with_(
            inputs=inputs,
            outputs=outputs,
            nodes=(*before, *self._graph.nodes, *after),
            facts=self._facts,
        )

    def _input(self, name: str) -> list[Node]:
        inner = self._inner[name]
        fact = self._last(self._facts[inner])
        nodes: list[Node] = []
        rgb_name = name
        self._facts[name] = fact
        if name in self._widened:
            rgb_name = self._new(f"{name}_rgb", fact)
            self._facts[name] = _with_channels(fact, 4)
            nodes.append(_node("slice", name, rgb_name, axes=[3], begin=[0], end=[3], stride=[]))
        return [*nodes, _node("transpose", rgb_name, inner, axes=_TO_NCHW)]

    def _output(self, name: str) -> list[Node]:
        inner = self._inner[name]
        fact = self._last(self._facts[inner])
        if name not in self._widened:
            self._facts[name] = fact
            return [_node("transpose", inner, name, axes=_TO_NHWC)]
        rgb_name = self._new(f"{name}_rgb", fact)
        self._facts[name] = _with_channels(fact, 4)
        padding = [_NONE, _NONE, _NONE, (0, 1)]
        return [
            _node("transpose", inner, rgb_name, axes=_TO_NHWC),
            _node("pad", rgb_name, name, padding=padding, border="constant", value=1.0),
        ]

    def _last(self, fact: Fact) -> Fact:
        return replace(fact, shape=tuple(fact.shape[axis] for axis in _TO_NHWC))

    def _new(self, name_base: str, fact: Fact) -> str:
        name = unused_name(name_base, self._facts, self._inner)
        self._facts[name] = fact
        return name


def _node(op: str, input_name: str, output: str, **attrs: AttrValue) -> Node:
    return Node(op, (input_name,), (output,), Attrs(attrs))


def _is_rgb(fact: Fact) -> bool:
    return fact.dtype == "scalar" and fact.shape[1] == 3


def _with_channels(fact: Fact, count: int) -> Fact:
    return replace(fact, shape=(*fact.shape[:3], count))
