"""Marks convolutions to be computed without Winograd, which spreads extreme values too far.

A tile of Winograd adds values of 6x6 positions and subtracts them again. The rounding of a bright
pixel stays in results whose 3x3 windows do not contain it; an infinity or a NaN leaves a NaN there
(docs/faster.md, "Winograd").
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cml_engine.compiler.passes.replacement import mark_nodes
from cml_engine.ir.graph import Graph, Node
from cml_engine.ir.textures import HDR_VALUE
from cml_engine.ops.conv.shapes import conv_shape


def compute_directly(graph: Graph) -> Graph:
    """Returns the graph with every 3x3 convolution marked to be computed without Winograd.

    The same graph is returned if there is none, or all are marked.
    """

    def takes_tiles(node: Node) -> bool:
        if node.op != "conv" or {"exact", "direct"} & node.attrs.keys():
            return False
        return conv_shape(node.attrs, *graph.facts_of(node.inputs)).takes_tiles

    return mark_nodes(graph, "direct", takes_tiles)


def wide_range_of(graph: Graph) -> str:
    """Returns a description of a range beyond :data:`HDR_VALUE` that the model declares, or "".

    Ranges are those of sliders and of the lines of ``graph.quant``.
    """
    for subject, low, high in _declared_ranges(graph):
        if max(-low, high) > HDR_VALUE:
            return f"{subject} is declared from {low:g} to {high:g}"
    return ""


def _declared_ranges(graph: Graph) -> Iterator[tuple[str, float, float]]:
    for name, slider in graph.sliders.items():
        if name in graph.facts and graph.facts[name].dtype == "scalar":
            yield f"slider '{name}'", slider.low, slider.high
    for name, attrs in graph.quantization.items():
        if name in graph.constants or name not in graph.facts:
            continue
        low, high = attrs.get("min"), attrs.get("max")
        if attrs["op"] == "logarithmic_quantize" and high is not None:
            low = -np.asarray(high)
        if {"scale", "bits"} <= attrs.keys():
            high = np.asarray(attrs["scale"]) * 2 ** attrs["bits"]
            low = -high
        if low is not None and high is not None:
            yield f"tensor '{name}'", float(np.min(low)), float(np.max(high))
