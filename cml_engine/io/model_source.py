"""The sources of a model's files: a folder, an archive, memory, or a game's own implementation.

The names and bytes that a source returns are not trusted: sizes are checked before anything is
read, and every read is checked.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np

from cml_engine.errors import CmlError, ModelError, TensorFileError
from cml_engine.io.atomic_write import COMPLETE
from cml_engine.io.file_kinds import HEAD_BYTES, misplaced_file
from cml_engine.io.load_limits import current_budget
from cml_engine.ir.graph import Array, DType

Bytes: TypeAlias = bytes | bytearray | memoryview


@runtime_checkable
class ModelSource(Protocol):
    """A provider of one model's files by name: from a pak file, encrypted, or in memory.

    A game may implement it. File names use ``/`` between folders, do not begin with ``/`` and
    contain no ``..``. A source that only reads forwards efficiently may define
    ``position(file)``, the offset at which a file begins; tensors are then read in that order.

    Examples
    --------
    >>> class PakFile:
    ...     name, graph = "net", "graph.nnef"
    ...     def size(self, file): return len(pak[file])
    ...     def read(self, file, offset, count): return pak[file][offset : offset + count]
    >>> isinstance(PakFile(), cml.ModelSource)
    True
    """

    @property
    def name(self) -> str:
        """The name of the model in error messages."""
        ...

    @property
    def graph(self) -> str:
        """The name of the file with the network: ``graph.nnef``, ``m.onnx`` or ``m.param``."""
        ...

    def size(self, file: str, /) -> int | None:
        """Returns the size of a file in bytes, or None if there is no such file."""
        ...

    def read(self, file: str, offset: int, count: int, /) -> Bytes:
        """Returns exactly ``count`` bytes of an existing file, from ``offset``."""
        ...


class OutsideModelError(ModelError):
    """Raised if a file name leads out of the model."""


def inner_name(name: str) -> str:
    """Normalizes the name of a file within a model.

    Raises :class:`OutsideModelError` if the name leads out of the model, or contains a backslash, a
    colon or a control character.
    """
    normalized = posixpath.normpath(name) if name else ""
    leads_out = normalized.startswith(("/", "../")) or normalized in ("", ".", "..")
    if leads_out or any(c in "\\:" or ord(c) < 32 for c in name):
        raise OutsideModelError(f"'{name[:80]}' is no name of a file in the model's folder")
    return normalized


class FolderSource:
    """The files of a model in a folder, as a :class:`ModelSource`.

    Links in the folder are followed: who can write the folder made them, and download caches keep
    links to their files. Names that lead out of the folder are refused.

    A file that changes while it is read raises :class:`ModelError`. Files are read and not mapped
    into memory: if another program truncates a mapped file, accessing it kills the process.
    """

    def __init__(self, folder: Path, graph: str) -> None:
        self.name = str(folder)
        self.graph = graph
        self._folder = folder
        self._versions: dict[str, tuple[int, int]] = {}

    def size(self, file: str) -> int | None:
        path = self._path(file)
        if not path.is_file():
            check_link(path)
            return None
        status = path.stat()
        return self._versions.setdefault(file, _version(status))[0]

    def read(self, file: str, offset: int, count: int) -> Bytes:
        with self._path(file).open("rb") as stream:
            version = self._versions.setdefault(file, _version(os.fstat(stream.fileno())))
            stream.seek(offset)
            data = stream.read(count)
            if _version(os.fstat(stream.fileno())) != version:
                raise ModelError(
                    f"'{self._path(file)}' changed while it was read: load it again when the "
                    "program that writes it has finished"
                )
        return data

    def _path(self, file: str) -> Path:
        """Returns the path of a file in the folder.

        If a writer has left a complete newer version of the model in the folder ``COMPLETE``, the
        path leads to that version. Raises :class:`OutsideModelError` if the name leads out.
        """
        if file != self.graph:  # the caller named that one
            file = inner_name(file)
        new_version = self._folder / COMPLETE
        if (new_version / self.graph).is_file() and (new_version / file).is_file():
            return new_version / file
        return self._folder / file


def _version(status: os.stat_result) -> tuple[int, int]:
    """Returns a file's size and modification time, which identify its version."""
    return status.st_size, status.st_mtime_ns


def check_link(path: Path) -> None:
    """Raises :class:`ModelError` if a path is a link that leads to nothing."""
    if path.is_symlink() and not path.exists():
        raise ModelError(
            f"'{path}' is a link to '{path.readlink()}', which does not exist: download the model "
            "again"
        )


def file_source(path: Path) -> FolderSource:
    """Returns a source for the folder of a model file; the file is the source's graph.

    Raises :class:`ModelError` if there is no such file.
    """
    try:
        if not path.is_file():
            check_link(path)
            problem = "it is a folder" if path.is_dir() else "there is no such file"
            raise ModelError(f"cannot read '{path}': {problem}")
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {str(path)!r}: {error}") from None
    return FolderSource(path.parent, path.name)


class SourceFile:
    """One file of a :class:`ModelSource`, from which byte ranges are read.

    Raises :class:`TensorFileError` if the source has no such file.
    """

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
        with _reading(source, name):
            self.offset = 0 if position is None else int(position(name))

    def span(self, offset: int = 0, count: int | None = None) -> memoryview:
        """Reads ``count`` bytes from ``offset``; by default the rest of the file.

        They are charged to the load budget. Raises :class:`TensorFileError` if the file is shorter,
        or if it begins as no file of a model does.
        """
        count = self.size - offset if count is None else count
        if offset < 0 or count < 0 or offset + count > self.size:
            raise TensorFileError(
                f"'{self.name}' is truncated: {count:,} bytes at {offset:,} of {self.size:,}"
            )
        current_budget().charge_bytes(count, f"'{self.name}'")
        with _reading(self._source, self.name):
            data = memoryview(self._source.read(self.name, offset, count)).cast("B")
        if len(data) != count:
            raise TensorFileError(
                f"'{self.name}': asked for {count:,} bytes at {offset:,}, "
                f"'{self._source.name}' gave {len(data):,}"
            )
        if not offset and (misplaced := misplaced_file(bytes(data[:HEAD_BYTES]))):
            raise TensorFileError(f"'{shown(self._source, self.name)}' is {misplaced}")
        return data

    def check_content(self) -> None:
        """Raises :class:`TensorFileError` if a web page or the like is in place of the file."""
        self.head(HEAD_BYTES)

    def head(self, count: int) -> bytes:
        """Returns the first ``count`` bytes, or all if there are fewer."""
        return bytes(self.span(0, min(count, self.size)))

    def array(self, offset: int, dtype: DType, count: int) -> Array:
        """Returns an array of ``count`` items of type ``dtype`` from byte ``offset`` on."""
        return np.frombuffer(self.span(offset, count * dtype.itemsize), dtype)


def file_size(source: ModelSource, name: str) -> int | None:
    """Returns the size of a source's file in bytes, or None if there is no such file.

    Any failure of the source, also an invalid size, becomes :class:`ModelError`.
    """
    with _reading(source, name):
        size: object = source.size(name)  # a game's own code may return anything
        if size is None or (isinstance(size, int) and size >= 0):
            return size
        raise ValueError(f"a size of {size!r}, wanted a number of bytes or None")


def has_file(source: ModelSource, name: str) -> bool:
    """Returns True if a source has a file.

    Also returns True for a name that leads out of the model, which the reader then reports.
    """
    try:
        return file_size(source, inner_name(name)) is not None
    except OutsideModelError:
        return True


def shown(source: ModelSource, file: str) -> str:
    """Returns a file's name for messages: ``model/file``, or ``file`` if the source has no name."""
    return file if source.name in ("", ".") else f"{source.name}/{file}"


@contextmanager
def _reading(source: ModelSource, file: str) -> Iterator[None]:
    """Re-raises exceptions of a source as :class:`ModelError` that names source and file."""
    try:
        yield
    except (CmlError, MemoryError):
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise ModelError(f"cannot read '{shown(source, file)}': {reason}") from None
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ModelError(
            f"cannot read '{shown(source, file)}': its source raised {reason}"
        ) from error
