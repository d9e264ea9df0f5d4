"""Writes ONNX's messages in the wire format of Protocol Buffers.

The same model always gives the same bytes: fields are ordered by number and no maps are used.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cml_engine.formats.onnx.protobuf import BYTES, FIXED32, VARINT
from cml_engine.formats.onnx.tensors import ELEMENT_TYPES
from cml_engine.ir.graph import Array, AttrValue

#: ONNX's type numbers by NumPy name
ELEMENTS = {name: number for number, name in ELEMENT_TYPES.items()}
_SIGNED = 1 << 64

#: the file format version that has local functions; it allows every opset
IR_VERSION = 8
#: kinds of attributes, by ONNX's numbers
_FLOAT, _INT, _STRING, _TENSOR, _FLOATS, _INTS = 1, 2, 3, 4, 6, 7


@dataclass(frozen=True, slots=True)
class OutNode:
    """An ONNX node to be written, with its attributes by name."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, AttrValue] = field(default_factory=dict)
    domain: str = ""


@dataclass(frozen=True, slots=True)
class OutValue:
    """An input or output of the ONNX graph: its name, its NumPy type's name, and its shape.

    An extent that is a text is open.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]


def model_bytes(
    graph: bytes, producer: str, opsets: Mapping[str, int], functions: Iterable[bytes]
) -> list[bytes]:
    """Returns the parts of an ONNX file, in order, for an encoded graph and encoded functions.

    The graph is a part of its own, which avoids another copy of it.
    """
    head = _varint_field(1, IR_VERSION) + _text(2, producer)
    tail = b"".join(
        [
            *(_message(8, _opset(domain, version)) for domain, version in opsets.items()),
            *(_message(25, function) for function in functions),
        ]
    )
    return [head, _key(7, BYTES) + _varint(len(graph)), graph, tail]


def graph_bytes(
    name: str,
    nodes: Iterable[OutNode],
    tensors: Iterable[tuple[str, Array]],
    inputs: Iterable[OutValue],
    outputs: Iterable[OutValue],
    inner: Iterable[OutValue],
) -> bytes:
    """Returns a graph encoded as a ``GraphProto``.

    ``inner`` are the tensors whose shapes a reader cannot infer.
    """
    return b"".join(
        [
            *(_message(1, node_bytes(node)) for node in nodes),
            _text(2, name),
            *(_message(5, tensor_bytes(array, name)) for name, array in tensors),
            *(_message(11, _value(value)) for value in inputs),
            *(_message(12, _value(value)) for value in outputs),
            *(_message(13, _value(value)) for value in inner),
        ]
    )


def function_bytes(
    name: str, inputs: Iterable[str], outputs: Iterable[str], body: bytes, domain: str, opset: int
) -> bytes:
    """Returns a local function of the given domain encoded as a ``FunctionProto``.

    ``body`` is its nodes, already encoded; they are ONNX's own operators, of the given opset.
    """
    return b"".join(
        [
            _text(1, name),
            *(_text(4, input_name) for input_name in inputs),
            *(_text(5, output_name) for output_name in outputs),
            body,
            _message(9, _opset("", opset)),
            _text(10, domain),
        ]
    )


def body_bytes(nodes: Iterable[OutNode]) -> bytes:
    """Returns a function's nodes encoded as fields of a ``FunctionProto``."""
    return b"".join(_message(7, node_bytes(node)) for node in nodes)


def node_bytes(node: OutNode) -> bytes:
    """Returns a node encoded as a ``NodeProto``. The node is named after its first result."""
    return b"".join(
        [
            *(_text(1, name) for name in node.inputs),
            *(_text(2, name) for name in node.outputs),
            _text(3, node.outputs[0]),
            _text(4, node.op),
            *(_message(5, _attribute(k, v)) for k, v in sorted(node.attributes.items())),
            *([_text(7, node.domain)] if node.domain else []),
        ]
    )


def tensor_bytes(array: Array, name: str = "") -> bytes:
    """Returns an array encoded as a ``TensorProto``."""
    data = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return b"".join(
        [
            *(_varint_field(1, extent) for extent in array.shape),
            _varint_field(2, ELEMENTS[array.dtype.name]),
            *([_text(8, name)] if name else []),
            _key(9, BYTES) + _varint(data.nbytes),
            data.tobytes(),
        ]
    )


def _attribute(name: str, value: Any) -> bytes:
    if isinstance(value, np.ndarray):
        attribute_type, content = _TENSOR, _message(5, tensor_bytes(value))
    elif isinstance(value, str):
        attribute_type, content = _STRING, _text(4, value)
    elif isinstance(value, float):
        attribute_type, content = _FLOAT, _real(2, value)
    elif isinstance(value, Sequence):
        are_floats = any(isinstance(item, float) for item in value)
        attribute_type = _FLOATS if are_floats else _INTS
        content = b"".join(
            _real(7, item) if are_floats else _varint_field(8, item) for item in value
        )
    else:
        attribute_type, content = _INT, _varint_field(3, int(value))
    return _text(1, name) + content + _varint_field(20, attribute_type)


def _value(value: OutValue) -> bytes:
    extents = (_text(2, e) if isinstance(e, str) else _varint_field(1, e) for e in value.shape)
    dims = b"".join(_message(1, extent) for extent in extents)
    tensor = _varint_field(1, ELEMENTS[value.dtype]) + _message(2, dims)
    return _text(1, value.name) + _message(2, _message(1, tensor))


def _opset(domain: str, version: int) -> bytes:
    return _text(1, domain) + _varint_field(2, version)


def _key(number: int, wire: int) -> bytes:
    return _varint(number << 3 | wire)


def _varint(value: int) -> bytes:
    value %= _SIGNED
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _varint_field(number: int, value: int) -> bytes:
    return _key(number, VARINT) + _varint(int(value))


def _real(number: int, value: float) -> bytes:
    return _key(number, FIXED32) + struct.pack("<f", np.float32(value))


def _text(number: int, text: str) -> bytes:
    return _message(number, text.encode())


def _message(number: int, content: bytes) -> bytes:
    return _key(number, BYTES) + _varint(len(content)) + content
