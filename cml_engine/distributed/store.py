"""A Zarr store of a bake's layers, with a checksum record for each unit.

In a local folder, chunks are read and written directly, byte for byte as Zarr does. Zarr runs
each array and each codec in separate threads, which costs half a millisecond of CPU time per
array; a tile has eight arrays. Arrays of untrusted files are checked before Zarr reads them.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import re
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from cml_engine.distributed.work import Cell, Layer, Unit
from cml_engine.errors import InputError
from cml_engine.io.atomic_write import replace_file
from cml_engine.ir.graph import Array

if TYPE_CHECKING:
    from zarr import Array as ZarrArray
    from zarr import Group

#: codecs that compress, and codecs that keep a chunk's size apart from a checksum
_PACKING = frozenset("zstd gzip zlib lz4 blosc".split())
_KEEPING = frozenset("bytes transpose crc32c crc32 adler32 fletcher32 shuffle delta".split())
_SHARDS = "sharding_indexed"
_CODECS = _PACKING | _KEEPING | {_SHARDS}
#: the most bytes of checksums in a chunk
_SLACK = 64
_ABSENT = 2**64 - 1


def check_array(array: ZarrArray, path: str) -> None:
    """Raises ``InputError`` for a Zarr array with non-numeric items or refused codecs.

    A codec is refused if it is unknown, or the second one that compresses.

    Parameters
    ----------
    array : an open Zarr array, before any of its chunks is read.
    path : the array's path in the message.
    """
    dtype_kind = np.dtype(array.dtype).kind
    if dtype_kind not in "biuf":
        raise InputError(f"'{path}' holds items of type {array.dtype}: wanted numbers")
    names = list(_codec_names(array.metadata.to_dict()))
    refused_codecs = sorted(set(names) - _CODECS)
    if refused_codecs:
        raise InputError(
            f"'{path}' is stored with the codec {', '.join(map(repr, refused_codecs))}, which is "
            f"refused in files from elsewhere. Store it with some of {', '.join(sorted(_CODECS))}"
        )
    if sum(name in _PACKING for name in names) > 1:
        raise InputError(f"'{path}' is compressed twice: store it with one compressing codec")


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
    chunks_per_shard = tuple(
        n // size for n, size in zip(array.shards or (), array.chunks, strict=False)
    )
    position = [i // n for i, n in zip(at, chunks_per_shard, strict=True)] if shard else at
    buffer = sync((array.store_path / array.metadata.encode_chunk_key(tuple(position))).get())
    if buffer is None:  # a missing chunk holds the array's fill value
        return
    data = memoryview(buffer.to_bytes())
    if shard:
        data = _shard_chunk(
            data,
            shard,
            chunks_per_shard,
            [i % n for i, n in zip(at, chunks_per_shard, strict=True)],
        )
    names = list(_codec_names({**metadata, "codecs": codecs}))
    limit = prod(array.chunks) * np.dtype(array.dtype).itemsize + _SLACK
    packing = next((name for name in names if name in _PACKING), None)
    size = len(data) if packing is None else _SIZES[packing](data, limit)
    if size > limit:
        raise InputError(
            f"it unpacks to {size:,} bytes or more; its shape takes {limit - _SLACK:,}"
        )


def _shard_chunk(
    data: memoryview, shard: Mapping[str, Any], chunks_per_shard: Sequence[int], at: Sequence[int]
) -> memoryview:
    """Returns the still compressed bytes of one chunk of a shard; no bytes if the shard lacks it.

    ``chunks_per_shard`` is the number of chunks in a shard along each axis, ``at`` the chunk's
    position in it.
    """
    names = [codec["name"] for codec in shard["index_codecs"]]
    if names[:1] != ["bytes"] or set(names[1:]) > {"crc32c"}:
        raise InputError(f"its shards have an index in the codecs {', '.join(names)}: wanted bytes")
    size = 16 * prod(chunks_per_shard)
    is_index_first = shard.get("index_location") == "start"
    start = 0 if is_index_first else len(data) - size - 4 * (len(names) - 1)
    index = np.frombuffer(data[max(start, 0) :][:size], "<u8").reshape(*chunks_per_shard, 2)
    offset, nbytes = (int(n) for n in index[tuple(at)])
    return data[:0] if offset == _ABSENT else data[offset : offset + nbytes]


def _zlib_size(data: memoryview, limit: int) -> int:
    """Returns the unpacked size of all members of a zlib or gzip stream.

    Stops unpacking one byte past ``limit``.
    """
    size, packed = 0, bytes(data)
    while packed and size <= limit:
        unpacker = zlib.decompressobj(47)  # zlib's or gzip's header
        size += len(unpacker.decompress(packed, limit + 1 - size))
        packed = unpacker.unused_data
    return size


def _zstd_size(data: memoryview, limit: int) -> int:
    """Returns the unpacked size that the header of a Zstandard frame states (RFC 8878, 3.1.1.1).

    Returns ``limit + 1`` if the header does not state the size.
    """
    descriptor = data[4] if len(data) > 4 else 0
    is_single = descriptor >> 5 & 1
    nbytes = (is_single, 2, 4, 8)[descriptor >> 6]
    start = 5 + (not is_single) + (0, 1, 2, 4)[descriptor & 3]
    size = int.from_bytes(data[start : start + nbytes], "little") + 256 * (nbytes == 2)
    return size if nbytes else limit + 1


_SIZES: Mapping[str, Callable[[memoryview, int], int]] = {
    "gzip": _zlib_size,
    "zlib": _zlib_size,
    "zstd": _zstd_size,
    "lz4": lambda data, limit: int.from_bytes(data[:4], "little"),
    "blosc": lambda data, limit: int.from_bytes(data[4:8], "little"),
}


# -- store ----------------------------------------------------------------------------------------

#: names chunks ``c.3.7.0.0``, in the array's folder. Zarr's default makes a folder of each number:
#: twenty per tile, which take most of the write time and more space than the tile
KEYS = {"name": "default", "separator": "."}
_LEVEL = 1
#: bytes of a CRC32C
_CHECKSUM = 4


def codecs_of(packed: bool) -> list[object]:
    """Returns the Zarr codecs of a new array: Zstandard if ``packed``, then a CRC32C checksum."""
    from zarr.codecs import Crc32cCodec, ZstdCodec

    return [*([ZstdCodec(level=_LEVEL)] if packed else []), Crc32cCodec()]


def write_chunk(file: Path, values: Array, packed: bool = True) -> None:
    """Writes the values of a whole chunk to its file, compressed if ``packed``, with a checksum.

    A chunk of zeros has no file, because Zarr reads a missing chunk as zeros: an old file is
    deleted.
    """
    data = np.ascontiguousarray(values, values.dtype.newbyteorder("<")).reshape(-1).view(np.uint8)
    if not data.any():
        file.unlink(missing_ok=True)
        return
    content = _encode(data, packed)
    try:
        replace_file(file, content)
    except FileNotFoundError:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, content)


def read_chunk(file: Path, shape: tuple[int, ...], dtype: DTypeLike, packed: bool = True) -> Array:
    """Returns the values of a whole chunk from its file; zeros if there is no file.

    Raises an exception of any type if the chunk is damaged.
    """
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
    values = np.zeros(shape, stored)  # the codec refuses a chunk that unpacks to more
    Zstd().decode(data, values.reshape(-1).view(np.uint8))
    return values.astype(dtype, copy=False)


def _encode(data: Array, packed: bool) -> bytes:
    from numcodecs import Zstd

    content = bytes(Zstd(level=_LEVEL).encode(data) if packed else data)
    return content + _checksum(content)


def _checksum(data: bytes) -> bytes:
    import google_crc32c

    checksum: int = google_crc32c.value(data)
    return checksum.to_bytes(_CHECKSUM, "little")


#: the attribute that holds a store's manifest
MANIFEST = "cml"
#: the manifest of a store whose arrays are being created
_UNFINISHED = {"kind": "unfinished"}
#: the manifest keys that do not affect the values
_FREE = frozenset({"licence"})
_SHOWN = 24


def refuse(path: str, manifest: Mapping[str, object]) -> bool:
    """Returns True if ``path`` holds a store with this manifest, False if one can be created.

    Raises :class:`InputError` if ``path`` holds something else or is not writable. Only the
    keys of ``manifest`` are compared; the store's manifest may have more.
    """
    _check_place(path)
    store = _open_group(path)
    if store is None or store[1] == _UNFINISHED:
        return False
    group, stored_manifest = store
    if stored_manifest:
        _check_same(path, stored_manifest, manifest)
        return True
    if len(list(group.keys())):
        raise InputError(
            f"'{path}' is a Zarr store of something else: it has no '{MANIFEST}' attribute. Name "
            "another store"
        )
    return False


def prepare(
    path: str, layers: Sequence[Layer], manifest: Mapping[str, object], title: str = ""
) -> bool:
    """Creates a store with empty arrays for these layers; returns True if it already existed.

    Raises :class:`InputError` if ``path`` holds something else, or a store of another manifest.
    """
    import zarr

    if refuse(path, manifest):
        return True
    root = zarr.open_group(path, mode="a", zarr_format=3)
    root.attrs[MANIFEST] = dict(_UNFINISHED)
    for layer in layers:
        _create_layer(root, layer)
    root.attrs.update({**({"title": title} if title else {}), MANIFEST: dict(manifest)})
    return False


def manifest_of(place: str) -> dict[str, Any]:
    """Returns a store's manifest; raises :class:`InputError` if there is no store.

    Examples
    --------
    >>> manifest_of("planet.zarr")["seed"]  # doctest: +SKIP
    7
    """
    store = _open_group(place)
    if store is None:
        raise InputError(f"'{place}': no such store")
    if not store[1]:
        raise InputError(f"'{place}' has no '{MANIFEST}' attribute: it was not baked")
    return store[1]


def _open_group(path: str) -> tuple[Group, dict[str, Any]] | None:
    """Opens a store for reading; returns its root and its manifest, or None if there is none.

    The manifest of a store of something else is empty.
    """
    import zarr

    try:
        root = zarr.open_group(path, mode="r", use_consolidated=False)
        return root, dict(root.attrs.get(MANIFEST, {}))
    except FileNotFoundError:
        return None
    except Exception as error:
        raise InputError(f"'{path}': no store that can be read: {error}") from None


def _check_place(path_text: str) -> None:
    if "://" in path_text:
        return
    path = Path(path_text)
    if path.is_file():
        raise InputError(f"'{path_text}' is a file: a store is a folder. Name another")
    if path.is_dir() and not (path / "zarr.json").exists() and any(path.iterdir()):
        raise InputError(f"'{path_text}' is a folder of something else. Name another store")
    parent = path.resolve().parent
    if not parent.is_dir():
        raise InputError(f"cannot write '{path_text}': no folder '{parent}'; make it first")
    if not os.access(path if path.is_dir() else parent, os.W_OK):
        raise InputError(f"cannot write '{path_text}': Permission denied")


def _check_same(path: str, stored: dict[str, object], requested: Mapping[str, object]) -> None:
    for key in requested:
        old_value, new_value = stored.get(key), requested.get(key)
        if old_value != new_value and key not in _FREE:
            raise InputError(
                f"'{path}' was made with another {key}: {_shorten(old_value)} there, "
                f"{_shorten(new_value)} here. The two are never mixed: name another store, or "
                "delete that one"
            )


def _shorten(value: object) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= 2 * _SHOWN else f"{text[:_SHOWN]}…"


def _create_layer(root: Group, layer: Layer) -> None:
    group = root.require_group(layer.name) if layer.name else root
    group.attrs.update(dict(layer.attributes))
    for name, cell in layer.arrays.items():
        group.create_array(
            name,
            shape=(*layer.cells, *cell.shape),
            chunks=(*layer.chunk, *(max(1, n) for n in cell.shape)),
            dtype=cell.dtype,
            compressors=codecs_of(packed=True),
            chunk_key_encoding=KEYS,
            dimension_names=(*layer.dims, *cell.dims),
            attributes=dict(cell.attributes),
            overwrite=True,
        )
    group.create_array(
        RECORD,
        shape=(*layer.chunks, RECORD_BYTES),
        chunks=(*(1 for _ in layer.chunks), RECORD_BYTES),
        dtype="uint8",
        compressors=codecs_of(packed=False),
        chunk_key_encoding=KEYS,
        dimension_names=(*(f"chunk_{name}" for name in layer.dims), "byte"),
        attributes={"comment": "SHA-256 of each chunk's values: zeros where it is missing"},
        overwrite=True,
    )
    for name, coordinate in layer.coordinates.items():
        values = coordinate.values
        array = group.create_array(
            name,
            shape=values.shape,
            chunks=values.shape,
            dtype=values.dtype,
            compressors=codecs_of(packed=True),
            chunk_key_encoding=KEYS,
            dimension_names=coordinate.dims,
            overwrite=True,
        )
        array[...] = values


#: the name of a layer's array of SHA-256 records, one per unit, and a record's size in bytes
RECORD, RECORD_BYTES = "sha256", 32


def digest_of(arrays: Mapping[str, Array]) -> bytes:
    """Returns the SHA-256 of arrays and their names, as 32 bytes.

    It does not depend on the order of the names.
    """
    hasher = hashlib.sha256()
    for name in sorted(arrays):
        value = np.ascontiguousarray(arrays[name])
        hasher.update(f"{name} {value.dtype.str} {value.shape}\n".encode())
        hasher.update(value.data if value.size else b"")
    return hasher.digest()


#: errors that every further unit would fail with
LASTING = frozenset(
    {errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EPERM, getattr(errno, "EDQUOT", errno.ENOSPC)}
)


class Store:
    """An open store that reads, checks and writes units.

    Examples
    --------
    >>> store = Store("planet.zarr", [layer], writable=False)  # doctest: +SKIP
    >>> store.state(Unit("L0", (0, 0)))  # doctest: +SKIP
    'whole'
    """

    def __init__(self, place: str, layers: Sequence[Layer], writable: bool = True) -> None:
        import zarr
        from zarr.storage import LocalStore

        self.layers = {layer.name: layer for layer in layers}
        mode: Literal["r+", "r"] = "r+" if writable else "r"
        root = zarr.open_group(place, mode=mode, use_consolidated=False)
        #: the folder of a local store; None for a remote one
        self._folder = root.store.root if isinstance(root.store, LocalStore) else None
        groups = {name: root[name] if name else root for name in self.layers}
        self._arrays = {
            layer.name: {name: groups[layer.name][name] for name in (*layer.arrays, RECORD)}
            for layer in layers
        }
        for arrays in self._arrays.values():
            for name, array in arrays.items():
                check_array(array, f"{place}/{name}")
        self._places = {
            layer: {name: (f"{self._folder}/{a.path}", a.metadata) for name, a in arrays.items()}
            for layer, arrays in self._arrays.items()
        }

    def write(self, unit: Unit, arrays: Mapping[str, Array], record: bool = True) -> int:
        """Writes a unit's arrays, then its checksum record; returns the arrays' size in bytes.

        A unit that is written without ``record`` is computed again by the next run.
        """
        layer, digest = self.layers[unit.layer], np.frombuffer(digest_of(arrays), np.uint8)
        if self._folder is None:
            stored, span = self._arrays[unit.layer], layer.span(unit)
            _gather_calls(
                stored[name].async_array.setitem(span, arrays[name]) for name in layer.arrays
            )
            if record:
                stored[RECORD][unit.at] = digest
        else:
            for name, cell in layer.arrays.items():
                write_chunk(self._file(unit, name), _padded_chunk(layer, unit, cell, arrays[name]))
            if record:
                write_chunk(self._file(unit, RECORD), digest, packed=False)
        return sum(arrays[name].nbytes for name in layer.arrays)

    def read(self, unit: Unit, names: Sequence[str] = ()) -> dict[str, Array]:
        """Returns a unit's arrays by name: those in ``names``, or all of them by default.

        Checks no record. Raises an exception if a chunk is damaged.
        """
        layer, stored = self.layers[unit.layer], self._arrays[unit.layer]
        array_names = names or tuple(layer.arrays)
        if self._folder is not None:
            extent = tuple(map(slice, layer.extent(unit)))
            return {name: self._chunk(unit, name)[extent] for name in array_names}
        span = layer.span(unit)
        values = _gather_calls(stored[name].async_array.getitem(span) for name in array_names)
        return {name: np.asarray(value) for name, value in zip(array_names, values, strict=True)}

    def _chunk(self, unit: Unit, name: str) -> Array:
        layer, cell = self.layers[unit.layer], self.layers[unit.layer].arrays[name]
        return read_chunk(self._file(unit, name), (*layer.chunk, *cell.shape), cell.dtype)

    def state(self, unit: Unit) -> str:
        """Reads a unit and returns ``"missing"``, ``"damaged"`` or ``"whole"``.

        A unit without a record is missing; one whose values do not match its record is damaged.
        """
        return self._inspect(unit)[0]

    def whole(self, unit: Unit) -> dict[str, Array] | None:
        """Returns a unit's arrays by name; None if the unit is missing or damaged."""
        return self._inspect(unit)[1]

    def _inspect(self, unit: Unit) -> tuple[str, dict[str, Array] | None]:
        try:
            record = self._record(unit)
            if not any(record):
                return "missing", None
            arrays = self.read(unit)
            is_same = digest_of(arrays) == record
            return ("whole", arrays) if is_same else ("damaged", None)
        except OSError as error:
            if error.errno in LASTING:
                raise
            return "damaged", None
        except Exception:  # a codec's error: a wrong checksum or a truncated chunk
            return "damaged", None

    def _record(self, unit: Unit) -> bytes:
        if self._folder is None:
            return np.asarray(self._arrays[unit.layer][RECORD][unit.at]).tobytes()
        file = self._file(unit, RECORD)
        return read_chunk(file, (RECORD_BYTES,), np.uint8, packed=False).tobytes()

    def _file(self, unit: Unit, name: str) -> Path:
        """Returns the path of the file with a unit's chunk of array ``name``, in a local store."""
        folder, metadata = self._places[unit.layer][name]
        at = (*unit.at, *((len(metadata.shape) - len(unit.at)) * (0,)))
        return Path(f"{folder}/{metadata.encode_chunk_key(at)}")

    def recorded(self) -> set[Unit]:
        """Returns the set of units that have a record, by listing the records without reading."""
        return {unit for name in self.layers for unit in self._recorded(name)}

    def _recorded(self, layer: str) -> Iterator[Unit]:
        from zarr.core.sync import sync

        async def keys() -> list[str]:
            stored = self._arrays[layer][RECORD].store_path
            return [key async for key in stored.store.list_prefix(f"{stored.path}/")]

        for key in sync(keys()):
            chunk_key = key.rpartition(f"{RECORD}/")[2]
            if re.fullmatch(r"c([./]\d+)+", chunk_key):
                _, *at, _ = re.split("[./]", chunk_key)
                yield Unit(layer, tuple(map(int, at)))


def _padded_chunk(layer: Layer, unit: Unit, cell: Cell, values: Array) -> Array:
    """Returns a unit's ``values`` as a full chunk, padded with zeros beyond the end of the grid."""
    chunk = np.zeros((*layer.chunk, *cell.shape), cell.dtype)
    chunk[tuple(map(slice, layer.extent(unit)))] = values
    return chunk


def _gather_calls(calls: Iterable[Awaitable[ArrayLike]]) -> list[ArrayLike]:
    """Runs asynchronous Zarr calls concurrently and returns their results in order."""
    from zarr.core.sync import sync

    async def gathered() -> list[ArrayLike]:
        return list(await asyncio.gather(*calls))

    results: list[ArrayLike] = sync(gathered())
    return results
