"""Marks the convolutions whose products may be of 16 bits (docs/faster.md, "16-bit storage")."""

from __future__ import annotations

from dataclasses import replace

from cml_engine.ir.graph import Attrs, Graph, Node


def allow_half_products(graph: Graph) -> Graph:
    """Returns the graph with every convolution of floats marked, so that its kernels may multiply
    in 16 bits."""
    nodes = tuple(_marked(node) for node in graph.nodes)
    return graph.with_(nodes=nodes, cooked_form=graph.cooked_form)


def _marked(node: Node) -> Node:
    if node.op not in ("conv", "deconv") or "exact" in node.attrs:
        return node
    return replace(node, attrs=Attrs({**node.attrs, "halves": True}))
