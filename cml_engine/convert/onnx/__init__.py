"""ONNX models -> :class:`cml_engine.graph.Graph`: opsets 7 to 28, without the onnx package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from cml_engine.convert.engine import Engine
from cml_engine.convert.onnx.importer import Importer
from cml_engine.convert.onnx.model import read_model
from cml_engine.convert.onnx.tensors import ExternalData
from cml_engine.errors import ModelError
from cml_engine.graph import Graph
from cml_engine.model_source import Bytes, MappedFolder, ModelSource, SourceFile, shown

__all__ = ["load_onnx"]


def load_onnx(
    model: str | Path | Bytes | ModelSource,
    engine: Engine,
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, np.ndarray[Any, Any]] | None = None,
) -> Graph:
    """Read an ONNX model.

    Parameters
    ----------
    model : a file, the bytes of one, or a source of such a file and of the data beside it.
    engine : what the importer asks of the engine.
    shapes : inputs' shapes by name: where the file has symbols, or instead of what it has.
    constants : values of inputs that are the same in every run; they are inputs no more.
    """
    if isinstance(model, Bytes):
        file, source, data, name = "<bytes>", None, memoryview(model), "model"
    else:
        source = _of_path(Path(model)) if isinstance(model, str | Path) else model
        file, name = shown(source, source.graph), PurePosixPath(source.graph).stem
        data = SourceFile(source, source.graph).span()
    try:
        importer = Importer(read_model(data, file, ExternalData(source)), engine)
        return importer.graph(shapes or {}, constants or {}, name)
    except RecursionError:
        raise ModelError(f"'{file}' is nested too deep: export it again") from None


def _of_path(path: Path) -> ModelSource:
    """The folder of a file; a path of bytes that no file can have is refused by its text."""
    try:
        if not path.is_file():
            what = "it is a folder" if path.is_dir() else "there is no such file"
            raise ModelError(f"cannot read '{path}': {what}")
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {str(path)!r}: {error}") from None
    return MappedFolder(path.parent, path.name)
