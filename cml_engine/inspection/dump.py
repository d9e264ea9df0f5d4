"""A run's tensors as files: ``cml run --dump-tensors``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cml_engine.errors import InputError, Source
from cml_engine.files import png
from cml_engine.files.output_folder import OutputFolder, file_stem
from cml_engine.files.pictures import can_hold
from cml_engine.graph import Fact, Graph, Node
from cml_engine.inspection.numbers import Numbers

Array = np.ndarray[Any, Any]

INDEX = "index.json"


class Dump:
    """A watch that writes every tensor whose name matches one of ``only`` into a folder: an
    ``.npy``, a picture where it can be one, and at the end an index of all."""

    def __init__(
        self, folder: Path, graph: Graph, only: Sequence[str] = (), *, overwrite: bool = False
    ) -> None:
        self._graph = graph
        self._only = only or ["*"]
        self._rows: list[dict[str, Any]] = []
        names = [name for node in graph.nodes for name in node.outputs]
        for pattern in self._only:
            if not any(fnmatchcase(name, pattern) for name in names):
                shown = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
                raise InputError(
                    f"--only '{pattern}': no tensor of '{graph.name}' matches; it computes {shown}"
                )
        self._folder = OutputFolder(folder, INDEX, overwrite=overwrite)

    def __call__(self, node: Node, results: Sequence[Array]) -> None:
        for name, array in zip(node.outputs, results, strict=True):
            if any(fnmatchcase(name, pattern) for pattern in self._only):
                self._add(node, name, array)

    def fixed(self, constants: Mapping[str, Array]) -> None:
        """Write those that were computed when the model was loaded."""
        for node in self._graph.nodes:
            if all(name in constants for name in node.outputs):
                self(node, [constants[name] for name in node.outputs])

    def close(self) -> Path:
        """Writes the index and returns its path."""
        return self._folder.write_manifest({"model": self._graph.name, "tensors": self._rows})

    def __len__(self) -> int:
        return len(self._rows)

    def _add(self, node: Node, name: str, array: Array) -> None:
        stem = f"{len(self._rows):04d}_{file_stem(name)[:80]}"
        file = self._folder.write(f"{stem}.npy", partial(np.save, arr=array, allow_pickle=False))
        numbers = Numbers.of(array)
        row = {"tensor": name, "file": file, "shape": list(array.shape), "type": array.dtype.name}
        row |= {"operator": node.op, **_line(node.source), **numbers.row()}
        fact = Fact("scalar" if array.dtype.kind == "f" else "", array.shape)
        if can_hold(fact) and numbers.low is not None and numbers.high is not None:
            low, high = min(numbers.low, 0.0), max(numbers.high, 1.0)
            if low < 0 or high > 1:  # from the least to the largest, where it is no picture as is
                low, high = numbers.low, numbers.high
            scale = (array - np.float32(low)) / np.float32(high - low or 1)
            planes = scale[0].transpose(1, 2, 0)
            picture = self._folder.write(f"{stem}.png", partial(png.write, planes, bits=8))
            row |= {"picture": picture, "black": low, "white": high}
        self._rows.append(row)


def _line(source: Source | None) -> dict[str, Any]:
    return {"line": str(source), "text": source.text.strip()} if source else {}
