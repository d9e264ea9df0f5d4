"""Writes and reads the graph of a cooked file, as JSON and constants.

NumPy and new plans need the graph; players do not.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, cast

import numpy as np

from cml_engine.cooked.reader import Container, damaged
from cml_engine.cooked.schema import GRAPH, MOST_DIMENSIONS
from cml_engine.cooked.values import read_values
from cml_engine.cooked.writer import Sections
from cml_engine.errors import CmlError, InputError, Source
from cml_engine.io.json_files import parse_json
from cml_engine.io.load_limits import current_budget
from cml_engine.ir.graph import NUMPY_DTYPE, Array, Attrs, Epilogue, Fact, Graph, Node

#: types of constants, by their names in the file
_TYPES = {dtype.name: dtype for dtype in NUMPY_DTYPE.values()}


@dataclass(frozen=True)
class _Codec:
    """Converts values of one type to JSON data, and untrusted JSON data to such values.

    ``read`` raises ``ValueError``, ``TypeError``, ``KeyError`` or ``AttributeError`` for other
    data.
    """

    write: Callable[[Any], object]
    read: Callable[[Any], Any]


def _list_of(item: _Codec) -> _Codec:
    def read(data: object) -> tuple[object, ...]:
        if not isinstance(data, list):
            raise ValueError(f"wanted a list, got {str(data)[:40]}")
        return tuple(item.read(part) for part in data)

    return _Codec(lambda values: [item.write(value) for value in values], read)


def _table_of(item: _Codec) -> _Codec:
    return _Codec(
        lambda values: {name: item.write(value) for name, value in values.items()},
        lambda data: {name: item.read(value) for name, value in data.items()},
    )


def _pair(first: _Codec, second: _Codec) -> _Codec:
    def read(data: Any) -> tuple[object, object]:
        a, b = data
        return first.read(a), second.read(b)

    return _Codec(lambda pair: [first.write(pair[0]), second.write(pair[1])], read)


def _row(make: Callable[..., object], **fields: _Codec) -> _Codec:
    """Returns the codec of an object as a list of its fields."""

    def read(data: Any) -> object:
        pairs = zip(fields.values(), data, strict=True)
        return make(*(codec.read(value) for codec, value in pairs))

    return _Codec(lambda value: [c.write(getattr(value, n)) for n, c in fields.items()], read)


def _record(make: Callable[..., object], optional: frozenset[str], **fields: _Codec) -> _Codec:
    """Returns the codec of an object as a JSON object; ``optional`` fields may be left out."""

    def write(value: object) -> dict[str, object]:
        values = {name: getattr(value, name) for name in fields}
        omitted = {name for name in optional if not values[name]}
        return {n: fields[n].write(v) for n, v in values.items() if n not in omitted}

    def read(data: Any) -> object:
        if unknown := data.keys() - fields.keys():
            raise ValueError(f"unknown field '{min(unknown)[:40]}'")
        names = [name for name in fields if name in data or name not in optional]
        return make(**{name: fields[name].read(data[name]) for name in names})

    return _Codec(write, read)


def _maybe(item: _Codec) -> _Codec:
    return _Codec(
        lambda value: None if value is None else item.write(value),
        lambda data: None if data is None else item.read(data),
    )


def _unchanged(value: object) -> object:
    return value


def _read_text(data: object) -> str:
    if not isinstance(data, str):
        raise ValueError(f"wanted a text, got {str(data)[:40]}")
    return data


def _number(low: int, high: int) -> _Codec:
    def read(data: object) -> int:
        if type(data) is not int or not low <= data < high:
            raise ValueError(f"wanted a number, got {str(data)[:40]}")
        return data

    return _Codec(_unchanged, read)


def _read_dtype(data: object) -> str:
    name = _read_text(data)
    if name not in NUMPY_DTYPE:
        raise ValueError(f"unknown type '{name[:40]}'")
    return name


def _read_shape(data: object) -> tuple[int, ...]:
    if not isinstance(data, list) or len(data) > 8 * MOST_DIMENSIONS:
        raise ValueError("wanted a shape")
    return tuple(_WHOLE.read(extent) for extent in data)


def _read_range(data: Any) -> tuple[int, int]:
    low, high = data
    if not all(type(end) is int and abs(end) < 1 << 31 for end in data) or low > high:
        raise ValueError(f"wanted a range, got {str(data)[:40]}")
    return low, high


def _write_value(value: object) -> object:
    """Returns an attribute's value as JSON; a type that JSON lacks becomes an object with one
    entry.

    Raises ``TypeError`` for a type that cannot be cooked.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [_write_value(part) for part in value]
    if isinstance(value, tuple):
        return {"tuple": [_write_value(part) for part in value]}
    if isinstance(value, np.ndarray) and value.dtype.name in _TYPES:
        return {"array": [value.dtype.name, list(value.shape), value.ravel().tolist()]}
    raise TypeError(f"is a {type(value).__name__}, which cannot be cooked")


def _read_value(value: object) -> object:
    if isinstance(value, list):
        return [_read_value(part) for part in value]
    if not isinstance(value, dict):
        return value
    ((type_name, inner),) = value.items()
    readers: Mapping[str, Callable[[Any], object]] = {
        "float": lambda text: float(_read_text(text)),
        "tuple": lambda parts: tuple(_read_value(part) for part in parts),
        "array": lambda parts: np.array(parts[2], _TYPES[parts[0]]).reshape(_read_shape(parts[1])),
    }
    return readers[type_name](inner)


def _write_attrs(attrs: Mapping[str, object]) -> dict[str, object]:
    data = {}
    for key, value in attrs.items():
        try:
            data[key] = _write_value(value)
        except TypeError as error:
            raise InputError(f"attribute '{key}' {error}") from None
    return data


def _read_attrs(data: Any) -> Attrs:
    return Attrs({key: _read_value(value) for key, value in data.items()})


_TEXT = _Codec(_unchanged, _read_text)
_TEXTS = _list_of(_TEXT)
_WHOLE = _number(0, 1 << 32)
_ATTRS = _Codec(_write_attrs, _read_attrs)
_SOURCE = _row(
    Source,
    file=_Codec(lambda file: PurePath(file).name, _read_text),
    line=_WHOLE,
    column=_WHOLE,
    text=_TEXT,
)
_EPILOGUE = _record(
    Epilogue,
    frozenset(),
    op=_TEXT,
    inputs=_TEXTS,
    attrs=_ATTRS,
    position=_maybe(_WHOLE),
    own=_list_of(_pair(_WHOLE, _WHOLE)),
)
_NODE = _record(
    Node,
    frozenset(("epilogues",)),
    op=_TEXT,
    inputs=_TEXTS,
    outputs=_TEXTS,
    attrs=_ATTRS,
    source=_maybe(_SOURCE),
    epilogues=_list_of(_EPILOGUE),
)
_FACT = _row(Fact, dtype=_Codec(_unchanged, _read_dtype), shape=_Codec(list, _read_shape))
#: a graph without its constants
_GRAPH = _record(
    Graph,
    frozenset(("words",)),
    name=_TEXT,
    inputs=_TEXTS,
    outputs=_TEXTS,
    nodes=_list_of(_NODE),
    facts=_table_of(_FACT),
    labels=_table_of(_TEXT),
    updates=_list_of(_pair(_TEXT, _TEXT)),
    sources=_table_of(_SOURCE),
    quantization=_table_of(_ATTRS),
    notes=_TEXTS,
    words=_table_of(_Codec(list, _read_range)),
)


def write_graph(graph: Graph, sections: Sections) -> None:
    """Adds the section ``graph`` to ``sections``, and the graph's constants to the section
    ``values``.

    Raises :class:`InputError` for a constant of a type that cannot be cooked.
    """
    constants = {}
    for name, array in graph.constants.items():
        if array.dtype.name not in _TYPES:
            raise InputError(f"constant '{name}' is of {array.dtype}, which cannot be cooked")
        stored = sections.values.put(np.ascontiguousarray(array))
        constants[name] = [array.dtype.name, list(array.shape), *stored]
    data = {**cast("dict[str, object]", _GRAPH.write(graph)), "constants": constants}
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    sections.add(GRAPH, text.encode(errors="replace"))


def read_graph(file: Container) -> Graph:
    """Returns the graph in a file's section ``graph``.

    Raises :class:`CorruptArtifact` if the section is invalid.
    """
    try:
        data = parse_json(bytes(file.section(GRAPH).content).decode())
        constants = {n: _constant(file, n, *c) for n, c in data.pop("constants").items()}
        graph: Graph = _GRAPH.read(data)
        graph = graph.with_(constants=constants)
        _check(graph)
    except CmlError:
        raise
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise damaged(f"its graph: {type(error).__name__}: {error}") from None
    return graph


def _check(graph: Graph) -> None:
    """Raises ``ValueError`` unless every tensor has a fact and is computed before it is read.

    Constants must match their facts, and updated variables must be constants.
    """
    computed = {*graph.inputs, *graph.constants}
    for node in graph.nodes:
        for name in node.reads:
            if name not in computed:
                raise ValueError(f"{node.title} reads '{name}', which is not there")
        computed.update(node.outputs)
    for name in (*computed, *graph.roots):
        if name not in graph.facts or name not in computed:
            raise ValueError(f"nothing is known of '{name}'")
    for name, array in graph.constants.items():
        fact = graph.facts[name]
        if (NUMPY_DTYPE[fact.dtype], fact.shape) != (array.dtype, array.shape):
            raise ValueError(f"constant '{name}' is {array.dtype}{array.shape}, wanted {fact}")
    if any(variable not in graph.constants for variable, _ in graph.updates):
        raise ValueError("an update of what is no variable")


def _constant(
    file: Container,
    name: str,
    dtype: object,
    shape: object,
    offset: object,
    stored: object,
    becomes: object,
) -> Array:
    constant_dtype, extents = _TYPES[_read_text(dtype)], _read_shape(shape)
    packing = _WHOLE.read(stored), _WHOLE.read(becomes)
    subject = f"constant '{name}'"
    values, dtype = read_values(
        file, _number(0, 1 << 63).read(offset), math.prod(extents), *packing, subject
    )
    if dtype not in (constant_dtype, np.dtype(f"uint{8 * constant_dtype.itemsize}")):
        raise ValueError(f"{subject} is stored as {dtype}")
    if constant_dtype == np.bool_ and values.max(initial=0) > 1:
        raise ValueError(f"{subject} has other values than true and false")
    if values.dtype == dtype:
        return values.view(constant_dtype).reshape(extents)
    current_budget().charge_bytes(constant_dtype.itemsize * values.size, subject)
    return values.astype(constant_dtype).reshape(extents)
