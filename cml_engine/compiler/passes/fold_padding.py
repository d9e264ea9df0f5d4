"""Folds a border of zeros before a convolution into the convolution's own padding."""

from __future__ import annotations

from cml_engine.compiler.passes.rules import Match, Rule, rewrite_custom
from cml_engine.ir.graph import Graph, Node
from cml_engine.ops.conv.shapes import conv_shape


def fold_padding(graph: Graph) -> Graph:
    """Returns the graph with pads of zeros removed if the conv that reads them can apply the
    padding itself."""
    return rewrite_custom(graph, RULES)


def _fold(match: Match) -> Node | None:
    pad, conv = match.nodes
    outer, spatial = pad.attrs["padding"][:2], pad.attrs["padding"][2:]
    zeros = pad.attrs["border"] == "constant" and float(pad.attrs["value"]) == 0
    if not zeros or conv.attrs["border"] != "constant" or pad.outputs[0] in conv.inputs[1:]:
        return None
    if any(n for pair in outer for n in pair) or any(n < 0 for pair in spatial for n in pair):
        return None
    # automatic padding depends on the padded extent, so the resulting padding is made explicit
    shape = conv_shape(conv.attrs, *(match.fact(name) for name in conv.inputs))
    if any(axis.before < 0 or axis.after < 0 for axis in shape.axes):
        return None
    padding = [
        (before + axis.before, after + axis.after)
        for (before, after), axis in zip(spatial, shape.axes, strict=True)
    ]
    attrs = conv.attrs.with_(padding=padding)
    return match.node("conv", (pad.inputs[0], *conv.inputs[1:]), attrs)


RULES = (Rule("pad into conv", ("pad", "conv"), _fold),)
