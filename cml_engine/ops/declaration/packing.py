"""Describes as data how a constant is packed into weights, so that a cooked file stores it once."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import DTypeLike

from cml_engine.ir.graph import Array

#: the additional parameter of a kernel that reads weights in blocks: where the scales begin
SCALES_AT = "scales_at"
#: a dimension of the result: its extent, the axis of the source it moves along, and the step
PackedDim = tuple[int, int, int]


class PackedArray(Array):
    """Packed weights with their packing rule; slices and copies of them have none."""

    packing: Packing | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Packing:
    """A rule that reorders a constant ``source`` into the order in which a kernel reads it.

    The steps of all dimensions map an index of the result to an element of ``source``; the
    result is zero beyond the source's extents. ``matrix`` replaces each 3x3 window, the source's
    axis 2, by ``matrix @ window @ matrix.T``; the result's axis 2 then counts the points. The
    file format and the players in C and JavaScript use the same rule (docs/cooked.md).
    """

    source: Array
    dims: tuple[PackedDim, ...]
    dtype: DTypeLike = np.float32
    matrix: Array | None = None

    def array(self) -> PackedArray:
        """Returns the packed weights, one-dimensional; integers are viewed as 32-bit words."""
        values = self.source if self.matrix is None else _transformed(self.source, self.matrix)
        with np.errstate(over="ignore"):
            ordered = _scatter(values.astype(self.dtype), self.dims)
        if ordered.dtype.kind in "iu" and ordered.nbytes % 4 == 0:
            ordered = ordered.view(np.int32)
        packed = ordered.view(PackedArray)
        packed.packing = self
        return packed


def _transformed(windows: Array, matrix: Array) -> Array:
    """Returns ``matrix @ window @ matrix.T`` of all 3x3 windows, flattened, as float32.

    It is computed in float64 and in a fixed order, so that all players get identical bits.
    """
    v = windows.reshape(*windows.shape[:2], 3, 3).astype(np.float64)
    a = [matrix[:, i, None] * v[..., None, i, :] for i in range(3)]
    down = (a[0] + a[1]) + a[2]
    b = [down[..., j, None] * matrix[:, j] for j in range(3)]
    return ((b[0] + b[1]) + b[2]).reshape(*windows.shape[:2], -1).astype(np.float32)


def _scatter(values: Array, dims: tuple[PackedDim, ...]) -> Array:
    """Returns the values in the order of ``dims``, flattened, with zeros beyond the extents."""
    extents = list(values.shape)
    for a, extent in enumerate(values.shape):
        last = sum((n - 1) * step for n, axis, step in dims if axis == a)
        extents[a] = max(extent, last + 1)
    padded = np.zeros(extents, values.dtype)
    padded[tuple(map(slice, values.shape))] = values
    shape = [n for n, _, _ in dims]
    strides = [padded.strides[axis] * step for _, axis, step in dims]
    return np.ascontiguousarray(np.lib.stride_tricks.as_strided(padded, shape, strides)).reshape(-1)


def pack_unchanged(array: Array) -> Packing:
    """Returns a packing that only flattens the array."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return Packing(flat, ((prod(array.shape), 0, 1),), array.dtype)


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """The format in which a kernel reads weights in blocks (block_weights.hlsli).

    It is vectors of four 32-bit words: codes of ``bits`` bits, from vector ``scales_at`` on the
    scales. ``size`` weights share a scale.
    """

    bits: int
    size: int
    scales_at: int

    @property
    def defines(self) -> dict[str, int | str]:
        return {"WEIGHT_BITS": self.bits, "BLOCK": self.size, "T1_TYPE": "uint4"}

    @property
    def params(self) -> dict[str, int]:
        return {SCALES_AT: self.scales_at}


def pack_blocks(codes: Packing, scales: Packing, bits: int) -> Array:
    """Returns weights in blocks as 32-bit words: the codes in their order, then the scales."""
    packed: Array = codes.array().view(np.uint8)
    if bits == 4:
        packed = (packed[::2] & 15) | (packed[1::2] << 4)
    parts = (packed, scales.array().view(np.uint8))
    padded = [np.pad(part, (0, -part.size % 16)) for part in parts]
    return np.concatenate(padded).view(np.int32)
