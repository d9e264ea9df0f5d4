"""Reads and writes tensors in ``.npy``, ``.npz`` and picture files for the command line."""

from __future__ import annotations

import contextlib
import os
import zipfile
from collections.abc import Iterator, Mapping
from functools import partial
from math import prod
from pathlib import Path
from typing import IO, BinaryIO

import numpy as np

from cml_engine.errors import InputError
from cml_engine.errors.arguments import check_known_names, check_mapping, check_path
from cml_engine.io import pictures
from cml_engine.io.atomic_write import check_writable, write_atomically
from cml_engine.io.file_kinds import HEAD_BYTES, misplaced_file
from cml_engine.io.load_limits import OverBudget, current_budget
from cml_engine.io.named_file import NamedFile, file_key, named_file
from cml_engine.ir.arrays import as_array
from cml_engine.ir.graph import Array, DType, Fact, check_shape

__all__ = ["check_outputs", "check_place", "read", "shape_of", "write_outputs"]

Shape = tuple[int, ...]
#: the extents of an input, None for unknown ones; None if even the rank is unknown
Known = tuple[int | None, ...] | None
SUFFIXES = (".npy", ".npz", *pictures.KINDS)
#: a file with options, or its name
File = str | Path | NamedFile
#: the tensor types of NumPy's kinds of integers and truth values; all others are ``scalar``
_DTYPE_OF_KIND: Mapping[str, str] = {"b": "logical", "i": "integer", "u": "integer"}


def read(file: File, name: str, fact: Fact) -> Array:
    """Reads the tensor ``name`` from a file as an array that fits ``fact``.

    The shape is checked against ``fact`` before any memory is allocated. A ``.npz`` must hold an
    array of that name, or a single array. The file's ``scale`` and ``shift`` are applied to floats.
    For pictures see :mod:`cml_engine.io.pictures`.

    Examples
    --------
    >>> np.save("image.npy", image)
    >>> read(Path("image.npy"), "image", graph.facts["image"]).shape
    (1, 3, 8, 8)
    """
    source = _find_file(file, name)
    with _naming_file(source, f"input '{name}'"):
        array = _READERS.get(source.suffix, _read_picture)(source, name, fact)
    return np.asarray(source.scaled(array)) if fact.dtype == "scalar" else array


def read_any(file: File, name: str) -> Array:
    """Returns the array ``name`` of a ``.npy`` or ``.npz`` file, of any shape and numeric type.

    The caller has no :class:`Fact` to check it against: it is the value of a constant.
    """
    source = _find_file(file, name)
    if source.suffix not in _READERS:
        raise InputError(f"'{source}': wanted a .npy or .npz for the constant '{name}'")
    with _naming_file(source, f"input '{name}'"), _stream(source, name) as stream:
        return _array(stream, name)


def shape_of(file: File, name: str, known: Known) -> Shape | None:
    """Returns the shape that a file gives to the input ``name``, read from the file's header.

    ``known`` lists the extents that the model fixes, with None for open ones. Returns None if a
    picture leaves the shape open: a picture has rows and columns, but the number of channels is the
    caller's choice. Raises :class:`InputError` if the shape contradicts ``known``.

    Examples
    --------
    >>> np.save("image.npy", image)
    >>> shape_of(Path("image.npy"), "image", (1, 3, None, None))
    (1, 3, 8, 8)
    """
    source = _find_file(file, name)
    with _naming_file(source, f"input '{name}'"):
        is_picture = source.suffix in pictures.KINDS
        shape = (_shape_of_picture if is_picture else _shape_of_array)(source, name, known)
    if shape is None or known is None:
        return shape
    has_rank = len(known) == len(shape)
    if not has_rank or any(k not in (None, n) for k, n in zip(known, shape, strict=True)):
        expected = ", ".join("?" if k is None else str(k) for k in known)
        raise InputError(f"input '{name}': {source} is {list(shape)}; the model wants [{expected}]")
    return shape


def _shape_of_array(source: NamedFile, name: str, known: Known) -> Shape:
    with _stream(source, name) as stream:
        return _header(stream)[0]


def _shape_of_picture(source: NamedFile, name: str, known: Known) -> Shape | None:
    if known is None or len(known) < 2 or known[1] is None:
        return None
    shape = (known[0] or 1, known[1], *(n or 1 for n in known[2:]))
    pictures.check(source, name, Fact("scalar", shape), is_output=False)
    return (*shape[:2], *pictures.size(source))


def _find_file(file: File, name: str) -> NamedFile:
    source = named_file(file)
    check_suffix(source)
    if not source.path.is_file():
        raise InputError(f"input '{name}': no such file: {source}")
    return source


@contextlib.contextmanager
def _naming_file(file: NamedFile | Path, subject: str) -> Iterator[None]:
    """Re-raises any exception of the block as :class:`InputError` that names the file.

    ``subject`` begins the message. :class:`OverBudget` passes unchanged.
    """
    try:
        yield
    except OverBudget:
        raise
    except Exception as error:  # parsers of other packages raise anything for a damaged file
        if kind := _misplaced(file):
            raise InputError(f"{subject}: '{file}' is {kind}") from None
        if isinstance(error, InputError):
            raise InputError(f"'{file}': {error.message}") from None
        reason = str(error) or type(error).__name__
        raise InputError(f"{subject}: cannot read {file}: {reason}") from None


def _misplaced(file: NamedFile | Path) -> str | None:
    """Returns what is in place of a file, if that is a web page or the like."""
    try:
        with (file.path if isinstance(file, NamedFile) else file).open("rb") as stream:
            return misplaced_file(stream.read(HEAD_BYTES))
    except OSError:
        return None


def check_suffix(file: File) -> None:
    target = named_file(file)
    if target.suffix not in SUFFIXES:
        raise InputError(
            f"'{target}': files of type '{target.suffix}' are neither read nor written; wanted one "
            f"of {', '.join(SUFFIXES)}"
        )


def check_outputs(files: Mapping[str, File], facts: Mapping[str, Fact]) -> None:
    """Raises :class:`InputError` if an output could not be written to its file; writes nothing.

    Called before any work is done. Also raises if two outputs name the same file, unless it is a
    ``.npz``.

    Examples
    --------
    >>> check_outputs({"out": Path("out.npy")}, graph.facts)
    """
    for name, file in files.items():
        check_suffix(file)
        target = named_file(file)
        if target.suffix in pictures.KINDS:
            pictures.check(target, name, facts[name], is_output=True)
        check_place(target.path)
    for path, names in _by_file(files).items():
        if len(names) > 1 and path.suffix.lower() != ".npz":
            quoted_names = " and ".join(f"'{name}'" for name in names)
            raise InputError(
                f"'{path}' would hold the outputs {quoted_names}: a file in {path.suffix} holds "
                "one. Name a file for each, or one .npz for all"
            )


def check_place(path: str | Path, model: str | Path = "") -> None:
    """Raises :class:`InputError` if a file cannot be written, as far as that is known in advance.

    Also raises if the file belongs to the ``model`` that is read.

    Examples
    --------
    >>> check_place(Path("out.npy"))
    """
    path = check_path(path, "a file to write")
    check_path(model, "model")
    target, model_path = (Path(file_key(name)) for name in (path, model or os.devnull))
    is_part = path.suffix.lower() in (".nnef", ".quant", ".dat")
    is_model_part = is_part and target.parent == model_path
    if target == model_path or is_model_part:
        raise InputError(f"'{path}' is the model's own: name another file")
    if not path.parent.is_dir():
        raise InputError(f"cannot write '{path}': no folder '{path.parent}'; make it first")
    try:
        check_writable(path)
    except OSError as error:
        raise InputError(f"cannot write '{path}': {error.strerror}") from None


def write_outputs(files: Mapping[str, File], arrays: Mapping[str, Array]) -> None:
    """Writes each output to its file; a ``.npz`` file may hold several.

    Raises :class:`InputError`, before anything is written, for a name that ``arrays`` lacks and for
    a file that cannot hold its output.

    Examples
    --------
    >>> write_outputs({"out": Path("out.npy")}, session.run({"image": image}))
    """
    check_mapping("files by output, {'out': 'out.npy'}", files, "the files to write")
    check_mapping("arrays by output, {'out': array}", arrays, "arrays")
    arrays = {n: as_array(f"output '{n}'", array) for n, array in arrays.items()}
    check_known_names(files, arrays, "there is no output", "the files to write")
    facts = {name: Fact(_DTYPE_OF_KIND.get(a.dtype.kind, "scalar"), a.shape)
             for name, a in arrays.items()}  # fmt: skip
    check_outputs(files, facts)
    for path, names in _by_file(files).items():
        target = named_file(files[names[0]])
        values = {name: named_file(files[name]).scaled(arrays[name]) for name in names}
        writer = _WRITERS.get(target.suffix)
        write = partial(writer, values) if writer else partial(_write_picture, values, target)
        try:
            write_atomically(path, write)
        except OSError as error:
            raise InputError(f"cannot write '{path}': {error.strerror or error}") from None


def _by_file(files: Mapping[str, File]) -> dict[Path, list[str]]:
    """Returns the output names of each file.

    Different spellings of the same path count as one file.
    """
    path_by_key: dict[str, Path] = {}
    names_by_path: dict[Path, list[str]] = {}
    for name, file in files.items():
        path = named_file(file).path
        names_by_path.setdefault(path_by_key.setdefault(file_key(path), path), []).append(name)
    return names_by_path


@contextlib.contextmanager
def _stream(source: NamedFile, name: str) -> Iterator[IO[bytes]]:
    """Yields an open ``.npy`` stream: the file itself, or the member of a ``.npz`` archive.

    The member is the one called ``name``, or the only one. Its size is charged to the load budget.
    """
    if source.suffix == ".npy":
        current_budget().charge_bytes(source.path.stat().st_size, f"'{source.path}'")
        with source.path.open("rb") as file:
            yield file
        return
    with zipfile.ZipFile(source.path) as archive:
        members = {member.removesuffix(".npy"): member for member in archive.namelist()}
        if name not in members and len(members) != 1:
            raise InputError(
                f"input '{name}': it holds {', '.join(members) or 'nothing'}; wanted an array of "
                "that name, or one array only"
            )
        info = archive.getinfo(members.get(name) or next(iter(members.values())))
        charge_member(info, source.path)
        with archive.open(info) as member:
            yield member


def charge_member(member: zipfile.ZipInfo, archive: Path) -> None:
    """Charges an archive member's declared unpacked size to the current load budget.

    No more bytes than declared are read later. A compressed member also costs steps of work.
    """
    subject = f"'{archive}': '{member.filename}'"
    current_budget().charge_bytes(member.file_size, subject)
    if member.compress_type != zipfile.ZIP_STORED:
        current_budget().charge_unpacking(member.file_size, subject)


def _header(file: IO[bytes]) -> tuple[Shape, bool, DType]:
    """Reads an array's header and returns the shape, True for Fortran order, and the dtype."""
    header = np.lib.format
    try:
        version = header.read_magic(file)
    except ValueError:
        raise ValueError("it is no .npy file: write it with numpy.save") from None
    read_header = (
        header.read_array_header_1_0 if version == (1, 0) else header.read_array_header_2_0
    )
    return read_header(file)


def _read_array(source: NamedFile, name: str, fact: Fact) -> Array:
    with _stream(source, name) as file:
        array = _array(file, name, fact)
        file.read(1)  # zipfile verifies the checksum at the end of the member
        return array


def _array(file: IO[bytes], name: str, fact: Fact | None = None) -> Array:
    """Reads a ``.npy`` stream into an array after checking its type and, by ``fact``, its shape."""
    shape, is_fortran, dtype = _header(file)
    if dtype.kind not in "biuf":
        expected = fact or "numbers"
        raise InputError(f"input '{name}': wanted {expected}, got items of type {dtype}")
    if fact is not None:
        check_shape(name, fact, shape)
    count = prod(shape) * dtype.itemsize
    data = file.read(count)
    if len(data) < count:
        raise EOFError(f"it ends early: wanted {count:,} bytes, got {len(data):,}")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if is_fortran else "C")


def _read_picture(source: NamedFile, name: str, fact: Fact) -> Array:
    pictures.check(source, name, fact, is_output=False)
    channels = fact.shape[1]
    shape = (1, channels, *pictures.size(source))
    check_shape(name, fact, shape)
    current_budget().charge_unpacked(4 * prod(shape), f"input '{name}'")
    return pictures.read(source, channels)


def _write_npy(arrays: Mapping[str, Array], file: BinaryIO) -> None:
    (array,) = arrays.values()
    np.save(file, array, allow_pickle=False)


def _write_npz(arrays: Mapping[str, Array], file: BinaryIO) -> None:
    """Writes the arrays by name as a ``.npz``, whose member names may be any text.

    ``np.savez`` only takes names that can be keywords.
    """
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def _write_picture(arrays: Mapping[str, Array], target: NamedFile, file: BinaryIO) -> None:
    (array,) = arrays.values()
    pictures.write(array, target, file)


_READERS = {".npy": _read_array, ".npz": _read_array}
_WRITERS = {".npy": _write_npy, ".npz": _write_npz}


def read_samples(files: Mapping[str, Path], facts: Mapping[str, Fact]) -> list[dict[str, Array]]:
    """Returns the samples in the order of the files; each sample is an array for every input.

    An input with a single value has that value in all samples. Other inputs must have equally many
    values; otherwise :class:`InputError` is raised.
    """
    if missing := [name for name in facts if name not in files]:
        raise InputError(f"no samples of {', '.join(missing)}: give -i {missing[0]}=FILE.npz")
    values = {name: _read_samples(path, name, facts[name]) for name, path in files.items()}
    count = max(len(samples) for samples in values.values())
    for name, samples in values.items():
        if len(samples) not in (1, count):
            raise InputError(
                f"'{files[name]}': {len(samples)} samples of '{name}', others have {count}; wanted "
                "as many, or one for all"
            )
    return [
        {name: samples[i if len(samples) > 1 else 0] for name, samples in values.items()}
        for i in range(count)
    ]


def _read_samples(path: Path, name: str, fact: Fact) -> list[Array]:
    """Returns the arrays of one input, one for each sample, in the order of the file.

    They are the arrays of a ``.npz``, or the slices of one array along an additional first axis
    (or along the input's own first axis if that has extent 1).
    """
    samples = [s for array in _arrays(path, name) for s in _split_samples(array, path, name, fact)]
    if not samples:
        raise InputError(f"'{path}': no samples of '{name}' in it")
    return samples


def sample_shape(path: str, name: str, known: Known) -> Shape | None:
    """Returns the shape of one sample of an input, from the first array of the file.

    ``known`` lists the extents that the model fixes. Returns None if ``known`` is None or the
    array's rank is neither that of ``known`` nor one more.
    """
    first = None if known is None else next(_arrays(Path(path), name), None)
    if first is None or known is None or not 0 <= first.ndim - len(known) <= 1:
        return None
    shape = first.shape
    return shape[1:] if len(shape) > len(known) else (known[0] or 1, *shape[1:])


def _arrays(path: Path, name: str) -> Iterator[Array]:
    if not path.is_file():
        raise InputError(f"samples of '{name}': no such file: {path}")
    with _naming_file(path, f"samples of '{name}'"):
        if path.suffix.lower() not in _READERS:
            raise InputError(f"samples of '{name}' are read from a .npz or .npy file")
        if path.suffix.lower() == ".npy":
            with _stream(NamedFile(path), name) as stream:
                yield _array(stream, name)
            return
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                charge_member(member, path)
                with archive.open(member) as stream:
                    yield _array(stream, name)


def _split_samples(array: Array, path: Path, name: str, fact: Fact) -> list[Array]:
    shape = fact.shape
    if array.shape == shape:
        return [array]
    if array.shape[1:] == shape:
        return list(array)
    if shape[:1] == (1,) and array.shape[1:] == shape[1:]:
        return list(array[:, None])
    raise InputError(
        f"'{path}': samples of '{name}' have shape {list(array.shape)}, wanted {list(shape)} or "
        f"[count, {', '.join(map(str, shape))}]"
    )
