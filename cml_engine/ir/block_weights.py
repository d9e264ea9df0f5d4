"""Weights that are stored as integers of 8 or 4 bits, in blocks that share a scale.

A block has consecutive weights along one axis. A weight is its signed integer, the *code*, times
the block's scale.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import SupportsIndex

import numpy as np
from numpy.typing import DTypeLike

from cml_engine.ir.graph import Array
from cml_engine.ir.single_value import converted, is_single_value

#: the supported bits of a code
CODE_BITS = (8, 4)


@dataclass(frozen=True, eq=False, slots=True)
class Blocks:
    """The stored form of weights: ``codes`` (int8, in the weights' shape) times ``scales``.

    A block has ``size`` weights along ``axis``; the last block may be shorter. ``scales`` has the
    weights' shape, but one element for each block along ``axis``.
    """

    codes: Array
    scales: Array
    axis: int
    size: int
    bits: int

    def values(self) -> BlockArray:
        """Returns the weights as floats."""
        values = (self.codes * self.spread(self.scales)).view(BlockArray)
        values.flags.writeable = False
        values.blocks = self
        return values

    def spread(self, per_block: Array) -> Array:
        """Returns an array with one element for each block as one with an element per weight."""
        repeated = np.repeat(per_block, self.size, self.axis)
        index = (slice(None),) * self.axis
        return np.asarray(repeated[(*index, slice(self.codes.shape[self.axis]))])

    def scaled(self, factors: Array) -> Array:
        """Returns the weights times ``factors``, an array in their shape.

        The result has blocks if all factors of a block are equal.
        """
        first = np.arange(0, self.codes.shape[self.axis], self.size)
        per_block = np.take(factors, first, self.axis)
        if not np.array_equal(self.spread(per_block), factors):
            return np.asarray((self.codes * self.spread(self.scales) * factors).astype(np.float32))
        return replace(self, scales=(self.scales * per_block).astype(np.float32)).values()

    def moved(self, move: Callable[[Array], Array]) -> Blocks:
        """Returns the blocks after a transpose, or after axes of extent 1 were added."""
        marker = np.broadcast_to(np.int8(0), [2 + a for a in range(self.codes.ndim)])
        codes, scales = (np.ascontiguousarray(move(a)) for a in (self.codes, self.scales))
        axis = move(marker).shape.index(2 + self.axis)
        return replace(self, codes=codes, scales=scales, axis=axis)


class BlockArray(Array):
    """Weights as float32 values, with the form in which they are stored.

    A slice, a copy or a result of arithmetic has no ``blocks``; a pickled array keeps them.
    """

    blocks: Blocks | None = None

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[object, ...]:
        if self.blocks is None:
            return super().__reduce_ex__(protocol)
        return Blocks.values, (self.blocks,)


def weight_blocks(array: Array | None) -> Blocks | None:
    """Returns the form in which weights are stored, or None for other arrays."""
    return array.blocks if isinstance(array, BlockArray) else None


def copy_of(array: Array, dtype: DTypeLike) -> Array:
    """Returns a copy of an array in C order.

    Weights in blocks, which are read-only, are returned themselves, and so are large arrays of one
    value, in the type ``dtype``.
    """
    if weight_blocks(array):
        return array
    if is_single_value(array):
        return converted(array, np.dtype(dtype))
    return np.array(array, dtype, order="C")


def scales_shape(shape: tuple[int, ...], axis: int, size: int) -> tuple[int, ...]:
    """Returns the shape of the scales of weights in blocks of ``size`` along ``axis``."""
    return tuple(-(-n // size) if a == axis else n for a, n in enumerate(shape))


def nearest_blocks(values: Array, axis: int, size: int, bits: int) -> Blocks:
    """Returns the weights in blocks, with the nearest codes.

    Each block takes the scale of the least squared error among some that map its largest weight
    to the end of the codes' range, or slightly beyond it.
    """
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    moved = np.moveaxis(values.astype(np.float64), axis, -1)
    pad = [(0, 0)] * (values.ndim - 1) + [(0, -moved.shape[-1] % size)]
    count = -(-moved.shape[-1] // size)
    parts = np.pad(moved, pad).reshape(*moved.shape[:-1], count, size)
    extreme = np.take_along_axis(parts, np.abs(parts).argmax(-1, keepdims=True), -1)
    least_error = np.full(extreme.shape, np.inf)
    scales: Array = np.zeros(extreme.shape, np.float32)
    codes: Array = np.zeros(parts.shape, np.int8)
    for end in (high, *np.linspace(low, 1.25 * low, 6)):
        block_scales = (extreme / end).astype(np.float32)
        with np.errstate(divide="ignore", invalid="ignore"):
            block_codes = np.clip(np.rint(np.nan_to_num(parts / block_scales)), low, high)
        error = np.square(block_codes * block_scales - parts).sum(-1, keepdims=True)
        is_less = error < least_error
        scales = np.where(is_less, block_scales, scales)
        codes = np.where(is_less, block_codes, codes)
        least_error = np.minimum(error, least_error)
    flat = codes.reshape(*moved.shape[:-1], count * size)
    codes = np.moveaxis(flat[..., : moved.shape[-1]].astype(np.int8), -1, axis)
    scales = np.moveaxis(scales[..., 0], -1, axis)
    return Blocks(np.ascontiguousarray(codes), np.ascontiguousarray(scales), axis, size, bits)
