"""A builder of ncnn's .param (text) and .bin (weights), layer by layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float32]]
_MAGIC = 7767517
#: the flag before 32-bit float weights
_FLAG = np.uint32(0).tobytes()


@dataclass(frozen=True)
class _Layer:
    type: str
    inputs: tuple[str, ...]
    output: str
    numbers: str
    weights: bytes


class NcnnParts:
    """A network under construction; every layer has one output, whose name is also the layer's."""

    def __init__(self) -> None:
        self._layers: list[_Layer] = []

    def layer(
        self,
        type: str,
        inputs: Sequence[str],
        output: str,
        numbers: str = "",
        filter: Array | None = None,
        bias: Array | None = None,
        stored: bytes = b"",
    ) -> str:
        """Adds a layer and returns ``output``, the name of its result.

        ``numbers`` are ncnn's parameters as text. The weights in the .bin are the ``filter``
        after a flag, the ``bias`` without one, then the bytes in ``stored``.
        """
        weights = b"" if filter is None else flagged(filter)
        weights += b"" if bias is None else plain(bias)
        self._layers.append(_Layer(type, tuple(inputs), output, numbers, weights + stored))
        return output

    def input(self, name: str, shape: Sequence[int]) -> None:
        """Adds a graph input of ``shape`` [1, C, H, W] or [1, W]; ncnn has no batch axis."""
        self.layer("Input", (), name, extents(shape))

    def constant(self, name: str, values: Array) -> str:
        """Adds values [1, C, H, W] or [1, W] as a layer without inputs, and returns its name."""
        return self.layer("MemoryData", (), name, extents(values.shape), bias=values)

    def save(self, param: Path, weights: Path) -> None:
        """Writes the network to the files ``param`` and ``weights``.

        A tensor that is read more than once goes through a split layer, as ncnn requires.
        """
        readers = Counter(name for layer in self._layers for name in layer.inputs)
        given: dict[str, int] = dict.fromkeys(readers, 0)
        lines: list[str] = []
        for layer in self._layers:
            names = [_reader(name, readers, given) for name in layer.inputs]
            words = [layer.type, layer.output, len(names), 1, *names, layer.output, layer.numbers]
            lines.append(" ".join(map(str, words)).rstrip())
            lines += _split(layer.output, readers[layer.output])
        tensors = sum(int(line.split()[3]) for line in lines)
        head = f"{_MAGIC}\n{len(lines)} {tensors}\n"
        param.write_text(head + "\n".join(lines) + "\n", encoding="utf-8")
        with weights.open("wb") as file:
            file.writelines(layer.weights for layer in self._layers)


def flagged(values: Array) -> bytes:
    """Returns the values as bytes of 32-bit floats, after ncnn's flag for that type."""
    return _FLAG + plain(values)


def plain(*arrays: Array) -> bytes:
    """Returns the arrays as bytes of 32-bit floats, one after the other, without a flag."""
    return b"".join(np.ascontiguousarray(array, np.float32).tobytes() for array in arrays)


def extents(shape: Sequence[int]) -> str:
    """Returns a shape with a batch of one as ncnn's parameters: ``0=width 1=height 2=channels``."""
    return " ".join(f"{key}={extent}" for key, extent in enumerate(reversed(shape[1:])))


def _reader(name: str, readers: Mapping[str, int], given: dict[str, int]) -> str:
    """Returns the name of the split layer's output for the tensor's next reader.

    ``given`` counts the readers served so far and is changed. A tensor with one reader keeps its
    name.
    """
    if readers[name] == 1:
        return name
    given[name] += 1
    return f"{name}_{given[name] - 1}"


def _split(name: str, count: int) -> Iterator[str]:
    if count > 1:
        copies = " ".join(f"{name}_{i}" for i in range(count))
        yield f"Split split_{name} 1 {count} {name} {copies}"
