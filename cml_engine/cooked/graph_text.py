"""Writes and reads the graph of a cooked file, as JSON and constants.

NumPy and new plans need the graph; players do not.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any

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
_FIELDS = {
    "name", "inputs", "outputs", "nodes", "facts", "constants", "labels", "updates", "sources",
    "quantization", "notes",
}  # fmt: skip


def write_graph(graph: Graph, sections: Sections) -> None:
    """Adds the section ``graph`` to ``sections``, and the graph's constants to the section
    ``values``.

    Raises :class:`InputError` for a constant of a type that cannot be cooked.
    """
    constants = {}
    for name, array in graph.constants.items():
        if array.dtype.name not in _TYPES:
            raise InputError(f"constant '{name}' is of {array.dtype}, which cannot be cooked")
        place = sections.values.put(np.ascontiguousarray(array))
        constants[name] = [array.dtype.name, list(array.shape), *place]
    sections.add(GRAPH, _json({**described(graph), "constants": constants}))


def described(graph: Graph) -> dict[str, Any]:
    """Returns a graph without the values of its constants as a JSON object."""
    return {
        "name": graph.name,
        "inputs": list(graph.inputs),
        "outputs": list(graph.outputs),
        "nodes": [_node(node) for node in graph.nodes],
        "facts": {name: [fact.dtype, list(fact.shape)] for name, fact in graph.facts.items()},
        "labels": dict(graph.labels),
        "updates": [list(pair) for pair in graph.updates],
        "sources": {name: _source(source) for name, source in graph.sources.items()},
        "quantization": {name: _attrs(attrs) for name, attrs in graph.quantization.items()},
        "notes": list(graph.notes),
        **({"words": {n: list(ends) for n, ends in graph.words.items()}} if graph.words else {}),
    }


def _json(data: Any) -> bytes:
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode(
        errors="replace"
    )


def _node(node: Node) -> dict[str, Any]:
    made: dict[str, Any] = {
        "op": node.op,
        "inputs": list(node.inputs),
        "outputs": list(node.outputs),
        "attrs": _attrs(node.attrs),
        "source": _source(node.source) if node.source else None,
    }
    if node.epilogues:
        made["epilogues"] = [
            {
                "op": e.op,
                "inputs": list(e.inputs),
                "attrs": _attrs(e.attrs),
                "position": e.position,
                "own": [list(pair) for pair in e.own],
            }
            for e in node.epilogues
        ]
    return made


def _source(source: Source) -> list[Any]:
    return [PurePath(source.file).name, source.line, source.column, source.text]


def _attrs(attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _value(value, key) for key, value in attrs.items()}


def _value(value: Any, key: str) -> Any:
    """Returns an attribute's value as JSON; a type that JSON lacks becomes an object with one
    entry.

    Raises :class:`InputError` for a type that cannot be cooked; ``key`` is for its message.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [_value(part, key) for part in value]
    if isinstance(value, tuple):
        return {"tuple": [_value(part, key) for part in value]}
    if isinstance(value, np.ndarray) and value.dtype.name in _TYPES:
        return {"array": [value.dtype.name, list(value.shape), value.ravel().tolist()]}
    raise InputError(f"attribute '{key}' is a {type(value).__name__}, which cannot be cooked")


# --- reading


def read_graph(file: Container) -> Graph:
    """Returns the graph in a file's section ``graph``.

    Raises :class:`CorruptArtifact` if the section is invalid.
    """
    try:
        data = parse_json(bytes(file.section(GRAPH).content).decode())
        if not isinstance(data, dict) or set(data) - {"words"} != _FIELDS:
            raise ValueError("its fields are others")
        facts = {_text(n): _fact(*fact) for n, fact in data["facts"].items()}
        graph = Graph(
            name=_text(data["name"]),
            inputs=_names(data["inputs"]),
            outputs=_names(data["outputs"]),
            nodes=tuple(_a_node(node) for node in data["nodes"]),
            facts=facts,
            constants={n: _constant(file, n, *c) for n, c in data["constants"].items()},
            labels={_text(n): _text(label) for n, label in data["labels"].items()},
            updates=tuple((_text(a), _text(b)) for a, b in data["updates"]),
            sources={_text(n): _a_source(*source) for n, source in data["sources"].items()},
            quantization={n: _some_attrs(attrs) for n, attrs in data["quantization"].items()},
            notes=tuple(_text(note) for note in data["notes"]),
            words={_text(n): _range(*ends) for n, ends in data.get("words", {}).items()},
        )
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
    known = {*graph.inputs, *graph.constants}
    for node in graph.nodes:
        for name in node.reads:
            if name not in known:
                raise ValueError(f"{node.title} reads '{name}', which is not there")
        known.update(node.outputs)
    for name in (*known, *graph.roots):
        if name not in graph.facts or name not in known:
            raise ValueError(f"nothing is known of '{name}'")
    for name, array in graph.constants.items():
        fact = graph.facts[name]
        if (NUMPY_DTYPE[fact.dtype], fact.shape) != (array.dtype, array.shape):
            raise ValueError(f"constant '{name}' is {array.dtype}{array.shape}, wanted {fact}")
    if any(variable not in graph.constants for variable, _ in graph.updates):
        raise ValueError("an update of what is no variable")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"wanted a text, got {str(value)[:40]}")
    return value


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 32:
        raise ValueError(f"wanted a number, got {str(value)[:40]}")
    return value


def _range(low: Any, high: Any) -> tuple[int, int]:
    if not all(type(end) is int and abs(end) < 1 << 31 for end in (low, high)) or low > high:
        raise ValueError(f"wanted a range, got {str((low, high))[:40]}")
    return low, high


def _names(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise ValueError("wanted names")
    return tuple(_text(value) for value in values)


def _shape(extents: Any) -> tuple[int, ...]:
    if not isinstance(extents, list) or len(extents) > 64:
        raise ValueError("wanted a shape")
    return tuple(_whole(extent) for extent in extents)


def _fact(dtype: Any, shape: Any) -> Fact:
    if _text(dtype) not in NUMPY_DTYPE:
        raise ValueError(f"unknown type '{dtype[:40]}'")
    return Fact(dtype, _shape(shape))


def _a_node(data: Any) -> Node:
    epilogues = tuple(
        Epilogue(
            _text(e["op"]),
            _names(e["inputs"]),
            _some_attrs(e["attrs"]),
            None if e["position"] is None else _whole(e["position"]),
            tuple((_whole(place), _whole(number)) for place, number in e["own"]),
        )
        for e in data.get("epilogues", ())
    )
    source = None if data["source"] is None else _a_source(*data["source"])
    inputs, outputs = _names(data["inputs"]), _names(data["outputs"])
    return Node(_text(data["op"]), inputs, outputs, _some_attrs(data["attrs"]), source, epilogues)


def _a_source(file: Any, line: Any, column: Any, text: Any) -> Source:
    return Source(_text(file), _whole(line), _whole(column), _text(text))


def _some_attrs(data: Any) -> Attrs:
    return Attrs({_text(key): _a_value(value) for key, value in data.items()})


def _a_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_a_value(part) for part in value]
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    made: Mapping[str, Callable[[Any], Any]] = {
        "float": lambda text: float(_text(text)),
        "tuple": lambda parts: tuple(_a_value(part) for part in parts),
        "array": lambda parts: np.array(parts[2], _TYPES[parts[0]]).reshape(_shape(parts[1])),
    }
    return made[kind](inner)


def _constant(
    file: Container, name: str, dtype: Any, shape: Any, offset: Any, stored: Any, becomes: Any
) -> Array:
    kind, extents = _TYPES[_text(dtype)], _shape(shape)
    if len(extents) > 8 * MOST_DIMENSIONS:
        raise ValueError(f"constant '{name}' has {len(extents)} dimensions")
    how = _whole(stored), _whole(becomes)
    what = f"constant '{name}'"
    found, dtype = read_values(file, _offset(offset), math.prod(extents), *how, what)
    if dtype not in (kind, np.dtype(f"uint{8 * kind.itemsize}")):
        raise ValueError(f"{what} is stored as {dtype}")
    if kind == np.bool_ and found.max(initial=0) > 1:
        raise ValueError(f"{what} has other values than true and false")
    if found.dtype == dtype:
        return found.view(kind).reshape(extents)
    current_budget().charge_bytes(kind.itemsize * found.size, what)
    return found.astype(kind).reshape(extents)


def _offset(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError("wanted an offset")
    return value
