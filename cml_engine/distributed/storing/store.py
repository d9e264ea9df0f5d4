"""The store: a Zarr group on a disk that all workers see, or in any place that Zarr can write to.

Chunks are written whole or not at all, each by one task. A unit's SHA-256 is written after its
chunks: a unit without one is missing, a unit that does not have it is damaged. Whatever is made
twice is the same twice, so two workers with one unit do no harm.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cml_engine.distributed.storing.checks import check_array
from cml_engine.distributed.storing.chunks import read_chunk, write_chunk
from cml_engine.distributed.work import Array, Cell, Layer, Unit

#: the array of a layer with each unit's SHA-256, and how long one is
RECORD, RECORD_BYTES = "sha256", 32


def digest_of(arrays: Mapping[str, Array]) -> bytes:
    """SHA-256 of arrays by name."""
    hasher = hashlib.sha256()
    for name in sorted(arrays):
        value = np.ascontiguousarray(arrays[name])
        hasher.update(f"{name} {value.dtype.str} {value.shape}\n".encode())
        hasher.update(value.data if value.size else b"")
    return hasher.digest()


#: what goes wrong with every unit from now on, and not only with one
LASTING = frozenset(
    {errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EPERM, getattr(errno, "EDQUOT", errno.ENOSPC)}
)


class Store:
    """A store that is open: reads and writes units."""

    def __init__(self, place: str, layers: Sequence[Layer], writable: bool = True) -> None:
        import zarr
        from zarr.storage import LocalStore

        self.layers = {layer.name: layer for layer in layers}
        mode: Any = "r+" if writable else "r"
        root = zarr.open_group(place, mode=mode, use_consolidated=False)
        #: where it is a folder
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
        """Write a unit, its record last; the bytes of its values. Without ``record`` it is made
        again next time."""
        layer, digest = self.layers[unit.layer], np.frombuffer(digest_of(arrays), np.uint8)
        if self._folder is None:
            stored, span = self._arrays[unit.layer], layer.span(unit)
            _together(stored[name].async_array.setitem(span, arrays[name]) for name in layer.arrays)
            if record:
                stored[RECORD][unit.at] = digest
        else:
            for name, cell in layer.arrays.items():
                write_chunk(self._file(unit, name), _whole(layer, unit, cell, arrays[name]))
            if record:
                write_chunk(self._file(unit, RECORD), digest, packed=False)
        return sum(arrays[name].nbytes for name in layer.arrays)

    def read(self, unit: Unit, names: Sequence[str] = ()) -> dict[str, Array]:
        """A unit's arrays, or those named; some error where a chunk is damaged."""
        layer, stored = self.layers[unit.layer], self._arrays[unit.layer]
        wanted = names or tuple(layer.arrays)
        if self._folder is not None:
            inside = tuple(map(slice, layer.extent(unit)))
            return {name: self._chunk(unit, name)[inside] for name in wanted}
        span = layer.span(unit)
        found = _together(stored[name].async_array.getitem(span) for name in wanted)
        return {name: np.asarray(value) for name, value in zip(wanted, found, strict=True)}

    def _chunk(self, unit: Unit, name: str) -> Array:
        layer, cell = self.layers[unit.layer], self.layers[unit.layer].arrays[name]
        return read_chunk(self._file(unit, name), (*layer.chunk, *cell.shape), cell.dtype)

    def state(self, unit: Unit) -> str:
        """``"missing"``, ``"damaged"`` or ``"whole"``."""
        return self._look(unit)[0]

    def whole(self, unit: Unit) -> dict[str, Array] | None:
        """A unit's arrays; None where it is missing or damaged."""
        return self._look(unit)[1]

    def _look(self, unit: Unit) -> tuple[str, dict[str, Array] | None]:
        if self._has_no_record(unit):
            return "missing", None
        try:
            record = self._record(unit)
            if not any(record):
                return "missing", None
            arrays = self.read(unit)
            same = digest_of(arrays) == record
            return ("whole", arrays) if same else ("damaged", None)
        except OSError as error:
            if error.errno in LASTING:
                raise
            return "damaged", None
        except Exception:  # of a codec: a wrong checksum, an end too early
            return "damaged", None

    def _record(self, unit: Unit) -> bytes:
        if self._folder is None:
            return np.asarray(self._arrays[unit.layer][RECORD][unit.at]).tobytes()
        file = self._file(unit, RECORD)
        return read_chunk(file, (RECORD_BYTES,), np.uint8, packed=False).tobytes()

    def _has_no_record(self, unit: Unit) -> bool:
        """Whether a look at the folder says so: to ask Zarr takes milliseconds of every unit."""
        if self._folder is None:
            return False
        return not self._file(unit, RECORD).exists()

    def _file(self, unit: Unit, name: str) -> Path:
        """Where a unit's chunk of an array is, in a folder."""
        folder, metadata = self._places[unit.layer][name]
        at = (*unit.at, *((len(metadata.shape) - len(unit.at)) * (0,)))
        return Path(f"{folder}/{metadata.encode_chunk_key(at)}")

    def recorded(self) -> set[Unit]:
        """The units that have a record, as far as a listing tells: nothing is read."""
        return {unit for name in self.layers for unit in self._recorded(name)}

    def _recorded(self, layer: str) -> Iterator[Unit]:
        from zarr.core.sync import sync

        async def keys() -> list[str]:
            stored = self._arrays[layer][RECORD].store_path
            return [key async for key in stored.store.list_prefix(f"{stored.path}/")]

        for key in sync(keys()):
            place = key.rpartition(f"{RECORD}/")[2]
            if re.fullmatch(r"c([./]\d+)+", place):
                _, *at, _ = re.split("[./]", place)
                yield Unit(layer, tuple(map(int, at)))


def _whole(layer: Layer, unit: Unit, cell: Cell, values: Array) -> Array:
    """A unit's chunk of an array: at the end of the grid with zeros beyond it."""
    chunk = np.zeros((*layer.chunk, *cell.shape), cell.dtype)
    chunk[tuple(map(slice, layer.extent(unit)))] = values
    return chunk


def _together(calls: Iterable[Any]) -> list[Any]:
    """What Zarr gives for calls that need not wait for each other."""
    from zarr.core.sync import sync

    async def gathered() -> list[Any]:
        return list(await asyncio.gather(*calls))

    found: list[Any] = sync(gathered())
    return found
