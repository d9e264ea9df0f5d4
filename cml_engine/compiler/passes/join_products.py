"""Joins products of one matrix by several constants, such as the queries, keys and values of
attention, in one product with several results.

Each was a launch, and too small to fill a card.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from cml_engine.compiler.passes.replacement import replace_nodes
from cml_engine.ir.block_weights import weight_blocks
from cml_engine.ir.construction import GraphRewriter
from cml_engine.ir.graph import Array, Attrs, Graph, Node
from cml_engine.ops.declaration.registry import is_builtin, lookup
from cml_engine.ops.matmul.kernels.matmul import MAX_PARTS, NEUTRAL, adds_alike


def join_products(graph: Graph) -> Graph:
    """Returns the graph with adjacent products of one matrix by constants of one shape as one.

    Each result is bit-identical: it is the same sum in the same order.
    """
    if not is_builtin("matmul", "linear", "add", "mul"):
        return graph
    groups = {product.node.outputs[0]: group for group in _groups(graph) for product in group}
    return replace_nodes(graph, groups, _replace)


@dataclass(frozen=True, slots=True)
class _Product:
    """A product by constant weights; its result is that times ``scale``, plus ``bias`` before.

    ``attrs`` are those of ``matmul_parts`` that it would share.
    """

    node: Node
    attrs: Attrs
    weights: Array
    bias: Array
    scale: Array

    @property
    def key(self) -> object:
        """Equal for products that one operator can compute."""
        return self.node.inputs[0], self.node.op, self.attrs, self.weights.shape


def _groups(graph: Graph) -> Iterator[list[_Product]]:
    """Yields runs of products that can be joined, with at most reshapes between them."""
    run: list[_Product] = []
    for node in graph.nodes:
        product = _product(graph, node)
        if product is None and lookup(node.op).alias:
            continue
        if run and (product is None or product.key != run[0].key or len(run) == MAX_PARTS):
            if len(run) > 1:
                yield run
            run = []
        if product is not None:
            run.append(product)
    if len(run) > 1:
        yield run


def _product(graph: Graph, node: Node) -> _Product | None:
    """Returns a product by constants with at most a bias and then a scale per column, or None."""
    if node.op not in ("matmul", "matmul_heads", "linear") or node.attrs.get("transposeA"):
        return None
    if node.op == "matmul_heads" and not node.attrs["heads"]:
        return None
    weights = graph.constant(node.inputs[1])
    if weights is None or weight_blocks(weights) is not None or prod(weights.shape[:-2]) != 1:
        return None
    is_linear = node.op == "linear"
    attrs = Attrs(
        transposeA=False,
        transposeB=is_linear or node.attrs["transposeB"],
        heads=node.attrs.get("heads", 0),
        linear=is_linear,
    )
    columns = weights.shape[-2 if attrs["transposeB"] else -1]
    rows, inner = graph.facts[node.inputs[0]].shape[-2:]
    if not adds_alike(rows * prod(graph.facts[node.inputs[0]].shape[:-2]), inner, columns):
        return None
    operands = (_linear_operands if is_linear else _operands)(graph, node, columns)
    return None if operands is None else _Product(node, attrs, weights, *operands)


def _linear_operands(graph: Graph, node: Node, columns: int) -> Sequence[Array] | None:
    """Returns the bias and a neutral scale of each column of ``linear``, or None if the bias is a
    single number or something follows it."""
    bias = graph.constant(node.inputs[2])
    if bias is None or bias.size != columns or node.epilogues:
        return None
    return bias.reshape(-1), np.full(columns, NEUTRAL[1], np.float32)


def _operands(graph: Graph, node: Node, columns: int) -> Sequence[Array] | None:
    """Returns the bias and the scale of each column, or None if the epilogues are others."""
    operands = [np.full(columns, neutral, np.float32) for neutral in NEUTRAL]
    earlier = -1
    for epilogue in node.epilogues:
        index = ("add", "mul").index(epilogue.op) if epilogue.op in ("add", "mul") else -1
        values = [graph.constant(name) for name in epilogue.inputs]
        if index <= earlier or epilogue.own or len(values) != 1:
            return None
        (value,), earlier = values, index
        if value is None or value.size not in (1, columns):
            return None
        operands[index] = np.array(np.broadcast_to(value.reshape(-1), (columns,)), np.float32)
    return operands


def _replace(rewriter: GraphRewriter, node: Node, group: Sequence[_Product]) -> None:
    """Adds the product that computes the results of a group, in place of the first of it."""
    first = group[0].node
    if node is not first:
        return
    shared, name = group[0].attrs, first.outputs[0]
    axis = -2 if shared["transposeB"] else -1
    operands = (
        rewriter.constant(f"{name}.weights", np.concatenate([p.weights for p in group], axis)),
        rewriter.constant(f"{name}.bias", np.concatenate([p.bias for p in group])),
        rewriter.constant(f"{name}.scale", np.concatenate([p.scale for p in group])),
    )
    attrs = shared.with_(parts=len(group))
    results = tuple(product.node.outputs[0] for product in group)
    rewriter.append(
        Node("matmul_parts", (first.inputs[0], *operands), results, attrs, first.source)
    )
