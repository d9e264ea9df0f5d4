"""The error for a float network, or a cooked one, that is given where an integer network is
required."""

from __future__ import annotations

from cml_engine.errors import InputError
from cml_engine.ir.graph import Graph

#: the prefix of a note that explains why a quantized model is a float network
WHY = "of floats  because it has no integer form:"


def float_network_error(graph: Graph) -> InputError:
    """Returns an :class:`InputError` that explains why the model is not an integer network and
    how to get one."""
    if graph.ready is not None:
        return InputError(
            f"'{graph.name}' is cooked, and its rounding points are no part of that: give the "
            "model that it was made of"
        )
    why = [note.removeprefix(WHY).strip() for note in graph.notes if note.startswith(WHY)]
    if why:
        return InputError(f"'{graph.name}' is quantized, and computed in floats: {why[0]}")
    return InputError(f"'{graph.name}' is a network of floats: make an integer one by cml quantize")
