"""Marks the convolutions whose products may be of 16 bits (docs/faster.md, "16-bit storage")."""

from __future__ import annotations

from cml_engine.compiler.passes.replacement import mark_nodes
from cml_engine.ir.graph import Graph, Node


def allow_half_products(graph: Graph) -> Graph:
    """Returns the graph with every convolution of floats marked, so that its kernels may multiply
    in 16 bits; the same graph if all of them are."""
    return mark_nodes(graph, "halves", _is_unmarked)


def _is_unmarked(node: Node) -> bool:
    return node.op in ("conv", "deconv") and {"exact", "halves"}.isdisjoint(node.attrs)
