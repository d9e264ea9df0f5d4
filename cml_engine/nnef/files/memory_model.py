"""A model in memory: its text and its tensors, without files."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cml_engine.errors import CmlError, InputError
from cml_engine.ir.graph import Array
from cml_engine.nnef.files.file_names import GRAPH_FILE, QUANT_FILE, tensor_file_name
from cml_engine.nnef.files.tensor_file import tensor_bytes, tensor_file_size


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
    >>> cml.load(cml.MemoryModel(text)).outputs
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
        self.name = name
        self._texts = {GRAPH_FILE: _encoded(text, "text")}
        if quant is not None:
            self._texts[QUANT_FILE] = _encoded(quant, "quant")
        self._tensors: dict[str, Array] = {}
        for label, array in (tensors or {}).items():
            file = _file_name(label)
            if file in self._tensors:
                raise InputError(f"two arrays are called '{label}': give one for each label")
            self._tensors[file] = np.asarray(array)
        self._sizes = {file: len(text) for file, text in self._texts.items()}
        self._sizes |= {file: _size(file, array) for file, array in self._tensors.items()}
        self._latest: tuple[str, bytes] = ("", b"")

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
        if self._latest[0] != file:
            self._latest = (file, tensor_bytes(self._tensors[file]))
        return self._latest[1]


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


def _encoded(text: str, what: str) -> bytes:
    if not isinstance(text, str):
        raise InputError(f"{what} is {type(text).__name__}: wanted a str of NNEF's")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{what}: character {error.start} is no character of UTF-8") from None
