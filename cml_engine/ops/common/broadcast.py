"""NNEF's broadcasting: shapes are aligned from the LEFT, missing trailing dimensions are 1.

``[1,8]`` broadcasts with ``[2,8,4,4]`` as ``[1,8,1,1]``, the opposite of NumPy. This module has
the shape rule, array views that make NumPy follow it, and the iteration space of a kernel: as
few dimensions as possible, with one stride per operand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from cml_engine.errors import InternalError, ShapeError
from cml_engine.ir.graph import Array, Fact
from cml_engine.ir.layout import BLOCKED, PLAIN

Shape = tuple[int, ...]


def broadcast_shapes(*shapes: Shape) -> Shape:
    """Returns the common shape of tensors that are broadcast together.

    Raises
    ------
    ShapeError
        Two extents of one dimension differ and neither is 1.
    """
    rank = max((len(s) for s in shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        for axis, extent in enumerate(shape):
            if extent == 1 or extent == result[axis]:
                continue
            if result[axis] != 1:
                raise _mismatch(shapes, axis)
            result[axis] = extent
    return tuple(result)


def _mismatch(shapes: Sequence[Shape], axis: int) -> ShapeError:
    shown = " and ".join(str(list(s)) for s in shapes)
    extents = sorted({s[axis] for s in shapes if axis < len(s)} - {1})
    return ShapeError(
        f"shapes {shown} do not broadcast: dimension {axis} is {' and '.join(map(str, extents))}, "
        "wanted equal extents or 1. NNEF aligns shapes from the left; "
        "insert extents of 1 with unsqueeze where a dimension is missing"
    )


def left_view(array: Array, rank: int) -> Array:
    """Returns a view with trailing dimensions of 1 up to ``rank``; NumPy broadcasts it like
    NNEF."""
    return array.reshape(array.shape + (1,) * (rank - array.ndim))


def left_views(*arrays: Array) -> list[Array]:
    """Returns views of all arrays, with trailing dimensions of 1 up to the largest rank."""
    rank = max(a.ndim for a in arrays)
    return [left_view(a, rank) for a in arrays]


def contiguous_strides(shape: Shape) -> Shape:
    """Returns the row-major strides of a shape, in elements."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def split_channels(fact: Fact, layout: str, rank: int) -> tuple[Shape, Shape]:
    """Returns a tensor's extents and strides along ``[N, C/4, lane, spatial…]``.

    Strides are in elements. ``layout`` is the tensor's memory layout. Trailing dimensions of 1
    are added up to ``rank``; the stride is 0 where the extent is 1. Raises
    :class:`InternalError` if the channels are neither 1 nor a multiple of four.
    """
    batch, channels, *spatial = fact.shape + (1,) * (rank - fact.rank)
    if channels % 4 and (channels != 1 or layout in BLOCKED):
        raise InternalError(f"{layout} tensor {fact}: {channels} channels do not fall into fours")
    if channels == 1:
        n, _, *steps = broadcast_strides((batch, 1, *spatial))
        return (batch, 1, 1, *spatial), (n, 0, 0, *steps)
    if layout == PLAIN:
        extents = (batch, channels // 4, 4, *spatial)
        return extents, broadcast_strides(extents)
    n, block, *steps, lane = broadcast_strides((batch, channels // 4, *spatial, 4))
    return (batch, channels // 4, 4, *spatial), (n, block, lane, *steps)


def in_memory_order(values: Shape, layout: str) -> Shape:
    """Reorders values along ``[N, C/4, lane, spatial…]`` to the memory order of the layout.

    In a blocked layout the lane is last; a plain layout leaves the values unchanged.
    """
    return values if layout == PLAIN else (*values[:2], *values[3:], values[2])


def broadcast_strides(shape: Shape) -> Shape:
    """Returns the row-major strides of a shape in elements, with 0 for dimensions of extent 1."""
    strides = contiguous_strides(shape)
    return tuple(0 if n == 1 else s for n, s in zip(shape, strides, strict=True))


@dataclass(frozen=True, slots=True)
class StridedWalk:
    """The extents that a kernel iterates over, and each operand's strides along them.

    Dimensions are outermost first; there is at least one. ``strides[k]`` belongs to operand k.
    """

    extents: Shape
    strides: tuple[Shape, ...]

    @property
    def size(self) -> int:
        return prod(self.extents)

    @property
    def flat(self) -> bool:
        """True for a single pass through memory: every operand is dense or a single element."""
        return len(self.extents) == 1


def collapse(extents: Shape, strides: Sequence[Shape]) -> StridedWalk:
    """Returns the walk over the same elements in the same order with the fewest dimensions.

    ``strides`` has the strides of each operand. Extents of 1 are dropped, and neighbouring
    dimensions are merged if every operand steps evenly over both.
    """
    dims: list[tuple[int, Shape]] = []
    for axis, extent in enumerate(extents):
        steps = tuple(s[axis] for s in strides)
        if extent == 1:
            continue
        if dims and all(o == s * extent for o, s in zip(dims[-1][1], steps, strict=True)):
            dims[-1] = (dims[-1][0] * extent, steps)
        else:
            dims.append((extent, steps))
    if not dims:
        dims = [(1, (0,) * len(strides))]
    return StridedWalk(
        tuple(extent for extent, _ in dims),
        tuple(tuple(steps[k] for _, steps in dims) for k in range(len(strides))),
    )


def plan_walk(operands: Sequence[tuple[Fact, str]], out: Fact, out_layout: str) -> StridedWalk:
    """Returns the iteration space of an elementwise operator.

    Its dimensions are in the memory order of the result ``out``. ``operands`` are facts with
    memory layouts, which may differ from the result's layout.
    """
    if all(layout == PLAIN for layout in (out_layout, *(layout for _, layout in operands))):
        strides = [broadcast_strides(f.shape + (1,) * (out.rank - f.rank)) for f, _ in operands]
        return collapse(out.shape, strides)
    extents, _ = split_channels(out, out_layout, out.rank)
    split = [split_channels(f, layout, out.rank)[1] for f, layout in operands]
    return collapse(
        in_memory_order(extents, out_layout), [in_memory_order(s, out_layout) for s in split]
    )
