"""Tensors in files for the command line: ``.npy``, ``.npz`` and ``.png``."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from cml_engine.atomic_write import write_atomically
from cml_engine.errors import InputError
from cml_engine.graph import Fact

Array = np.ndarray[Any, Any]
SUFFIXES = (".npy", ".npz", ".png")
_UNREADABLE = (ValueError, OSError, EOFError, MemoryError, zipfile.BadZipFile, KeyError)


def read(path: Path, name: str, fact: Fact) -> Array:
    """The tensor ``name`` of that fact out of a file. A ``.npz`` must hold an array of that name,
    or one array only; a PNG is read as 1×3×H×W in [0, 1] (1×1×H×W where one channel is wanted)."""
    check_suffix(path)
    if not path.is_file():
        raise InputError(f"input '{name}': no such file: {path}")
    if path.suffix == ".png":
        return _read_png(path, name, channels=fact.shape[1] if fact.rank == 4 else 3)
    try:
        return _read_npz(path, name) if path.suffix == ".npz" else _read_npy(path)
    except _UNREADABLE as error:
        raise InputError(f"input '{name}': cannot read {path}: {error}") from None


def check_suffix(path: Path) -> None:
    if path.suffix not in SUFFIXES:
        raise InputError(f"'{path}': wanted a file in {', '.join(SUFFIXES)}")


def check_writable(path: Path) -> None:
    """Raise before any work is done for an output that could not be written after it."""
    check_suffix(path)
    if path.is_dir():
        raise InputError(f"cannot write '{path}': it is a folder")
    check_folder(path)
    try:
        existed = path.exists()
        with path.open("ab"):
            pass
        if not existed:
            path.unlink()
    except OSError as error:
        raise InputError(f"cannot write '{path}': {error.strerror}") from None


def check_folder(path: Path) -> None:
    """Raise where the folder that a file is to lie in does not exist."""
    if not path.parent.is_dir():
        raise InputError(f"cannot write '{path}': no folder '{path.parent}'; make it first")


def check_image_fact(name: str, fact: Fact, path: Path) -> None:
    """Only 1×3×H×W and 1×1×H×W scalars can be a PNG."""
    shape = fact.shape
    fits = len(shape) == 4 and shape[0] == 1 and shape[1] in (1, 3) and fact.size > 0
    if path.suffix == ".png" and not (fits and fact.dtype == "scalar"):
        raise InputError(
            f"output '{name}' is {fact}; a PNG wants scalar[1,3,H,W] or scalar[1,1,H,W]. "
            f"Write '{path.with_suffix('.npy').name}' instead."
        )


def write_all(files: Mapping[Path, Mapping[str, Array]]) -> None:
    """Write each file's tensors; a ``.npz`` may take several."""
    for path, arrays in files.items():
        write = partial(_WRITERS[path.suffix], arrays)
        try:
            write_atomically(path, write)
        except OSError as error:
            raise InputError(f"cannot write '{path}': {error.strerror or error}") from None


def _read_npy(path: Path) -> Array:
    # mapping the file checks its length against its header before any memory is taken
    return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))


def _read_npz(path: Path, name: str) -> Array:
    with np.load(path, allow_pickle=False) as arrays:
        if not hasattr(arrays, "files"):
            raise InputError(f"input '{name}': '{path}' is not an .npz archive")
        if name in arrays.files:
            return np.asarray(arrays[name])
        if len(arrays.files) == 1:
            return np.asarray(arrays[arrays.files[0]])
        raise InputError(
            f"input '{name}': '{path}' holds {', '.join(arrays.files) or 'nothing'}; "
            f"wanted an array named '{name}'"
        )


def _read_png(path: Path, name: str, channels: int) -> Array:
    from PIL import Image

    try:
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("L" if channels == 1 else "RGB"), np.float32)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f"input '{name}': cannot read {path}: {error}") from None
    planes = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    return np.ascontiguousarray(planes[None] / np.float32(255))


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
    from PIL import Image

    (array,) = arrays.values()
    planes = np.nan_to_num(np.clip(array[0], 0, 1))
    pixels = np.rint(planes * 255).astype(np.uint8)
    image = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))
    image.save(file, format="PNG")


_WRITERS = {".npy": _write_npy, ".npz": _write_npz, ".png": _write_png}
