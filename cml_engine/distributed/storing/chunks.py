"""A chunk in a folder of this machine, read and written to the byte as Zarr does.

Zarr hands each array to its own thread, and each codec's work to another one: half a millisecond of
a processor for each array, whatever its size, and a tile has eight.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from cml_engine.distributed.work import Array
from cml_engine.files.atomic_write import replace_file

#: chunks of an array lie in its folder, ``c.3.7.0.0``. As Zarr has it by itself each number is a
#: folder: twenty for a tile, which take most of the time of its write, and more room than the tile
KEYS = {"name": "default", "separator": "."}
_LEVEL = 1
#: bytes of a CRC32C
_CHECKSUM = 4


def codecs_of(packed: bool) -> list[Any]:
    """How an array's chunks become bytes, in Zarr's words: a checksum, and Zstandard before it
    where they are ``packed``."""
    from zarr.codecs import Crc32cCodec, ZstdCodec

    return [*([ZstdCodec(level=_LEVEL)] if packed else []), Crc32cCodec()]


def write_chunk(file: Path, values: Array, packed: bool = True) -> None:
    """Write a whole chunk. Zarr has no file of a chunk of zeros: its absence says so."""
    data = np.ascontiguousarray(values, values.dtype.newbyteorder("<")).reshape(-1).view(np.uint8)
    if not data.any():
        file.unlink(missing_ok=True)
        return
    content = _encoded(data, packed)
    try:
        replace_file(file, content)
    except FileNotFoundError:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, content)


def read_chunk(file: Path, shape: tuple[int, ...], dtype: Any, packed: bool = True) -> Array:
    """A whole chunk; some error where it is damaged."""
    from numcodecs import Zstd

    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return np.zeros(shape, dtype)
    data, checksum = content[:-_CHECKSUM], content[-_CHECKSUM:]
    if _checksum(data) != checksum:
        raise ValueError(f"'{file}' has another checksum")
    stored = np.dtype(dtype).newbyteorder("<")
    if not packed:
        return np.frombuffer(data, stored).reshape(shape).astype(dtype)
    values = np.zeros(shape, stored)  # the codec refuses a chunk that unpacks to more than this
    Zstd().decode(data, values.reshape(-1).view(np.uint8))
    return values.astype(dtype, copy=False)


def _encoded(data: Array, packed: bool) -> bytes:
    from numcodecs import Zstd

    found = bytes(Zstd(level=_LEVEL).encode(data) if packed else data)
    return found + _checksum(found)


def _checksum(data: bytes) -> bytes:
    import google_crc32c

    found: int = google_crc32c.value(data)
    return found.to_bytes(_CHECKSUM, "little")
