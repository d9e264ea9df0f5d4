"""Lets products of matrices store their results in attention's heads, and back.

Attention reshapes the columns of a projection to heads and transposes them before the rows, and its
last product back. Each transpose is a dispatch that a product's own addresses make unnecessary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cml_engine.compiler.passes.bypass import full_order
from cml_engine.compiler.passes.replacement import replace_nodes
from cml_engine.ir.construction import GraphRewriter
from cml_engine.ir.graph import Epilogue, Graph, Node
from cml_engine.ops.declaration.registry import is_builtin


def store_heads(graph: Graph) -> Graph:
    """Returns the graph without the transposes of rows and heads behind products of matrices."""
    if not any(n.op == "transpose" for n in graph.nodes):
        return graph
    if not is_builtin("matmul", "transpose", "reshape"):
        return graph
    changed = {node.outputs[0]: found for node in graph.nodes if (found := _find(graph, node))}
    return replace_nodes(graph, changed, _replace)


@dataclass(frozen=True, slots=True)
class _Heads:
    """A product that replaces a transpose behind it, and the reshape between them, if any.

    ``split`` is the number of heads of its columns, 0 if it joins those of its batch.
    """

    product: Node
    split: int = 0


def _find(graph: Graph, node: Node) -> _Heads | None:
    """Returns what a product can do in the place of this transpose, or None."""
    if node.op != "transpose" or node.epilogues:
        return None
    shape = graph.facts[node.inputs[0]].shape
    rank = len(shape)
    swapped = [*range(rank - 3), rank - 2, rank - 3, rank - 1]
    if rank < 3 or full_order(node, rank) != swapped:
        return None
    before = _producer(graph, node)
    if before is not None and before.op == "matmul":
        return _Heads(before) if _takes(graph, before, by_column=False) else None
    if before is None or before.op != "reshape":
        return None
    product = _producer(graph, before)
    if product is None or product.op != "matmul" or not _takes(graph, product, by_column=True):
        return None
    *leading, heads, width = shape
    if graph.facts[product.outputs[0]].shape != (*leading, heads * width):
        return None
    return _Heads(product, heads) if heads * width else None


def _producer(graph: Graph, node: Node) -> Node | None:
    """Returns the producer of a node's operand if nothing else reads it."""
    name = node.inputs[0]
    return graph.producers.get(name) if graph.is_read_once(name) else None


def _takes(graph: Graph, product: Node, by_column: bool) -> bool:
    """Returns True if a product's epilogues can follow it when its result has other axes.

    Their operands have one value, or one per column that is constant.
    """
    columns = graph.facts[product.outputs[0]].shape[-1]
    operands = [name for epilogue in product.epilogues for name in epilogue.inputs]
    return all(
        graph.facts[name].rank < 2
        and graph.facts[name].size == 1
        or (by_column and graph.is_constant(name) and graph.facts[name].size in (1, columns))
        for name in operands
    )


def _replace(rewriter: GraphRewriter, node: Node, found: _Heads) -> None:
    """Adds the product, whose columns get the heads' order back by a reshape if it joins them."""
    (name,), attrs = node.outputs, found.product.attrs.with_(heads=found.split)
    product = replace(found.product, op="matmul_heads", attrs=attrs)
    if found.split:
        epilogues = tuple(_by_head(rewriter, e, found.split, name) for e in product.epilogues)
        rewriter.append(replace(product, outputs=(name,), epilogues=epilogues))
        return
    joined, shape = rewriter.unused_name(f"{name}.heads"), rewriter.facts[name].shape
    rewriter.append(replace(product, outputs=(joined,)))
    rewriter.add(node, "reshape", (joined,), name, shape=list(shape), axis_start=0, axis_count=-1)


def _by_head(rewriter: GraphRewriter, epilogue: Epilogue, heads: int, result: str) -> Epilogue:
    """Returns an epilogue of columns as one of heads ``[1, …, head, 1, column]``."""
    leading = [1] * (rewriter.facts[result].rank - 3)

    def operand(name: str) -> str:
        if rewriter.facts[name].size == 1:
            return name
        value = rewriter.constants[name].reshape(*leading, heads, 1, -1)
        return rewriter.constant(f"{name}.heads", value, value.dtype)

    return replace(epilogue, inputs=tuple(map(operand, epilogue.inputs)))
