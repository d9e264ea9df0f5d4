"""Where a model's files lie: a folder, an archive, memory, or what a game brings of its own.

Names and bytes of a source are no more trusted than those of a file: sizes are asked for before
anything is read, and every read is checked.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from cml_engine.errors import CmlError, ModelError, TensorFileError
from cml_engine.io.atomic_write import COMPLETE
from cml_engine.io.budget import current
from cml_engine.ir.graph import Array

Bytes: TypeAlias = bytes | bytearray | memoryview


@runtime_checkable
class ModelSource(Protocol):
    """The files of one model, by their names within it: in a pak file, encrypted, in memory.

    A file's name has no ``..`` and does not begin with ``/``; folders are parted by ``/``. A source
    that can only go forwards cheaply may have ``position(file)``, where a file begins: tensors are
    read in that order.
    """

    @property
    def name(self) -> str:
        """What messages call the model."""
        ...

    @property
    def graph(self) -> str:
        """The file that is the network: ``graph.nnef``, or ``m.onnx``, ``m.param``."""
        ...

    def size(self, file: str, /) -> int | None:
        """How many bytes a file has, ``None`` where there is no such file."""
        ...

    def read(self, file: str, offset: int, count: int, /) -> Bytes:
        """Some bytes of a file that is there, all ``count`` of them."""
        ...


class Outside(ModelError):
    """A name leads out of the model."""


def inner_name(name: str) -> str:
    """A file's name within a model, in its plainest form; :class:`Outside` where it leads out."""
    plain = posixpath.normpath(name) if name else ""
    leads_out = plain.startswith(("/", "../")) or plain in ("", ".", "..")
    if leads_out or any(c in "\\:" or ord(c) < 32 for c in name):
        raise Outside(f"'{name[:80]}' is no name of a file in the model's folder")
    return plain


class FolderSource:
    """A model in a folder. Files are read, never mapped into memory: a mapped file that another
    program makes shorter kills the process that looks at it."""

    def __init__(self, folder: Path, graph: str) -> None:
        self.name = str(folder)
        self.graph = graph
        self._folder = folder
        self._root = folder.resolve()
        self._seen: dict[str, tuple[int, int]] = {}

    def size(self, file: str) -> int | None:
        path = self._path(file)
        if not path.is_file():
            return None
        found = path.stat()
        return self._seen.setdefault(file, _version(found))[0]

    def read(self, file: str, offset: int, count: int) -> Bytes:
        with self._path(file).open("rb") as opened:
            before = self._seen.setdefault(file, _version(os.fstat(opened.fileno())))
            opened.seek(offset)
            data = opened.read(count)
            if _version(os.fstat(opened.fileno())) != before:
                raise ModelError(
                    f"'{self._path(file)}' changed while it was read: load it again when the "
                    "program that writes it has finished"
                )
        return data

    def _path(self, file: str) -> Path:
        """Where a file is; a link must not lead out, but for the graph, which was named."""
        newer = self._folder / COMPLETE
        if (newer / self.graph).is_file() and (newer / file).is_file():
            return newer / file
        if file == self.graph:
            return self._folder / file
        try:
            path = (self._root / file).resolve()
            inside = path.is_relative_to(self._root)
        except (OSError, RuntimeError, ValueError):
            inside = False
        if not inside:
            raise Outside(f"'{file[:80]}' is not in the model's folder '{self._folder}'")
        return path


def _version(found: os.stat_result) -> tuple[int, int]:
    """The size and the time stamp of a file, which change when it is written."""
    return found.st_size, found.st_mtime_ns


def file_source(path: Path) -> FolderSource:
    """The folder of a file that is a model; a path that no file can have is refused by its text."""
    try:
        if not path.is_file():
            what = "it is a folder" if path.is_dir() else "there is no such file"
            raise ModelError(f"cannot read '{path}': {what}")
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {str(path)!r}: {error}") from None
    return FolderSource(path.parent, path.name)


class SourceFile:
    """A file of a source, as a :class:`cml_engine.nnef.files.tensor_file.Blob`."""

    def __init__(self, source: ModelSource, name: str) -> None:
        self.name = name
        self._source = source
        size = file_size(source, name)
        if size is None:
            raise TensorFileError(
                f"cannot read '{name}': No such file in '{source.name}': export the model again "
                "with it, or look at what it costs without (--random-weights)"
            )
        self.size = size
        position = getattr(source, "position", None)
        with _asking(source, name):
            self.offset = 0 if position is None else int(position(name))

    def span(self, offset: int = 0, count: int | None = None) -> memoryview:
        """Some bytes, or all."""
        count = self.size - offset if count is None else count
        if offset < 0 or count < 0 or offset + count > self.size:
            raise TensorFileError(
                f"'{self.name}' is truncated: {count:,} bytes at {offset:,} of {self.size:,}"
            )
        current().charge_bytes(count, f"'{self.name}'")
        with _asking(self._source, self.name):
            data = memoryview(self._source.read(self.name, offset, count)).cast("B")
        if len(data) != count:
            raise TensorFileError(
                f"'{self.name}': asked for {count:,} bytes at {offset:,}, "
                f"'{self._source.name}' gave {len(data):,}"
            )
        return data

    def head(self, count: int) -> bytes:
        return bytes(self.span(0, min(count, self.size)))

    def array(self, offset: int, dtype: np.dtype[Any], count: int) -> Array:
        return np.frombuffer(self.span(offset, count * dtype.itemsize), dtype)


def file_size(source: ModelSource, name: str) -> int | None:
    """How many bytes a file of a source has, if it is there."""
    with _asking(source, name):
        size: Any = source.size(name)  # of a game's own code
        if size is not None and not (isinstance(size, int) and size >= 0):
            raise ValueError(f"a size of {size!r}, wanted a number of bytes or None")
        return None if size is None else int(size)


def shown(source: ModelSource, file: str) -> str:
    """What messages call a file of a source."""
    return file if source.name in ("", ".") else f"{source.name}/{file}"


@contextmanager
def _asking(source: ModelSource, file: str) -> Iterator[None]:
    """Whatever a source raises, as an error that names it and the file."""
    try:
        yield
    except (CmlError, MemoryError):
        raise
    except OSError as error:
        what = error.strerror or str(error)
        raise ModelError(f"cannot read '{shown(source, file)}': {what}") from None
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise ModelError(
            f"cannot read '{shown(source, file)}': its source raised {what}"
        ) from error
