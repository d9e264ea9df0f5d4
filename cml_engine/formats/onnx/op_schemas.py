"""The table of ONNX operators: a row per operator and range of opsets with the same meaning.

Rows are declared by the decorator :func:`op` of the function that converts a node to NNEF's
operators. The importer and the documentation read the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cml_engine.formats.onnx.attributes import Attr, declared
from cml_engine.formats.onnx.values import Value
from cml_engine.ir.graph import Array

#: takes the :class:`~cml_engine.formats.onnx.call.OnnxCall`, which knows rows and so stands above
Form = Callable[[Any], Value | Sequence[Value | None]]
Fold = Callable[..., Array]

#: the supported opsets of ONNX's own domain
FIRST_OPSET, LAST_OPSET = 7, 28
MICROSOFT = "com.microsoft"
ML = "ai.onnx.ml"
#: inputs of an operator that takes any number of them
MANY = 1 << 31


@dataclass(frozen=True, slots=True)
class OnnxOpSchema:
    """A row of the table: one operator in a range of opsets, and its conversion to NNEF.

    Parameters
    ----------
    since, until : the first and the last opset; an ``until`` of 0 means no end.
    attrs : each attribute; :func:`op` also accepts a default or a type for it.
    form : converts a node; returns the results, as NNEF operators or known values.
    fold : the NumPy function of known integers and logicals, which keeps 64 bits:
        ``fold(call, *arrays)``. Other known values go through ``convert`` and are evaluated by
        the operators' own functions.
    nnef : the NNEF operators of the form, for the documentation.
    inputs : the largest number of inputs.
    """

    name: str
    domain: str
    since: int
    until: int
    attrs: Mapping[str, Attr]
    convert: Form
    fold: Fold | None
    nnef: str
    inputs: int

    @property
    def qualified(self) -> str:
        return f"{self.domain}:{self.name}" if self.domain else self.name

    @property
    def opsets(self) -> str:
        first = max(self.since, FIRST_OPSET) if not self.domain else self.since
        return f"{first}-{self.until}" if self.until else f"{first}-"


@dataclass(frozen=True)
class _Table:
    rows: dict[tuple[str, str], list[OnnxOpSchema]] = field(default_factory=dict)


_TABLE = _Table()


def op(
    *names: str,
    nnef: str,
    inputs: int = 1,
    attrs: Mapping[str, Any] | None = None,
    since: int = 1,
    until: int = 0,
    domain: str = "",
    fold: Fold | None = None,
) -> Callable[[Form], Form]:
    """Returns a decorator that registers a function as the conversion of the named operators.

    The other arguments are the fields of :class:`OnnxOpSchema`.
    """

    def declare(form: Form) -> Form:
        given = {name: declared(value) for name, value in (attrs or {}).items()}
        for name in names:
            row = OnnxOpSchema(name, domain, since, until, given, form, fold, nnef, inputs)
            others = _TABLE.rows.setdefault((domain, name), [])
            for other in others:
                if _overlap(row, other):
                    raise ValueError(f"two rows for {name} of opset {max(since, other.since)}")
            others.append(row)
        return form

    return declare


def _overlap(a: OnnxOpSchema, b: OnnxOpSchema) -> bool:
    first, last = max(a.since, b.since), min(a.until or LAST_OPSET, b.until or LAST_OPSET)
    return first <= last


def find_schemas(domain: str, name: str) -> Sequence[OnnxOpSchema]:
    """Returns all rows of an operator; there are none if the operator is unknown."""
    return _TABLE.rows.get((domain, name), ())


def find_schema(domain: str, name: str, opset: int) -> OnnxOpSchema | None:
    """Returns the row of an operator that applies to an opset, or None."""
    for row in find_schemas(domain, name):
        if row.since <= opset and (not row.until or opset <= row.until):
            return row
    return None


def all_schemas() -> list[OnnxOpSchema]:
    """Returns every row of the table, sorted by domain, name and opset."""
    rows = [row for found in _TABLE.rows.values() for row in found]
    return sorted(rows, key=lambda row: (row.domain, row.name, row.since))
