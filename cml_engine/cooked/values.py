"""Writes and reads the constants of a cooked file, stored once in the fewest sufficient bits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from math import prod

import numpy as np

from cml_engine.cooked.reader import Container, damaged
from cml_engine.cooked.schema import (
    MOST_BYTES,
    MOST_DIMENSIONS,
    NONE64,
    SOURCE_AXES,
    SPACES,
    VALUE_ALIGNMENT,
    VALUES,
    ConstantRow,
    Dimension,
    aligned,
    pad,
)
from cml_engine.errors import InputError
from cml_engine.ir.graph import Array, DType
from cml_engine.ops.declaration.packing import PackedArray, Packing, pack_unchanged

#: stored types by their number in the file: raw bits of 1, 2 and 4 bytes, then integers that are
#: converted to 32-bit floats or integers
STORED = ("uint8", "uint16", "uint32", "int8", "uint8", "int16", "uint16")
_FIRST_NUMBER = 3
#: the conversions of stored numbers; _HALF is of the results of a matrix
_BITS, _FLOAT, _INTEGER, _HALF = range(4)
#: only larger arrays are stored in fewer bits
_SMALL_BYTES = 64


class Values:
    """The section ``values`` of a cooked file under construction: arrays, equal ones stored
    once."""

    def __init__(self) -> None:
        self.content = bytearray()
        self._offsets: dict[bytes, int] = {}

    def put(self, array: Array) -> tuple[int, int, int]:
        """Stores an array unless an equal one is there; returns its offset, its stored type and the
        type that it is converted to.

        Both types are the numbers that the format specifies.
        """
        bits = array.view(np.uint8).reshape(-1) if array.size else np.zeros(0, np.uint8)
        stored = STORED.index(f"uint{8 * array.itemsize}")
        becomes = _BITS
        if array.itemsize == 4 and array.nbytes > _SMALL_BYTES and (number_type := _narrow(array)):
            stored, bits = STORED.index(number_type, _FIRST_NUMBER), array.astype(number_type)
            becomes = _FLOAT if array.dtype.kind == "f" else _INTEGER
        content = np.ascontiguousarray(bits).tobytes()
        digest = hashlib.sha256(content).digest()
        if digest not in self._offsets:
            self._offsets[digest] = pad(self.content, VALUE_ALIGNMENT)
            self.content += content
        return self._offsets[digest], stored, becomes

    def rows(self, space: str, values: Mapping[str, tuple[int, Array]]) -> Iterator[bytes]:
        """Yields the record of each constant of buffer ``space``, as bytes in order of offset, and
        stores its values.

        Empty constants are left out.
        """
        for offset, array in sorted(values.values(), key=lambda value: value[0]):
            if array.size:
                yield self._row(space, offset, _packing_of(array))

    def _row(self, space: str, offset: int, packing: Packing) -> bytes:
        dtype = np.dtype(packing.dtype)
        source = packing.source
        if packing.matrix is None:
            with np.errstate(over="ignore"):
                source = source.astype(dtype)
        offset_of_source, stored, becomes = self.put(np.ascontiguousarray(source))
        matrix = NONE64 if packing.matrix is None else self.put(packing.matrix.view(np.uint32))[0]
        if packing.matrix is not None and dtype == np.float16:
            becomes = _HALF
        count = prod(n for n, _, _ in packing.dims)
        dims = [*packing.dims, *[(0, 0, 0)] * (MOST_DIMENSIONS - len(packing.dims))]
        return ConstantRow(
            space=SPACES.index(space),
            stored=stored,
            becomes=becomes,
            rank=len(packing.dims),
            offset=offset,
            nbytes=aligned(count * dtype.itemsize, 4),
            source=offset_of_source,
            matrix=matrix,
            extents=(*source.shape, *[1] * (SOURCE_AXES - source.ndim)),
            dims=tuple(Dimension(extent=n, axis=axis, step=step) for n, axis, step in dims),
        ).to_bytes()


def _packing_of(array: Array) -> Packing:
    packing = array.packing if isinstance(array, PackedArray) else None
    if packing is not None:
        return packing
    if array.dtype == np.bool_:
        array = array.astype(np.uint32)
    if array.itemsize not in (2, 4):
        raise InputError(f"a constant of {array.dtype} cannot be cooked")
    return pack_unchanged(array)


def _narrow(array: Array) -> str | None:
    """Returns the name of the smallest integer type that represents all numbers of a 32-bit array
    exactly, or None.

    A float array with a negative zero gives None.
    """
    flat = array.reshape(-1)
    for part in (flat[:1024], flat):
        if part.dtype.kind == "f":
            with np.errstate(invalid="ignore"):
                integers = part.astype(np.int32)
            if not np.array_equal(integers.astype(np.float32).view(np.int32), part.view(np.int32)):
                return None
    low, high = float(flat.min()), float(flat.max())
    for number_type in STORED[_FIRST_NUMBER:]:
        limits = np.iinfo(number_type)
        if limits.min <= low and high <= limits.max:
            return number_type
    return None


# --- reading


def read_values(
    file: Container, offset: int, count: int, stored: int, becomes: int, subject: str
) -> tuple[Array, DType]:
    """Returns ``count`` numbers of the section ``values`` as stored, and the type to convert them
    to.

    ``stored`` and ``becomes`` are the type numbers of the format. Raises
    :class:`CorruptArtifact`, whose message begins with ``subject``, if they are invalid.
    """
    is_bits = stored < _FIRST_NUMBER
    if stored >= len(STORED) or becomes > _INTEGER or (becomes == _BITS) != is_bits:
        raise damaged(f"{subject} is stored as {stored}, {becomes}")
    stored_dtype = np.dtype(STORED[stored])
    if offset % VALUE_ALIGNMENT:
        raise damaged(f"{subject} begins at {offset}")
    numbers = np.frombuffer(
        file.section(VALUES).span(offset, count * stored_dtype.itemsize, subject), stored_dtype
    )
    return numbers, np.dtype((stored_dtype, np.float32, np.int32)[becomes])


def _is_step(dims: Sequence[tuple[int, int, int]], axis: int, step: int) -> bool:
    """Returns True if the dimensions of ``axis`` with smaller steps fill ``step``, so that no
    position is left out.

    ``dims`` has the extent, axis and step of each dimension.
    """
    return step == prod(n for n, dim_axis, dim_step in dims if dim_axis == axis and dim_step < step)


class Constants(Mapping[str, tuple[int, Array]]):
    """The constants of one buffer of a plan: byte offset and array by name, the array unpacked
    at each access."""

    def __init__(self, space: str, packings: Sequence[tuple[int, Packing]]) -> None:
        self._made = {f"{space}@{offset}": (offset, packing) for offset, packing in packings}

    def __getitem__(self, name: str) -> tuple[int, Array]:
        offset, packing = self._made[name]
        return offset, packing.array()

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)


def read_constants(
    file: Container, rows: Sequence[ConstantRow], sizes: Mapping[str, int], subject: str
) -> dict[str, Constants]:
    """Returns the constants of a plan's buffers by space (``"weights"`` and ``"own"``).

    ``sizes`` has the bytes of each buffer. Raises :class:`CorruptArtifact`, whose message begins
    with ``subject``, if constants overlap or are invalid.
    """
    packings: dict[str, list[tuple[int, Packing]]] = {space: [] for space in SPACES[1:]}
    previous_end = (0, 0)
    for number, row in enumerate(rows):
        title = f"{subject}, constant {number}"
        space, offset, nbytes = row.space, row.offset, row.nbytes
        if not 0 < space < len(SPACES) or (space, offset) < previous_end or offset % 4:
            raise damaged(f"{title} lies at {offset} of space {space}")
        if offset + nbytes > sizes[SPACES[space]]:
            raise damaged(f"{title} ends outside of its buffer")
        previous_end = space, offset + nbytes
        packing = _read_packing(file, row, title)
        count = prod(n for n, _, _ in packing.dims)
        if aligned(count * np.dtype(packing.dtype).itemsize, 4) != nbytes:
            raise damaged(f"{title} has {nbytes:,} bytes")
        packings[SPACES[space]].append((offset, packing))
    return {space: Constants(space, of_space) for space, of_space in packings.items()}


def _read_packing(file: Container, row: ConstantRow, title: str) -> Packing:
    rank, matrix, extents = row.rank, row.matrix, row.extents
    dims = tuple((dim.extent, dim.axis, dim.step) for dim in row.dims)
    if not 0 < rank <= MOST_DIMENSIONS or any(any(dim) for dim in dims[rank:]):
        raise damaged(f"{title} has {rank} dimensions")
    axes = SOURCE_AXES if matrix == NONE64 else 3
    dims = dims[:rank]
    if not all(n and axis < axes and _is_step(dims, axis, s) for n, axis, s in dims):
        raise damaged(f"{title} has dimensions that are none")
    if prod(extents) > MOST_BYTES:
        raise damaged(f"{title} has a source of {extents}")
    becomes, is_half = row.becomes, row.becomes == _HALF and matrix != NONE64
    if is_half:  # the source is float32
        becomes = _BITS if row.stored < _FIRST_NUMBER else _FLOAT
    source, dtype = read_values(file, row.source, prod(extents), row.stored, becomes, title)
    transform, shape, ends = None, extents, extents
    if matrix != NONE64:
        if dtype not in (np.uint32, np.float32) or extents[2:] != (9, 1):
            raise damaged(f"{title} is transformed and has no windows")
        source = source.view(np.float32) if dtype == np.uint32 else source
        matrix_words, _ = read_values(file, matrix, 36, 2, _BITS, title)
        transform = matrix_words.view(np.float64).reshape(6, 3)
        dtype = np.dtype(np.float16 if is_half else np.float32)
        shape, ends = extents[:3], (*extents[:2], 36, 1)
    for axis, end in enumerate(ends):
        if end > prod(n for n, dim_axis, _ in dims if dim_axis == axis):
            raise damaged(f"{title} does not have all of its source")
    return Packing(source.reshape(shape), dims, dtype, transform)
