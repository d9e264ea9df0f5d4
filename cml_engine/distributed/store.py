"""The store: a Zarr group on a disk that all workers see, or in any place that Zarr can write to.

Chunks are written whole or not at all, each by one task. A unit's SHA-256 is written after its
chunks: a unit without one is missing, a unit that does not have it is damaged. Whatever is made
twice is the same twice, so two workers with one unit do no harm.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cml_engine.distributed.work import Array, Layer, Unit
from cml_engine.errors import InputError

#: the attribute that says what a store holds
MANIFEST = "cml"
#: of a store whose arrays are being created
_UNFINISHED = {"kind": "unfinished"}
#: the array of a layer with each unit's SHA-256
RECORD = "sha256"
_RECORD_BYTES = 32
#: what the manifest may say otherwise without the values being others
_FREE = frozenset({"licence"})
_SHOWN = 24


def digest_of(arrays: Mapping[str, Array]) -> bytes:
    """SHA-256 of arrays by name."""
    hasher = hashlib.sha256()
    for name in sorted(arrays):
        value = np.ascontiguousarray(arrays[name])
        hasher.update(f"{name} {value.dtype.str} {value.shape}\n".encode())
        hasher.update(value.data if value.size else b"")
    return hasher.digest()


class Store:
    """A store that is open: reads and writes units."""

    def __init__(self, place: str, layers: Sequence[Layer], writable: bool = True) -> None:
        import zarr

        self.place = place
        self.layers = {layer.name: layer for layer in layers}
        mode: Any = "r+" if writable else "r"
        root = zarr.open_group(place, mode=mode, use_consolidated=False)
        groups = {name: root[name] if name else root for name in self.layers}
        self._arrays = {
            layer.name: {name: groups[layer.name][name] for name in (*layer.arrays, RECORD)}
            for layer in layers
        }

    def write(self, unit: Unit, arrays: Mapping[str, Array], record: bool = True) -> int:
        """Write a unit, its record last; the bytes of its values. Without ``record`` it is made
        again next time."""
        layer, stored = self.layers[unit.layer], self._arrays[unit.layer]
        span = layer.span(unit)
        _together(stored[name].async_array.setitem(span, arrays[name]) for name in layer.arrays)
        if record:
            stored[RECORD][unit.at] = np.frombuffer(digest_of(arrays), np.uint8)
        return sum(arrays[name].nbytes for name in layer.arrays)

    def read(self, unit: Unit, names: Sequence[str] = ()) -> dict[str, Array]:
        """A unit's arrays, or those named; whatever Zarr raises where a chunk is damaged."""
        layer, stored = self.layers[unit.layer], self._arrays[unit.layer]
        span = layer.span(unit)
        wanted = names or tuple(layer.arrays)
        found = _together(stored[name].async_array.getitem(span) for name in wanted)
        return {name: np.asarray(value) for name, value in zip(wanted, found, strict=True)}

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
            record = np.asarray(self._arrays[unit.layer][RECORD][unit.at])
            if not record.any():
                return "missing", None
            arrays = self.read(unit)
            same = digest_of(arrays) == record.tobytes()
            return ("whole", arrays) if same else ("damaged", None)
        except OSError as error:
            if error.errno in LASTING:
                raise
            return "damaged", None
        except Exception:  # of a codec: a wrong checksum, an end too early
            return "damaged", None

    def _has_no_record(self, unit: Unit) -> bool:
        """Whether a look at the folder says so: to ask Zarr takes milliseconds of every unit."""
        if "://" in self.place:
            return False
        return not Path(self.place, unit.layer, RECORD, "c", *map(str, unit.at), "0").exists()

    def recorded(self) -> set[Unit]:
        """The units that have a record, as far as a listing tells: nothing is read."""
        return {unit for name in self.layers for unit in self._recorded(name)}

    def _recorded(self, layer: str) -> Iterator[Unit]:
        from zarr.core.sync import sync

        async def keys() -> list[str]:
            stored = self._arrays[layer][RECORD].store_path
            return [key async for key in stored.store.list_prefix(f"{stored.path}/c/")]

        for key in sync(keys()):
            place = key.rpartition(f"{RECORD}/c/")[2]
            if re.fullmatch(r"\d+(/\d+)*", place):
                yield Unit(layer, tuple(map(int, place.split("/")))[:-1])


def _together(calls: Iterable[Any]) -> list[Any]:
    """What Zarr gives for calls that need not wait for each other."""
    from zarr.core.sync import sync

    async def gathered() -> list[Any]:
        return list(await asyncio.gather(*calls))

    found: list[Any] = sync(gathered())
    return found


#: what goes wrong with every unit from now on, and not only with one
LASTING = frozenset(
    {errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EPERM, getattr(errno, "EDQUOT", errno.ENOSPC)}
)


def refuse(place: str, manifest: Mapping[str, Any]) -> bool:
    """Whether a store of this manifest is at ``place``. :class:`InputError` where something else
    is, or where none can be made; of a longer manifest the rest is not looked at."""
    import zarr

    _check_place(place)
    try:
        found = zarr.open_group(place, mode="r", use_consolidated=False)
    except FileNotFoundError:
        return False
    except Exception as error:
        raise InputError(f"'{place}': no store that can be read: {error}") from None
    if MANIFEST in found.attrs:
        said = dict(found.attrs[MANIFEST])
        if said == _UNFINISHED:
            return False
        _check_same(place, said, manifest)
        return True
    if len(list(found.keys())):
        raise InputError(
            f"'{place}' is a Zarr store of something else: it has no '{MANIFEST}' attribute. Name "
            "another store"
        )
    return False


def prepare(
    place: str, layers: Sequence[Layer], manifest: Mapping[str, Any], title: str = ""
) -> bool:
    """A store for these layers is at ``place``: whether it was there before.
    :class:`InputError` where what is there holds something else."""
    import zarr

    if refuse(place, manifest):
        return True
    root = zarr.open_group(place, mode="a", zarr_format=3)
    root.attrs[MANIFEST] = dict(_UNFINISHED)
    for layer in layers:
        _create_layer(root, layer)
    root.attrs.update({**({"title": title} if title else {}), MANIFEST: dict(manifest)})
    return False


def manifest_of(place: str) -> dict[str, Any]:
    """What a store says of itself; :class:`InputError` where there is none."""
    import zarr

    if "://" not in place and not Path(place).exists():
        raise InputError(f"'{place}': no such store")
    try:
        found = zarr.open_group(place, mode="r", use_consolidated=False)
        return dict(found.attrs[MANIFEST])
    except KeyError:
        raise InputError(f"'{place}' has no '{MANIFEST}' attribute: it was not baked") from None
    except Exception as error:
        raise InputError(f"'{place}': no store that can be read: {error}") from None


def _check_place(place: str) -> None:
    if "://" in place:
        return
    path = Path(place)
    if path.is_file():
        raise InputError(f"'{place}' is a file: a store is a folder. Name another")
    if path.is_dir() and not (path / "zarr.json").exists() and any(path.iterdir()):
        raise InputError(f"'{place}' is a folder of something else. Name another store")
    parent = path.resolve().parent
    if not parent.is_dir():
        raise InputError(f"cannot write '{place}': no folder '{parent}'; make it first")
    if not os.access(path if path.is_dir() else parent, os.W_OK):
        raise InputError(f"cannot write '{place}': Permission denied")


def _check_same(place: str, found: dict[str, Any], wanted: Mapping[str, Any]) -> None:
    for key in wanted:
        was, now = found.get(key), wanted.get(key)
        if was != now and key not in _FREE:
            raise InputError(
                f"'{place}' was made with another {key}: {_short(was)} there, {_short(now)} here. "
                "The two are never mixed: name another store, or delete that one"
            )


def _short(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= 2 * _SHOWN else f"{text[:_SHOWN]}…"


def _create_layer(root: Any, layer: Layer) -> None:
    from zarr.codecs import Crc32cCodec, ZstdCodec

    group = root.require_group(layer.name) if layer.name else root
    group.attrs.update(dict(layer.attributes))
    codecs = [ZstdCodec(level=1), Crc32cCodec()]
    for name, cell in layer.arrays.items():
        group.create_array(
            name,
            shape=(*layer.cells, *cell.shape),
            chunks=(*layer.chunk, *(max(1, n) for n in cell.shape)),
            dtype=cell.dtype,
            compressors=codecs,
            dimension_names=(*layer.dims, *cell.dims),
            attributes=dict(cell.attributes),
            overwrite=True,
        )
    group.create_array(
        RECORD,
        shape=(*layer.chunks, _RECORD_BYTES),
        chunks=(*(1 for _ in layer.chunks), _RECORD_BYTES),
        dtype="uint8",
        compressors=[Crc32cCodec()],
        dimension_names=(*(f"chunk_{name}" for name in layer.dims), "byte"),
        attributes={"comment": "SHA-256 of each chunk's values: zeros where it is missing"},
        overwrite=True,
    )
    for name, coordinate in layer.coordinates.items():
        values = coordinate.values
        made = group.create_array(
            name,
            shape=values.shape,
            chunks=values.shape,
            dtype=values.dtype,
            compressors=codecs,
            dimension_names=coordinate.dims,
            overwrite=True,
        )
        made[...] = values
