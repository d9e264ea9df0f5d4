"""ONNX models -> :class:`cml_engine.graph.Graph`: opsets 7 to 28, without the onnx package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cml_engine.convert.engine import Engine
from cml_engine.convert.onnx.importer import Importer
from cml_engine.convert.onnx.model import read_model
from cml_engine.convert.onnx.tensors import Folder, map_file
from cml_engine.errors import ModelError
from cml_engine.graph import Graph

__all__ = ["load_onnx"]


def load_onnx(
    model: str | Path | bytes,
    engine: Engine,
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, np.ndarray[Any, Any]] | None = None,
) -> Graph:
    """Read an ONNX model.

    Parameters
    ----------
    model : a file, or the bytes of one.
    engine : what the importer asks of the engine.
    shapes : inputs' shapes by name: where the file has symbols, or instead of what it has.
    constants : values of inputs that are the same in every run; they are inputs no more.
    """
    if isinstance(model, bytes):
        file, folder, data, name = "<bytes>", Folder(None), memoryview(model), "model"
    else:
        path = Path(model)
        file, folder, name = str(path), Folder(path.parent), path.stem
        try:
            data = map_file(path)
        except OSError as error:
            raise ModelError(f"cannot read '{path}': {error.strerror}") from None
    try:
        importer = Importer(read_model(data, file, folder), engine)
        return importer.graph(shapes or {}, constants or {}, name)
    except RecursionError:
        raise ModelError(f"'{file}' is nested too deep: export it again") from None
