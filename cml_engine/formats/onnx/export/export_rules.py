"""The export table: the function that writes each operator of the engine as ONNX nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from cml_engine.errors.arguments import ONNX_OPSET

#: adds the nodes of one operator through its
#: :class:`~cml_engine.formats.onnx.export.call.ExportCall` and returns the names of its results
Form = Callable[[Any], str | Sequence[str]]
F = TypeVar("F", bound=Form)

#: the default opset: runtimes of the last two years read it
DEFAULT_OPSET = 20


@dataclass(frozen=True, slots=True)
class ExportRule:
    """The rule that exports one operator: the function ``convert`` that adds its ONNX nodes.

    ``name`` is the engine's operator. ``onnx`` describes the nodes for the documentation. With
    ``function`` the nodes are put into a local function, and the graph has one node that calls
    it. ``since`` is the lowest opset. ``empty`` is the value of the results if the first operand
    has no elements; None leaves that case to ``convert``.
    """

    name: str
    convert: Form
    onnx: str
    function: bool
    since: int
    empty: float | None


_ROWS: dict[str, ExportRule] = {}


def rule(
    *names: str,
    onnx: str,
    function: bool = False,
    since: int = ONNX_OPSET.low,
    empty: float | None = None,
) -> Callable[[F], F]:
    """Returns a decorator that registers a function as the export rule of the named operators."""

    def declare(function_below: F) -> F:
        for name in names:
            if name in _ROWS:
                raise ValueError(f"two rows for {name}")
            _ROWS[name] = ExportRule(name, function_below, onnx, function, since, empty)
        return function_below

    return declare


def registered_rules() -> Mapping[str, ExportRule]:
    """Returns the rules registered so far, by operator name; ``load_export_rules`` returns all."""
    return MappingProxyType(_ROWS)
