"""A model in a ``.tgz``, read in memory and never extracted (NNEF 1.0.5, 3.3).

The stream is gone through once for an index; tensor files are read later, when the graph has said
how large they may be. Links are refused, names must stay inside, and a stream that unpacks to far
more than a model can be is given up.
"""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from cml_engine.errors import ModelError, Source, TensorFileError
from cml_engine.nnef.files import GRAPH_FILE, MAX_TEXT, decode, tensor_file_name
from cml_engine.nnef.tensor_file import Blob

#: An archive may unpack to the larger of these, but never to more than the last.
_ALWAYS_FINE = 256 * 2**20
_MAX_RATIO = 100
_MAX_TOTAL = 16 * 2**30
_MAX_MEMBERS = 100_000

_DAMAGE = (
    tarfile.TarError,
    EOFError,
    OSError,
    zlib.error,
    struct.error,
    ValueError,
    OverflowError,
    IndexError,
    KeyError,
)


class TooLarge(Exception):
    """The stream unpacks to more than the limit."""


class CappedStream(io.RawIOBase):
    """A decompressed stream that refuses to go beyond ``limit`` bytes."""

    def __init__(self, stream: gzip.GzipFile, limit: int) -> None:
        self._stream = stream
        self._limit = limit

    def read(self, size: int = -1, /) -> bytes:
        self._check(self._stream.tell() + max(size, 0) if size >= 0 else self._limit + 1)
        return self._stream.read(size)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        self._check(offset + (self._stream.tell() if whence == 1 else 0))
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def _check(self, end: int) -> None:
        if end > self._limit:
            raise TooLarge


class ArchiveBlob:
    """A file in an archive."""

    def __init__(self, archive: ArchiveFiles, member: tarfile.TarInfo) -> None:
        self.name = member.name
        self.size = member.size
        self._archive = archive
        self._member = member

    def head(self, count: int) -> bytes:
        return self._archive.read(self._member, 0, min(count, self.size))

    def array(self, offset: int, dtype: np.dtype[Any], count: int) -> np.ndarray[Any, Any]:
        data = self._archive.read(self._member, offset, count * dtype.itemsize)
        return np.frombuffer(data, dtype)


class ArchiveFiles:
    """A model in an archive: ``graph.nnef`` at its top, or in its topmost folder that has one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        limit = min(_MAX_TOTAL, max(_ALWAYS_FINE, _MAX_RATIO * path.stat().st_size))
        self._stream = CappedStream(gzip.GzipFile(path, "rb"), limit)
        self._members = self._index()
        graphs = [n for n in self._members if PurePosixPath(n).name == GRAPH_FILE]
        if not graphs:
            raise ModelError(f"'{path}' has no {GRAPH_FILE} in it: pack the model's folder")
        graph = min(graphs, key=lambda name: (name.count("/"), name))
        self._root = graph[: -len(GRAPH_FILE)]
        self.graph_name = f"{path}/{graph}"

    def text(self, name: str) -> str | None:
        member = self._members.get(self._root + name)
        if member is None:
            return None
        if member.size > MAX_TEXT:
            raise ModelError(f"'{member.name}' is larger than {MAX_TEXT // 2**20} MiB: not a graph")
        return decode(self.read(member, 0, member.size), f"{self._path}/{member.name}")

    def tensor(self, label: str, source: Source) -> Blob:
        name = tensor_file_name(label, source)
        member = self._members.get(self._root + name)
        if member is None:
            message = f"'{self._path}' has no '{name}': pack the model again with it"
            raise TensorFileError(message, source)
        return ArchiveBlob(self, member)

    def read(self, member: tarfile.TarInfo, offset: int, count: int) -> bytes:
        """Some bytes of a member. A stream can only go forward cheaply: ask in file order."""
        try:
            self._stream.seek(member.offset_data + offset)
            data = self._stream.read(count)
        except TooLarge:
            raise self._too_large() from None
        except _DAMAGE as error:
            raise self._damaged(error) from None
        if len(data) != count:
            raise self._damaged(EOFError(f"'{member.name}' ends early"))
        return data

    def _index(self) -> dict[str, tarfile.TarInfo]:
        found: dict[str, tarfile.TarInfo] = {}
        try:
            with tarfile.open(fileobj=self._stream, mode="r:") as tar:
                for count, member in enumerate(tar):
                    if count >= _MAX_MEMBERS:
                        raise TooLarge
                    if not member.isdir():
                        found[self._member_name(member)] = member
        except TooLarge:
            raise self._too_large() from None
        except _DAMAGE as error:
            raise self._damaged(error) from None
        return found

    def _member_name(self, member: tarfile.TarInfo) -> str:
        name = PurePosixPath(member.name)
        if not member.isreg() or member.sparse is not None:
            what = "a link" if member.issym() or member.islnk() else "not a plain file"
            raise ModelError(f"'{self._path}': '{member.name}' is {what}: pack plain files only")
        if name.is_absolute() or ".." in name.parts or "\\" in member.name:
            raise ModelError(f"'{self._path}': '{member.name}' leads out of the archive")
        return str(name)

    def _too_large(self) -> ModelError:
        return ModelError(f"'{self._path}' unpacks to more than a model of its size can: refused")

    def _damaged(self, error: Exception) -> ModelError:
        return ModelError(f"'{self._path}' is damaged ({error}): pack it again")
