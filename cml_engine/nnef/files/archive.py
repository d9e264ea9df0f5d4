"""Reads model archives: lists a tar stream's members without unpacking them (POSIX and GNU).

The standard library's reader is too lenient for untrusted models: it accepts negative sizes and
headers of any length, takes damage in the middle for the end, and before Python 3.11.10 a header
of 60 KB keeps it busy for 10 s. This one accepts plain files and folders only, and checks their
sizes before it reads.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from gzip import GzipFile
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from cml_engine.errors import ModelError
from cml_engine.io.load_limits import current_budget
from cml_engine.nnef.files.tensor_file import GRAPH_FILE

BLOCK = 512
_CHUNK = 2**20
#: the most bytes of a header that describes another member
_MAX_EXTENSION = 64 * 2**10
#: The microseconds to read a member's header.
_MEMBER_STEPS = 20

_FILES, _FOLDER = (b"0", b"\0", b"7"), b"5"


class TarError(Exception):
    """The error that a stream is not an archive, or a damaged one."""


class ArchiveRefusedError(Exception):
    """The error that an archive is intact but has content that a model must not have."""


@dataclass(frozen=True, slots=True)
class Member:
    """A plain file in an archive: its name, offset in the unpacked stream, and size in bytes."""

    name: str
    offset: int
    size: int


def members(stream: GzipFile, archive: str) -> dict[str, Member]:
    """Returns every plain file in an archive by name; of files with one name, the last.

    The stream is read to its end, which also verifies its checksum. Raises :class:`TarError`,
    :class:`ArchiveRefusedError`, or the stream's own errors.
    """
    reader = _Reader(stream, archive)
    by_name: dict[str, Member] = {}
    for member in _members(reader):
        current_budget().charge_steps(_MEMBER_STEPS, f"'{archive}': a file in it")
        by_name[member.name] = member
    reader.finish()
    return by_name


class _Reader:
    """A forward reader of an unpacked stream; the bytes it reads are charged to the load budget."""

    def __init__(self, stream: GzipFile, archive: str) -> None:
        self._stream, self._archive = stream, archive
        self._budget = current_budget()
        self.at = 0

    def take(self, count: int) -> bytes:
        """Returns the next ``count`` bytes; fewer at the end of the stream."""
        data = self._stream.read(count)
        self._budget.charge_unpacking(len(data), f"'{self._archive}', unpacked,")
        self.at += len(data)
        return data

    def skip(self, count: int) -> None:
        while count:
            step = min(count, _CHUNK)
            if len(self.take(step)) < step:
                raise TarError("it ends early")
            count -= step

    def finish(self) -> None:
        """Reads the rest of the stream; raises :class:`TarError` if it has anything but zeros."""
        while chunk := self.take(_CHUNK):
            if chunk.count(0) != len(chunk):
                raise TarError("there is more behind its end")


def _members(reader: _Reader) -> Iterator[Member]:
    overrides: dict[str, str] = {}  # the values that preceding headers give for this one
    while any(block := reader.take(BLOCK)):
        _check(block, reader.at - BLOCK)
        type_flag, size = block[156:157], _number(block[124:136])
        if type_flag in _EXTENSIONS:
            overrides |= _EXTENSIONS[type_flag](_extension(reader, size))
            continue
        name, size = overrides.get("path") or _name(block), int(overrides.get("size", size))
        overrides = {}
        if type_flag != _FOLDER:
            yield Member(_plain_name(name, type_flag), reader.at, size)
            reader.skip(size + -size % BLOCK)


def _check(block: bytes, offset: int) -> None:
    if len(block) < BLOCK:
        raise TarError("it ends early")
    with_blanks = sum(block) - sum(block[148:156]) + 8 * ord(" ")
    if block[148:156].strip(b"\0 ").lstrip(b"0") != b"%o" % with_blanks:
        raise TarError("it is no tar archive" if offset == 0 else f"no header at byte {offset:,}")


def _number(field: bytes) -> int:
    """Returns a number of a tar header, which is octal digits or GNU's binary form.

    The binary form is a marker byte and an integer of 11 bytes.
    """
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.split(b"\0", 1)[0].strip()
    if digits.strip(b"01234567"):
        raise TarError(f"{field!r} is no number")
    return int(digits or b"0", 8)


def _extension(reader: _Reader, size: int) -> bytes:
    if size > _MAX_EXTENSION:
        raise TarError(f"a header of {size:,} bytes")
    body = reader.take(size)
    reader.skip(-size % BLOCK)
    if len(body) < size:
        raise TarError("it ends early")
    return body


def _pax(body: bytes) -> dict[str, str]:
    r"""Returns the keys and values of a pax header of records ``LENGTH KEY=VALUE\n``.

    The length counts the whole record. Raises an error for sparse files and damaged records.
    """
    records: dict[str, str] = {}
    while body.strip(b"\0"):
        digits = body.split(b" ", 1)[0]
        length = int(digits) if digits.isdigit() and len(digits) < 9 else 0
        key, equals, value = body[len(digits) + 1 : length - 1].partition(b"=")
        if not equals or length > len(body) or body[length - 1 : length] != b"\n":
            raise TarError("a header that cannot be read")
        records[_decode(key)] = _decode(value)
        body = body[length:]
    if any(key.startswith("GNU.sparse.") for key in records):
        raise ArchiveRefusedError("it holds a file with holes: pack plain files only")
    if not re.fullmatch("[0-9]{1,20}", records.get("size", "0")):
        raise TarError(f"a member of {records['size'][:20]!r} bytes")
    return records


#: the decoders of headers that describe the next member
_EXTENSIONS: dict[bytes, Callable[[bytes], dict[str, str]]] = {
    b"L": lambda body: {"path": _decode(body.split(b"\0", 1)[0])},
    b"x": _pax,
    **dict.fromkeys((b"K", b"g"), lambda body: {}),
}


def _name(block: bytes) -> str:
    name = block[:100].split(b"\0", 1)[0]
    prefix = block[345:500].split(b"\0", 1)[0] if block[257:263] == b"ustar\0" else b""
    return _decode(prefix + b"/" + name if prefix else name)


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _plain_name(name: str, type_flag: bytes) -> str:
    if type_flag not in _FILES:
        description = "a link" if type_flag in (b"1", b"2") else "not a plain file"
        raise ArchiveRefusedError(f"'{name}' is {description}: pack plain files only")
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name:
        raise ArchiveRefusedError(f"'{name}' leads out of the archive")
    return str(path)


class ArchiveSource:
    """A model source that reads a ``.tgz`` archive.

    The model is ``graph.nnef`` at the archive's top, or in the topmost folder that has one.
    """

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
        """Returns a file's offset in the unpacked archive; reading files in this order is fast."""
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
        """A context that turns errors of the archive into a :class:`ModelError` that names it."""
        try:
            yield
        except ArchiveRefusedError as error:
            raise ModelError(f"'{self._archive}': {error}") from None
        except (TarError, EOFError, OSError, zlib.error) as error:
            raise ModelError(f"'{self._archive}' is damaged ({error}): pack it again") from None
