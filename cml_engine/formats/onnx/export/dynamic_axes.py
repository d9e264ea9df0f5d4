"""Finds which parts of an exported ONNX file depend on the sizes of its open axes.

The network is evaluated at other sizes, and each operator is exported at all of them. What is
equal everywhere is free of the size. Lists of extents that are sums of multiples of the named
sizes are computed in the file; anything else is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cml_engine.errors import InputError, ModelError
from cml_engine.errors.arguments import ANY_EXTENT, resolve_shapes, shortened
from cml_engine.formats.onnx.export.wire import OutNode
from cml_engine.ir.graph import Array, Graph, Node
from cml_engine.nnef.expansion.compose import are_same

#: an axis of an input: the input's name and the index of the axis
Axis = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Affine:
    """An extent as a sum of multiples of the named sizes: ``offset + sum(factor * size)``."""

    factors: Mapping[str, int]
    offset: int

    def __str__(self) -> str:
        terms = [name if f == 1 else f"{f}*{name}" for name, f in self.factors.items()]
        return "+".join([*terms, *([str(self.offset)] if self.offset else [])])


@dataclass(frozen=True)
class DynamicAxes:
    """The named sizes of an export, and the network at other sizes.

    ``axes`` has the axes of each name and ``sizes`` its extent in the exported graph. ``probes``
    pairs other sizes with the graph at them; the first probes change one name each.
    """

    axes: Mapping[str, Sequence[Axis]]
    sizes: Mapping[str, int]
    probes: Sequence[tuple[Mapping[str, int], Graph]]

    def shape(self, name: str, shape: Sequence[int]) -> tuple[int | str, ...]:
        """Returns a tensor's shape with the words that ONNX shows for extents that vary."""
        dims: list[int | str] = []
        for axis, extent in enumerate(shape):
            probe_extents = [probe.facts[name].shape[axis] for _, probe in self.probes]
            affine = self.fit(extent, probe_extents)
            is_varying = any(probe_extent != extent for probe_extent in probe_extents)
            dims.append((str(affine) if affine else f"{name}_{axis}") if is_varying else extent)
        return tuple(dims)

    def fit(self, value: int, probe_values: Sequence[int]) -> Affine | None:
        """Returns the form of an extent from its values in the graph and in the probes, or None."""
        factors, offset = {}, value
        for name, (size, _), probe_value in zip(
            self.sizes, self.probes, probe_values, strict=False
        ):
            factor, remainder = divmod(probe_value - value, size[name] - self.sizes[name])
            if remainder:
                return None
            if factor:
                factors[name] = factor
                offset -= factor * self.sizes[name]
        affine = Affine(factors, offset)
        expected = (
            offset + sum(f * size[name] for name, f in factors.items()) for size, _ in self.probes
        )
        return affine if list(expected) == list(probe_values) else None


def find_dynamic_axes(graph: Graph, named_axes: Mapping[str, Sequence[int | str]]) -> DynamicAxes:
    """Returns the axes that ``dynamic=`` names, with the network evaluated at other sizes.

    Raises :class:`InputError` if the names do not fit the inputs or the graph has no origin, and
    :class:`ModelError` if the network takes no other sizes.
    """
    axes, sizes = _named_axes(graph, named_axes)
    if graph.origin is None:
        raise InputError(
            f"dynamic: '{graph.name}' was changed after it was loaded, so its other sizes are not "
            "known: save it, load the file, and export that"
        )
    probe_sizes = [{**sizes, name: size + max(size, 1)} for name, size in sizes.items()]
    probe_sizes.append({name: 3 * max(size, 1) for name, size in sizes.items()})
    probes = [(size, _at(graph, axes, size)) for size in probe_sizes]
    for extra in (1, 2, 3):  # sizes at which strides and factors leave a rest, if they are taken
        odd_sizes = {name: size + extra for name, size in sizes.items()}
        try:
            probes.append((odd_sizes, _at(graph, axes, odd_sizes)))
        except ModelError:
            continue
    return DynamicAxes(axes, sizes, probes)


def _named_axes(
    graph: Graph, requested_axes: Mapping[str, Sequence[int | str]]
) -> tuple[dict[str, list[Axis]], dict[str, int]]:
    example = "{'image': ('batch', 3, 'height', 'width')}"
    if not isinstance(requested_axes, Mapping):
        raise InputError(
            f"dynamic: wanted axes by input, {example}, got {shortened(repr(requested_axes))}"
        )
    facts = {name: graph.facts[name] for name in graph.inputs}
    checked: dict[str, Any] = {
        n: _checked(n, requested, example) for n, requested in requested_axes.items()
    }
    axes: dict[str, list[Axis]] = {}
    sizes: dict[str, int] = {}
    by_input: Mapping[str, Any] = resolve_shapes(checked, facts, graph.name)
    for name, requested in by_input.items():
        shape = graph.facts[name].shape
        if len(requested) != len(shape):
            raise InputError(
                f"dynamic: '{name}' has {len(shape)} axes, got {len(requested)}: "
                f"{list(requested)}; its shape is {list(shape)}"
            )
        for axis, (entry, extent) in enumerate(zip(requested, shape, strict=True)):
            size = sizes.setdefault(entry, extent) if isinstance(entry, str) else entry
            if size != extent:
                raise InputError(
                    f"dynamic: axis {axis} of '{name}' has the extent {extent}, got "
                    f"{entry if entry == size else f'{entry}, which is {size} elsewhere'}: load "
                    "the model at that size, or give the axis another name"
                )
            if isinstance(entry, str):
                axes.setdefault(entry, []).append((name, axis))
    if not axes:
        raise InputError(f"dynamic: no axis has a name: wanted {example}")
    return axes, sizes


def _checked(name: object, entries: object, example: str) -> tuple[int | str, ...]:
    if isinstance(entries, str) or not isinstance(entries, Sequence):
        got = shortened(repr(entries))
        raise InputError(f"dynamic: wanted the axes of {name!r} as {example}, got {got}")
    return tuple(
        entry
        if isinstance(entry, str) and entry.isidentifier()
        else ANY_EXTENT.check(entry, f"dynamic: an axis of '{name}' (a name or its extent)")
        for entry in entries
    )


def _at(graph: Graph, axes: Mapping[str, Sequence[Axis]], sizes: Mapping[str, int]) -> Graph:
    """Returns the network at the given sizes; it has the operators of ``graph``."""
    shapes = {name: list(graph.facts[name].shape) for name in graph.inputs}
    for name_of_size, size in sizes.items():
        for name, axis in axes[name_of_size]:
            shapes[name][axis] = size
    sizes_text = ", ".join(f"{name_of_size}={size}" for name_of_size, size in sizes.items())
    try:
        resized = graph.reshaped({name: tuple(shape) for name, shape in shapes.items()})
    except ModelError as error:
        raise ModelError(
            f"dynamic: the network does not take {sizes_text}: {error.message}", error.source
        ) from None
    if [node.op for node in resized.nodes] != [node.op for node in graph.nodes]:
        raise ModelError(
            f"dynamic: at {sizes_text} the network has other operators: export it twice"
        )
    return resized


@dataclass(frozen=True, slots=True)
class NodeTrace:
    """The export of one node at one size: the constants that it stored, in order, and its nodes.

    The name of a constant is :func:`constant_name` of its position.
    """

    constants: Sequence[Array]
    nodes: Sequence[OutNode]


def constant_name(position: int) -> str:
    """Returns the name that a trace gives to the constant at a position."""
    return f"constant {position}"


def varying_extents(
    dynamic: DynamicAxes, node: Node, node_trace: NodeTrace, probe_traces: Sequence[NodeTrace]
) -> dict[int, list[int | Affine]]:
    """Returns the constants that vary with the sizes, by position, as the forms of their elements.

    Raises :class:`InputError` if the node's ONNX form varies otherwise.
    """
    for (sizes, _), probe_trace in zip(dynamic.probes, probe_traces, strict=True):
        pairs = list(zip(node_trace.nodes, probe_trace.nodes, strict=False))
        differing = next(((a, b) for a, b in pairs if a != b), None)
        if differing:
            raise _fixed_size_error(dynamic, node, sizes, *map(_shown, differing))
        if len(node_trace.nodes) != len(probe_trace.nodes) or len(node_trace.constants) != len(
            probe_trace.constants
        ):
            counts = (f"{len(trace.nodes)} operators" for trace in (node_trace, probe_trace))
            raise _fixed_size_error(dynamic, node, sizes, *counts)
    extents = {}
    for position, array in enumerate(node_trace.constants):
        arrays = [trace.constants[position] for trace in probe_traces]
        unequal = [i for i, a in enumerate(arrays) if a is not array and not are_same(a, array)]
        if not unequal:
            continue
        affine_extents = _forms(dynamic, node_trace, position, arrays)
        if affine_extents is None:
            sizes = dynamic.probes[unequal[0]][0]
            table_texts = (f"a table {_table(a)}" for a in (array, arrays[unequal[0]]))
            raise _fixed_size_error(dynamic, node, sizes, *table_texts)
        extents[position] = affine_extents
    return extents


def _forms(
    dynamic: DynamicAxes, trace: NodeTrace, position: int, probe_arrays: Sequence[Array]
) -> list[int | Affine] | None:
    """Returns the forms of a list of extents, or None if it is another constant or has no form.

    One extent of a ``Reshape`` may be -1, which ONNX computes from all others.
    """
    array = trace.constants[position]
    if (
        array.dtype != np.int64
        or array.ndim != 1
        or any(o.shape != array.shape for o in probe_arrays)
    ):
        return None
    name = constant_name(position)
    is_shape = any(node.op == "Reshape" and node.inputs[1] == name for node in trace.nodes)
    values = [[int(probe_array[i]) for probe_array in probe_arrays] for i in range(len(array))]
    varying = [
        i
        for i, values_at_probes in enumerate(values)
        if any(v != array[i] for v in values_at_probes)
    ]
    extents: list[int | Affine] = array.tolist()
    open_extents = 0
    for i in varying:
        affine = dynamic.fit(int(array[i]), values[i])
        if is_shape and (len(varying) == 1 or affine is None):
            extents[i] = -1
            open_extents += 1
        elif affine is None:
            return None
        else:
            extents[i] = affine
    return extents if open_extents <= 1 else None


def _fixed_size_error(
    dynamic: DynamicAxes,
    node: Node,
    sizes: Mapping[str, int],
    description: str,
    probe_description: str,
) -> InputError:
    size_texts = [
        ", ".join(f"{n}={s}" for n, s in named_sizes.items())
        for named_sizes in (dynamic.sizes, sizes)
    ]
    return InputError(
        f"dynamic: {node.title} has no ONNX form that is free of the size: it is {description} at "
        f"{size_texts[0]} and {probe_description} at {size_texts[1]}. Name only axes that it does "
        "not depend on, or export a file for each size",
        node.source,
    )


def _shown(node: OutNode) -> str:
    attributes = ", ".join(f"{k}={v}" for k, v in sorted(node.attributes.items()))
    return f"{node.op}({attributes})"


def _table(array: Array) -> str:
    return shortened(f"of {array.dtype}{list(array.shape)} {array.reshape(-1).tolist()[:8]}")
