"""A store is made, or refused: each says what its values depend on, and is never mixed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cml_engine.distributed.storing.chunks import KEYS, codecs_of
from cml_engine.distributed.storing.store import RECORD, RECORD_BYTES
from cml_engine.distributed.work import Layer
from cml_engine.errors import InputError

#: the attribute that says what a store holds
MANIFEST = "cml"
#: of a store whose arrays are being created
_UNFINISHED = {"kind": "unfinished"}
#: what the manifest may say otherwise without the values being others
_FREE = frozenset({"licence"})
_SHOWN = 24


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
        made = group.create_array(
            name,
            shape=values.shape,
            chunks=values.shape,
            dtype=values.dtype,
            compressors=codecs_of(packed=True),
            chunk_key_encoding=KEYS,
            dimension_names=coordinate.dims,
            overwrite=True,
        )
        made[...] = values
