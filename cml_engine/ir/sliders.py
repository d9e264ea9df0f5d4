"""Turns constants of a graph into inputs with a default, which a host changes at run time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from cml_engine.errors import InputError
from cml_engine.ir.graph import Graph, Node, Slider

#: the names of an operator's operands, in their order
Operands = Callable[[str], Sequence[str]]


def with_sliders(graph: Graph, sliders: Mapping[str, Slider | str], operands: Operands) -> Graph:
    """Returns the graph with an input in place of each number that a slider names.

    The input has the slider's name, and the number becomes its default.

    A slider, or its text such as ``"mul3.y"``, names the operand ``y`` of the operator whose
    result is ``mul3``. ``operands`` returns the names of an operator's operands.
    """
    for name, given in sliders.items():
        slider = given if isinstance(given, Slider) else Slider(given)
        graph = _exposed(graph, name, slider, operands)
    return graph


def _exposed(graph: Graph, name: str, slider: Slider, operands: Operands) -> Graph:
    if name in graph.facts:
        raise InputError(f"slider '{name}': '{graph.name}' has a tensor of that name")
    node, index = _operand(graph, name, slider.place, operands)
    constant = node.inputs[index]
    fact = graph.facts[constant]
    if not graph.is_constant(constant) or fact.size != 1 or fact.dtype != "scalar":
        raise InputError(
            f"slider '{name}': '{slider.place}' is {fact}, and no number that stands in the model"
        )
    inputs = (*node.inputs[:index], name, *node.inputs[index + 1 :])
    default = float(graph.constants[constant].reshape(()))
    return graph.with_(
        inputs=(*graph.inputs, name),
        nodes=tuple(replace(n, inputs=inputs) if n is node else n for n in graph.nodes),
        facts={**graph.facts, name: fact},
        sliders={**graph.sliders, name: replace(slider, default=default)},
    )


def _operand(graph: Graph, name: str, place: str, operands: Operands) -> tuple[Node, int]:
    result, _, operand = place.rpartition(".")
    node = next((n for n in graph.nodes if result in n.outputs), None)
    if node is None:
        raise InputError(f"slider '{name}': '{graph.name}' has no operator of a result '{result}'")
    known = list(operands(node.op))[: len(node.inputs)]
    if operand not in known:
        raise InputError(
            f"slider '{name}': {node.title} has no operand '{operand}'; it has {', '.join(known)}"
        )
    return node, known.index(operand)
