"""The sources of a network's inputs: files, chunks of a Zarr array, or arrays in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from cml_engine.distributed.store import check_array, check_chunk
from cml_engine.errors import InputError
from cml_engine.io import arrays as array_files
from cml_engine.io.load_limits import current_budget
from cml_engine.ir.graph import Array, Fact
from cml_engine.runtime.session import check_inputs

if TYPE_CHECKING:
    from zarr import Array as ZarrArray

Facts = Mapping[str, Fact]


class InputSource(Protocol):
    """The interface of a collection of numbered inputs. Workers receive the source pickled.

    Examples
    --------
    >>> class Noise:
    ...     def __len__(self): return 1000
    ...     def name(self, i): return f"noise {i}"
    ...     def read(self, i, facts): return {"image": np.full((1, 3, 8, 8), i, np.float32)}
    """

    def __len__(self) -> int: ...

    def name(self, number: int) -> str:
        """Returns the name of input ``number`` for the store and for reports."""
        ...

    def read(self, number: int, facts: Facts) -> Mapping[str, Array]:
        """Returns the arrays of input ``number``, by the names of the network's inputs.

        ``facts`` maps those names to the required shapes and types.
        """
        ...


@dataclass(frozen=True)
class FileSource:
    """Inputs from files, one file per input; each worker reads the files that it needs.

    A network with one input takes ``.npy`` and ``.png`` files. A network with several takes
    ``.npz`` files, which hold one array per input name.
    """

    paths: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.paths)

    def name(self, number: int) -> str:
        return self.paths[number]

    def read(self, number: int, facts: Facts) -> dict[str, Array]:
        path = Path(self.paths[number])
        return {name: array_files.read(path, name, fact) for name, fact in facts.items()}

    def check(self, facts: Facts) -> None:
        """Raises :class:`InputError` if a file's suffix does not suit the network's inputs."""
        for path in self.paths:
            array_files.check_suffix(Path(path))
            if len(facts) > 1 and Path(path).suffix.lower() != ".npz":
                raise InputError(
                    f"'{path}': the model has the inputs {', '.join(facts)}; wanted .npz files "
                    "with an array of each name"
                )


@dataclass(frozen=True)
class ZarrSource:
    """Inputs from a Zarr array, one chunk per input, in row-major order of the chunks.

    A chunk's shape may differ from the input's in axes of extent 1. The network must have one
    input.
    """

    place: str
    chunks: tuple[int, ...]
    grid: tuple[int, ...]

    def __len__(self) -> int:
        return prod(self.grid)

    def _chunk_index(self, number: int) -> tuple[int, ...]:
        return tuple(int(i) for i in np.unravel_index(number, self.grid))

    def name(self, number: int) -> str:
        return f"{self.place} chunk {'.'.join(map(str, self._chunk_index(number)))}"

    def read(self, number: int, facts: Facts) -> dict[str, Array]:
        ((name, fact),) = facts.items()
        axes = zip(self._chunk_index(number), self.chunks, strict=True)
        array = _open_array(self.place)
        check_array(array, self.place)  # the array may have changed since ``open_source``
        _charge_chunk(array, self.place, self.chunks)
        span = tuple(slice(i * size, (i + 1) * size) for i, size in axes)
        try:
            check_chunk(array, self._chunk_index(number))
            chunk = np.asarray(array[span])
        except InputError:
            raise
        except Exception as error:  # a codec's error: the chunk is damaged
            raise InputError(f"it cannot be read: {error}") from None
        return {name: chunk.reshape(fact.shape) if chunk.size == fact.size else chunk}


@dataclass(frozen=True)
class ItemSource:
    """Inputs in memory: a sequence of dictionaries of arrays.

    It may be a sequence of arrays if the network has one input.
    """

    items: Sequence[Array | Mapping[str, Array]]

    def __len__(self) -> int:
        return len(self.items)

    def name(self, number: int) -> str:
        return f"input {number}"

    def read(self, number: int, facts: Facts) -> Mapping[str, Array]:
        item = self.items[number]
        if isinstance(item, Mapping):
            return item
        if len(facts) != 1:
            raise InputError(f"wanted a dictionary of arrays, {', '.join(facts)}, got an array")
        return {next(iter(facts)): item}


def open_source(inputs: Any, facts: Facts) -> InputSource:
    """Returns the caller's ``source`` argument as an :class:`InputSource`.

    ``inputs`` is a file pattern, a sequence of paths, a Zarr array or its path, a sequence of
    arrays, or an :class:`InputSource`. Raises :class:`InputError` if its type is not supported,
    if it is empty, or if it does not suit the network's inputs.
    """
    if isinstance(inputs, str | Path):
        source = _open_pattern(str(inputs), facts)
    elif isinstance(inputs, Sequence) and inputs and all(isinstance(p, str | Path) for p in inputs):
        source = FileSource(tuple(str(Path(p).absolute()) for p in inputs))
    elif all(hasattr(inputs, part) for part in ("name", "read", "__len__")):
        source = inputs
    elif isinstance(inputs, Sequence | np.ndarray):
        source = ItemSource(inputs)  # type: ignore[arg-type]
    elif type(inputs).__module__.startswith("zarr"):
        source = _zarr_source(str(inputs.store_path), inputs, facts)
    else:
        raise InputError(
            f"cannot take inputs from {type(inputs).__name__}: wanted a pattern such as "
            "'tiles/*.npy', files, a Zarr array, or a sequence of arrays"
        )
    if not len(source):
        raise InputError("there are no inputs: the sequence is empty")
    if isinstance(source, FileSource):
        source.check(facts)
    return source


def _open_pattern(pattern: str, facts: Facts) -> InputSource:
    # absolute paths, since workers may have another working folder
    if _zarr_at(pattern):
        return _open_zarr(pattern if "://" in pattern else str(Path(pattern).absolute()), facts)
    return FileSource(tuple(str(Path(path).absolute()) for path in _match_pattern(pattern)))


def _match_pattern(pattern: str) -> list[str]:
    anchor = Path(pattern).anchor
    paths = sorted(map(str, Path(anchor).glob(str(Path(pattern).relative_to(anchor)))))
    if not paths:
        raise InputError(
            f"--inputs '{pattern}': no such file. Wanted .npy, .npz or .png files, or a Zarr "
            'array; a pattern in quotes, such as "tiles/*.npy"'
        )
    return paths


def first_shape(pattern: str, name: str, known: array_files.Known) -> array_files.Shape | None:
    """Returns the shape of input ``name`` in the first file that matches ``pattern``.

    ``known`` gives the extents that the model fixes. Returns None if the pattern names a Zarr
    array.
    """
    return (
        None if _zarr_at(pattern) else array_files.shape_of(_match_pattern(pattern)[0], name, known)
    )


def _zarr_at(path: str) -> bool:
    """Returns True if the path is a Zarr array or group. Every URL counts as one."""
    if "://" in path:
        return True
    return any((Path(path) / name).is_file() for name in ("zarr.json", ".zarray", ".zgroup"))


def _open_zarr(path: str, facts: Facts) -> InputSource:
    array = _open_array(path)
    if not hasattr(array, "chunks"):
        arrays = sorted(name for name, _ in array.arrays())
        example = f"{path.rstrip('/')}/NAME"
        raise InputError(
            f"--inputs '{path}' is a Zarr group: name one of its arrays, {example}: "
            f"{', '.join(arrays) or '(none)'}"
        )
    return _zarr_source(path, array, facts)


def _open_array(path: str) -> ZarrArray:
    """Returns the opened Zarr array or group; raises :class:`InputError` if it cannot be opened."""
    import zarr

    try:
        return zarr.open(path, mode="r")
    except Exception as error:
        raise InputError(f"'{path}': no Zarr array that can be read: {error}") from None


def _zarr_source(path: str, array: ZarrArray, facts: Facts) -> ZarrSource:
    if len(facts) != 1:
        raise InputError(
            f"'{path}' is one array, and the model has the inputs {', '.join(facts)}: give .npz "
            "files with an array of each name"
        )
    check_array(array, path)
    ((name, fact),) = facts.items()
    chunks, shape = tuple(array.chunks), tuple(array.shape)
    if _squeezed_shape(chunks) != _squeezed_shape(fact.shape):
        raise InputError(
            f"'{path}' has chunks of {list(chunks)}, the model's input '{name}' is {fact}: "
            "wanted chunks of that shape"
        )
    _charge_chunk(array, path, chunks)
    if any(n % size for n, size in zip(shape, chunks, strict=True)):
        raise InputError(f"'{path}': {list(shape)} are no whole chunks of {list(chunks)}")
    return ZarrSource(path, chunks, tuple(n // size for n, size in zip(shape, chunks, strict=True)))


def _charge_chunk(array: ZarrArray, path: str, chunks: Sequence[int]) -> None:
    """Charges a chunk's unpacked size to the current memory budget, which raises if it is exceeded.

    A few kilobytes can unpack to gigabytes.
    """
    current_budget().charge_unpacked(prod(chunks) * array.dtype.itemsize, f"a chunk of '{path}'")


def _squeezed_shape(shape: Sequence[int]) -> list[int]:
    return [n for n in shape if n != 1]


def read_checked(source: InputSource, number: int, facts: Facts) -> dict[str, Array]:
    """Returns the arrays of input ``number`` in the network's types, by input name.

    Raises :class:`InputError` if the input does not fit; the message leaves the input's name out.
    """
    try:
        return check_inputs(facts, dict(source.read(number, facts)))
    except InputError as error:
        reason = error.message.removeprefix(f"'{source.name(number)}': ")
        raise InputError(reason) from None


def names_of(source: InputSource) -> Iterator[str]:
    """Yields the names of all inputs in order; bytes that are no text are escaped."""
    names = (source.name(number) for number in range(len(source)))
    return (name.encode("utf-8", "backslashreplace").decode() for name in names)


def names_digest(source: InputSource) -> str:
    """Returns the hexadecimal SHA-256 of all inputs' names, which identifies the store's rows."""
    hasher = hashlib.sha256()
    for name in names_of(source):
        hasher.update(f"{name}\n".encode())
    return hasher.hexdigest()
