"""ncnn's two files: ``.param`` (the layers, as text) and ``.bin`` (their weights, in order)."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cml_engine.errors import ModelError, Source, TensorFileError, UnsupportedOp

MAGIC = "7767517"
_MAX_TEXT = 16 * 2**20

#: The word before a blob of weights: how its items are stored.
_FLOAT32 = (0x00000000, 0x0002C056)
_FLOAT16 = 0x01306B47

#: Keys at or below this hold arrays: ``-23310=1,0.1`` is parameter 10.
_ARRAY_KEY = -23300


@dataclass(frozen=True, slots=True)
class Layer:
    """One line of the ``.param``; ``params`` are numbers, or lists of them, by ncnn's ids."""

    type: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    params: Mapping[int, Any]
    source: Source

    def whole(self, key: int, default: int = 0) -> int:
        value = self.params.get(key, default)
        if not isinstance(value, (int, float)) or value != int(value):
            raise ModelError(f"{self.type}: parameter {key} wants an integer", self.source)
        return int(value)

    def number(self, key: int, default: float = 0.0) -> float:
        value = self.params.get(key, default)
        if not isinstance(value, (int, float)):
            raise ModelError(f"{self.type}: parameter {key} wants a number", self.source)
        return float(value)

    def values(self, key: int) -> list[Any]:
        value = self.params.get(key, [])
        return list(value) if isinstance(value, (list, tuple)) else [value]

    def unsupported(self, what: str) -> UnsupportedOp:
        """The error for a variant of this layer that has no counterpart here."""
        message = f"ncnn {self.type} '{self.name}': {what} cannot be converted"
        return UnsupportedOp(message, self.source)

    def damaged(self, what: str) -> ModelError:
        return ModelError(f"ncnn {self.type} '{self.name}': {what}: export it again", self.source)


def read_param(path: Path) -> list[Layer]:
    """The layers of a ``.param``."""
    lines = _lines(path)
    if not lines or lines[0][1].strip() != MAGIC:
        got = lines[0][1].strip()[:20] if lines else "nothing"
        raise ModelError(
            f"not a ncnn .param: wanted {MAGIC} first, got {got}", Source(str(path), 1)
        )
    counts = lines[1][1].split() if len(lines) > 1 else []
    if len(counts) != 2 or not counts[0].isdigit():
        message = "wanted the numbers of layers and blobs in line 2"
        raise ModelError(message, Source(str(path), 2))
    layers = [_layer(text, Source(str(path), number, 0, text)) for number, text in lines[2:]]
    if len(layers) != int(counts[0][:9]):
        message = f"line 2 says {counts[0][:9]} layers, got {len(layers)}: the file is truncated"
        raise ModelError(message, Source(str(path), 2))
    return layers


class WeightReader:
    """The ``.bin``, read from front to back."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._data = path.read_bytes()
        except OSError as error:
            message = f"cannot read '{path}': {error.strerror}: it belongs beside the .param"
            raise TensorFileError(message) from None
        self._at = 0

    def raw(self, count: int, layer: Layer) -> np.ndarray[Any, Any]:
        """``count`` float32 without a flag: biases, slopes, constants."""
        return self._take(count, np.dtype("<f4"), layer)

    def flagged(self, count: int, layer: Layer) -> np.ndarray[Any, Any]:
        """``count`` weights after a word that says how they are stored."""
        (flag,) = struct.unpack("<I", self._take(4, np.dtype(np.uint8), layer).tobytes())
        if flag in _FLOAT32:
            return self.raw(count, layer)
        if flag != _FLOAT16:
            raise layer.unsupported(f"weights stored as {flag:#010x} (only float32 and float16)")
        values = self._take(count, np.dtype("<f2"), layer).astype(np.float32)
        self._at = -(-self._at // 4) * 4
        return values

    def finish(self) -> None:
        """Nothing may be left over: the files would not belong together."""
        left = len(self._data) - self._at
        if left > 0:
            message = f"'{self._path}' has {left:,} bytes more than its .param takes"
            raise TensorFileError(f"{message}: they do not belong together")

    def _take(self, count: int, dtype: np.dtype[Any], layer: Layer) -> np.ndarray[Any, Any]:
        if count < 0:
            raise layer.damaged(f"{count} weights")
        size = count * dtype.itemsize
        if self._at + size > len(self._data):
            message = (
                f"'{self._path.name}' is truncated: {layer.type} '{layer.name}' wants {size:,} "
                f"bytes at {self._at:,}, got {max(0, len(self._data) - self._at):,}"
            )
            raise TensorFileError(message, layer.source)
        values = np.frombuffer(self._data, dtype, count, self._at)
        self._at += size
        return values


def _lines(path: Path) -> list[tuple[int, str]]:
    """The numbered lines that are not empty."""
    try:
        if path.stat().st_size > _MAX_TEXT:
            raise ModelError(f"'{path}' is larger than {_MAX_TEXT // 2**20} MiB: not a .param")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ModelError(f"cannot read '{path}': {error.strerror}") from None
    except UnicodeDecodeError:
        raise ModelError(f"'{path}' is not text: wanted a .param, not a .param.bin") from None
    return [(i + 1, line) for i, line in enumerate(text.splitlines()) if line.strip()]


def _layer(line: str, source: Source) -> Layer:
    words = line.split()
    if len(words) < 4 or not (words[2].isdigit() and words[3].isdigit()):
        message = "wanted: type, name, number of inputs, number of outputs, ..."
        raise ModelError(message, source)
    ins, outs = int(words[2][:6]), int(words[3][:6])
    if len(words) < 4 + ins + outs:
        raise ModelError(f"wanted {ins} inputs and {outs} outputs, the line is too short", source)
    blobs = words[4 : 4 + ins + outs]
    params = dict(_param(word, source) for word in words[4 + ins + outs :])
    return Layer(words[0], words[1], tuple(blobs[:ins]), tuple(blobs[ins:]), params, source)


def _param(word: str, source: Source) -> tuple[int, Any]:
    key, equals, value = word.partition("=")
    try:
        if not equals:
            raise ValueError
        number = int(key)
        if number > _ARRAY_KEY:
            return number, _number(value)
        count, *items = value.split(",")
        if len(items) != int(count):
            raise ValueError
        return _ARRAY_KEY - number, [_number(item) for item in items]
    except ValueError:
        raise ModelError(f"'{word[:60]}' is no parameter: wanted id=number", source) from None


def _number(text: str) -> int | float:
    value = float(text)
    if value != value or abs(value) == float("inf"):
        raise ValueError
    is_float = any(c in text for c in ".eE")
    return value if is_float else int(text)
