"""A model in a ``.tgz``, read in memory and never extracted (NNEF 1.0.5, 3.3).

The stream is gone through once for an index; tensor files are read later, when the graph has said
how large they may be. Links are refused, names must stay inside.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from cml_engine.errors import ModelError
from cml_engine.nnef.files.names import GRAPH_FILE
from cml_engine.nnef.files.tar import Refused, TarError, members


class ArchiveSource:
    """A model in an archive: ``graph.nnef`` at its top, or in its topmost folder that has one."""

    graph = GRAPH_FILE

    def __init__(self, file: Path | BinaryIO, name: str) -> None:
        self._archive = name
        with self._checked():
            if isinstance(file, Path):
                self._stream = gzip.GzipFile(file, "rb")
            else:
                self._stream = gzip.GzipFile(fileobj=file, mode="rb")
            self._members = members(self._stream, name)
        graphs = [n for n in self._members if PurePosixPath(n).name == GRAPH_FILE]
        if not graphs:
            raise ModelError(f"'{name}' has no {GRAPH_FILE} in it: pack the model's folder")
        graph = min(graphs, key=lambda name: (name.count("/"), name))
        self._root = graph[: -len(GRAPH_FILE)]
        self.name = f"{name}/{self._root}".rstrip("/")

    def size(self, file: str) -> int | None:
        member = self._members.get(self._root + file)
        return None if member is None else member.size

    def position(self, file: str) -> int:
        """Where a file begins: a stream can only go forwards cheaply."""
        return self._members[self._root + file].offset

    def read(self, file: str, offset: int, count: int) -> bytes:
        with self._checked():
            self._stream.seek(self.position(file) + offset)
            data = self._stream.read(count)
            if len(data) != count:
                raise EOFError(f"'{file}' ends early")
        return data

    @contextmanager
    def _checked(self) -> Iterator[None]:
        """What can be wrong with an archive, as an error that names it."""
        try:
            yield
        except Refused as error:
            raise ModelError(f"'{self._archive}': {error}") from None
        except (TarError, EOFError, OSError, zlib.error) as error:
            raise ModelError(f"'{self._archive}' is damaged ({error}): pack it again") from None
