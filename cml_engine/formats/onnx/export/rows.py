"""The table of operators: for each of ours what it becomes in ONNX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from cml_engine.errors.arguments import ONNX_OPSET

#: the nodes of one operator, by its :class:`~cml_engine.formats.onnx.export.call.FormCall`; gives
#: the names of its results
Form = Callable[[Any], str | Sequence[str]]
F = TypeVar("F", bound=Form)

#: the opset that is taken where none is asked for: what has been released for two years reads it
USUAL_OPSET = 20


@dataclass(frozen=True, slots=True)
class FormRow:
    """``name``: ours; ``onnx``: what it becomes, in words; ``function``: a local function holds
    the nodes, so that the graph keeps one node for it; ``since``: the least opset; ``empty``: what
    the result is filled with where the first operand has no elements, if the form does not say."""

    name: str
    form: Form
    onnx: str
    function: bool
    since: int
    empty: float | None


_ROWS: dict[str, FormRow] = {}


def form(
    *names: str,
    onnx: str,
    function: bool = False,
    since: int = ONNX_OPSET.low,
    empty: float | None = None,
) -> Callable[[F], F]:
    """Declare a row, or one for each name, with the function below as its form."""

    def declare(function_below: F) -> F:
        for name in names:
            if name in _ROWS:
                raise ValueError(f"two rows for {name}")
            _ROWS[name] = FormRow(name, function_below, onnx, function, since, empty)
        return function_below

    return declare


def declared() -> Mapping[str, FormRow]:
    """The rows that have been declared, by the operator's name; all: ``forms.export_rows``."""
    return MappingProxyType(_ROWS)
