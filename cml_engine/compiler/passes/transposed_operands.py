"""Lets products of matrices read their right operand transposed, without a transpose before it.

Attention needs its keys transposed. Exporters merge that with the transpose of rows and heads, and
the result is none that a product's stores can replace.
"""

from __future__ import annotations

from dataclasses import replace

from cml_engine.compiler.passes.bypass import full_order
from cml_engine.compiler.passes.replacement import private_producer, replace_nodes
from cml_engine.ir.construction import GraphRewriter
from cml_engine.ir.graph import Graph, Node
from cml_engine.ops.declaration.registry import is_builtin


def read_transposed(graph: Graph) -> Graph:
    """Removes transposes of the last two axes before products, which read the matrix transposed.

    A transpose that also swaps rows and heads is replaced by one that does only that.
    """
    if not is_builtin("matmul", "transpose"):
        return graph
    found = {node.outputs[0]: t for node in graph.nodes if (t := _transpose_before(graph, node))}
    return replace_nodes(graph, found, _replace)


def _transpose_before(graph: Graph, node: Node) -> Node | None:
    """Returns the transpose before a product's right operand that the product can take over.

    It may also swap rows and heads: then a transpose of these two remains.
    """
    if node.op != "matmul":
        return None
    transpose = private_producer(graph, node.inputs[1], "transpose")
    if transpose is None:
        return None
    order = _order_of_rest(graph, transpose)
    batch, rank = [*range(len(order) - 3)], len(order)
    swaps_heads = rank > 2 and order == [*batch, rank - 2, rank - 3, rank - 1]
    return transpose if swaps_heads or order == [*range(rank)] else None


def _order_of_rest(graph: Graph, transpose: Node) -> list[int]:
    """Returns the order of axes before the last two were swapped."""
    *leading, row, column = full_order(transpose, graph.facts[transpose.inputs[0]].rank)
    return [*leading, column, row]


def _replace(rewriter: GraphRewriter, node: Node, transpose: Node) -> None:
    """Adds the product that reads the right operand's last two axes swapped."""
    left, right = node.inputs[0], transpose.inputs[0]
    order = _order_of_rest(rewriter.graph, transpose)
    if order != [*range(len(order))]:
        name = rewriter.unused_name(f"{transpose.outputs[0]}.rows")
        right = rewriter.add(transpose, "transpose", (right,), name, axes=order)
    attrs = node.attrs.with_(transposeB=not node.attrs["transposeB"])
    rewriter.append(replace(node, inputs=(left, right), attrs=attrs))
