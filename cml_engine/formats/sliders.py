"""Turns operands and attributes of a graph into inputs with a default, for a host to change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cml_engine.errors import CmlError, InputError
from cml_engine.ir.graph import Attrs, Fact, Graph, Node, Slider, SliderValue
from cml_engine.ops.declaration.checks import signature_of
from cml_engine.ops.declaration.registry import lookup
from cml_engine.ops.slider_attributes import attribute_fact, base_operator, with_input_attribute

#: the most numbers of one slider: a larger tensor is an input of the model
_MOST = 16


def with_sliders(graph: Graph, sliders: Mapping[str, Slider | str]) -> Graph:
    """Returns the graph with an input in place of each value that a slider names.

    The input has the slider's name, and the value becomes its default. A slider, or its text such
    as ``"mul3.y"``, names the operand or attribute ``y`` of the operator whose result is ``mul3``.
    """
    for name, slider in sliders.items():
        slider = slider if isinstance(slider, Slider) else Slider(slider)
        if name in graph.facts:
            raise InputError(f"slider '{name}': '{graph.name}' has a tensor of that name")
        node = _node(graph, name, slider.place)
        graph = _exposed(graph, name, slider, node)
    return graph


def attribute_sliders(graph: Graph) -> list[str]:
    """Returns the names of the sliders of attributes, as opposed to those of operands."""
    read_names = {name for node in graph.nodes if "[" in node.op for name in node.inputs}
    return [name for name in graph.sliders if name in read_names]


def _exposed(graph: Graph, name: str, slider: Slider, node: Node) -> Graph:
    key = slider.place.rpartition(".")[2]
    signature = signature_of(base_operator(node.op))
    operands = [p.name for p in signature.tensors][: len(node.inputs)] if signature else []
    value: SliderValue
    if key in operands:
        index = operands.index(key)
        constant = node.inputs[index]
        fact = graph.facts[constant]
        if not graph.is_constant(constant) or not 0 < fact.size <= _MOST:
            raise InputError(
                f"slider '{name}': '{slider.place}' is {fact}, and no constant of the model of 1 "
                f"to {_MOST} numbers"
            )
        values = graph.constants[constant].ravel().tolist()
        value = tuple(values) if fact.rank and fact.size > 1 else values[0]
        inputs = (*node.inputs[:index], name, *node.inputs[index + 1 :])
        changed_node = replace(node, inputs=inputs)
    elif key in node.attrs:
        attribute = node.attrs[key]
        value = tuple(attribute) if isinstance(attribute, list | tuple) else attribute
        fact = _attribute_fact(name, node, key)
        changed_node = with_input_attribute(node, key, name)
    else:
        raise InputError(
            f"slider '{name}': {node.title} has no operand or attribute '{key}'; it has "
            f"{', '.join((*operands, *node.attrs))}"
        )
    slider = replace(slider, default=value)
    graph = graph.with_(
        inputs=(*graph.inputs, name),
        nodes=tuple(changed_node if n is node else n for n in graph.nodes),
        facts={**graph.facts, name: fact},
        sliders={**graph.sliders, name: slider},
    )
    if key not in operands:
        for sample in slider.samples():
            _check_shapes(graph, name, node, key, sample)
    return graph


def _node(graph: Graph, name: str, place: str) -> Node:
    result = place.rpartition(".")[0]
    node = next((n for n in graph.nodes if result in n.outputs), None)
    if node is None:
        raise InputError(f"slider '{name}': '{graph.name}' has no operator of a result '{result}'")
    return node


def _attribute_fact(name: str, node: Node, attribute: str) -> Fact:
    fact = attribute_fact(node, attribute)
    if fact is None:
        raise InputError(
            f"slider '{name}': the attribute '{attribute}' of {node.title} is "
            f"{node.attrs[attribute]!r}, which is compiled into its kernel; only numbers, truth "
            "values and flat lists of them can move. Leave the slider out, and load the model with "
            "another value",
            node.source,
        )
    if not 0 < fact.size <= _MOST:
        raise InputError(
            f"slider '{name}': the attribute '{attribute}' of {node.title} has {fact.size} "
            f"numbers; a slider has 1 to {_MOST}",
            node.source,
        )
    return fact


def _check_shapes(graph: Graph, name: str, node: Node, attribute: str, value: SliderValue) -> None:
    """Raises :class:`InputError` if shapes of results follow from the attribute."""
    spec, listed_value = lookup(node.op), list(value) if isinstance(value, tuple) else value
    attrs = Attrs({**node.attrs, attribute: listed_value})
    try:
        inferred = spec.infer(attrs, *graph.facts_of(node.inputs))
        results = [inferred] if isinstance(inferred, Fact) else list(inferred)
        has_changed = results != graph.facts_of(node.outputs)
        consequence = f"would be {', '.join(map(str, results))}" if has_changed else ""
    except CmlError as error:
        consequence = f"is refused: {error}"
    if consequence:
        raise InputError(
            f"slider '{name}': the attribute '{attribute}' of {node.title} decides shapes, which "
            f"are fixed when the network is compiled: with {listed_value} the result "
            f"{consequence}. Give the slider another range, or leave it out and load the model "
            "with another value",
            node.source,
        )
