"""Converts inputs and outputs to the layout of textures: channels last, optionally 3 padded to 4.

The network itself keeps its layout; conversion operators are added at its ends, and the passes
fuse them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cml_engine.compiler.passes.infer import infer_node
from cml_engine.errors import InputError
from cml_engine.formats.builder import rename_in_graph
from cml_engine.ir.construction import GraphRewriter
from cml_engine.ir.graph import Attrs, AttrValue, Graph, Node, unused_name

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
    facts = {name: graph.facts[name] for name in edges}
    widened = [n for n, f in facts.items() if rgba and f.dtype == "scalar" and f.shape[1] == 3]
    if rgba and not widened:
        descriptions = ", ".join(f"{name}: {fact}" for name, fact in facts.items())
        raise InputError(
            f"no input or output has 3 channels of floats ({descriptions}): leave --rgba out"
        )
    inner: dict[str, str] = {}
    for name in edges:
        inner[name] = unused_name(f"{name}_nchw", graph.facts, inner.values())
    return _Edges(rename_in_graph(graph, inner), inner, widened).converted(
        graph.inputs, graph.outputs
    )


class _Edges(GraphRewriter):
    """A network to which operators are added that convert its inputs and outputs."""

    def __init__(self, graph: Graph, inner: Mapping[str, str], widened: list[str]) -> None:
        super().__init__(graph, infer_node)
        self._inner, self._widened = inner, widened

    def converted(self, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Graph:
        for name in inputs:
            if name in self._inner:
                self._convert_input(name)
        self.nodes += self.graph.nodes
        for name in outputs:
            if name in self._inner:
                self._convert_output(name)
        return self.finished().with_(inputs=inputs, outputs=outputs)

    def _convert_input(self, name: str) -> None:
        inner, is_widened = self._inner[name], name in self._widened
        fact = self.facts[inner]
        batch, channels, *extents = fact.shape
        shape = (batch, *extents, 4 if is_widened else channels)
        self.facts[name] = replace(fact, shape=shape)
        rgb_name = self._rgb_name(name) if is_widened else name
        if is_widened:
            self._node("slice", name, rgb_name, axes=[3], begin=[0], end=[3], stride=[])
        self._node("transpose", rgb_name, inner, axes=_TO_NCHW)

    def _convert_output(self, name: str) -> None:
        is_widened = name in self._widened
        rgb_name = self._rgb_name(name) if is_widened else name
        self._node("transpose", self._inner[name], rgb_name, axes=_TO_NHWC)
        if is_widened:
            padding = [_NONE, _NONE, _NONE, (0, 1)]
            self._node("pad", rgb_name, name, padding=padding, border="constant", value=1.0)

    def _rgb_name(self, name: str) -> str:
        return unused_name(f"{name}_rgb", self.facts, self._inner)

    def _node(self, op: str, input_name: str, output: str, **attrs: AttrValue) -> None:
        self.append(Node(op, (input_name,), (output,), Attrs(attrs)))
