"""Computes the normalization of rows (a layer normalization) in one dispatch instead of three.

``batch_normalization`` of a tensor by the ``moments`` of its own last axis becomes ``standardize``,
and its scale and offset elementwise operators, which that kernel applies before it stores.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cml_engine.compiler.passes.cleanup import eliminate_dead_code
from cml_engine.compiler.passes.infer import infer_node
from cml_engine.ir.construction import GraphRewriter
from cml_engine.ir.graph import Attrs, Graph, Node
from cml_engine.ops.declaration.registry import is_builtin, lookup
from cml_engine.ops.reduction.standardize import MAX_ROW


def standardize_rows(graph: Graph) -> Graph:
    """Returns the graph with every normalization by the moments of the last axis as one operator.

    The moments must have no other reader. Rows are short enough for a workgroup, and the tensor is
    none that may lie in blocks of channels, as the results of convolutions do.
    """
    is_present = any(node.op == "batch_normalization" for node in graph.nodes)
    if not is_present or not is_builtin("moments", "batch_normalization", "mul", "add"):
        return graph

    def is_applicable(node: Node) -> bool:
        if node.op != "batch_normalization" or node.epilogues:
            return False
        x, *moments = node.inputs[:3]
        producer = graph.producers.get(moments[0])
        if producer is None or producer.op != "moments" or producer.inputs != (x,):
            return False
        fact, attrs = graph.facts[x], producer.attrs
        is_read_once = all(graph.is_read_once(name) for name in moments)
        is_row = list(attrs["axes"]) == [fact.rank - 1] and fact.shape[-1] <= MAX_ROW
        kept = graph.facts[node.outputs[0]] == fact and list(producer.outputs) == moments
        return is_read_once and is_row and kept and not _is_blocked(graph.producers.get(x))

    replaced = {node.outputs[0] for node in graph.nodes if is_applicable(node)}
    if not replaced:
        return graph
    rewriter = GraphRewriter(graph, infer_node)
    for node in graph.nodes:
        if node.outputs[0] in replaced:
            _replace(rewriter, node)
        else:
            rewriter.nodes.append(node)
    return eliminate_dead_code(rewriter.finished())


def _is_blocked(producer: Node | None) -> bool:
    """Returns True if a kernel may store its result in blocks of channels."""
    kernel = lookup(producer.op).kernel if producer else None
    return kernel is not None and kernel.layouts == "any"


def _replace(rewriter: GraphRewriter, node: Node) -> None:
    """Adds the nodes that replace one normalization; the last one has its result."""
    x, _, _, offset, scale = node.inputs
    attrs = Attrs(axis=rewriter.facts[x].rank - 1, epsilon=node.attrs["epsilon"])
    steps = [Node("standardize", (x,), (), attrs, node.source)]
    for op, operand, neutral in (("mul", scale, 1.0), ("add", offset, 0.0)):
        value = rewriter.constants.get(operand)
        if value is None or not np.all(value == neutral):
            steps.append(Node(op, (operand,), (), Attrs(), node.source))
    latest = x
    for i, step in enumerate(steps):
        is_last = i == len(steps) - 1
        name = node.outputs[0] if is_last else rewriter.unused_name(f"{node.outputs[0]}.{step.op}")
        operands = step.inputs if step.op == "standardize" else (latest, *step.inputs)
        (latest,) = rewriter.append(replace(step, inputs=operands, outputs=(name,)))
