"""What is said of a network of floats where an integer network is wanted."""

from __future__ import annotations

from cml_engine.errors import InputError
from cml_engine.ir.graph import Graph

#: what a note begins with that says why a quantized model is a network of floats
WHY = "of floats  because it has no integer form:"


def of_floats(graph: Graph) -> InputError:
    """That it is none, why a quantized one is not, and how to make one."""
    if graph.ready is not None:
        return InputError(
            f"'{graph.name}' is cooked, and its rounding points are no part of that: give the "
            "model that it was made of"
        )
    why = [note.removeprefix(WHY).strip() for note in graph.notes if note.startswith(WHY)]
    if why:
        return InputError(f"'{graph.name}' is quantized, and computed in floats: {why[0]}")
    return InputError(f"'{graph.name}' is a network of floats: make an integer one by cml quantize")
