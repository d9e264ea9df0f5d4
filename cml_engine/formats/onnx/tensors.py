"""Reads ONNX's tensors: finds their values in the files and decodes them to NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from cml_engine.errors import CmlError, ModelError, TensorFileError, UnsupportedOp
from cml_engine.formats.onnx.protobuf import Field, Message
from cml_engine.io.model_source import (
    ModelSource,
    OutsideModelError,
    SourceFile,
    file_size,
    has_file,
    inner_name,
)
from cml_engine.ir.graph import Array, DType, can_be_shape
from cml_engine.nnef.files.weights import RandomWeights, use_by_shape

#: ONNX's names of element types by number
ELEMENT_TYPES: Mapping[int, str] = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64",
    8: "string", 9: "bool", 10: "float16", 11: "float64", 12: "uint32", 13: "uint64",
    14: "complex64", 15: "complex128", 16: "bfloat16", 17: "float8e4m3fn", 18: "float8e4m3fnuz",
    19: "float8e5m2", 20: "float8e5m2fnuz", 21: "uint4", 22: "int4", 23: "float4e2m1",
    24: "float8e8m0", 25: "uint2", 26: "int2",
}  # fmt: skip

#: the element types that NumPy has
_NUMPY: Mapping[str, DType] = {
    name: np.dtype(name)
    for name in (
        *("float16", "float32", "float64", "bool"),
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    )
}
#: the element types that NumPy lacks, and the types that store them
_HELD_AS: Mapping[str, DType] = {
    "bfloat16": np.dtype(np.float32),
    "uint4": np.dtype(np.uint8, metadata={"bits": 4}),
    "int4": np.dtype(np.int8, metadata={"bits": 4}),
}

_EXTERNAL = 1
#: the fields with values of their own type: float, int32, int64, double, uint64
_TYPED = (4, 5, 7, 10, 11)


def type_name(element: int) -> str:
    return ELEMENT_TYPES.get(element, f"type {element}")


def element_dtype(element: int) -> DType | None:
    """Returns the NumPy type that stores the ONNX element type of a number, or None.

    That of 4-bit integers has 8 bits; :func:`bits_of` tells them apart.
    """
    name = ELEMENT_TYPES.get(element, "")
    return _HELD_AS.get(name) or _NUMPY.get(name)


def bits_of(dtype: DType) -> int:
    """Returns the bits of the ONNX type that a NumPy type of :func:`element_dtype` stores."""
    return int(dtype.metadata["bits"]) if dtype.metadata else 8 * dtype.itemsize


class ExternalData:
    """Access to the files beside a model that hold values of its tensors.

    With a source of None there are no files. ``random`` makes values for missing files.
    """

    def __init__(self, source: ModelSource | None, random: RandomWeights | None = None) -> None:
        self._source = source
        self._random = random
        self.uses: Mapping[str, str | float] = {}
        self._files: dict[str, SourceFile] = {}
        self._spans: dict[tuple[str, int, int], memoryview] = {}

    def file(self, location: str, tensor: str) -> SourceFile:
        """Returns the file at a location, opened but not read; ``tensor`` is named in errors."""
        if location not in self._files:
            self._files[location] = self._find_file(location, tensor)
        return self._files[location]

    def span(self, file: SourceFile, offset: int, length: int) -> memoryview:
        """Returns ``length`` bytes of a file from ``offset`` on; each span is read once."""
        key = file.name, offset, length
        if key not in self._spans:
            self._spans[key] = file.span(offset, length)
        return self._spans[key]

    def random(self, tensor: OnnxTensor) -> Array | None:
        """Returns random values for a tensor of floats whose file is missing.

        Returns None for other tensors, and if no random values were requested.
        """
        if self._random is None or tensor.external is None:
            return None
        if self._source and has_file(self._source, tensor.external.get("location", "")):
            return None
        dtype = element_dtype(tensor.element)
        if dtype is None or dtype.kind != "f":
            return None
        use = self.uses.get(tensor.name, use_by_shape(tensor.shape))
        return self._random.array(tensor.name, tensor.shape, "scalar", use).astype(dtype)

    def _find_file(self, location: str, tensor: str) -> SourceFile:
        if self._source is None:
            raise TensorFileError(
                f"the values of '{tensor}' are in the file '{location}', and the model was given "
                "as bytes: give its path, or a cml.ModelSource that has both"
            )
        place = f"'{tensor}' has its values in '{location}'"
        try:
            name = inner_name(location)
            file = None if file_size(self._source, name) is None else self._open(name)
        except OutsideModelError:
            raise TensorFileError(
                f"the values of '{tensor}' are in '{location}', which is not in the model's "
                f"folder '{self._source.name}': put them there"
            ) from None
        except CmlError as error:
            raise type(error)(f"{place}: {error.message}") from error.__cause__
        if file is None:
            raise TensorFileError(
                f"{place}, which is not in '{self._source.name}': put that file beside the model, "
                "for models above 2 GB have their weights in one, or look at what it costs without "
                "(--random-weights)"
            )
        return file

    def _open(self, name: str) -> SourceFile:
        assert self._source is not None
        file = SourceFile(self._source, name)
        file.check_content()  # a tensor may be anywhere in the file
        return file


@dataclass(frozen=True, slots=True)
class OnnxTensor:
    """A tensor of an ONNX file whose values are not decoded yet.

    They are in ``raw``, in the fields ``typed``, or in an ``external`` file.
    """

    name: str
    shape: tuple[int, ...]
    element: int
    file: str
    folder: ExternalData
    raw: memoryview | None = None
    typed: Mapping[int, Sequence[Field]] = field(default_factory=dict)
    external: Mapping[str, str] | None = None

    @property
    def type_name(self) -> str:
        return type_name(self.element)

    def values(self) -> Array:
        """Decodes the values and returns them as an array; types that NumPy lacks are widened.

        If the external file is missing, the values may be random.
        """
        dtype = element_dtype(self.element)
        if dtype is None:
            raise UnsupportedOp(
                f"'{self.file}': the tensor '{self.name}' is of {self.type_name}: "
                "wanted floats, integers or truth values"
            )
        if (random := self.folder.random(self)) is not None:
            return random
        count = prod(self.shape)
        data = self._bytes()
        if data is not None:
            flat = _from_bytes(data, self, count)
        else:
            flat = _from_fields(self, dtype)
        if flat.size != count:
            raise self.damaged(f"{flat.size:,} values for the shape {list(self.shape)}")
        return flat.astype(dtype, copy=False).view(dtype).reshape(self.shape)

    def _bytes(self) -> memoryview | None:
        if self.external is None:
            return self.raw
        file = self.folder.file(self.external.get("location", ""), self.name)
        offset = _parse_integer(self.external.get("offset", "0"), self)
        length = _parse_integer(self.external.get("length", str(max(file.size - offset, 0))), self)
        if offset + length > file.size:
            location = self.external.get("location", "")
            raise TensorFileError(
                f"'{location}' is truncated: '{self.name}' wants {length:,} bytes at {offset:,}, "
                f"the file has {file.size:,}"
            )
        return self.folder.span(file, offset, length)

    def damaged(self, defect: str) -> ModelError:
        return TensorFileError(
            f"'{self.file}': the tensor '{self.name}' has {defect}: export or download it again"
        )


def read_tensor(message: Message, folder: ExternalData) -> OnnxTensor:
    """Returns the tensor of a ``TensorProto`` message, without decoding its values."""
    parts = message.parts()
    dims = [extent for f in parts.of(1) for extent in f.listed()]
    name, raw = parts.text(8), [f.view() for f in parts.of(9)]
    if not can_be_shape(dims):
        raise message.damaged(f"the tensor '{name}' has the shape {dims[:8]}")
    return OnnxTensor(
        name=name,
        shape=tuple(dims),
        element=parts.whole(2),
        file=message.file,
        folder=folder,
        raw=raw[-1] if raw else None,
        typed={number: parts.of(number) for number in _TYPED},
        external=dict(map(_entry, parts.nested(13))) if parts.whole(14) == _EXTERNAL else None,
    )


def _entry(message: Message) -> tuple[str, str]:
    parts = message.parts()
    return parts.text(1), parts.text(2)


def _parse_integer(text: str, tensor: OnnxTensor) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise tensor.damaged(f"the offset or length '{text[:20]}'")
    return int(text)


def _from_bytes(data: memoryview, tensor: OnnxTensor, count: int) -> Array:
    """Returns ``count`` values, decoded from little-endian bytes, as a flat array.

    Four-bit numbers are two per byte, the lower half first.
    """
    element = tensor.type_name
    if element in ("uint4", "int4"):
        if len(data) != (count + 1) // 2:
            raise tensor.damaged(f"{len(data):,} bytes for {count:,} values of {element}")
        return _nibbles(np.frombuffer(data, np.uint8), element)[:count]
    stored_dtype = np.dtype("<u2") if element == "bfloat16" else _NUMPY[element].newbyteorder("<")
    if len(data) != count * stored_dtype.itemsize:
        raise tensor.damaged(f"{len(data):,} bytes for {count:,} values of {element}")
    flat = np.frombuffer(data, stored_dtype)
    return _widen_bfloat16(flat) if element == "bfloat16" else flat


def _from_fields(tensor: OnnxTensor, dtype: DType) -> Array:
    """Returns the values in the ``TensorProto`` field of the tensor's type as a flat array.

    Small types are stored in ``int32_data``, 16-bit floats as their bits.
    """
    element = tensor.type_name
    number = {"float32": 4, "float64": 10, "int64": 7, "uint64": 11, "uint32": 11}.get(element, 5)
    parts = tensor.typed.get(number, ())
    if number in (4, 10):
        reals = [f.numbers("<f4" if number == 4 else "<f8") for f in parts]
        return np.concatenate(reals) if reals else np.zeros(0, dtype)
    signed = np.concatenate([np.zeros(0, np.int64), *(part.wholes() for part in parts)])
    unsigned = signed.view(np.uint64)
    if number == 5:
        unsigned = unsigned & np.uint64(0xFFFFFFFF)
    if element == "bfloat16":
        return _widen_bfloat16(unsigned.astype(np.uint16))
    if element == "float16":
        return unsigned.astype(np.uint16).view(np.float16)
    if element in ("uint4", "int4"):
        return _nibbles(unsigned.astype(np.uint8), element)[: prod(tensor.shape)]
    return unsigned.astype(dtype)


def _widen_bfloat16(bits: Array) -> Array:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _nibbles(data: Array, type_name: str) -> Array:
    values = np.stack([data & 15, data >> 4], axis=-1).reshape(-1)
    if type_name == "uint4":
        return values
    return ((values.astype(np.int8) + 8) % 16 - 8).astype(np.int8)
