"""Reads ncnn's ``.bin``: the layers' weights in order, without names."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from cml_engine.errors import TensorFileError
from cml_engine.formats.ncnn.param import NcnnLayer
from cml_engine.io.model_source import ModelSource, SourceFile, file_size, shown
from cml_engine.ir.graph import Array

#: The storage of a blob's items, by the flag before it. Any other flag but 0 means a table of 256
#: values and a byte per item.
_RAW = (0x00000000, 0x0002C056)
_FLOAT16 = 0x01306B47
_INT8 = 0x000D4B38
_TABLE = 256


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

    def raw(self, count: int, layer: NcnnLayer) -> Array:
        """Reads the next ``count`` float32 values, such as biases, which have no flag."""
        return self._take(count, np.dtype("<f4"), layer)

    def flagged(self, count: int, layer: NcnnLayer) -> Array:
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
        left = len(self._data) - self._at
        if left > 0:
            message = f"'{self._path}' has {left:,} bytes more than its .param takes"
            raise TensorFileError(f"{message}: they do not belong together")

    def _padded(self, count: int, dtype: np.dtype[Any], layer: NcnnLayer) -> Array:
        """Reads an array of items shorter than 32 bits and skips the padding after it.

        The padding ends at a multiple of 32 bits.
        """
        values = self._take(count, dtype, layer)
        self._at = -(-self._at // 4) * 4
        return values

    def _take(self, count: int, dtype: np.dtype[Any], layer: NcnnLayer) -> Array:
        if count < 0:
            raise layer.damaged_error(f"{count} weights")
        size = count * dtype.itemsize
        if self._at + size > len(self._data):
            message = (
                f"'{self._name}' is truncated: {layer.type} '{layer.name}' wants {size:,} "
                f"bytes at {self._at:,}, got {max(0, len(self._data) - self._at):,}"
            )
            raise TensorFileError(message, layer.source)
        values = np.frombuffer(self._data, dtype, count, self._at)
        self._at += size
        return values
