"""A model in a ``.tgz``, read in memory and never extracted (NNEF 1.0.5, 3.3).

The stream is gone through once for an index; tensor files are read later, when the graph has said
how large they may be. Links are refused, names must stay inside, and a stream that unpacks to far
more than a model can be is given up.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from cml_engine.errors import ModelError, Source, TensorFileError
from cml_engine.nnef.files import GRAPH_FILE, MAX_TEXT, decode, tensor_file_name
from cml_engine.nnef.tar import Member, Refused, TarError, members
from cml_engine.nnef.tensor_file import Blob

#: An archive may unpack to the larger of these, but never to more than the last.
_ALWAYS_FINE = 256 * 2**20
_MAX_RATIO = 100
_MAX_TOTAL = 16 * 2**30


class ArchiveBlob:
    """A file in an archive."""

    def __init__(self, archive: ArchiveFiles, member: Member) -> None:
        self.name = member.name
        self.size = member.size
        self.offset = member.offset
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
        with self._checked():
            self._stream = gzip.GzipFile(path, "rb")
            self._members = members(self._stream, limit)
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

    def read(self, member: Member, offset: int, count: int) -> bytes:
        """Some bytes of a member. A stream can only go forward cheaply: ask in file order."""
        with self._checked():
            self._stream.seek(member.offset + offset)
            data = self._stream.read(count)
            if len(data) != count:
                raise EOFError(f"'{member.name}' ends early")
        return data

    @contextmanager
    def _checked(self) -> Iterator[None]:
        """What can be wrong with an archive, as an error that names it."""
        try:
            yield
        except Refused as error:
            raise ModelError(f"'{self._path}': {error}") from None
        except (TarError, EOFError, OSError, zlib.error) as error:
            raise ModelError(f"'{self._path}' is damaged ({error}): pack it again") from None
