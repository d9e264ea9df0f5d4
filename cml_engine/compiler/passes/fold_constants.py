"""Computes nodes that depend on constants only, once, on the CPU."""

from __future__ import annotations

from cml_engine.cpu.cpu_program import convert_to_fact, run_node
from cml_engine.io.frame_gate import yield_to_frame
from cml_engine.ir.graph import Graph
from cml_engine.ops.declaration.registry import lookup

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
    kept = []
    for node in graph.nodes:
        fixed = all(n in constants and n not in variable for n in node.reads)
        small = sum(graph.facts[n].nbytes for n in node.outputs) <= MAX_FOLDED_BYTES
        if not (fixed and small and lookup(node.op).cpu is not None):
            kept.append(node)
            continue
        yield_to_frame()
        results = run_node(node, [constants[n] for n in node.reads])
        for name, value in zip(node.outputs, results, strict=True):
            constants[name] = convert_to_fact(node, graph.facts[name], value)
    return graph.with_(nodes=tuple(kept), constants=constants)
