"""Reads ncnn's two files: ``.param``, a line of text per layer, and ``.bin``, their weights.

The weights have no names: layers read them in order.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from cml_engine.errors import ModelError, Source, TensorFileError, UnsupportedOp
from cml_engine.errors.arguments import shortened
from cml_engine.io.file_kinds import HEAD_BYTES, foreign_file
from cml_engine.io.load_limits import current_budget
from cml_engine.io.model_source import ModelSource, SourceFile, file_size, shown
from cml_engine.ir.graph import Array, DType

#: the value of a layer's parameter; a text is an expression that ncnn evaluates at run time
Parameter: TypeAlias = int | float | str | list[int | float]

MAGIC = "7767517"
_MAX_INT = 2**31

#: ncnn's value for a missing parameter.
MISSING = -233

#: The parameter ids of width, height, depth and channels.
EXTENTS = (0, 1, 11, 2)

#: The key of a ``pnnx.Expression``'s formula, which is ``expr=`` in its line; ncnn's ids are
#: smaller.
FORMULA = 100

#: Keys at or below this have arrays: ``-23310=1,0.1`` is parameter 10.
_ARRAY_KEY = -23300

#: The storage of a blob's items, by the flag before it. Any other flag but 0 means a table of 256
#: values and a byte per item.
_RAW = (0x00000000, 0x0002C056)
_FLOAT16 = 0x01306B47
_INT8 = 0x000D4B38
_TABLE = 256


@dataclass(frozen=True)
class LayerLine:
    """A layer: one line of the ``.param``.

    ``params`` holds a number, a list of numbers or a text for each of ncnn's parameter ids.
    """

    type: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    params: Mapping[int, Parameter]
    source: Source

    def integer(self, key: int, default: int = 0) -> int:
        value = self.params.get(key, default)
        if not isinstance(value, (int, float)) or value != int(value) or abs(value) >= _MAX_INT:
            raise self.damaged_error(
                f"parameter {key} wants an integer, got {shortened(repr(value))}"
            )
        return int(value)

    def number(self, key: int, default: float = 0.0) -> float:
        value = self.params.get(key, default)
        if not isinstance(value, (int, float)):
            raise self.damaged_error(
                f"parameter {key} wants a number, got {shortened(repr(value))}"
            )
        return float(value)

    def values(self, key: int) -> list[float]:
        """Returns parameter ``key`` as a list of numbers.

        A single number becomes a list of one, and a missing parameter an empty list.
        """
        value = self.params.get(key, [])
        if isinstance(value, str):
            raise self.damaged_error(f"parameter {key} wants numbers, got {shortened(repr(value))}")
        return list(value) if isinstance(value, list) else [value]

    def integers(self, key: int) -> list[int]:
        """Returns parameter ``key`` as a list of integers.

        It is empty if the parameter is missing.
        """
        values = self.values(key)
        if any(value != int(value) or abs(value) >= _MAX_INT for value in values):
            raise self.damaged_error(
                f"parameter {key} wants integers, got {shortened(repr(values))}"
            )
        return [int(value) for value in values]

    def text(self, key: int) -> str:
        """Returns parameter ``key``, an expression that ncnn evaluates at run time.

        The text is empty if the parameter is missing, or a number: ncnn ignores it then.
        """
        value = self.params.get(key)
        return value if isinstance(value, str) else ""

    def refuse(self, key: int, variant: str, default: float = 0) -> None:
        """Raises an error if parameter ``key`` differs from ``default``.

        Its other values select ``variant``, a variant that cannot be converted.
        """
        if self.params.get(key, default) != default:
            raise self.unsupported_error(variant)

    def unsupported_error(self, variant: str) -> UnsupportedOp:
        """Returns the error for ``variant``, a variant of this layer that cannot be converted."""
        message = (
            f"ncnn {self.type} '{self.name}': {variant} cannot be converted: export it otherwise"
        )
        return UnsupportedOp(message, self.source)

    def damaged_error(self, defect: str) -> ModelError:
        return ModelError(f"ncnn {self.type} '{self.name}': {defect}: export it again", self.source)


def read_param(source: ModelSource) -> list[LayerLine]:
    """Reads the ``.param`` of a source and returns its layers in the order of the file.

    Raises :class:`ModelError` if the file has another format or is truncated.
    """
    path = shown(source, source.graph)
    lines = _lines(source, path)
    first, *rest = lines or [(1, "nothing")]
    magic, *counts = first[1].split()
    if magic != MAGIC:
        raise ModelError(
            f"no ncnn .param: wanted {MAGIC} first, got {first[1].strip()[:20]}: "
            "export or download it again",
            Source(path, first[0]),
        )
    number = first[0]
    if not counts and rest:
        (number, text), *rest = rest
        counts = text.split()
    if len(counts) != 2 or not all(_is_count(count) for count in counts):
        raise ModelError(
            f"wanted the numbers of layers and blobs after {MAGIC}, "
            f"got {' '.join(counts)[:40] or 'nothing'}",
            Source(path, number),
        )
    layers = [_layer(text, Source(path, number, 0, text)) for number, text in rest]
    if len(layers) != int(counts[0][:9]):
        fault = "is truncated" if len(layers) < int(counts[0][:9]) else "has lines more"
        raise ModelError(
            f"line {number} says {counts[0][:9]} layers, got {len(layers)}: the file {fault}",
            Source(path, number),
        )
    return layers


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _lines(source: ModelSource, path: str) -> list[tuple[int, str]]:
    """Returns the lines of the ``.param`` that are not empty, each with its number from 1."""
    if file_size(source, source.graph) is None:
        raise ModelError(f"cannot read '{path}': there is no such file")
    file = SourceFile(source, source.graph)
    current_budget().charge_unpacked(file.size, f"the text of '{path}'")
    data = bytes(file.span())
    if kind := foreign_file(data[:HEAD_BYTES]):
        raise ModelError(f"'{path}' is {kind}")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ModelError(f"'{path}' is not text: wanted a .param of text") from None
    return [(i + 1, line) for i, line in enumerate(text.splitlines()) if line.strip()]


def _layer(line: str, source: Source) -> LayerLine:
    fields = line.split()
    if len(fields) < 4 or not (_is_count(fields[2]) and _is_count(fields[3])):
        raise ModelError("wanted: type, name, number of inputs, number of outputs, ...", source)
    if fields[0] == "pnnx.Input":
        raise ModelError(
            "the file is pnnx's own, not ncnn's: give the .ncnn.param that pnnx wrote beside it",
            source,
        )
    n_inputs, n_outputs = int(fields[2][:6]), int(fields[3][:6])
    blobs, param_fields = fields[4 : 4 + n_inputs + n_outputs], fields[4 + n_inputs + n_outputs :]
    if len(blobs) < n_inputs + n_outputs or any(_is_param(field) for field in blobs):
        raise ModelError(
            f"wanted {n_inputs} inputs and {n_outputs} outputs, the line is too short", source
        )
    params: dict[int, Parameter] = {}
    for field in param_fields:
        key, value = _param(field, source)
        if key in params:
            raise ModelError(f"parameter {key} stands twice", source)
        params[key] = value
    return LayerLine(
        fields[0], fields[1], tuple(blobs[:n_inputs]), tuple(blobs[n_inputs:]), params, source
    )


def _is_param(field: str) -> bool:
    """Returns True if a word is a parameter such as ``0=64``, and not the name of a blob.

    A parameter among the blob names means that blobs are missing.
    """
    key, equals, value = field.partition("=")
    return bool(equals) and key.lstrip("-").isdecimal() and value[:1] in "-0123456789"


def _param(field: str, source: Source) -> tuple[int, Parameter]:
    key, equals, value = field.partition("=")
    try:
        if not equals:
            raise ValueError
        if key == "expr":
            return FORMULA, value.strip('"')
        number = int(key)
        if number > _ARRAY_KEY:
            return number, _value(value)
        count, *items = value.split(",")
        if len(items) != int(count):
            raise ValueError
        return _ARRAY_KEY - number, [_number(item) for item in items]
    except (ValueError, OverflowError):
        raise ModelError(f"'{field[:60]}' is no parameter: wanted id=number", source) from None


def _value(text: str) -> int | float | str:
    """Returns a parameter's number, or the text of an expression that newer files have."""
    is_text = text[:1] == '"' or (text[:1].isalpha() and text.lower() not in ("nan", "inf"))
    return text.strip('"') if is_text else _number(text)


def _number(text: str) -> int | float:
    if not text.isascii() or "_" in text:  # Python's numbers, but not C's
        raise ValueError
    if not any(c in text for c in ".eE"):
        return int(text)
    value = float(text)
    with np.errstate(over="ignore"):  # the largest number may be written rounded up
        if not np.isfinite(np.float32(value)):
            raise ValueError
    return value


class WeightReader:
    """A sequential reader of a ``.bin``: each call reads the next weights of a layer."""

    def __init__(self, source: ModelSource, name: str) -> None:
        self._name = name
        self._path = shown(source, name)
        if file_size(source, name) is None:
            raise TensorFileError(
                f"cannot read '{self._path}': there is no such file: it belongs beside the .param"
            )
        self._data = SourceFile(source, name).span()
        self._at = 0

    def raw(self, count: int, layer: LayerLine) -> Array:
        """Reads the next ``count`` float32 values, such as biases, which have no flag."""
        return self._take(count, np.dtype("<f4"), layer)

    def flagged(self, count: int, layer: LayerLine) -> Array:
        """Reads a 32-bit flag and ``count`` weights, stored as the flag says.

        Returns them as float32.

        They are stored as float32, as float16, or as bytes that index a table. Raises an error
        for int8.
        """
        (flag,) = struct.unpack("<I", self._take(4, np.dtype(np.uint8), layer).tobytes())
        if flag in _RAW:
            return self.raw(count, layer)
        if flag == _INT8:
            raise layer.unsupported_error("weights of 8 bits")
        if flag == _FLOAT16:
            return self._padded(count, np.dtype("<f2"), layer).astype(np.float32)
        if not sum(flag.to_bytes(4, "little")) or flag >> 24 > 1:
            raise layer.unsupported_error(f"weights stored as {flag:#010x}")
        table = self.raw(_TABLE, layer)
        return table[self._padded(count, np.dtype(np.uint8), layer)]

    def finish(self) -> None:
        """Raises TensorFileError if bytes are left: the two files do not belong together."""
        n_left = len(self._data) - self._at
        if n_left > 0:
            message = f"'{self._path}' has {n_left:,} bytes more than its .param takes"
            raise TensorFileError(f"{message}: they do not belong together")

    def _padded(self, count: int, dtype: DType, layer: LayerLine) -> Array:
        """Reads an array of items shorter than 32 bits and skips the padding after it.

        The padding ends at a multiple of 32 bits.
        """
        values = self._take(count, dtype, layer)
        self._at = -(-self._at // 4) * 4
        return values

    def _take(self, count: int, dtype: DType, layer: LayerLine) -> Array:
        if count < 0:
            raise layer.damaged_error(f"{count} weights")
        size = count * dtype.itemsize
        if self._at + size > len(self._data):
            raise TensorFileError(
                f"'{self._name}' is truncated: {layer.type} '{layer.name}' wants {size:,} "
                f"bytes at {self._at:,}, got {max(0, len(self._data) - self._at):,}",
                layer.source,
            )
        values = np.frombuffer(self._data, dtype, count, self._at)
        self._at += size
        return values
