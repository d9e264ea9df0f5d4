"""The first operator whose result is not finite: ``cml run --stop-at-nan``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cml_engine.errors import CmlError
from cml_engine.graph import Graph, Node
from cml_engine.inspection.numbers import Numbers
from cml_engine.ops.declaration.registry import lookup

Array = np.ndarray[Any, Any]


class NotFinite(CmlError):
    """An operator gave NaN or an infinity."""


class StopAtNan:
    """A watch that raises :class:`NotFinite` at the first result that is not finite. It remembers
    the results that later operators read."""

    def __init__(self, graph: Graph, inputs: Mapping[str, Array]) -> None:
        self._values: dict[str, Array] = {**graph.constants, **inputs}
        last = {name: node.outputs[0] for node in graph.nodes for name in node.reads}
        self._last: dict[str, list[str]] = {}
        for name, node in last.items():
            self._last.setdefault(node, []).append(name)
        self._read = set(last)

    def __call__(self, node: Node, results: Sequence[Array]) -> None:
        for name, array in zip(node.outputs, results, strict=True):
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise NotFinite(self._said(node, name, array), node.source)
        for name, array in zip(node.outputs, results, strict=True):
            if name in self._read:
                self._values[name] = array.copy()
        for name in self._last.get(node.outputs[0], ()):
            self._values.pop(name, None)

    def _said(self, node: Node, name: str, array: Array) -> str:
        numbers = Numbers.of(array)
        at = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        kinds = ((numbers.nan, "NaN"), (numbers.inf, "infinite"))
        shown = " and ".join(f"{count} {kind}" for count, kind in kinds if count)
        lines = [
            f"{node.title}: of {array.size} values of '{name}' {shown}; the first, {array[at]}, "
            f"at {list(at)}. It was made of"
        ]
        for read in dict.fromkeys(node.reads):
            value = self._values[read]
            here = _at(node, value, array, at)
            there = "" if here is None else f"; there {here:.7g}"
            lines.append(f"  {read} {list(value.shape)}: {Numbers.of(value)}{there}")
        if node.attrs:
            lines.append(f"  with {node.attrs!r}")
        return "\n".join(lines)


def _at(node: Node, value: Array, result: Array, at: tuple[int, ...]) -> Any:
    """The operand that the value at that place was made of, where the operator goes by places."""
    fits = value.ndim <= result.ndim and all(
        extent in (1, result.shape[axis]) for axis, extent in enumerate(value.shape)
    )
    if lookup(node.op).formula is None or not fits:
        return None
    return value[tuple(0 if n == 1 else i for i, n in zip(at, value.shape, strict=False))]
