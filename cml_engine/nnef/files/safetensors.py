"""Reads safetensors files: tensors by name in one file, after a JSON header.

The header is untrusted: its size is bounded, every tensor must lie inside the file and be as
long as its shape and type say, and the tensors must cover the file without gaps or overlaps.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import numpy as np

from cml_engine.errors import InputError, TensorFileError
from cml_engine.errors.arguments import similar_names
from cml_engine.io.file_kinds import HEAD_BYTES, misplaced_file
from cml_engine.io.load_limits import current_budget
from cml_engine.io.model_source import Bytes, FolderSource, SourceFile
from cml_engine.ir.graph import is_whole
from cml_engine.nnef.expansion.document_builder import Variable
from cml_engine.nnef.files.tensor_file import Blob, Header, ItemType, MemoryBlob, StoredTensor

_LENGTH = 8
_MAX_RANK = 32
#: The bytes of Python objects per byte of the header's JSON.
_HEADER_BYTES = 10
_METADATA = "__metadata__"

#: the supported types, and their layout in the file; BF16 is the upper half of F32
_TYPES: Mapping[str, tuple[ItemType, str]] = {
    "F16": (ItemType.FLOAT, "<f2"), "BF16": (ItemType.FLOAT, "<u2"), "F32": (ItemType.FLOAT, "<f4"),
    "F64": (ItemType.FLOAT, "<f8"), "BOOL": (ItemType.BOOL, "|u1"), "I8": (ItemType.INT, "|i1"),
    "I16": (ItemType.INT, "<i2"), "I32": (ItemType.INT, "<i4"), "I64": (ItemType.INT, "<i8"),
    "U8": (ItemType.UINT, "|u1"), "U16": (ItemType.UINT, "<u2"), "U32": (ItemType.UINT, "<u4"),
    "U64": (ItemType.UINT, "<u8"),
}  # fmt: skip

#: the suffix of PyTorch's training counters, which inference does not use
_COUNTERS = ".num_batches_tracked"


@dataclass(frozen=True, slots=True)
class SafeTensor:
    """One tensor of a safetensors file, whose values are not read yet."""

    file: Blob
    label: str
    type: str
    shape: tuple[int, ...]
    offset: int

    @property
    def name(self) -> str:
        return f"{self.file.name}: {self.label}"

    def header(self) -> Header:
        if self.type not in _TYPES:
            raise TensorFileError(
                f"'{self.name}' is of type {self.type}: wanted one of {', '.join(_TYPES)}"
            )
        item, layout = _TYPES[self.type]
        bits = 8 * np.dtype(layout).itemsize
        return Header(prod(self.shape) * bits // 8, self.shape, bits, item)

    def stored(self, header: Header) -> StoredTensor:
        values = self.file.array(self.offset, np.dtype(_TYPES[self.type][1]), header.size)
        if self.type == "BF16":
            values = (values.astype(np.uint32) << 16).view(np.float32)
        elif header.item is ItemType.BOOL:
            values = values != 0
        return StoredTensor(header, values.reshape(header.shape))


class Weights:
    """A safetensors file that replaces the tensor files of a model's variables.

    Examples
    --------
    >>> graph = cml.load("net.nnef", weights="other.safetensors")  # doctest: +SKIP
    """

    def __init__(self, weights: str | Path | Bytes) -> None:
        if isinstance(weights, Bytes):
            self._file: Blob = MemoryBlob(bytes(weights), "<weights>")
        else:
            self._file = _file(weights)
        self._tensors = read_safetensors(self._file)

    def tensor(self, variable: Variable) -> SafeTensor | None:
        """Returns the tensor with a variable's label, or None if the file has none.

        It gets the variable's shape if the shapes differ in extents of 1 only, as PyTorch's
        biases do.
        """
        label = variable.label
        stored = self._tensors.get(label) or self._tensors.get(label.lstrip("/"))
        if stored is None:
            return None
        variable_shape = variable.fact.shape
        larger, wanted = ([n for n in s if n != 1] for s in (stored.shape, variable_shape))
        return replace(stored, shape=variable_shape) if larger == wanted else stored

    def missing(self, variable: Variable) -> TensorFileError:
        """Returns the error for a variable that the file lacks; it names similar tensors."""
        suggestion = _similar_names(variable.label, self._tensors)
        message = f"'{self._file.name}' has no tensor '{variable.label}'{suggestion}"
        return TensorFileError(f"{message}: tensors have the labels' names", variable.source)

    def check_all_used(self, labels: Iterable[str]) -> None:
        """Raises an error if the file has tensors with none of the given labels.

        Training counters are ignored.
        """
        labels = {label.lstrip("/") for label in labels}
        extra = [
            name
            for name in self._tensors
            if name.lstrip("/") not in labels and not name.endswith(_COUNTERS)
        ]
        if extra:
            more = f" and {len(extra) - 1} more" if len(extra) > 1 else ""
            raise TensorFileError(
                f"'{self._file.name}' has '{extra[0]}'{more}, which no variable of the model takes"
                f"{_similar_names(extra[0], labels)}: take the file of this model"
            )


def _file(path: str | Path) -> Blob:
    try:
        if Path(path).is_file():
            return SourceFile(FolderSource(Path(), str(path)), str(path))
        problem = "it is a folder" if Path(path).is_dir() else "there is no such file"
    except TypeError:
        problem = f"wanted a path or bytes, got {type(path).__name__}"
    except (OSError, ValueError) as error:
        problem = str(error)
    raise InputError(f"cannot read the weights {str(path)!r}: {problem}")


def read_safetensors(file: Blob) -> dict[str, SafeTensor]:
    """Reads the header of a safetensors file and returns its tensors by name, without their values.

    Raises an error if the file is damaged.
    """
    if file.size < _LENGTH:
        raise _damaged_error(file, f"wanted a length of {_LENGTH} bytes first, got {file.size}")
    length = int.from_bytes(file.head(_LENGTH), "little")
    if length > file.size - _LENGTH:
        if kind := misplaced_file(file.head(HEAD_BYTES)):
            raise TensorFileError(f"'{file.name}' is {kind}")
        raise _damaged_error(file, f"a header of {length:,} bytes in a file of {file.size:,}")
    budget, subject = current_budget(), f"the header of '{file.name}'"
    budget.charge_bytes(_HEADER_BYTES * length, subject)
    budget.charge_steps(length >> 3, subject)
    tensors: dict[str, SafeTensor] = {}
    end = _LENGTH + length
    entries = _entries(file, file.head(end)[_LENGTH:])
    pairs = [_tensor(file, name, entry, end) for name, entry in entries.items()]
    for tensor, tensor_end in sorted(pairs, key=lambda pair: (pair[0].offset, pair[1])):
        if tensor.offset != end:
            defect = "shares bytes with another tensor"
            defect = defect if tensor.offset < end else "begins behind a hole"
            raise _damaged_error(file, f"'{tensor.label}' {defect}")
        end = tensor_end
        tensors[tensor.label] = tensor
    if end != file.size:
        defect = "truncated" if end > file.size else "too long"
        raise _damaged_error(file, f"{defect}: its tensors want {end:,} bytes, got {file.size:,}")
    return tensors


def _entries(file: Blob, header: bytes) -> dict[str, object]:
    try:
        content = json.loads(header.decode("utf-8"), object_pairs_hook=_unique)
    except RecursionError:
        raise _damaged_error(file, "its header is nested too deep") from None
    except ValueError as error:  # invalid UTF-8 or JSON, or duplicate names
        raise _damaged_error(file, f"its header is no JSON ({str(error)[:80]})") from None
    if not isinstance(content, dict):
        raise _damaged_error(file, "its header is no JSON object")
    return {name: entry for name, entry in content.items() if name != _METADATA}


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    by_name = dict(pairs)
    if len(by_name) < len(pairs):
        raise ValueError("a name stands twice")
    return by_name


def _tensor(file: Blob, name: str, entry: object, data_start: int) -> tuple[SafeTensor, int]:
    """Returns the tensor of a header's entry, and the offset of the byte after its last one.

    Raises an error if its bytes do not fit its type and shape.
    """
    if not isinstance(entry, dict) or not isinstance(entry.get("dtype"), str):
        raise _damaged_error(file, f"'{name[:80]}' is no tensor with a dtype")
    shape, offsets = _wholes(entry.get("shape")), _wholes(entry.get("data_offsets"))
    if shape is None or len(shape) > _MAX_RANK:
        raise _damaged_error(file, f"'{name[:80]}' has no shape of at most {_MAX_RANK} extents")
    if offsets is None or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _damaged_error(file, f"'{name[:80]}' has no data_offsets [begin, end]")
    tensor = SafeTensor(file, name, entry["dtype"], tuple(shape), data_start + offsets[0])
    size = offsets[1] - offsets[0]
    if tensor.type in _TYPES and size != (expected := tensor.header().data_bytes):
        mismatch = f"{tensor.type} {shape[:8]} takes {expected:,} bytes, it has {size:,}"
        raise _damaged_error(file, f"'{name[:80]}': {mismatch}")
    return tensor, data_start + offsets[1]


def _wholes(values: object) -> list[int] | None:
    """Returns the value as a list if it is a list of integers of 0 and more, else None."""
    if not isinstance(values, list) or not all(is_whole(n) and 0 <= n < 2**63 for n in values):
        return None
    return list(values)


def _similar_names(name: str, names: Iterable[str]) -> str:
    similar = similar_names(name, names, cutoff=0.4)
    return f" (near: '{similar[0]}')" if similar else ""


def _damaged_error(file: Blob, defect: str) -> TensorFileError:
    return TensorFileError(
        f"'{file.name}' is damaged or no safetensors file: {defect}: save or download it again"
    )
