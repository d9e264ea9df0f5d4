"""Tensors in files for the command line: ``.npy``, ``.npz`` and ``.png``."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from functools import partial
from math import prod
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np

from cml_engine.errors import InputError
from cml_engine.files import png as png_files
from cml_engine.files.atomic_write import check_writable, write_atomically
from cml_engine.graph import Fact
from cml_engine.session import check_shape

__all__ = [
    "check_outputs",
    "check_place",
    "read",
    "write_outputs",
]

Array = np.ndarray[Any, Any]
SUFFIXES = (".npy", ".npz", ".png")


def read(path: Path, name: str, fact: Fact) -> Array:
    """The tensor ``name`` of that fact out of a file, whose shape is checked before any memory is
    taken. A ``.npz`` must hold an array of that name, or one array only; of a PNG see
    :mod:`cml_engine.files.png`."""
    check_suffix(path)
    if not path.is_file():
        raise InputError(f"input '{name}': no such file: {path}")
    try:
        return _READERS[path.suffix.lower()](path, name, fact)
    except InputError as error:
        raise InputError(f"'{path}': {error.message}") from None
    except Exception as error:  # whatever the parsers of others say of a damaged file
        said = str(error) or type(error).__name__
        raise InputError(f"input '{name}': cannot read {path}: {said}") from None


def check_suffix(path: Path) -> None:
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"'{path}': wanted a file in {', '.join(SUFFIXES)}")


def check_outputs(files: Mapping[str, Path], facts: Mapping[str, Fact]) -> None:
    """Raise before any work is done for outputs that could not be written after it."""
    for name, path in files.items():
        check_suffix(path)
        _check_image_fact(name, facts[name], path)
        check_place(path)
    for path, names in _by_file(files).items():
        if len(names) > 1 and path.suffix.lower() != ".npz":
            shown = " and ".join(f"'{name}'" for name in names)
            raise InputError(
                f"'{path}' would hold the outputs {shown}: a file in {path.suffix} holds one. Name "
                "a file for each, or one .npz for all"
            )


def check_place(path: Path, model: str = "") -> None:
    """Raise where a file cannot be written, as far as can be known before; or where it is a file of
    the ``model`` that is read."""
    place, read = (Path(os.path.realpath(name)) for name in (path, model or os.devnull))
    part = path.suffix in (".nnef", ".quant", ".dat") and place.parent == read
    if place == read or part:
        raise InputError(f"'{path}' is the model's own: name another file")
    if not path.parent.is_dir():
        raise InputError(f"cannot write '{path}': no folder '{path.parent}'; make it first")
    try:
        check_writable(path)
    except OSError as error:
        raise InputError(f"cannot write '{path}': {error.strerror}") from None


def write_outputs(files: Mapping[str, Path], arrays: Mapping[str, Array]) -> None:
    """Write each output into its file; a ``.npz`` may take several."""
    for path, names in _by_file(files).items():
        write = partial(_WRITERS[path.suffix.lower()], {name: arrays[name] for name in names})
        try:
            write_atomically(path, write)
        except OSError as error:
            raise InputError(f"cannot write '{path}': {error.strerror or error}") from None


def _by_file(files: Mapping[str, Path]) -> dict[Path, list[str]]:
    """Who goes into each file, whatever way it is named."""
    named: dict[str, Path] = {}
    found: dict[Path, list[str]] = {}
    for name, path in files.items():
        found.setdefault(named.setdefault(os.path.realpath(path), path), []).append(name)
    return found


def _check_image_fact(name: str, fact: Fact, path: Path) -> None:
    if path.suffix.lower() == ".png" and not png_files.can_hold(fact):
        raise InputError(
            f"output '{name}' is {fact}; a PNG wants scalar[1,C,H,W] with 1, 3 or 4 channels. "
            f"Write '{path.with_suffix('.npy').name}' instead."
        )


def _read_npy(path: Path, name: str, fact: Fact) -> Array:
    with path.open("rb") as file:
        return _array(file, name, fact)


def _read_npz(path: Path, name: str, fact: Fact) -> Array:
    with zipfile.ZipFile(path) as archive:
        members = {member.removesuffix(".npy"): member for member in archive.namelist()}
        if name not in members and len(members) != 1:
            raise InputError(
                f"input '{name}': it holds {', '.join(members) or 'nothing'}; wanted an array of "
                "that name, or one array only"
            )
        with archive.open(members.get(name) or next(iter(members.values()))) as file:
            array = _array(file, name, fact)
            file.read(1)  # at its end the checksum is checked
            return array


def _array(file: IO[bytes], name: str, fact: Fact) -> Array:
    """The array in a stream in NumPy's format; its header is checked before it is read."""
    header = np.lib.format
    version = header.read_magic(file)
    read = header.read_array_header_1_0 if version == (1, 0) else header.read_array_header_2_0
    shape, is_fortran, dtype = read(file)
    if dtype.kind not in "biuf":
        raise InputError(f"input '{name}': wanted {fact}, got items of type {dtype}")
    check_shape(name, fact, shape)
    count = prod(shape) * dtype.itemsize
    data = file.read(count)
    if len(data) < count:
        raise EOFError(f"it ends early: wanted {count:,} bytes, got {len(data):,}")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if is_fortran else "C")


def _read_png(path: Path, name: str, fact: Fact) -> Array:
    if not png_files.can_hold(fact):
        raise InputError(
            f"input '{name}' is {fact}; a PNG holds scalar[1,C,H,W] with 1, 3 or 4 channels. "
            f"Give an .npy instead"
        )
    data, channels = path.read_bytes(), fact.shape[1]
    check_shape(name, fact, (1, channels, *png_files.size(data)))
    return png_files.decode(data, channels)


def _write_npy(arrays: Mapping[str, Array], file: BinaryIO) -> None:
    (array,) = arrays.values()
    np.save(file, array, allow_pickle=False)


def _write_npz(arrays: Mapping[str, Array], file: BinaryIO) -> None:
    """``np.savez`` takes names as keywords, and so not every name."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def _write_png(arrays: Mapping[str, Array], file: BinaryIO) -> None:
    (array,) = arrays.values()
    png_files.encode(array, file)


_READERS = {".npy": _read_npy, ".npz": _read_npz, ".png": _read_png}
_WRITERS = {".npy": _write_npy, ".npz": _write_npz, ".png": _write_png}
