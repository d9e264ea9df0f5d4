"""The table of ONNX operators: a row per operator and range of opsets with the same attributes.

An operator is a function under :func:`op`. Its signature is the declaration: positional parameters
are inputs, keyword parameters are attributes. An input that is no ``Value`` must be known when the
model is loaded. The importer and the documentation read the table.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from cml_engine.errors import UnsupportedOp
from cml_engine.errors.arguments import shortened
from cml_engine.formats.onnx.model import OnnxGraph, OnnxNode, ValueInfo
from cml_engine.formats.onnx.tensors import ELEMENT_TYPES, OnnxTensor, element_dtype
from cml_engine.formats.onnx.values import (
    InvalidNode,
    SequenceValue,
    Value,
    constant,
    ints,
    number,
    numbers,
    single,
    unsupported_error,
)

#: takes the node's inputs and attributes, adds NNEF's operators and returns the results
Form = Callable[..., Value | Sequence[Value | None]]
F = TypeVar("F", bound=Form)

#: the supported opsets of ONNX's own domain
FIRST_OPSET, LAST_OPSET = 7, 28
MICROSOFT = "com.microsoft"
ML = "ai.onnx.ml"
#: inputs of an operator that takes any number of them
MANY = 1 << 31

# -- attributes ----------------------------------------------------------------------------------

_NOUNS: dict[type, str] = {
    bool: "integer", int: "integer", float: "number", str: "text", OnnxTensor: "tensor",
    OnnxGraph: "graph", ValueInfo: "type",
}  # fmt: skip
_TYPES: dict[str, type] = {kind.__name__: kind for kind in _NOUNS}
_LARGEST = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Attr:
    """The declaration of one attribute of an ONNX operator: its type, default and allowed values.

    Parameters
    ----------
    kind : the type of the value, or of each entry where there are ``many``; by default that of the
        function's parameter. ``bool`` is an integer of which only 0 differs.
    default : the value of an attribute that is left out, of each entry if there is a ``count``.
    low, high : the bounds of integers.
    among : all allowed values; empty if they are not listed.
    count : returns the length of a list from the node.
    is_type : whether the integer is ONNX's number of an element type; the value is NumPy's type.
    since, until : the first and last opset with the attribute. Outside it has its default; an
        input with an ``until`` is an attribute up to that opset.
    """

    kind: type = object
    default: object = None
    required: bool = False
    many: bool = False
    low: float = -math.inf
    high: float = math.inf
    among: Collection[object] = ()
    count: Callable[[OnnxCall], int] | None = None
    is_type: bool = False
    since: int = 0
    until: int = 0

    def value(self, call: OnnxCall, name: str) -> Any:
        """Returns the attribute's value at a node: the one that it gives, or the default.

        Raises an error if the value has another type, length or range, or is missing.
        """
        count = None if self.count is None else self.count(call)
        if name not in call.node.attributes:
            if self.required:
                raise InvalidNode(f"attribute '{name}' is missing")
            is_list = count is not None and self.default is not None
            if self.is_type and isinstance(self.default, int):
                return element_dtype(self.default)
            return [self.default] * (count or 0) if is_list else self.default
        raw = call.node.attributes[name]
        values = raw if self.many else [raw]
        if (
            not isinstance(values, list)
            or count not in (None, len(values))
            or not all(map(self._fits, values))
        ):
            raise InvalidNode(
                f"attribute '{name}' is {_shown(raw)}, wanted {self._expected_text(count)}"
            )
        if self.among and raw not in self.among:
            allowed = ", ".join(map(str, self.among))
            raise unsupported_error(f"{name}={raw!r} (of {allowed})")
        if self.kind in (bool, float):
            values = [self.kind(v) for v in values]
        elif self.is_type:
            values = [element_dtype(v) for v in values]
        return values if self.many else values[0]

    def _fits(self, value: object) -> bool:
        kinds = (int, float) if self.kind is float else (int,) if self.kind is bool else self.kind
        if not isinstance(value, kinds):
            return False
        return not isinstance(value, int) or self.low <= value <= self.high

    def _expected_text(self, count: int | None) -> str:
        noun = _NOUNS[self.kind]
        article = "an" if noun[0] in "aeiou" else "a"
        text = f"{noun}s" if self.many else f"{article} {noun}"
        text = text if count is None else f"{count} {text}"
        if self.low > -math.inf:
            text += f" from {self.low} to {self.high}"
        return text


def _shown(value: object) -> str:
    is_message = isinstance(value, OnnxTensor | OnnxGraph)
    return f"a {_NOUNS[type(value)]}" if is_message else shortened(repr(value))


def attribute(default: Any = None, **more: Any) -> Any:
    """Returns the declaration of an attribute, for a parameter's default.

    ``more`` are further fields of :class:`Attr`.
    """
    return Attr(default=default, **more)


def at_least(low: int, default: int | None = None, **more: Any) -> Any:
    """Returns the declaration of a 32-bit integer attribute of at least ``low``."""
    return Attr(int, default, low=low, high=_LARGEST, **more)


def per_axis(low: int, default: int | None = None, times: int = 1, **more: object) -> Any:
    """Returns the declaration of a list attribute with ``times`` integers per spatial axis.

    The axes are those of the node's first input.
    """
    more = {"count": lambda call: times * max(call[0].rank - 2, 0), **more}
    return at_least(low, default, many=True, **more)


def one_of(default: str, *choices: str, **more: Any) -> Any:
    """Returns the declaration of a text attribute that must be one of the arguments.

    The first argument is the default.
    """
    return Attr(str, default, among=tuple(dict.fromkeys((default, *choices))), **more)


def element_type(default: int | None = None) -> Any:
    """Returns the declaration of an attribute that is an element type the network supports."""
    supported = [n for n in ELEMENT_TYPES if element_dtype(n) is not None]
    return Attr(int, default, among=supported, is_type=True)


def _declared(parameter: inspect.Parameter) -> Attr:
    """Returns the declaration of an attribute from a function's parameter."""
    declaration, type_name = _stated(parameter), _type_of(parameter)
    if declaration.kind is not object:
        return declaration
    is_list = type_name.startswith("list[")
    value_type = _TYPES.get(type_name.removeprefix("list[").removesuffix("]"), float)
    return replace(declaration, kind=value_type, many=is_list)


def _stated(parameter: inspect.Parameter) -> Attr:
    """Returns a parameter's default as a declaration, in which the type may be missing."""
    default = parameter.default
    if isinstance(default, Attr):
        return default
    is_missing = default is inspect.Parameter.empty
    return Attr(default=None if is_missing else default, required=is_missing)


def _type_of(parameter: inspect.Parameter) -> str:
    return str(parameter.annotation).removesuffix(" | None")


# -- nodes ---------------------------------------------------------------------------------------


class OnnxCall:
    """One node of an ONNX model while it is imported: its inputs and checked attributes.

    ``opset`` is the version of the node's domain. ``inner`` imports a graph of an attribute: it
    takes the graph, the values of its inputs, and a prefix of names.
    """

    def __init__(
        self,
        node: OnnxNode,
        schema: OnnxOpSchema,
        opset: int,
        inputs: Sequence[Value | None],
        needed_outputs: Sequence[bool],
        inner: Callable[[OnnxGraph, Sequence[Value], str], list[Value]],
    ) -> None:
        self.node, self.schema, self.opset, self.inputs = node, schema, opset, list(inputs)
        self.inner, self._needed_outputs = inner, needed_outputs
        count = max((i for i, name in enumerate(node.inputs, 1) if name), default=0)
        advice = "the model was made for another version of it"
        if count > schema.inputs:
            raise UnsupportedOp(f"{count} inputs, the operator takes {schema.inputs}: {advice}")
        for name in node.attributes:
            if name not in schema.attrs:
                known_names = ", ".join(schema.attrs) or "none"
                raise UnsupportedOp(
                    f"unknown attribute '{name}', the operator has {known_names}: {advice}"
                )
        for position, value in enumerate(self.inputs):
            if isinstance(value, SequenceValue) and not schema.takes_sequences:
                raise InvalidNode(f"input {position + 1} is a {value}, wanted a tensor")
        self.attrs = {name: attr.value(self, name) for name, attr in schema.attrs.items()}

    def has(self, position: int) -> bool:
        """Returns True if the node has an input at ``position``."""
        return self.optional(position) is not None

    def wants(self, position: int) -> bool:
        """Returns True if a node or the graph's outputs read the output at ``position``."""
        return position < len(self._needed_outputs) and self._needed_outputs[position]

    def __getitem__(self, position: int) -> Value:
        """Returns the input at ``position``; raises an error if it is missing."""
        value = self.optional(position)
        if value is None:
            raise InvalidNode(f"input {position + 1} is missing")
        return value

    def optional(self, position: int) -> Value | None:
        """Returns the input at ``position``, or None if it is missing."""
        return self.inputs[position] if position < len(self.inputs) else None

    def quantized(self, first: int) -> tuple[Value, Value, Value | None]:
        """Returns integers with their scale and zero point: input ``first`` and the next two."""
        return self[first], self[first + 1], self.optional(first + 2)

    def convert(self) -> Sequence[Value | None]:
        """Adds NNEF's operators for the node and returns its results."""
        attributes = {**self.schema.defaults, **self.attrs}
        arguments: list[object] = []
        for position, parameter in enumerate(self.schema.parameters):
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                arguments += [self[i] for i in range(position, len(self.inputs))]
                continue
            is_attribute = parameter.name in attributes
            value = (
                attributes.pop(parameter.name) if is_attribute else self._input(position, parameter)
            )
            if isinstance(value, float) and _type_of(parameter) == "Value":
                value = Value.known(np.float32(value))
            arguments.append(value)
        results = self.schema.form(*[self] * self.schema.takes_call, *arguments, **attributes)
        return [results] if isinstance(results, Value) else list(results)

    def _input(self, position: int, parameter: inspect.Parameter) -> object:
        stated = _stated(parameter)
        if not stated.required and not (position < self.schema.inputs and self.has(position)):
            return stated.default
        name = parameter.name.replace("_", " ")
        reader = _READERS.get(_type_of(parameter))
        value = self[position]
        if _type_of(parameter) == "SequenceValue" and not isinstance(value, SequenceValue):
            raise InvalidNode(f"input {position + 1} is {value}, wanted a sequence")
        return value if reader is None else reader(value, name if len(name) == 1 else f"the {name}")

    def fold(self) -> Value | None:
        """Returns the result of the node's known integers, exact in 64 bits.

        Returns None if an input is computed or of floats, or the operator has no such function.
        """
        arrays = [v.array for v in self.inputs if v is not None and v.array is not None]
        is_whole = all(array.dtype.kind != "f" for array in arrays)
        if self.schema.fold is None or not is_whole or not 0 < len(arrays) == len(self.inputs):
            return None
        with np.errstate(all="ignore"):
            folded = np.asarray(self.schema.fold(*arrays, **self.attrs))
        is_number = folded.dtype.kind in "iu" and arrays[0].dtype.kind in "iu"
        return Value.known(folded.astype(arrays[0].dtype) if is_number else folded)


#: by the type of an input that must be known: the function that reads it
_READERS: Mapping[str, Callable[[Value, str], object]] = {
    "Array": constant,
    "list[float]": lambda value, what: numbers(value, what).tolist(),
    "list[int]": ints,
    "int": lambda value, what: single(ints(value, what), what),
    "float": number,
}


# -- the table -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class OnnxOpSchema:
    """A row of the table: one operator in a range of opsets, and its conversion to NNEF.

    Parameters
    ----------
    since, until : the first and the last opset; an ``until`` of 0 means no end.
    attrs : each attribute; ``defaults`` are those of attributes of other opsets.
    form : converts a node: takes its inputs and attributes, and returns the results, as NNEF
        operators or known values. ``parameters`` are those of the inputs. With ``takes_call`` the
        node itself is its first argument.
    fold : the NumPy function of known integers and logicals, which keeps 64 bits. Other known
        values go through ``form`` and are evaluated by the operators' own functions.
    nnef : the NNEF operators of the form, for the documentation.
    inputs : the largest number of inputs.
    takes_sequences : whether inputs may be sequences of tensors.
    """

    name: str
    domain: str
    since: int
    until: int
    attrs: Mapping[str, Attr]
    defaults: Mapping[str, object]
    form: Form
    parameters: Sequence[inspect.Parameter]
    takes_call: bool
    fold: Callable[..., object] | None
    nnef: str
    inputs: int
    takes_sequences: bool

    @property
    def qualified(self) -> str:
        return f"{self.domain}:{self.name}" if self.domain else self.name

    @property
    def opsets(self) -> str:
        first = max(self.since, FIRST_OPSET) if not self.domain else self.since
        return f"{first}-{self.until}" if self.until else f"{first}-"

    @property
    def runs_graphs(self) -> bool:
        """True if the operator runs graphs that are attributes, such as If."""
        return any(attr.kind is OnnxGraph for attr in self.attrs.values())


_ROWS: dict[tuple[str, str], list[OnnxOpSchema]] = {}


def op(
    name: str,
    nnef: str,
    *,
    since: int = 1,
    until: int = 0,
    domain: str = "",
    attrs: Mapping[str, Attr] | None = None,
    fold: Callable[..., object] | None = None,
    inputs: int | None = None,
    takes_sequences: bool = False,
) -> Callable[[F], F]:
    """Returns a decorator that registers a function as the conversion of an operator.

    ``attrs`` are attributes that several operators share, or whose names are not Python's: the
    function takes them by ``**``. ``inputs`` is the largest number of inputs, by default that of
    the function's parameters. The other arguments are fields of :class:`OnnxOpSchema`.
    Attributes that begin or end at an opset make a row each.
    """

    def declare(form: F) -> F:
        parameters = list(inspect.signature(form).parameters.values())
        takes_call = bool(parameters) and parameters[0].name == "call"
        positional = [p for p in parameters[takes_call:] if p.kind in _POSITIONAL]
        attributes = {p.name: _declared(p) for p in parameters if p.kind is p.KEYWORD_ONLY}
        former = {
            p.name: _declared(p)
            for p in positional
            if isinstance(p.default, Attr) and p.default.until
        }
        attributes = {**former, **attributes, **(attrs or {})}
        starts = {
            since,
            *(a.since for a in attributes.values()),
            *(a.until + 1 for a in attributes.values()),
        }
        firsts = sorted(n for n in starts if n >= since)
        for first, next_first in zip(firsts, [*firsts[1:], until + 1], strict=True):
            present = {
                k: a for k, a in attributes.items() if a.since <= first <= (a.until or LAST_OPSET)
            }
            absent = {k: a.default for k, a in attributes.items() if k not in {**present, **former}}
            names = [p.name in present or p.kind is p.VAR_POSITIONAL for p in positional]
            is_many = any(p.kind is p.VAR_POSITIONAL for p in positional)
            count = names.index(True) if True in names else len(positional)
            row = OnnxOpSchema(
                name, domain, first, next_first - 1, present, absent, form, positional,
                takes_call, fold, nnef, inputs or (MANY if is_many else count), takes_sequences,
            )  # fmt: skip
            _add_row(row)
        return form

    return declare


_POSITIONAL = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


def _add_row(row: OnnxOpSchema) -> None:
    rows = _ROWS.setdefault((row.domain, row.name), [])
    for row_before in rows:
        first = max(row.since, row_before.since)
        if first <= min(row.until or LAST_OPSET, row_before.until or LAST_OPSET):
            raise ValueError(f"two rows for {row.name} of opset {first}")
    rows.append(row)


def find_schemas(domain: str, name: str) -> Sequence[OnnxOpSchema]:
    """Returns all rows of an operator; there are none if the operator is unknown."""
    return _ROWS.get((domain, name), ())


def find_schema(domain: str, name: str, opset: int) -> OnnxOpSchema | None:
    """Returns the row of an operator that applies to an opset, or None."""
    rows = find_schemas(domain, name)
    return next((r for r in rows if r.since <= opset <= (r.until or opset)), None)


def all_schemas() -> list[OnnxOpSchema]:
    """Returns every row of the table, sorted by domain, name and opset."""
    rows = [row for rows_of_operator in _ROWS.values() for row in rows_of_operator]
    return sorted(rows, key=lambda row: (row.domain, row.name, row.since))
