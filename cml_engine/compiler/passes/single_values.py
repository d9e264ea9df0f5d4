"""Replaces large constants of one value by literals where only the value matters."""

from __future__ import annotations

from dataclasses import replace

from cml_engine.compiler.passes.infer import infer_node
from cml_engine.errors import CmlError
from cml_engine.ir.graph import Array, Fact, Graph, Node
from cml_engine.ir.single_value import distinct, is_single_value
from cml_engine.nnef.expansion.nodes import literal_name
from cml_engine.ops.declaration.registry import lookup


def use_single_values(graph: Graph) -> Graph:
    """Returns the graph with literals as operands of elementwise nodes, instead of large constants.

    A constant stays where the shape of the result follows from it.
    """
    large = {
        name: distinct(array).reshape(())
        for name, array in graph.constants.items()
        if is_single_value(array) and graph.is_constant(name)
    }
    if not large:
        return graph
    facts, constants = dict(graph.facts), dict(graph.constants)
    nodes = []
    for node in graph.nodes:
        for position, name in enumerate(node.inputs):
            if name in large and lookup(node.op).formula is not None:
                literal = _literal(large[name], constants)
                facts[literal] = Fact(facts[name].dtype, ())
                changed = _with_input(node, position, literal)
                if _has_results_of(changed, node, facts):
                    constants[literal] = large[name]
                    node = changed
        nodes.append(node)
    return graph.with_(nodes=tuple(nodes), facts=facts, constants=constants)


def _literal(value: Array, constants: dict[str, Array]) -> str:
    """Returns a name for a constant of this value: of an equal one, or a new one."""
    name = literal_name(value)
    while name in constants and not _are_equal(constants[name], value):
        name += "'"
    return name


def _are_equal(a: Array, b: Array) -> bool:
    return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


def _with_input(node: Node, position: int, name: str) -> Node:
    return replace(node, inputs=(*node.inputs[:position], name, *node.inputs[position + 1 :]))


def _has_results_of(changed: Node, node: Node, facts: dict[str, Fact]) -> bool:
    try:
        return list(infer_node(changed, facts)) == [facts[name] for name in node.outputs]
    except CmlError:
        return False
