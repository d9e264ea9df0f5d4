"""Where a model lies: a folder, a ``graph.nnef`` in one, or a ``.tgz`` of one (NNEF 1.0.5, 3.3)."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Protocol

from cml_engine.errors import ModelError, NnefSyntaxError, Source, TensorFileError
from cml_engine.nnef.tensor_file import Blob, FileBlob

GRAPH_FILE = "graph.nnef"
QUANT_FILE = "graph.quant"

#: Text longer than this is not a graph.
MAX_TEXT = 64 * 2**20

#: what a model can be, for messages
KINDS = f"a folder with {GRAPH_FILE}, that file itself, a .tgz of the folder, or an .onnx file"

_GZIP = b"\x1f\x8b"
_OTHERS = {
    b"PK\3\4": "a zip archive",
    b"PK\5\6": "a zip archive",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive",
    b"\xfd7zXZ\0": "packed by xz",
    b"BZh": "packed by bzip2",
    b"\x28\xb5\x2f\xfd": "packed by zstd",
    b"N\xef": "a tensor file",
}


class ModelFiles(Protocol):
    """The files of one model, by their names within it."""

    #: How messages show the graph's file.
    graph_name: str

    def text(self, name: str) -> str | None:
        """A text file, or None where there is none."""
        ...

    def tensor(self, label: str, source: Source) -> Blob:
        """The tensor file of a label."""
        ...


class FolderFiles:
    """A model in a folder."""

    def __init__(self, graph: Path) -> None:
        self.graph_name = str(graph)
        self._graph = graph
        self._root = graph.parent.resolve()

    def text(self, name: str) -> str | None:
        path = self._graph if name == GRAPH_FILE else self._root / name
        try:
            if not path.is_file():
                return None
            if path.stat().st_size > MAX_TEXT:
                raise ModelError(f"'{path}' is larger than {MAX_TEXT // 2**20} MiB: not a graph")
            return decode(path.read_bytes(), str(path))
        except OSError as error:
            raise ModelError(f"cannot read '{path}': {error.strerror}") from None

    def tensor(self, label: str, source: Source) -> Blob:
        name = tensor_file_name(label, source)
        try:
            path = (self._root / name).resolve()
            inside = path.is_relative_to(self._root)
        except (OSError, RuntimeError, ValueError):
            inside = False
        if not inside:
            message = f"label '{label}' leads out of the model's folder: move the file into it"
            raise TensorFileError(message, source)
        try:
            return FileBlob(path, name)
        except TensorFileError as error:
            raise TensorFileError(error.message, source) from None


def open_model(path: str | Path) -> ModelFiles:
    """Find a model's files; nothing but the archive's index is read yet."""
    path = Path(path)
    try:
        if path.is_dir():
            return _folder(path)
        if not path.is_file():
            raise ModelError(f"there is no '{path}': wanted {KINDS}")
        with path.open("rb") as file:
            head = file.read(512)
    except OSError as error:
        raise ModelError(f"cannot read '{path}': {error.strerror}") from None
    except ValueError as error:  # no name of a file
        raise ModelError(f"cannot read {str(path)!r}: {error}") from None
    if head.startswith(_GZIP):
        from cml_engine.nnef.archive import ArchiveFiles

        return ArchiveFiles(path)
    if other := _other_kind(path, head):
        raise ModelError(f"'{path}' is {other}: wanted {KINDS}")
    return FolderFiles(path)


def _other_kind(path: Path, head: bytes) -> str | None:
    """What a file is that is no text of a graph, as far as its beginning shows."""
    for magic, what in _OTHERS.items():
        if head.startswith(magic):
            return what
    if head[257:262] == b"ustar":
        return "a tar archive that is not packed"
    if path.suffix.lower() == ".param":
        return "a file of ncnn ('cml convert' makes NNEF of it)"
    return "no text" if b"\0" in head else None


def tensor_file_name(label: str, source: Source | None = None) -> str:
    """A label's file below the model's folder; one that could leave it is refused."""
    name = label.lstrip("/")
    parts = PurePosixPath(name).parts
    problem = None
    if not parts:
        problem = "is empty"
    elif ".." in parts:
        problem = "has '..' in it"
    elif any(c in ':\\"<>|?*' or ord(c) < 32 for c in name):
        problem = "has a character that file names must not have"
    elif len(name) > 1000:
        problem = "is too long"
    if problem is not None:
        message = f"label {label[:80]!r} {problem}: wanted a path inside the model's folder"
        raise TensorFileError(message, source)
    return f"{PurePosixPath(*parts)}.dat"


def decode(data: bytes, file: str) -> str:
    """A text file's bytes as text."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"byte {error.start} is not UTF-8: this is no text of NNEF"
        raise NnefSyntaxError(message, Source(file)) from None


def _folder(path: Path) -> FolderFiles:
    graph = path / GRAPH_FILE
    if not graph.is_file():
        raise ModelError(f"'{path}' has no {GRAPH_FILE}: name the folder that has it")
    return FolderFiles(graph)
