"""Strided copies: the kernel of transpose, concat, split, slice, stack, tile and others.

A copy is a box of indices with a source stride and a target stride per dimension. Dimensions
that are contiguous in both are merged, so most copies have one to three dimensions, whatever the
tensor's rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

from cml_engine.ir.layout import block_words
from cml_engine.ops.common.shapes import collapse
from cml_engine.ops.declaration.hardware import hardware_table
from cml_engine.ops.declaration.lowering import Lowering
from cml_engine.ops.declaration.spec import Cost, Dispatch, engine_kernel

#: a tile of rank 8 takes two dimensions for each axis
MAX_DIMS = 16
_PARAMS = (
    "n:u blocks:u src_offset:i dst_offset:i shape:u16 src_stride:i16 dst_stride:i16 "
    "src_carry:i16 dst_carry:i16"
)
#: kernel variants by number of dimensions: few, so that a new shape seldom needs a new pipeline
_RANKS = (1, 2, 3, 4, 5, 8, MAX_DIMS)
_GROUP, _ITEMS = 64, 8
#: items of a thread on hardware, where many waves are faster than few long ones until they fill it:
#: up to that many workgroups, and beyond (modelled, docs/design/performance.md)
_FEW_ITEMS, _MORE_ITEMS = 2, 4
#: shorter rows would leave most lanes of a thread's ITEMS idle
_LONG_ROW = 4 * _ITEMS
#: a matrix is transposed through groupshared memory from this side on
_TILE_SIDE, _TILE_MIN = 32, 8

KERNEL = engine_kernel("movement/strided_copy.hlsl", _PARAMS, group=_GROUP)
_TILED = replace(KERNEL, group=256)


@dataclass(frozen=True, slots=True)
class Dim:
    """One dimension of a copy: ``extent`` items with the strides ``src`` and ``dst``."""

    extent: int
    src: int
    dst: int


@dataclass(frozen=True, slots=True)
class Copy:
    """A box of items to copy: its dimensions, outermost first, and both offsets."""

    dims: tuple[Dim, ...]
    src_offset: int = 0
    dst_offset: int = 0

    @property
    def size(self) -> int:
        return prod(d.extent for d in self.dims)


def memory_shape(op: Lowering, name: str) -> tuple[int, ...]:
    """Returns the tensor's extents in memory order, in 32-bit words.

    For blocked feature maps, axis 1 counts blocks, and a last axis the words of a block.
    """
    shape = op.fact(name).shape
    if op.is_blocked(name):
        return (shape[0], -(-shape[1] // 4), *shape[2:], block_words(op.layout(name)))
    return shape


def box(
    shape: Sequence[int],
    src: Sequence[int],
    dst: Sequence[int],
    src_offset: int = 0,
    dst_offset: int = 0,
) -> Copy:
    """Returns the copy of a box of that ``shape`` with strides ``src`` and ``dst``.

    Dimensions are merged where possible.
    """
    walk = collapse(shape, (src, dst))
    dims = tuple(Dim(*d) for d in zip(walk.extents, *walk.strides, strict=True))
    return Copy(dims, src_offset, dst_offset)


def copy_regions(op: Lowering, source: str, target: str, *copies: Copy) -> Iterator[Dispatch]:
    """Returns an iterator over one dispatch per copy; an empty copy has none."""
    return (_dispatch(op, source, target, copy) for copy in copies if copy.size)


def _dispatch(op: Lowering, source: str, target: str, copy: Copy) -> Dispatch:
    if not op.limits.software and (order := _tile_order(copy)):
        return _tiled(source, target, replace(copy, dims=order))
    width = next(w for w in (4, 2, 1) if _moves_vectors(copy, w))
    vector_copy = _in_vectors(copy, width)
    if op.limits.software:
        vector_copy = _lengthen_rows(vector_copy)
        return _copy_dispatch(source, target, vector_copy, width)
    few = vector_copy.size <= _GROUP * _FEW_ITEMS * hardware_table(op.limits).limits.copy_groups
    return _copy_dispatch(source, target, vector_copy, width, _FEW_ITEMS if few else _MORE_ITEMS)


def _copy_dispatch(
    source: str, target: str, copy: Copy, width: int, most: int = _ITEMS
) -> Dispatch:
    row = copy.dims[-1].extent
    items = min(4 if row % _ITEMS == 4 and row < _LONG_ROW else _ITEMS, most)
    by_rows = len(copy.dims) == 1 or row % items == 0 or row >= _LONG_ROW
    blocks = -(-row // items)
    n = copy.size // row * blocks if by_rows else copy.size
    per_group = _GROUP if by_rows else _GROUP * items
    item = f"uint{width}" if width > 1 else "uint"
    return Dispatch(
        groups=-(-n // per_group),
        tensors=(source, target),
        params={"n": n, "blocks": blocks, **_params(copy)},
        defines={
            "RANK": _variant(copy),
            "ITEMS": items,
            "T0_TYPE": item,
            "T1_TYPE": item,
            **({"ROWS": 1} if by_rows else {}),
        },
        kernel=KERNEL,
        cost=_cost(copy.size * width),
    )


def _tiled(source: str, target: str, copy: Copy) -> Dispatch:
    tiles = [-(-d.extent // _TILE_SIDE) for d in copy.dims[-2:]]
    return Dispatch(
        groups=prod(d.extent for d in copy.dims[:-2]) * prod(tiles),
        tensors=(source, target),
        params={"n": 0, "blocks": 0, **_params(copy)},
        defines={
            "RANK": _variant(copy),
            "TILE": 1,
            "SIDE": _TILE_SIDE,
            "T0_TYPE": "uint",
            "T1_TYPE": "uint",
        },
        kernel=_TILED,
        cost=_cost(copy.size),
    )


def _cost(words: int) -> Cost:
    return Cost(0, 4 * words, 4 * words)


def _variant(copy: Copy) -> int:
    return next(r for r in _RANKS if r >= len(copy.dims))


def _params(copy: Copy) -> dict[str, object]:
    dims = copy.dims[::-1]  # the shader counts from the innermost
    padded = [*dims, *[Dim(1, 0, 0)] * (MAX_DIMS - len(dims))]
    pairs = list(pairwise(padded))
    return {
        "src_offset": copy.src_offset,
        "dst_offset": copy.dst_offset,
        "shape": [d.extent for d in padded],
        "src_stride": [d.src for d in padded],
        "dst_stride": [d.dst for d in padded],
        "src_carry": [b.src - a.extent * a.src for a, b in pairs],
        "dst_carry": [b.dst - a.extent * a.dst for a, b in pairs],
    }


def _moves_vectors(copy: Copy, width: int) -> bool:
    """Returns True if the copy consists of aligned runs of ``width`` elements on both sides."""
    if width == 1:
        return True
    *outer, row = copy.dims
    numbers = [row.extent, copy.src_offset, copy.dst_offset]
    numbers += [s for d in outer for s in (d.src, d.dst)]
    return row.src == row.dst == 1 and all(x % width == 0 for x in numbers)


def _in_vectors(copy: Copy, width: int) -> Copy:
    if width == 1:
        return copy
    *outer, row = copy.dims
    extents = [*(d.extent for d in outer), row.extent // width]
    src, dst = ([*(s // width for s in walk), 1] for walk in _strides(outer))
    return box(extents, src, dst, copy.src_offset // width, copy.dst_offset // width)


def _strides(dims: Sequence[Dim]) -> tuple[list[int], list[int]]:
    return [d.src for d in dims], [d.dst for d in dims]


def _lengthen_rows(copy: Copy) -> Copy:
    """Returns the copy with its two innermost dimensions exchanged if that makes rows long.

    Long rows save divisions. Only for CPU drivers, which write every word separately, so that
    neighbours need not be adjacent.
    """
    *outer, above, row = (Dim(1, 0, 0), *copy.dims)
    if row.extent < _ITEMS and above.extent >= _LONG_ROW:
        return replace(copy, dims=(*outer[1:], row, above))
    return copy


def _tile_order(copy: Copy) -> tuple[Dim, ...] | None:
    """Returns the dimensions with the two of a transpose last; None if it is no transpose."""
    row = copy.dims[-1]
    if row.dst != 1 or row.src in (0, 1, -1) or row.extent < _TILE_MIN:
        return None
    for i, dim in enumerate(copy.dims[:-1]):
        if dim.src == 1 and dim.extent >= _TILE_MIN:
            return (*copy.dims[:i], *copy.dims[i + 1 : -1], dim, row)
    return None
