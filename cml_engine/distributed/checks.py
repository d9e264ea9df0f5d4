"""Checks Zarr arrays from untrusted files before Zarr reads them.

Some codecs execute code that is stored in the chunks, and a compressed chunk can unpack to any
amount of memory. An array must therefore hold numbers, use only known codecs, and have chunks
that unpack to no more than the chunk shape needs.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from cml_engine.errors import InputError

if TYPE_CHECKING:
    from zarr import Array as ZarrArray

#: codecs that compress, and codecs that keep a chunk's size apart from a checksum
_PACKING = frozenset("zstd gzip zlib lz4 blosc".split())
_KEEPING = frozenset("bytes transpose crc32c crc32 adler32 fletcher32 shuffle delta".split())
_SHARDS = "sharding_indexed"
_CODECS = _PACKING | _KEEPING | {_SHARDS}
#: the most bytes of checksums in a chunk
_SLACK = 64
_ABSENT = 2**64 - 1


def check_array(array: ZarrArray, place: str) -> None:
    """Raises ``InputError`` for a Zarr array with non-numeric items or refused codecs.

    A codec is refused if it is unknown, or the second one that compresses.

    Parameters
    ----------
    array : an open Zarr array, before any of its chunks is read.
    place : the array's name in the message.
    """
    kind = np.dtype(array.dtype).kind
    if kind not in "biuf":
        raise InputError(f"'{place}' holds items of type {array.dtype}: wanted numbers")
    names = list(_codec_names(array.metadata.to_dict()))
    refused = sorted(set(names) - _CODECS)
    if refused:
        raise InputError(
            f"'{place}' is stored with the codec {', '.join(map(repr, refused))}, which is refused "
            f"in files from elsewhere. Store it with some of {', '.join(sorted(_CODECS))}"
        )
    if sum(name in _PACKING for name in names) > 1:
        raise InputError(f"'{place}' is compressed twice: store it with one compressing codec")


def _codec_names(metadata: Mapping[str, Any]) -> Iterator[str]:
    """Yields the names of all codecs in an array's metadata, nested ones too (Zarr 2 or 3)."""
    for codec in (*(metadata.get("filters") or ()), metadata.get("compressor")):
        if codec is not None:
            yield str(codec["id"] if isinstance(codec, Mapping) else codec.codec_id)
    for codec in (*metadata.get("codecs", ()), *metadata.get("index_codecs", ())):
        yield str(codec["name"])
        yield from _codec_names(codec.get("configuration") or {})


def check_chunk(array: ZarrArray, at: Sequence[int]) -> None:
    """Raises ``InputError`` if the chunk at position ``at`` unpacks to more than its shape needs.

    ``array`` must have passed :func:`check_array`. A missing chunk passes.
    """
    from zarr.core.sync import sync

    metadata = array.metadata.to_dict()
    codecs = metadata.get("codecs", ())
    shard: Mapping[str, Any] = {}
    if codecs and codecs[0]["name"] == _SHARDS:
        shard, codecs = codecs[0]["configuration"], codecs[0]["configuration"]["codecs"]
    inside = tuple(n // size for n, size in zip(array.shards or (), array.chunks, strict=False))
    place = [i // n for i, n in zip(at, inside, strict=True)] if shard else at
    found = sync((array.store_path / array.metadata.encode_chunk_key(tuple(place))).get())
    if found is None:  # a missing chunk holds the array's fill value
        return
    data = memoryview(found.to_bytes())
    if shard:
        data = _shard_chunk(data, shard, inside, [i % n for i, n in zip(at, inside, strict=True)])
    names = list(_codec_names({**metadata, "codecs": codecs}))
    limit = prod(array.chunks) * np.dtype(array.dtype).itemsize + _SLACK
    packing = next((name for name in names if name in _PACKING), None)
    size = len(data) if packing is None else _SIZES[packing](data, limit)
    if size > limit:
        raise InputError(
            f"it unpacks to {size:,} bytes or more; its shape takes {limit - _SLACK:,}"
        )


def _shard_chunk(
    data: memoryview, shard: Mapping[str, Any], inside: Sequence[int], at: Sequence[int]
) -> memoryview:
    """Returns the still compressed bytes of one chunk of a shard; no bytes if the shard lacks it.

    ``inside`` is the number of chunks in a shard along each axis, ``at`` the chunk's position in
    it.
    """
    names = [codec["name"] for codec in shard["index_codecs"]]
    if names[:1] != ["bytes"] or set(names[1:]) > {"crc32c"}:
        raise InputError(f"its shards have an index in the codecs {', '.join(names)}: wanted bytes")
    size = 16 * prod(inside)
    in_front = shard.get("index_location") == "start"
    start = 0 if in_front else len(data) - size - 4 * (len(names) - 1)
    index = np.frombuffer(data[max(start, 0) :][:size], "<u8").reshape(*inside, 2)
    offset, nbytes = (int(n) for n in index[tuple(at)])
    return data[:0] if offset == _ABSENT else data[offset : offset + nbytes]


def _zlib_size(data: memoryview, limit: int) -> int:
    """Returns the unpacked size of all members of a zlib or gzip stream.

    Stops unpacking one byte past ``limit``.
    """
    size, rest = 0, bytes(data)
    while rest and size <= limit:
        unpacker = zlib.decompressobj(47)  # zlib's or gzip's header
        size += len(unpacker.decompress(rest, limit + 1 - size))
        rest = unpacker.unused_data
    return size


def _zstd_size(data: memoryview, limit: int) -> int:
    """Returns the unpacked size that the header of a Zstandard frame states (RFC 8878, 3.1.1.1).

    Returns ``limit + 1`` if the header does not state the size.
    """
    kind = data[4] if len(data) > 4 else 0
    is_single = kind >> 5 & 1
    nbytes = (is_single, 2, 4, 8)[kind >> 6]
    start = 5 + (not is_single) + (0, 1, 2, 4)[kind & 3]
    stated = int.from_bytes(data[start : start + nbytes], "little") + 256 * (nbytes == 2)
    return stated if nbytes else limit + 1


_SIZES: Mapping[str, Any] = {
    "gzip": _zlib_size,
    "zlib": _zlib_size,
    "zstd": _zstd_size,
    "lz4": lambda data, limit: int.from_bytes(data[:4], "little"),
    "blosc": lambda data, limit: int.from_bytes(data[4:8], "little"),
}
