"""Checks shared by the shape rules of several operators.

Each message states the expected and the actual value and the next step.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from cml_engine.errors import InputError, InternalError, ShapeError
from cml_engine.ir.graph import Array, Fact
from cml_engine.ir.layout import BLOCKED, PLAIN

#: the largest rank in NNEF's tensor files
MAX_RANK = 8
Shape = tuple[int, ...]


def check_axis(axis: int, rank: int, name: str = "axis") -> int:
    """Returns ``axis``; raises :class:`ShapeError` if a tensor of that rank does not have it."""
    if not 0 <= axis < rank:
        valid = f"0 to {rank - 1}" if rank else "none, for the tensor has rank 0"
        raise ShapeError(f"{name} {axis} is not in the tensor: wanted {valid}; counts from 0")
    return axis


def check_axes(axes: Sequence[int], rank: int) -> list[int]:
    """Returns ``axes`` as a list; raises :class:`ShapeError` if one is out of range or repeated."""
    for axis in axes:
        check_axis(axis, rank)
    if len(set(axes)) != len(axes):
        raise ShapeError(f"axes {list(axes)} name one axis twice; leave one out")
    return list(axes)


def check_indices(op: str, indices: Array, axis: int, low: int, extent: int) -> None:
    """Raises :class:`InputError` unless all indices of ``axis`` are ``low`` to ``extent - 1``."""
    wrong = indices[(indices < low) | (indices >= extent)]
    if wrong.size:
        raise InputError(
            f"{op} index {wrong.flat[0]} is not in axis {axis}, wanted {low} to {extent - 1} "
            f"({wrong.size} of {indices.size} are wrong); on a GPU they are clamped"
        )


def check_word(name: str, value: str, choices: Collection[str]) -> None:
    """Raises :class:`ShapeError` if the value of attribute ``name`` is not one of ``choices``."""
    if value not in choices:
        raise ShapeError(f"{name} '{value}', wanted one of {', '.join(choices)}")


def check_length(name: str, values: Sequence[object], count: int, subject: str) -> None:
    """Raises :class:`ShapeError` if the list attribute ``name`` does not have ``count`` values.

    ``subject`` states in the message what there must be a value for.
    """
    if len(values) != count:
        raise ShapeError(
            f"'{name}' has {len(values)} values ({list(values)}), wanted {count}: one for {subject}"
        )


def check_sizes(name: str, sizes: Sequence[int], x: Fact) -> None:
    """Raises :class:`ShapeError` unless ``sizes`` has a value of 1 or more per spatial axis."""
    check_length(name, sizes, x.rank - 2, f"each spatial axis of {x}")
    if any(n < 1 for n in sizes):
        raise ShapeError(f"{name} {list(sizes)}, wanted 1 or more in each")


def check_spatial(operator: str, x: Fact) -> None:
    """Raises :class:`ShapeError` unless ``x`` has 1 to 3 spatial axes; ``operator`` reads it."""
    if x.rank not in (3, 4, 5):
        raise ShapeError(
            f"{operator} of {x}, wanted [batch, channels] and 1 to 3 spatial axes; reshape it"
        )


def inner_first(extents: Sequence[int]) -> list[int]:
    """Returns spatial extents as a kernel's parameter: three, innermost first, filled with 1."""
    return [*extents[::-1], *[1] * (3 - len(extents))]


def check_same(facts: Sequence[Fact], free_axis: int | None = None) -> None:
    """Raises :class:`ShapeError` if the facts differ in type, rank or extents.

    An empty list is an error too. Extents along the axis ``free_axis`` may differ.
    """
    if not facts:
        raise ShapeError("an empty list of tensors, wanted at least one")
    for i, (a, b) in enumerate(pairwise(facts)):
        if a.dtype != b.dtype:
            raise ShapeError(f"values[{i}] is {a} but values[{i + 1}] is {b}; cast one of them")
        equal = a.rank == b.rank and all(
            x == y for d, (x, y) in enumerate(zip(a.shape, b.shape, strict=True)) if d != free_axis
        )
        if not equal:
            scope = "in every axis" if free_axis is None else f"in every axis but {free_axis}"
            raise ShapeError(
                f"values[{i}] is {a} but values[{i + 1}] is {b}; they must agree {scope}"
            )


def common_batch(operator: str, a: Fact, b: Fact) -> Shape:
    """Returns the batch extents (all but the last two) of a product of stacks of matrices.

    ``operator`` is its name. Raises :class:`ShapeError` if two numbers of matrices do not fit.
    """
    pairs = list(zip(a.shape[:-2], b.shape[:-2], strict=True))
    for x, y in pairs:
        if x != y and 1 not in (x, y):
            raise ShapeError(
                f"{operator} of {a} and {b}: {x} matrices meet {y}, wanted equal numbers, or one"
            )
    return tuple(y if x == 1 else x for x, y in pairs)


def fill_reshape(shape: Sequence[int], replaced: Sequence[int]) -> list[int]:
    """Returns the extents that a reshape to ``shape`` gives to the extents ``replaced``.

    In ``shape``, 0 copies the extent at its place and -1 is the rest. Raises :class:`ShapeError`
    if the number of elements would change.
    """
    extents = [_copied(replaced, i) if x == 0 else int(x) for i, x in enumerate(shape)]
    if any(x < -1 for x in extents) or extents.count(-1) > 1:
        raise ShapeError(f"shape {list(shape)} may hold extents, 0 (copy) and one -1 (the rest)")
    count = prod(replaced)
    if -1 in extents:
        product = -prod(extents)
        if product == 0 or count % product:
            raise ShapeError(
                f"shape {list(shape)} cannot take the {count} elements of {list(replaced)}: the "
                f"other extents make {product}, which leaves no whole number for -1"
            )
        extents[extents.index(-1)] = count // product
    if prod(extents) != count:
        raise ShapeError(
            f"shape {list(shape)} holds {prod(extents)} elements, wanted {count} as in "
            f"{list(replaced)}"
        )
    return extents


def _copied(replaced: Sequence[int], i: int) -> int:
    if i >= len(replaced):
        raise ShapeError(
            f"extent 0 at position {i} copies an axis that is not there: only {len(replaced)} "
            f"are replaced ({list(replaced)}); write the extent"
        )
    return replaced[i]


def slice_range(extent: int, begin: int, end: int, stride: int, to_end: bool) -> tuple[int, int]:
    """Returns the first index and the number of indices of one axis of a slice.

    Negative numbers count from the end. Both ends are clamped to the axis. An ``end`` of 0 is
    the end of the axis if ``to_end`` is True. The count is rounded up and may be 0.
    """
    if stride == 0:
        raise ShapeError("a slice's stride is 0, wanted 1 or more, or less than 0 to go backwards")
    low, high = (0, extent) if stride > 0 else (-1, extent - 1)
    first = min(max(begin + extent if begin < 0 else begin, low), high)
    stop = extent if to_end and end == 0 else end + extent if end < 0 else end
    stop = min(max(stop, low), high)
    return first, max(0, -(-(stop - first) // stride))


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
    shape_list = " and ".join(str(list(s)) for s in shapes)
    extents = sorted({s[axis] for s in shapes if axis < len(s)} - {1})
    next_step = "; change one of them"
    if len({len(s) for s in shapes}) > 1:
        next_step = (
            ". NNEF aligns shapes from the left; insert extents of 1 with unsqueeze where a "
            "dimension is missing"
        )
    return ShapeError(
        f"shapes {shape_list} do not broadcast: dimension {axis} is "
        f"{' and '.join(map(str, extents))}, wanted equal extents or 1{next_step}"
    )


def left_view(array: Array, rank: int) -> Array:
    """Returns a view with trailing dimensions of 1 up to ``rank``; NumPy broadcasts it like
    NNEF."""
    return array.reshape(array.shape + (1,) * (rank - array.ndim))


def left_views(*arrays: Array) -> list[Array]:
    """Returns views of all arrays, with trailing dimensions of 1 up to the largest rank."""
    rank = max(a.ndim for a in arrays)
    return [left_view(a, rank) for a in arrays]


def contiguous_strides(shape: Sequence[int]) -> Shape:
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


def collapse(extents: Sequence[int], strides: Sequence[Sequence[int]]) -> StridedWalk:
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
