"""Finds what an ONNX file contains of the sizes that it was exported at.

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
        found: list[int | str] = []
        for axis, extent in enumerate(shape):
            others = [probe.facts[name].shape[axis] for _, probe in self.probes]
            form = self.fit(extent, others)
            varies = any(other != extent for other in others)
            found.append((str(form) if form else f"{name}_{axis}") if varies else extent)
        return tuple(found)

    def fit(self, value: int, others: Sequence[int]) -> Affine | None:
        """Returns the form of an extent from its values in the graph and in the probes, or None."""
        factors, offset = {}, value
        for name, (size, _), other in zip(self.sizes, self.probes, others, strict=False):
            factor, rest = divmod(other - value, size[name] - self.sizes[name])
            if rest:
                return None
            if factor:
                factors[name] = factor
                offset -= factor * self.sizes[name]
        found = Affine(factors, offset)
        expected = (
            offset + sum(f * size[name] for name, f in factors.items()) for size, _ in self.probes
        )
        return found if list(expected) == list(others) else None


def find_dynamic_axes(graph: Graph, given: Mapping[str, Sequence[int | str]]) -> DynamicAxes:
    """Returns the axes that ``dynamic=`` names, with the network evaluated at other sizes.

    Raises :class:`InputError` if the names do not fit the inputs or the graph has no origin, and
    :class:`ModelError` if the network takes no other sizes.
    """
    axes, sizes = _named_axes(graph, given)
    if graph.origin is None:
        raise InputError(
            f"dynamic: '{graph.name}' was changed after it was loaded, so its other sizes are not "
            "known: save it, load the file, and export that"
        )
    changed = [{**sizes, name: size + max(size, 1)} for name, size in sizes.items()]
    changed.append({name: 3 * max(size, 1) for name, size in sizes.items()})
    probes = [(size, _at(graph, axes, size)) for size in changed]
    for more in (1, 2, 3):  # sizes at which strides and factors leave a rest, if they are taken
        near = {name: size + more for name, size in sizes.items()}
        try:
            probes.append((near, _at(graph, axes, near)))
        except ModelError:
            continue
    return DynamicAxes(axes, sizes, probes)


def _named_axes(
    graph: Graph, given: Mapping[str, Sequence[int | str]]
) -> tuple[dict[str, list[Axis]], dict[str, int]]:
    shown = "{'image': ('batch', 3, 'height', 'width')}"
    if not isinstance(given, Mapping):
        raise InputError(f"dynamic: wanted axes by input, {shown}, got {shortened(repr(given))}")
    facts = {name: graph.facts[name] for name in graph.inputs}
    checked: dict[str, Any] = {n: _checked(n, words, shown) for n, words in given.items()}
    axes: dict[str, list[Axis]] = {}
    sizes: dict[str, int] = {}
    by_input: Mapping[str, Any] = resolve_shapes(checked, facts, graph.name)
    for name, words in by_input.items():
        shape = graph.facts[name].shape
        if len(words) != len(shape):
            raise InputError(
                f"dynamic: '{name}' has {len(shape)} axes, got {len(words)}: {list(words)}; its "
                f"shape is {list(shape)}"
            )
        for axis, (word, extent) in enumerate(zip(words, shape, strict=True)):
            wanted = sizes.setdefault(word, extent) if isinstance(word, str) else word
            if wanted != extent:
                raise InputError(
                    f"dynamic: axis {axis} of '{name}' has the extent {extent}, got "
                    f"{word if word == wanted else f'{word}, which is {wanted} elsewhere'}: load "
                    "the model at that size, or give the axis another name"
                )
            if isinstance(word, str):
                axes.setdefault(word, []).append((name, axis))
    if not axes:
        raise InputError(f"dynamic: no axis has a name: wanted {shown}")
    return axes, sizes


def _checked(name: object, words: Any, shown: str) -> tuple[int | str, ...]:
    if isinstance(words, str) or not isinstance(words, Sequence):
        what = shortened(repr(words))
        raise InputError(f"dynamic: wanted the axes of {name!r} as {shown}, got {what}")
    return tuple(
        word
        if isinstance(word, str) and word.isidentifier()
        else ANY_EXTENT.check(word, f"dynamic: an axis of '{name}' (a name or its extent)")
        for word in words
    )


def _at(graph: Graph, axes: Mapping[str, Sequence[Axis]], sizes: Mapping[str, int]) -> Graph:
    """Returns the network at the given sizes; it has the operators of ``graph``."""
    shapes = {name: list(graph.facts[name].shape) for name in graph.inputs}
    for word, size in sizes.items():
        for name, axis in axes[word]:
            shapes[name][axis] = size
    shown = ", ".join(f"{word}={size}" for word, size in sizes.items())
    try:
        found = graph.reshaped({name: tuple(shape) for name, shape in shapes.items()})
    except ModelError as error:
        raise ModelError(
            f"dynamic: the network does not take {shown}: {error.message}", error.source
        ) from None
    if [node.op for node in found.nodes] != [node.op for node in graph.nodes]:
        raise ModelError(f"dynamic: at {shown} the network has other operators: export it twice")
    return found


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
    dynamic: DynamicAxes, node: Node, here: NodeTrace, others: Sequence[NodeTrace]
) -> dict[int, list[int | Affine]]:
    """Returns the constants that vary with the sizes, by position, as the forms of their elements.

    Raises :class:`InputError` if the node's ONNX form varies otherwise.
    """
    for (sizes, _), other in zip(dynamic.probes, others, strict=True):
        pairs = list(zip(here.nodes, other.nodes, strict=False))
        differing = next(((a, b) for a, b in pairs if a != b), None)
        if differing:
            raise _fixed_size_error(dynamic, node, sizes, *map(_shown, differing))
        if len(here.nodes) != len(other.nodes) or len(here.constants) != len(other.constants):
            counts = (f"{len(trace.nodes)} operators" for trace in (here, other))
            raise _fixed_size_error(dynamic, node, sizes, *counts)
    found = {}
    for position, array in enumerate(here.constants):
        arrays = [trace.constants[position] for trace in others]
        unequal = [i for i, a in enumerate(arrays) if a is not array and not are_same(a, array)]
        if not unequal:
            continue
        forms = _forms(dynamic, here, position, arrays)
        if forms is None:
            sizes = dynamic.probes[unequal[0]][0]
            given = (f"a table {_table(a)}" for a in (array, arrays[unequal[0]]))
            raise _fixed_size_error(dynamic, node, sizes, *given)
        found[position] = forms
    return found


def _forms(
    dynamic: DynamicAxes, here: NodeTrace, position: int, others: Sequence[Array]
) -> list[int | Affine] | None:
    """Returns the forms of a list of extents, or None if it is another constant or has no form.

    One extent of a ``Reshape`` may be -1, which ONNX computes from all others.
    """
    array = here.constants[position]
    if array.dtype != np.int64 or array.ndim != 1 or any(o.shape != array.shape for o in others):
        return None
    name = constant_name(position)
    is_shape = any(node.op == "Reshape" and node.inputs[1] == name for node in here.nodes)
    values = [[int(other[i]) for other in others] for i in range(len(array))]
    varying = [i for i, each in enumerate(values) if any(v != array[i] for v in each)]
    forms: list[int | Affine] = array.tolist()
    open_extents = 0
    for i in varying:
        form = dynamic.fit(int(array[i]), values[i])
        if is_shape and (len(varying) == 1 or form is None):
            forms[i] = -1
            open_extents += 1
        elif form is None:
            return None
        else:
            forms[i] = form
    return forms if open_extents <= 1 else None


def _fixed_size_error(
    dynamic: DynamicAxes, node: Node, sizes: Mapping[str, int], here: str, other: str
) -> InputError:
    at = [", ".join(f"{n}={s}" for n, s in each.items()) for each in (dynamic.sizes, sizes)]
    return InputError(
        f"dynamic: {node.title} has no ONNX form that is free of the size: it is {here} at {at[0]} "
        f"and {other} at {at[1]}. Name only axes that it does not depend on, or export a file for "
        "each size",
        node.source,
    )


def _shown(node: OutNode) -> str:
    given = ", ".join(f"{k}={v}" for k, v in sorted(node.attributes.items()))
    return f"{node.op}({given})"


def _table(array: Array) -> str:
    return shortened(f"of {array.dtype}{list(array.shape)} {array.reshape(-1).tolist()[:8]}")
