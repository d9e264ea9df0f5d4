"""Write a batch normalization as operators that its producer can apply before it stores its result.

Where the numbers are constants :mod:`cml_engine.compiler.passes.fold_affine` puts them into the
weights. Where they are computed, or differ from place to place, the node would be a pass over the
whole map. ``(x - mean) * (scale / sqrt(variance + epsilon)) + offset`` is three epilogues, the
factor one number for each channel. A node whose producer cannot take these stays as it is: alone or
in a chain of elementwise operators it is one kernel already.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cml_engine.compiler.passes.fold_constants import fold_constants
from cml_engine.compiler.passes.fuse_epilogues import fuse_epilogues, per_channel, takes_operand
from cml_engine.compiler.passes.infer import infer_node
from cml_engine.ir.graph import Array, Attrs, Epilogue, Fact, Graph, Node, unused_name
from cml_engine.ops.declaration.epilogue import has_room
from cml_engine.ops.declaration.registry import is_own, lookup

_STEPS = ("sub", "mul", "add")
#: what the operators compute on the way
_TENSORS = ("epsilon", "safe", "deviation", "factor", "centred", "scaled")


def expand_normalization(graph: Graph) -> Graph:
    """The graph with every batch normalization that its producer can apply written as three
    operators, and a small one that computes their factor."""
    chosen = _applicable(graph)
    if not chosen:
        return graph
    facts, constants = dict(graph.facts), dict(graph.constants)
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.outputs[0] in chosen:
            nodes += _expanded(node, facts, constants)
        else:
            nodes.append(node)
    return fold_constants(graph.with_(nodes=tuple(nodes), facts=facts, constants=constants))


def _applicable(graph: Graph) -> set[str]:
    """The results of those that the node before can apply behind the epilogues it will have."""
    if not any(node.op == "batch_normalization" for node in graph.nodes):
        return set()
    if not is_own("batch_normalization", "sqrt", "div", *_STEPS):
        return set()
    fused = fuse_epilogues(graph)
    producers = {node.outputs[0]: node for node in fused.nodes if len(node.outputs) == 1}
    consumers, roots = fused.consumers(), set(fused.roots)
    found = set()
    for node in fused.nodes:
        if node.op != "batch_normalization" or node.epilogues or not _is_by_channel(fused, node):
            continue
        x = node.inputs[0]
        alone = len(consumers[x]) == 1 and node.inputs.count(x) == 1 and x not in roots
        if alone and x in producers and _takes(fused, producers[x], node):
            found.add(node.outputs[0])
    return found


def _is_by_channel(graph: Graph, node: Node) -> bool:
    """Returns True if the factor has one value, or one per channel, and the rest fits an
    epilogue."""
    x, mean, variance, offset, scale = node.inputs
    result = graph.facts[node.outputs[0]]
    factor = all(per_channel(graph, result, name) for name in (variance, scale))
    others = all(takes_operand(graph, result, name) for name in (mean, offset))
    return factor and others and graph.facts[x] == result


def _takes(graph: Graph, producer: Node, node: Node) -> bool:
    """Returns True if the producer can apply the three steps, each with a tensor."""
    kernel = lookup(producer.op).kernel
    _, mean, variance, offset, scale = node.inputs
    factor = scale if variance in graph.constants else variance
    steps = [Epilogue(op, (n,)) for op, n in zip(_STEPS, (mean, factor, offset), strict=True)]
    takes = kernel is not None and kernel.epilogues == "channels"
    return takes and has_room(graph, producer, (*producer.epilogues, *steps))


def _expanded(node: Node, facts: dict[str, Fact], constants: dict[str, Array]) -> list[Node]:
    """The nodes in its place; what they compute is added to the facts."""
    x, mean, variance, offset, scale = node.inputs
    names = {what: unused_name(f"{node.outputs[0]}.{what}", facts) for what in _TENSORS}
    constants[names["epsilon"]] = np.asarray(node.attrs["epsilon"], np.float32)
    facts[names["epsilon"]] = Fact("scalar", ())
    steps = (
        ("add", (variance, names["epsilon"]), names["safe"]),
        ("sqrt", (names["safe"],), names["deviation"]),
        ("div", (scale, names["deviation"]), names["factor"]),
        ("sub", (x, mean), names["centred"]),
        ("mul", (names["centred"], names["factor"]), names["scaled"]),
        ("add", (names["scaled"], offset), node.outputs[0]),
    )
    nodes = []
    for op, inputs, output in steps:
        made = replace(node, op=op, inputs=inputs, outputs=(output,), attrs=Attrs())
        (facts[output],) = infer_node(made, facts)
        nodes.append(made)
    return nodes
