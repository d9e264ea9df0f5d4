"""Expands a batch normalization to operators that its producer can apply as epilogues.

If the operands are constants, :mod:`cml_engine.compiler.passes.fold_affine` folds them into the
weights. If they are computed, or differ by position, the node would need a pass over the whole map.
``(x - mean) * (scale / sqrt(variance + epsilon)) + offset`` is three epilogues, and its factor has
one number per channel. A node whose producer cannot apply them is left unchanged: alone or in a
chain of elementwise operators it is one kernel already.
"""

from __future__ import annotations

from dataclasses import replace

from cml_engine.compiler.passes.cleanup import fold_constants
from cml_engine.compiler.passes.fuse_epilogues import fuse_epilogues, per_channel, takes_operand
from cml_engine.compiler.passes.replacement import replace_nodes
from cml_engine.ir.construction import GraphRewriter
from cml_engine.ir.graph import Attrs, Epilogue, Graph, Node
from cml_engine.ops.declaration.epilogue import has_room
from cml_engine.ops.declaration.registry import is_builtin, lookup

_STEPS = ("sub", "mul", "add")


def expand_normalization(graph: Graph) -> Graph:
    """Returns the graph with every batch normalization expanded that its producer can apply as
    epilogues.

    The expansion is three elementwise operators, and small nodes that compute their factor;
    these are folded if they are constant.
    """
    chosen = _find_applicable(graph)
    return fold_constants(replace_nodes(graph, dict.fromkeys(chosen), _expand)) if chosen else graph


def _find_applicable(graph: Graph) -> set[str]:
    """Returns the names of the results of the batch normalizations that their producers can apply.

    The epilogues that the producer will have from other passes are taken into account.
    """
    if not any(node.op == "batch_normalization" for node in graph.nodes):
        return set()
    if not is_builtin("batch_normalization", "sqrt", "div", *_STEPS):
        return set()
    fused = fuse_epilogues(graph)
    producers = {node.outputs[0]: node for node in fused.nodes if len(node.outputs) == 1}
    applicable = set()
    for node in fused.nodes:
        if node.op != "batch_normalization" or node.epilogues or not _is_by_channel(fused, node):
            continue
        x = node.inputs[0]
        has_one_reader = fused.is_read_once(x) and node.inputs.count(x) == 1
        if has_one_reader and x in producers and _takes(fused, producers[x], node):
            applicable.add(node.outputs[0])
    return applicable


def _is_by_channel(graph: Graph, node: Node) -> bool:
    """Returns True if a batch normalization's variance and scale have one value or one per
    channel, and an epilogue can read its mean and offset."""
    x, mean, variance, offset, scale = node.inputs
    result = graph.facts[node.outputs[0]]
    factors = all(per_channel(graph, result, name) for name in (variance, scale))
    offsets = all(takes_operand(graph, result, name, "channels") for name in (mean, offset))
    return factors and offsets and graph.facts[x] == result


def _takes(graph: Graph, producer: Node, node: Node) -> bool:
    """Returns True if ``producer`` can apply the three steps of batch normalization ``node`` as
    epilogues.

    Each step reads one tensor; the producer needs free bindings for them.
    """
    kernel = lookup(producer.op).kernel
    _, mean, variance, offset, scale = node.inputs
    factor = scale if variance in graph.constants else variance
    steps = [Epilogue(op, (n,)) for op, n in zip(_STEPS, (mean, factor, offset), strict=True)]
    takes = kernel is not None and kernel.epilogues == "channels"
    return takes and has_room(graph, producer, (*producer.epilogues, *steps))


def _expand(rewriter: GraphRewriter, node: Node, _: None) -> None:
    """Adds the nodes that replace a batch normalization."""
    x, mean, variance, offset, scale = node.inputs
    result = node.outputs[0]

    def add(suffix: str, op: str, *inputs: str) -> str:
        return rewriter.add(node, op, inputs, rewriter.unused_name(f"{result}.{suffix}"))

    epsilon = rewriter.constant(f"{result}.epsilon", node.attrs["epsilon"])
    deviation = add("deviation", "sqrt", add("safe", "add", variance, epsilon))
    factor = add("factor", "div", scale, deviation)
    scaled = add("scaled", "mul", add("centred", "sub", x, mean), factor)
    rewriter.append(replace(node, op="add", inputs=(scaled, offset), attrs=Attrs()))
