"""Computes the normalization of rows (a layer normalization) in one dispatch instead of several.

``batch_normalization`` of a tensor by the ``moments`` of its own last axis becomes ``standardize``,
and its scale and offset elementwise operators, which that kernel applies before it stores. So does
the same written out by an exporter, as ``(x - mean) / sqrt(mean((x - mean)^2) + epsilon)``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cml_engine.compiler.passes.replacement import private_producer, replace_nodes
from cml_engine.ir.construction import GraphRewriter
from cml_engine.ir.graph import Attrs, Graph, Node
from cml_engine.ops.declaration.registry import is_builtin, lookup
from cml_engine.ops.reduction.standardize import MAX_ROW


def standardize_rows(graph: Graph) -> Graph:
    """Returns the graph with every normalization by the moments of the last axis as one operator.

    The moments must have no other reader. Rows are short enough for a workgroup, and the tensor is
    none that may lie in blocks of channels, as the results of convolutions do.
    """
    if not {"batch_normalization", "div", "mul"} & graph.ops:
        return graph
    if not is_builtin("moments", "batch_normalization", *_WRITTEN_OUT, *_SQUARES, "add"):
        return graph
    rows = {node.outputs[0]: found for node in graph.nodes if (found := _find(graph, node))}
    return replace_nodes(graph, rows, _replace)


#: operators of a normalization that is written out
_WRITTEN_OUT = ("mean_reduce", "sub", "sqrt", "div", "rsqrt", "mul")
#: operators that may compute the square of their first operand
_SQUARES = ("sqr", "mul", "pow")


@dataclass(frozen=True, slots=True)
class _Rows:
    """A normalization of the rows of ``x``, without ``scale`` and ``offset`` if it has none."""

    x: str
    epsilon: float
    scale: str = ""
    offset: str = ""


def _find(graph: Graph, node: Node) -> _Rows | None:
    """Returns the normalization whose result is the node's, or None."""
    found = _by_moments(graph, node) or _written_out(graph, node)
    if found is None or graph.facts[node.outputs[0]] != (fact := graph.facts[found.x]):
        return None
    is_row = fact.shape[-1] <= MAX_ROW
    return found if is_row and not _is_blocked(graph.producers.get(found.x)) else None


def _by_moments(graph: Graph, node: Node) -> _Rows | None:
    if node.op != "batch_normalization" or node.epilogues:
        return None
    x, *moments, offset, scale = node.inputs
    producer = graph.producers.get(moments[0])
    if producer is None or producer.op != "moments" or producer.inputs != (x,):
        return None
    is_read_once = all(graph.is_read_once(name) for name in moments)
    if not is_read_once or list(producer.outputs) != moments or not _of_rows(graph, producer):
        return None
    return _Rows(x, node.attrs["epsilon"], scale, offset)


def _of_rows(graph: Graph, node: Node) -> bool:
    """Returns True if a node reduces the last axis."""
    return list(node.attrs["axes"]) == [graph.facts[node.inputs[0]].rank - 1]


def _written_out(graph: Graph, node: Node) -> _Rows | None:
    """Returns the normalization whose last operator is the node, a quotient or a product."""
    if node.op not in ("div", "mul") or node.epilogues:
        return None
    root, orders = ("sqrt", 1) if node.op == "div" else ("rsqrt", 2)
    for difference, deviation in (node.inputs, node.inputs[::-1])[:orders]:
        if rooted := private_producer(graph, deviation, root):
            return _divided(graph, difference, rooted)
    return None


def _divided(graph: Graph, difference: str, rooted: Node) -> _Rows | None:
    """Returns the normalization that divides ``difference`` by the root of its variance."""
    safe = private_producer(graph, rooted.inputs[0], "add")
    if safe is None or (epsilon := graph.constant(safe.inputs[1])) is None or epsilon.size != 1:
        return None
    variance = private_producer(graph, safe.inputs[0], "mean_reduce")
    square = variance and private_producer(graph, variance.inputs[0], *_SQUARES)
    if variance is None or square is None or not _of_rows(graph, variance):
        return None
    if square.inputs[0] != difference or not _is_square(graph, square):
        return None
    if len(graph.consumers[difference]) != 2 or difference in graph.roots:
        return None
    subtracted = graph.producers.get(difference)
    if subtracted is None or subtracted.op != "sub" or subtracted.epilogues:
        return None
    x, mean = subtracted.inputs
    reduced = private_producer(graph, mean, "mean_reduce")
    if reduced is None or reduced.inputs[0] != x or not _of_rows(graph, reduced):
        return None
    return _Rows(x, float(epsilon.reshape(())))


def _is_square(graph: Graph, node: Node) -> bool:
    if node.op == "mul":
        return node.inputs[0] == node.inputs[1]
    exponent = graph.constant(node.inputs[1]) if node.op == "pow" else None
    return node.op == "sqr" or (exponent is not None and bool(np.all(exponent == 2)))


def _is_blocked(producer: Node | None) -> bool:
    """Returns True if a kernel may store its result in blocks of channels."""
    kernel = lookup(producer.op).kernel if producer else None
    return kernel is not None and kernel.layouts == "any"


def _replace(rewriter: GraphRewriter, node: Node, rows: _Rows) -> None:
    """Adds the nodes that replace one normalization; the last one has its result."""
    attrs = Attrs(axis=rewriter.facts[rows.x].rank - 1, epsilon=rows.epsilon)
    steps = [Node("standardize", (rows.x,), (), attrs, node.source)]
    for op, operand, neutral in (("mul", rows.scale, 1.0), ("add", rows.offset, 0.0)):
        value = rewriter.constants.get(operand)
        if operand and (value is None or not np.all(value == neutral)):
            steps.append(Node(op, (operand,), (), Attrs(), node.source))
    latest = rows.x
    for i, step in enumerate(steps):
        is_last = i == len(steps) - 1
        name = node.outputs[0] if is_last else rewriter.unused_name(f"{node.outputs[0]}.{step.op}")
        operands = step.inputs if step.op == "standardize" else (latest, *step.inputs)
        (latest,) = rewriter.append(replace(step, inputs=operands, outputs=(name,)))
