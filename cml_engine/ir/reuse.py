"""Determines the results of a run that are still valid in the next run.

A tensor changes only if an input that it depends on is given again. Variables that the network
updates change in every run.
"""

from __future__ import annotations

from cml_engine.ir.graph import Graph

#: represents all updated variables in a set of input names
VARIABLES = ""
#: names of the inputs that a tensor depends on, and :data:`VARIABLES`
Sources = frozenset[str]

_NOTHING: Sources = frozenset()


def sources_of(graph: Graph) -> dict[str, Sources]:
    """Returns the set of inputs that each non-constant tensor depends on, by the tensor's name.

    :data:`VARIABLES` in a set stands for all updated variables.
    """
    sources = {name: frozenset({name}) for name in graph.inputs}
    sources |= {variable: frozenset({VARIABLES}) for variable, _ in graph.updates}
    for node in graph.nodes:
        read = _NOTHING.union(*(sources.get(name, _NOTHING) for name in node.reads))
        sources |= dict.fromkeys(node.outputs, read)
    return sources


def boundaries(graph: Graph) -> tuple[str, ...]:
    """Returns the computed tensors that must be retained for a run with only some of the inputs.

    They are operands that depend on fewer inputs than the result of their node, and tensors that
    are read after the run and do not depend on all inputs.
    """
    sources = sources_of(graph)
    all_sources = frozenset(graph.inputs) | ({VARIABLES} if graph.updates else _NOTHING)
    computed = {name for node in graph.nodes for name in node.outputs}
    retained = {name for name in graph.persistent if sources.get(name) != all_sources}
    for node in graph.nodes:
        node_sources = sources[node.outputs[0]]
        retained.update(name for name in node.reads if sources.get(name) != node_sources)
    return tuple(name for name in sources if name in retained and name in computed)
