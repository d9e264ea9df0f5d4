"""Gives the random operators of a graph the session's seed."""

from __future__ import annotations

import numpy as np

from cml_engine.errors import InputError
from cml_engine.ir.graph import Graph

_SEED = 3  # the position of the seed among the operands of random_bits


def with_seed(graph: Graph, seed: int) -> Graph:
    """Returns the graph with another seed of the operators whose file states none.

    Their seed is a variable; a seed that a file states is a literal.
    """
    names = {node.inputs[_SEED] for node in graph.nodes if node.op == "random_bits"}
    names &= graph.labels.keys()
    if not seed or not names:
        return graph
    if graph.cooked_form is not None:
        raise InputError(
            f"'{graph.name}' is cooked, and its seed is part of the file: cook it with "
            f"CompileOptions(seed={seed})"
        )
    value = np.array([seed], np.uint32).view(np.int32)
    return graph.with_(constants={**graph.constants, **dict.fromkeys(names, value)})
