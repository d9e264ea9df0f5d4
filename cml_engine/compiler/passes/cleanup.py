"""Removes nodes and constants that nothing needs, computes nodes of constants once, and merges
nodes that compute the same result.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from cml_engine.cpu.cpu_program import convert_to_fact, run_node
from cml_engine.io.frame_gate import yield_to_frame
from cml_engine.ir.graph import Graph, Node, ancestors
from cml_engine.ops.declaration.registry import lookup


def eliminate_dead_code(graph: Graph) -> Graph:
    """Returns the graph without the nodes, constants and facts that no output and no update needs.

    Inputs are kept.
    """
    needed_nodes, needed = ancestors(graph.nodes, graph.roots)
    alive = needed.union(graph.inputs, *(node.outputs for node in needed_nodes))
    alive.update(variable for variable, _ in graph.updates)
    return graph.with_(
        nodes=tuple(needed_nodes),
        constants={k: v for k, v in graph.constants.items() if k in alive},
        labels={k: v for k, v in graph.labels.items() if k in alive},
        facts={k: v for k, v in graph.facts.items() if k in alive},
    )


# -- fold constants -------------------------------------------------------------------------------

#: larger results are not folded, so that `tile` of a constant cannot fill the disk
MAX_FOLDED_BYTES = 64 << 20


def fold_constants(graph: Graph) -> Graph:
    """Returns the graph with nodes whose inputs are all constants replaced by their results as
    constants.

    Variables that the graph updates are no constants. Nodes with results above
    ``MAX_FOLDED_BYTES`` or without a CPU implementation are kept.
    """
    constants = dict(graph.constants)
    variable = {name for name, _ in graph.updates}
    remaining_nodes = []
    for node in graph.nodes:
        is_constant = all(n in constants and n not in variable for n in node.reads)
        is_small = sum(graph.facts[n].nbytes for n in node.outputs) <= MAX_FOLDED_BYTES
        if not (is_constant and is_small and lookup(node.op).cpu is not None):
            remaining_nodes.append(node)
            continue
        yield_to_frame()
        results = run_node(node, [constants[n] for n in node.reads])
        for name, value in zip(node.outputs, results, strict=True):
            constants[name] = convert_to_fact(node, graph.facts[name], value)
    return graph.with_(nodes=tuple(remaining_nodes), constants=constants)


# -- common subexpressions ------------------------------------------------------------------------

#: constants up to this size are compared by value, because every literal is a separate tensor
_SMALL_BYTES = 64


def merge_common_subexpressions(graph: Graph) -> Graph:
    """Returns the graph with one node in place of all nodes of equal operator, attributes and
    inputs.

    Nodes that compute outputs are kept, because the caller reads outputs by name. Reads of a
    variable are equal, because its value is constant during a run. A game's own operators are
    not merged, because they may give another result each time.
    """
    roots = set(graph.roots)
    first_equal = _equal_constants(graph)
    first_nodes: dict[Hashable, Node] = {}
    renamed: dict[str, str] = {}
    nodes = []
    for original in graph.nodes:
        inputs = tuple(renamed.get(name, name) for name in original.inputs)
        node = replace(original, inputs=inputs)
        key = _key(node, first_equal)
        first = first_nodes.setdefault(key, node) if key is not None else node
        if first is node or roots.intersection(node.outputs):
            nodes.append(node)
        else:
            renamed.update(zip(node.outputs, first.outputs, strict=True))
    return graph.with_(nodes=tuple(nodes))


def _key(node: Node, first_equal: dict[str, str]) -> Hashable | None:
    """Returns a key that is equal for nodes that compute the same results.

    ``first_equal`` maps constants to their first equal. Returns None for a node that must not be
    merged: one with epilogues, a game's operator, or an attribute whose text is not its value.
    """
    are_plain = all(_is_plain(value) for value in node.attrs.values())
    if node.epilogues or not are_plain or lookup(node.op).is_custom:
        return None
    attrs = tuple(sorted((name, repr(value)) for name, value in node.attrs.items()))
    return node.op, attrs, tuple(first_equal.get(n, n) for n in node.inputs), len(node.outputs)


def _is_plain(value: object) -> bool:
    """Returns True if an attribute's value is None, a bool, a number, a string, or a list of
    them, so that its ``repr`` identifies it."""
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _equal_constants(graph: Graph) -> dict[str, str]:
    """Maps every constant of at most ``_SMALL_BYTES`` to the first constant of the same type,
    shape and bits."""
    first: dict[Hashable, str] = {}
    first_equal: dict[str, str] = {}
    for name, value in graph.constants.items():
        if value.nbytes <= _SMALL_BYTES and graph.is_constant(name):
            key = (graph.facts[name], value.tobytes())
            first_equal[name] = first.setdefault(key, name)
    return first_equal
