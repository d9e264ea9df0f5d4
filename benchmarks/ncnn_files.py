"""Reads the upres network's ncnn files, apart from the engine's own converter.

The ONNX model that other engines get is built from this, so a mistake in the converter cannot
hide by being in both sides of a comparison.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float32]]
_HALF = 0x01306B47


@dataclass(frozen=True)
class Convolution:
    """3x3, stride 1, padding 1; ``slopes`` are those of the PReLU after it, if there is one."""

    filter: Array
    bias: Array
    slopes: Array | None


def read_convolutions(param: Path, weights: Path) -> list[Convolution]:
    """The network's convolutions in order, each with its PReLU."""
    blob = _Blob(weights.read_bytes())
    found: list[Convolution] = []
    for kind, values in _layers(param):
        if kind == "Convolution":
            outputs, side, count = int(values["0"]), int(values["1"]), int(values["6"])
            kernel = blob.tagged(count).reshape(outputs, -1, side, side)
            found.append(Convolution(kernel, blob.plain(outputs), None))
        elif kind == "PReLU":
            last = found.pop()
            found.append(Convolution(last.filter, last.bias, blob.plain(int(values["0"]))))
    if not blob.is_spent:
        raise ValueError(f"{weights} holds more weights than {param} names")
    return found


def _layers(param: Path) -> Iterator[tuple[str, dict[str, str]]]:
    for line in param.read_text(encoding="utf-8").splitlines()[2:]:
        words = line.split()
        if words:
            yield words[0], dict(word.split("=", 1) for word in words if "=" in word)


class _Blob:
    """The weights file, read from front to back."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    @property
    def is_spent(self) -> bool:
        return self._at == len(self._content)

    def plain(self, count: int) -> Array:
        return self._take(count, np.dtype("<f4"))

    def tagged(self, count: int) -> Array:
        """Weights behind a flag that says how they are stored; halves fill up to four bytes."""
        flag = int(self._take(1, np.dtype("<u4"))[0])
        if flag not in (0, _HALF):
            raise ValueError(f"weights stored in a way not known here: {flag:#x}")
        values = self._take(count, np.dtype("<f2" if flag else "<f4")).astype(np.float32)
        self._at = (self._at + 3) // 4 * 4
        return values

    def _take(self, count: int, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        values: np.ndarray[Any, Any] = np.frombuffer(self._content, dtype, count, self._at)
        self._at += values.nbytes
        return values
