"""Reads and writes ``.dat`` tensor files (NNEF 1.0.5, chapter 5): 128-byte header, all item types.

Sizes are checked against the file's real size before memory is allocated. Items whose width is a
multiple of 8 bits are little-endian. Other widths are packed without gaps, the most significant
bit first.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path, PurePosixPath
from typing import TypeAlias

import numpy as np

from cml_engine.errors import Source, TensorFileError
from cml_engine.io.atomic_write import write_atomically
from cml_engine.io.model_source import SourceFile
from cml_engine.io.output_folder import name_problem
from cml_engine.ir.block_weights import CODE_BITS, Blocks, scales_shape, weight_blocks
from cml_engine.ir.graph import Array, DType

HEADER_SIZE = 128
MAGIC = b"N\xef"
VERSION = (1, 0)
MAX_RANK = 8

#: tract's Q4_0 items: blocks of 32 values, a float16 scale and 16 bytes with two values of 4 bits
#: each. In the newer order a byte has values i and i + 16, in the older one 2i and 2i + 1.
_TRACT = int.from_bytes(b"RT", "little") << 16
_Q4_0, _Q4_0_PAIRS = _TRACT | 0x3040, _TRACT | 0x2040
_BLOCK, _BLOCK_BYTES = 32, 18
#: our items: the scales of all blocks as float32, then the codes of 8 or 4 bits in the order of the
#: values. The item's parameters are the axis of the blocks and their size.
_OURS = int.from_bytes(b"MC", "little") << 16 | 1

_HEADER = struct.Struct("<2s2BII8III32s44s")
_SIGNED = struct.Struct("<I")
_MIN_MAX = struct.Struct("<ff")
_AXIS_SIZE = struct.Struct("<II")


class ItemType(enum.IntEnum):
    """The interpretation of an item's bits in a tensor file."""

    FLOAT = 0
    UINT = 1
    QUANTIZED_UINT = 2
    QUANTIZED_INT = 3
    INT = 4
    BOOL = 5

    @property
    def is_quantized(self) -> bool:
        return self in (ItemType.QUANTIZED_UINT, ItemType.QUANTIZED_INT)

    @property
    def is_signed(self) -> bool:
        return self in (ItemType.INT, ItemType.QUANTIZED_INT)

    @property
    def shown(self) -> str:
        return self.name.lower().replace("_", " ")


@dataclass(frozen=True, slots=True)
class Header:
    """A tensor file's header: the shape, the type and width of items, and the bytes of the data.

    ``range`` is the deprecated min and max of quantised items. ``blocks`` is the code of a format
    with blocks of floats, or 0; ``axis`` and ``block_size`` describe our format's blocks.
    """

    data_bytes: int
    shape: tuple[int, ...]
    bits: int
    item: ItemType
    range: tuple[float, float] | None = None
    blocks: int = 0
    axis: int = 0
    block_size: int = _BLOCK

    @property
    def size(self) -> int:
        return prod(self.shape)

    def __str__(self) -> str:
        item = f"{self.item.shown}{self.bits}"
        if self.blocks:
            item = f"blocks of {self.bits} bits" if self.blocks == _OURS else "Q4_0"
        return f"{item} {list(self.shape)}"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as stored in its file: its header and its values, not dequantized."""

    header: Header
    values: Array


class MemoryBlob:
    """A file's bytes in memory, read like a :class:`SourceFile`."""

    offset = 0

    def __init__(self, data: bytes, name: str) -> None:
        self.data = data
        self.name = name
        self.size = len(data)

    def head(self, count: int) -> bytes:
        return self.data[:count]

    def array(self, offset: int, dtype: DType, count: int) -> Array:
        return np.frombuffer(self.data, dtype, count, offset)


#: A file's bytes, which can be read in parts. ``offset`` is their position in an archive, which is
#: fast only when read in order.
Blob: TypeAlias = SourceFile | MemoryBlob


def read_header(blob: Blob) -> Header:
    """Reads a tensor file's header and returns it.

    Raises an error if it is inconsistent or does not fit the file's size.
    """
    head = blob.head(HEADER_SIZE)
    if len(head) < HEADER_SIZE:
        raise _file_error(blob, f"wanted a header of {HEADER_SIZE} bytes, got {len(head)}")
    magic, major, minor, length, rank, *fields = _HEADER.unpack(head)
    if magic != MAGIC:
        raise _file_error(blob, f"wanted the magic bytes 4E EF, got {magic.hex(' ').upper()}")
    if (major, minor) != VERSION:
        raise _file_error(blob, f"version {major}.{minor} is unknown: wanted 1.0")
    if rank > MAX_RANK:
        raise _file_error(blob, f"rank {rank}: wanted at most {MAX_RANK}")
    shape, (bits, code, params, _) = tuple(fields[:rank]), fields[MAX_RANK:]
    if code in (_Q4_0, _Q4_0_PAIRS):
        header = Header(length, shape, 32, ItemType.FLOAT, blocks=code)
    elif code == _OURS:
        axis, size = _AXIS_SIZE.unpack_from(params)
        if bits not in CODE_BITS or axis >= rank or not size:
            description = f"blocks of {size} along axis {axis} of {rank}, with {bits} bits"
            raise _file_error(
                blob, f"{description}: wanted an axis, a size above 0, and 8 or 4 bits"
            )
        header = Header(length, shape, bits, ItemType.FLOAT, None, code, axis, size)
    else:
        item = _item(blob, code, params, bits)
        header = Header(length, shape, bits, item, _range(item, params))
    _check_size(blob, header)
    return header


def read_stored(blob: Blob, header: Header | None = None) -> StoredTensor:
    """Reads a tensor file and returns its header and values; a ``header`` given is not read again.

    The values have the nearest NumPy type: float16/32/64, (u)int8..64 or bool.
    """
    header = header or read_header(blob)
    values = _items(blob, header)
    return StoredTensor(header, values if weight_blocks(values) else values.reshape(header.shape))


def tensor_bytes(array: Array, bits: int | None = None, item: ItemType | None = None) -> bytes:
    """Returns an array as the bytes of a whole tensor file.

    By default floats and integers keep their width, and bools take 1 bit.
    """
    blocks = weight_blocks(array) if bits is None else None
    array = np.asarray(array)
    params = b""
    if blocks is not None:
        bits, code, params = blocks.bits, _OURS, _AXIS_SIZE.pack(blocks.axis, blocks.size)
        payload = _payload(blocks.scales, ItemType.FLOAT, 32)
        payload += _payload(blocks.codes, ItemType.INT, bits)
    else:
        code, bits = _stored_as(array, bits, item)
        payload = _payload(array, code, bits)
    extents = (*array.shape, *(0,) * (MAX_RANK - array.ndim))
    if max(len(payload), *extents) >= 2**32:
        raise TensorFileError(f"{len(payload):,} bytes: a tensor file holds less than 4 GiB")
    fields = (MAGIC, *VERSION, len(payload), array.ndim, *extents, bits, int(code), params, b"")
    return _HEADER.pack(*fields) + payload


def tensor_file_size(array: Array) -> int:
    """Returns the size in bytes of an array's tensor file, without making it."""
    if blocks := weight_blocks(array):
        return HEADER_SIZE + 4 * blocks.scales.size - (-array.size * blocks.bits // 8)
    return HEADER_SIZE - (-array.size * _stored_as(array)[1] // 8)


def write_tensor(
    path: Path, array: Array, bits: int | None = None, item: ItemType | None = None
) -> None:
    """Writes an array as a tensor file and creates the file's folder if needed.

    Examples
    --------
    >>> write_tensor(Path("net/filter.dat"), np.ones((4, 3, 3, 3), np.float32))
    """
    write_atomically(path, tensor_bytes(array, bits, item))


def _stored_as(
    array: Array, bits: int | None = None, item: ItemType | None = None
) -> tuple[ItemType, int]:
    """Returns the item type and the bits per item with which a file stores an array.

    ``bits`` and ``item`` override the defaults. Raises an error if the format cannot store it.
    """
    if array.ndim > MAX_RANK:
        raise TensorFileError(f"rank {array.ndim}: a tensor file holds at most {MAX_RANK}")
    item = _item_of(array.dtype) if item is None else item
    if bits is None:
        bits = 1 if item is ItemType.BOOL else 8 * array.dtype.itemsize
    _check_width(f"cannot write {array.dtype}", item, bits)
    return item, bits


def _item(blob: Blob, code: int, params: bytes, bits: int) -> ItemType:
    if code >> 16:
        raise TensorFileError(
            f"'{blob.name}' has items of the type {code & 0xFFFF:#x} of the vendor "
            f"{code >> 16:#x}, which are not supported: export it with NNEF's types or tract's Q4_0"
        )
    try:
        item = ItemType(code)
    except ValueError:
        raise _file_error(blob, f"item type {code} is unknown: wanted 0 to 5") from None
    if item is ItemType.UINT and _SIGNED.unpack_from(params)[0]:
        item = ItemType.INT
    _check_width(f"'{blob.name}' is damaged", item, bits)
    return item


def _check_width(problem: str, item: ItemType, bits: int) -> None:
    widths = {ItemType.FLOAT: (16, 32, 64), ItemType.BOOL: (1, 8)}.get(item, range(1, 65))
    if bits not in widths:
        expected = "1 to 64" if isinstance(widths, range) else " or ".join(map(str, widths))
        raise TensorFileError(f"{problem}: {item.shown} of {bits} bits: wanted {expected}")


def _range(item: ItemType, params: bytes) -> tuple[float, float] | None:
    low, high = _MIN_MAX.unpack_from(params)
    return (low, high) if item.is_quantized and low < high else None


def _check_size(blob: Blob, header: Header) -> None:
    data_bytes = -(-header.size * header.bits // 8)
    if header.blocks == _OURS:
        data_bytes += 4 * prod(scales_shape(header.shape, header.axis, header.block_size))
    elif header.blocks:
        if header.size % _BLOCK:
            raise _file_error(blob, f"{header}: wanted a multiple of {_BLOCK} values")
        data_bytes = header.size // _BLOCK * _BLOCK_BYTES
    if header.data_bytes != data_bytes:
        raise _file_error(blob, f"{header} takes {data_bytes:,} bytes, but the header says "
                         f"{header.data_bytes:,}")  # fmt: skip
    total = HEADER_SIZE + data_bytes
    if blob.size != total:
        defect = "truncated" if blob.size < total else "too long"
        raise _file_error(blob, f"{defect}: {header} wants {total:,} bytes, got {blob.size:,}")


def _items(blob: Blob, header: Header) -> Array:
    bits, item, count = header.bits, header.item, header.size
    if header.blocks == _OURS:
        return _read_blocks(blob, header).values()
    if header.blocks:
        return _read_q4_0(blob, header)
    if item is not ItemType.BOOL and (item is ItemType.FLOAT or bits in (8, 16, 32, 64)):
        dtype_kind = "f" if item is ItemType.FLOAT else "i" if item.is_signed else "u"
        return blob.array(HEADER_SIZE, np.dtype(f"<{dtype_kind}{bits // 8}"), count)
    packed = blob.array(HEADER_SIZE, np.dtype(np.uint8), header.data_bytes)
    if item is ItemType.BOOL:
        return np.unpackbits(packed, count=count).view(bool) if bits == 1 else packed != 0
    return unpack(packed, bits, count, item.is_signed)


def _read_blocks(blob: Blob, header: Header) -> Blocks:
    shape = scales_shape(header.shape, header.axis, header.block_size)
    scales = blob.array(HEADER_SIZE, np.dtype("<f4"), prod(shape)).reshape(shape)
    offset, count = HEADER_SIZE + scales.nbytes, header.data_bytes - scales.nbytes
    codes = blob.array(offset, np.dtype(np.int8), count)
    if header.bits != 8:
        codes = unpack(codes.view(np.uint8), header.bits, header.size, signed=True).astype(np.int8)
    size = min(header.block_size, max(header.shape[header.axis], 1))
    return Blocks(codes.reshape(header.shape), scales, header.axis, size, header.bits)


def _read_q4_0(blob: Blob, header: Header) -> Array:
    """Returns a file's Q4_0 items; blocks that lie within rows stay blocks."""
    data = blob.array(HEADER_SIZE, np.dtype(np.uint8), header.data_bytes).reshape(-1, _BLOCK_BYTES)
    scales = np.ascontiguousarray(data[:, :2]).view("<f2").astype(np.float32)
    low, high = data[:, 2:] & 15, data[:, 2:] >> 4
    is_paired = header.blocks == _Q4_0_PAIRS
    codes = np.stack((low, high), -1 if is_paired else 1).reshape(-1, _BLOCK).astype(np.int8) - 8
    if header.shape[-1:] and header.shape[-1] % _BLOCK == 0:
        shape = (*header.shape[:-1], -1)
        axis = len(header.shape) - 1
        return Blocks(codes.reshape(header.shape), scales.reshape(shape), axis, _BLOCK, 4).values()
    return np.asarray(codes * scales)


def _item_of(dtype: DType) -> ItemType:
    items = {"f": ItemType.FLOAT, "u": ItemType.UINT, "i": ItemType.INT, "b": ItemType.BOOL}
    if dtype.kind not in items:
        raise TensorFileError(f"a tensor file cannot hold {dtype}: convert it to float32")
    return items[dtype.kind]


def _payload(array: Array, item: ItemType, bits: int) -> bytes:
    flat = np.ascontiguousarray(array).reshape(-1)
    if item is ItemType.BOOL:
        logical = flat.astype(bool)
        return (np.packbits(logical) if bits == 1 else logical.view(np.uint8)).tobytes()
    if item is ItemType.FLOAT:
        with np.errstate(over="ignore"):
            return flat.astype(f"<f{bits // 8}").tobytes()
    _check_fits(flat, bits, item.is_signed)
    if bits in (8, 16, 32, 64):
        return flat.astype(f"<{'i' if item.is_signed else 'u'}{bits // 8}").tobytes()
    return pack(flat, bits).tobytes()


def _check_fits(flat: Array, bits: int, signed: bool) -> None:
    if flat.dtype.kind not in "iu":
        raise TensorFileError(f"integer items want an integer array, got {flat.dtype}")
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    if flat.size and not (low <= int(flat.min()) and int(flat.max()) <= high):
        raise TensorFileError(f"values {flat.min()} to {flat.max()} do not fit in {bits} bits")


def _file_error(blob: Blob, message: str) -> TensorFileError:
    return TensorFileError(f"'{blob.name}' is damaged: {message}: export it again")


GRAPH_FILE = "graph.nnef"
QUANT_FILE = "graph.quant"


def tensor_file_name(label: str, source: Source | None = None) -> str:
    """Returns the path of a label's tensor file (``.dat``) relative to the model's folder.

    Raises :class:`TensorFileError` if the label leads out of the folder.
    """
    name = label.lstrip("/")
    if problem := name_problem(name):
        raise TensorFileError(
            f"label {label[:80]!r} {problem}: wanted a path inside the model's folder", source
        )
    return f"{PurePosixPath(name)}.dat"


#: The items unpacked at a time, one byte per bit; a multiple of 8, so that chunks end at bytes.
_CHUNK = 1 << 17


def unpack(packed: Array, bits: int, count: int, signed: bool) -> Array:
    """Returns ``count`` integers of ``bits`` bits, unpacked from an array of bytes.

    They are int64 if ``signed``, else uint64.
    """
    values = np.empty(count, np.uint64)
    for start in range(0, count, _CHUNK):
        stop = min(start + _CHUNK, count)
        part = packed[start * bits // 8 : -(-stop * bits // 8)]
        values[start:stop] = _unpack_chunk(part, bits, stop - start)
    if not signed:
        return values
    top = np.int64(1 << (bits - 1)) if bits < 64 else np.int64(-(2**63))
    return (values.view(np.int64) ^ top) - top


def pack(values: Array, bits: int) -> Array:
    """Returns the low ``bits`` bits of each integer, packed into an array of bytes."""
    unsigned = values.astype(np.int64 if values.dtype.kind == "i" else np.uint64).view(np.uint64)
    parts = [
        _pack_chunk(unsigned[start : start + _CHUNK], bits)
        for start in range(0, len(unsigned), _CHUNK)
    ]
    return np.concatenate(parts) if parts else np.empty(0, np.uint8)


def _unpack_chunk(packed: Array, bits: int, count: int) -> Array:
    if bits % 8 == 0:
        table = packed.reshape(count, bits // 8).astype(np.uint64)
        shifts = np.arange(0, bits, 8, dtype=np.uint64)
    else:
        table = np.unpackbits(packed, count=count * bits).reshape(count, bits).astype(np.uint64)
        shifts = np.arange(bits - 1, -1, -1, dtype=np.uint64)
    return np.asarray(np.bitwise_or.reduce(table << shifts, axis=1))


def _pack_chunk(values: Array, bits: int) -> Array:
    if bits % 8 == 0:
        shifts = np.arange(0, bits, 8, dtype=np.uint64)
        return (values[:, None] >> shifts).astype(np.uint8).reshape(-1)
    shifts = np.arange(bits - 1, -1, -1, dtype=np.uint64)
    table = ((values[:, None] >> shifts) & np.uint64(1)).astype(np.uint8)
    return np.packbits(table.reshape(-1))
