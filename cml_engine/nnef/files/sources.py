"""Opens models: a folder, the ``graph.nnef`` in one, or a ``.tgz`` of one (NNEF 1.0.5, 3.3)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

from cml_engine.errors import (
    CmlError,
    InputError,
    ModelError,
    NnefSyntaxError,
    Source,
)
from cml_engine.errors.arguments import check_mapping, check_text
from cml_engine.io.atomic_write import COMPLETE
from cml_engine.io.file_kinds import HEAD_BYTES, foreign_file
from cml_engine.io.load_limits import current_budget
from cml_engine.io.model_source import (
    Bytes,
    FolderSource,
    ModelSource,
    SourceFile,
    check_link,
    file_size,
    shown,
)
from cml_engine.ir.arrays import as_array
from cml_engine.ir.graph import Array
from cml_engine.nnef.files.archive import ArchiveSource
from cml_engine.nnef.files.tensor_file import (
    GRAPH_FILE,
    QUANT_FILE,
    Blob,
    tensor_bytes,
    tensor_file_name,
    tensor_file_size,
)

#: the kinds of models, for messages
KINDS = (
    f"a folder with {GRAPH_FILE}, that file itself, a .tgz of the folder, an .onnx file or an ncnn "
    ".param"
)

_GZIP = b"\x1f\x8b"
#: the beginning of NNEF text, after comments
_NNEF_TEXT = re.compile(rb"(?:\s|#[^\n]*\n)*(?:version|extension|fragment|graph)\s")


def read_text(source: ModelSource, name: str) -> str | None:
    """Returns the content of a model's text file, or None if the file does not exist."""
    if file_size(source, name) is None:
        return None
    file = SourceFile(source, name)
    current_budget().charge_unpacked(file.size, f"the text of '{shown(source, name)}'")
    return decode(bytes(file.span()), shown(source, name))


def tensor_blob(source: ModelSource, label: str, variable_source: Source) -> Blob:
    """Returns the tensor file of a label, unread; errors name the variable's line."""
    try:
        return SourceFile(source, tensor_file_name(label, variable_source))
    except CmlError as error:
        raise type(error)(error.message, error.source or variable_source) from error.__cause__


def open_model(model: str | Path | Bytes | ModelSource) -> ModelSource:
    """Returns a source of a model's files.

    ``model`` is a path, the bytes of an archive, or a source. It reads only an archive's index
    and the first bytes of the graph.
    """
    if isinstance(model, Bytes):
        return ArchiveSource(BytesIO(model), "<bytes>")
    if isinstance(model, str | Path):
        return _open_path(Path(model))
    return _inner_archive(model)


def _open_path(path: Path) -> ModelSource:
    try:
        if path.is_dir():
            return _folder(path)
        if path.name == GRAPH_FILE and (path.parent / COMPLETE / GRAPH_FILE).is_file():
            return _folder(path.parent)
        if not path.is_file():
            check_link(path)
            raise ModelError(f"there is no '{path}': wanted {KINDS}")
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        raise ModelError(f"cannot read '{path}': {error.strerror}") from None
    except ValueError as error:  # not a valid file name
        raise ModelError(f"cannot read {str(path)!r}: {error}") from None
    if head.startswith(_GZIP):
        return ArchiveSource(path, str(path))
    if kind := _foreign_format(head):
        raise ModelError(f"'{path}' is {kind}")
    return FolderSource(path.parent, path.name)


def is_archive(data: Bytes) -> bool:
    """Returns True if the bytes are a ``.tgz``, and False if they may be an ONNX file.

    Raises :class:`InputError` for NNEF text and other known file types.
    """
    head = bytes(data[:HEAD_BYTES])
    if head.startswith(_GZIP):
        return True
    if kind := foreign_file(head):
        expected = "Wanted the bytes of an .onnx or a .tgz"
        raise InputError(f"these {len(data):,} bytes are {kind}. {expected}")
    if _NNEF_TEXT.match(head):
        raise InputError(
            f"these {len(data):,} bytes are NNEF's text, which has no weights in it: wanted the "
            "bytes of an .onnx or a .tgz, or cml.nnef.MemoryModel(text, {label: array})"
        )
    return False


def _inner_archive(source: ModelSource) -> ModelSource:
    """Returns a source of the archive in a source's graph file, or the source itself.

    The source itself is returned if the graph file is text. Other content is an error.
    """
    if file_size(source, source.graph) is None:
        raise ModelError(f"'{source.name}' has no '{source.graph}': wanted the model's graph")
    file = SourceFile(source, source.graph)
    head = file.head(HEAD_BYTES)
    if head.startswith(_GZIP):
        return ArchiveSource(BytesIO(file.span()), shown(source, source.graph))
    if kind := _foreign_format(head):
        raise ModelError(f"'{shown(source, source.graph)}' is {kind}")
    return source


def _foreign_format(head: bytes) -> str | None:
    """Returns the type of a file that is not NNEF text, judged by its first bytes, or None."""
    return foreign_file(head) or (f"no text: wanted {KINDS}" if b"\0" in head else None)


def decode(data: bytes, file: str) -> str:
    """Returns the text of a file's UTF-8 bytes, without a byte order mark.

    Raises :class:`NnefSyntaxError` that names ``file`` if they are not UTF-8.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise NnefSyntaxError(
            f"byte {error.start} is not UTF-8: this is no text of NNEF", Source(file)
        ) from None


def _folder(path: Path) -> FolderSource:
    if not any((folder / GRAPH_FILE).is_file() for folder in (path, path / COMPLETE)):
        raise ModelError(f"'{path}' has no {GRAPH_FILE}: name the folder that has it")
    return FolderSource(path, GRAPH_FILE)


class MemoryModel:
    """A model of NNEF text and arrays in memory: a :class:`cml_engine.ModelSource`.

    Parameters
    ----------
    text : the content of ``graph.nnef``.
    tensors : an array for each ``variable``, by its label.
    quant : the content of ``graph.quant``.
    name : the model's name in messages.

    Examples
    --------
    >>> text = '''version 1.0;
    ... graph twice(x) -> (y) { x = external<scalar>(shape = [1, 4]); y = mul(x, 2.0); }'''
    >>> cml.load(cml.nnef.MemoryModel(text)).outputs
    ('y',)
    """

    graph = GRAPH_FILE

    def __init__(
        self,
        text: str,
        tensors: Mapping[str, Array] | None = None,
        *,
        quant: str | None = None,
        name: str = "<memory>",
    ) -> None:
        self.name = check_text(name, "the name of a model")
        tensors = {} if tensors is None else tensors
        check_mapping("arrays by label, {'w': array}", tensors, "tensors")
        self._texts = {GRAPH_FILE: _encoded(text, "text")}
        if quant is not None:
            self._texts[QUANT_FILE] = _encoded(quant, "quant")
        self._tensors: dict[str, Array] = {}
        for label, array in tensors.items():
            file = _file_name(label)
            if file in self._tensors:
                raise InputError(f"two arrays are called '{label}': give one for each label")
            self._tensors[file] = as_array(f"tensor '{label}'", array)
        self._sizes = {file: len(text) for file, text in self._texts.items()}
        self._sizes |= {file: _size(file, array) for file, array in self._tensors.items()}
        self._cached: tuple[str, bytes] = ("", b"")

    def size(self, file: str) -> int | None:
        """Returns the size of a file in bytes, or None if the model has no file of that name."""
        return self._sizes.get(file)

    def read(self, file: str, offset: int, count: int) -> bytes | memoryview:
        """Returns ``count`` bytes of a file from ``offset`` on."""
        return memoryview(self._bytes(file))[offset : offset + count]

    def _bytes(self, file: str) -> bytes:
        """Returns the bytes of a text or tensor file by its name.

        A tensor's bytes are made on demand and cached until another tensor is read.
        """
        if file in self._texts:
            return self._texts[file]
        if self._cached[0] != file:
            self._cached = (file, tensor_bytes(self._tensors[file]))
        return self._cached[1]


def _size(file: str, array: Array) -> int:
    try:
        return tensor_file_size(array)
    except CmlError as error:
        raise InputError(f"the array '{file.removesuffix('.dat')}': {error.message}") from None


def _file_name(label: str) -> str:
    try:
        return tensor_file_name(label)
    except CmlError as error:
        raise InputError(error.message) from None


def _encoded(text: str, parameter: str) -> bytes:
    if not isinstance(text, str):
        raise InputError(f"{parameter} is {type(text).__name__}: wanted a str of NNEF's")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{parameter}: character {error.start} is no character of UTF-8") from None
