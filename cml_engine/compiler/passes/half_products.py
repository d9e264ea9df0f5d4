"""Marks the convolutions whose products may be of 16 bits (docs/faster.md, "16-bit storage")."""

from __future__ import annotations

from dataclasses import replace

from cml_engine.ir.graph import Attrs, Graph, Node


def allow_half_products(graph: Graph) -> Graph:
    """Returns the graph with every convolution of floats marked, so that its kernels may multiply
    in 16 bits; the same graph if all of them are."""
    if all(map(_is_final, graph.nodes)):
        return graph
    nodes = tuple(node if _is_final(node) else _marked(node) for node in graph.nodes)
    return graph.with_(nodes=nodes, cooked_form=graph.cooked_form)


def _is_final(node: Node) -> bool:
    return node.op not in ("conv", "deconv") or not {"exact", "halves"}.isdisjoint(node.attrs)


def _marked(node: Node) -> Node:
    return replace(node, attrs=Attrs({**node.attrs, "halves": True}))
