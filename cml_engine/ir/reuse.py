"""Which results of a run are still valid in the next run.

A tensor changes only if an input that it depends on is given anew. Variables that the network
updates change in every run.
"""

from __future__ import annotations

from cml_engine.ir.graph import Graph

#: stands for all updated variables in a set of input names
VARIABLES = ""
#: names of the inputs that a tensor depends on, and :data:`VARIABLES`
Sources = frozenset[str]

_NOTHING: Sources = frozenset()


def sources_of(graph: Graph) -> dict[str, Sources]:
    """For each tensor that is no constant, the inputs (and :data:`VARIABLES`) that it hangs on."""
    found = {name: frozenset({name}) for name in graph.inputs}
    found |= {variable: frozenset({VARIABLES}) for variable, _ in graph.updates}
    for node in graph.nodes:
        read = _NOTHING.union(*(found.get(name, _NOTHING) for name in node.reads))
        found |= dict.fromkeys(node.outputs, read)
    return found


def boundaries(graph: Graph) -> tuple[str, ...]:
    """The computed tensors that must outlive a run, where the next is not given all inputs: what a
    node reads that hangs on less than its result does, and what is read in the end."""
    sources = sources_of(graph)
    everything = frozenset(graph.inputs) | ({VARIABLES} if graph.updates else _NOTHING)
    computed = {name for node in graph.nodes for name in node.outputs}
    found = {name for name in graph.lasting if sources.get(name) != everything}
    for node in graph.nodes:
        mine = sources[node.outputs[0]]
        found.update(name for name in node.reads if sources.get(name) != mine)
    return tuple(name for name in sources if name in found and name in computed)
