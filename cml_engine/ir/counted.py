"""Outputs of a network whose number of elements is known only at run time.

An output that ``keep_first`` gives has a counted axis: its shape has room for the largest number,
and another output of the graph has the number itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from cml_engine.ir.graph import Array, Graph

#: the counted axes of outputs by name: each axis with the output that has its number of elements
CountedAxes = Mapping[str, Mapping[int, str]]


def counted_axes(graph: Graph) -> CountedAxes:
    """Returns the counted axes of the graph's outputs that have some."""
    producers = graph.producers

    def origin(name: str) -> str:
        while name in producers and producers[name].op == "copy":
            name = producers[name].inputs[0]
        return name

    numbers = {origin(name): name for name in reversed(graph.outputs)}
    found: dict[str, dict[int, str]] = {}
    for output in graph.outputs:
        name = origin(output)
        while name in producers and producers[name].op == "keep_first":
            node = producers[name]
            name, number = node.inputs[0], numbers.get(origin(node.inputs[1]))
            if number is not None:
                found.setdefault(output, {})[int(node.attrs.axis)] = number
    return found


def trimmed(name: str, array: Array, axes: CountedAxes, outputs: Mapping[str, Array]) -> Array:
    """Returns an output without what lies behind the elements of its counted axes.

    ``outputs`` has the numbers of elements by output.
    """
    for axis, number in axes.get(name, {}).items():
        count = max(int(outputs[number].reshape(-1)[0]), 0)
        array = array[(slice(None),) * axis + (slice(count),)]
    return array
