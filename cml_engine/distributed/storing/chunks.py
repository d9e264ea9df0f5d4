"""A chunk in a folder of this machine, read and written to the byte as Zarr does.

Zarr hands each array to its own thread, and each codec's work to another one: half a millisecond of
a processor for each array, whatever its size, and a tile has eight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cml_engine.distributed.work import Array
from cml_engine.errors import InputError
from cml_engine.files.atomic_write import replace_file

#: chunks of an array lie in its folder, ``c.3.7.0.0``. As Zarr has it by itself each number is a
#: folder: twenty for a tile, which take most of the time of its write, and more room than the tile
KEYS = {"name": "default", "separator": "."}
_LEVEL = 1
#: codecs that turn bytes into numbers and do nothing else
_CODECS = frozenset(
    "bytes transpose sharding_indexed crc32c crc32 adler32 fletcher32 zstd gzip zlib bz2 lzma lz4 "
    "blosc shuffle delta".split()
)
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


def check_array(array: Any, place: str) -> None:
    """Raises ``InputError`` for a Zarr array that holds anything but numbers, or whose codecs are
    not among those that only compute: some codecs run programs out of the chunks.

    Parameters
    ----------
    array : an open Zarr array; nothing of its chunks was read yet.
    place : its name in the message.
    """
    kind = np.dtype(array.dtype).kind
    if kind not in "biuf":
        raise InputError(f"'{place}' holds items of type {array.dtype}: wanted numbers")
    refused = sorted(set(_codec_names(array.metadata.to_dict())) - _CODECS)
    if refused:
        raise InputError(
            f"'{place}' is stored with the codec {', '.join(map(repr, refused))}, which is refused "
            f"in files from elsewhere. Store it with some of {', '.join(sorted(_CODECS))}"
        )


def _codec_names(metadata: Mapping[str, Any]) -> Iterator[str]:
    """Returns the names of all codecs in an array's metadata, of Zarr's format 2 or 3."""
    for codec in (*(metadata.get("filters") or ()), metadata.get("compressor")):
        if codec is not None:
            yield str(codec["id"] if isinstance(codec, Mapping) else codec.codec_id)
    for codec in (*metadata.get("codecs", ()), *metadata.get("index_codecs", ())):
        yield str(codec["name"])
        yield from _codec_names(codec.get("configuration") or {})


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
