"""Packs integers of 1 to 64 bits into bytes, and unpacks them.

Widths of whole bytes are little-endian. Other widths form one bit stream, the most significant
bit first.
"""

from __future__ import annotations

import numpy as np

from cml_engine.ir.graph import Array

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
    found: Array = np.bitwise_or.reduce(table << shifts, axis=1)
    return found


def _pack_chunk(values: Array, bits: int) -> Array:
    if bits % 8 == 0:
        shifts = np.arange(0, bits, 8, dtype=np.uint64)
        return (values[:, None] >> shifts).astype(np.uint8).reshape(-1)
    shifts = np.arange(bits - 1, -1, -1, dtype=np.uint64)
    table = ((values[:, None] >> shifts) & np.uint64(1)).astype(np.uint8)
    return np.packbits(table.reshape(-1))
