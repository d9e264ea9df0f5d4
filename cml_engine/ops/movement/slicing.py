"""The operators ``slice`` and ``tile``, which are strided copies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from cml_engine.errors import ShapeError
from cml_engine.ir.graph import Array, Attrs, Fact, Node, fact_from
from cml_engine.ir.layout import PLAIN, words
from cml_engine.ops.common.shapes import (
    check_axes,
    check_length,
    contiguous_strides,
    slice_range,
)
from cml_engine.ops.common.window import same_rows
from cml_engine.ops.declaration.lowering import Lowering
from cml_engine.ops.declaration.registry import define
from cml_engine.ops.declaration.scratch import Scratch
from cml_engine.ops.declaration.spec import (
    EXACT,
    Case,
    Cpu,
    Dispatch,
    Half,
    OperandRows,
    OpSpec,
    Parts,
    RowMapping,
    Traits,
    elementwise_cost,
    integers,
    selection_cost,
    transposed_axes,
    truth_values,
)
from cml_engine.ops.movement.strided_copy import (
    KERNEL,
    Copy,
    box,
    copy_regions,
    memory_shape,
)

#: first index, count and step of one axis
Range = tuple[int, int, int]


def ranges(attrs: Attrs, x: Fact) -> list[Range]:
    """Returns (first index, count, step) of every axis, also of axes not in the slice."""
    axes = check_axes(attrs.axes, x.rank)
    steps = list(attrs.stride) or [1] * len(axes)
    for name, values in (("begin", attrs.begin), ("end", attrs.end), ("stride", steps)):
        check_length(name, values, len(axes), "each of the axes")
    # NNEF 1.0.5: an end of 0 is the end of the axis, unless the slice has strides
    to_end = all(step == 1 for step in steps)
    axis_ranges = [(0, extent, 1) for extent in x.shape]
    for axis, begin, end, step in zip(axes, attrs.begin, attrs.end, steps, strict=True):
        first, count = slice_range(x.shape[axis], begin, end, step, to_end)
        axis_ranges[axis] = (first, count, step)
    return axis_ranges


def _place(attrs: Attrs, x: Fact, layout: str) -> tuple[int, int] | None:
    """Returns the axis that is cut and the offset of the slice's start in 32-bit words.

    Returns None if the slice is not contiguous along one axis, and (0, 0) if nothing is cut.
    """
    axis_ranges = ranges(attrs, x)
    cut = [i for i, part in enumerate(axis_ranges) if part != (0, x.shape[i], 1)]
    if not cut:
        return 0, 0
    axis, (first, count, step) = cut[0], axis_ranges[cut[0]]
    if len(cut) > 1 or (step != 1 and count > 1) or (layout != PLAIN and first % 4):
        return None
    return axis, words(Fact(x.dtype, (*x.shape[:axis], first, *x.shape[axis + 1 :])), layout)


def _slice_rows(attrs: Attrs, facts: Sequence[Fact], axis: int) -> RowMapping | None:
    """Returns the row mapping of a slice: consecutive rows, and no slicing along ``axis``.

    Returns None if the slice has a stride along the axis.
    """
    first, _, step = ranges(attrs, facts[0])[axis]
    if axis not in attrs.axes:
        return same_rows(attrs, facts, axis)
    if step != 1:
        return None
    remaining = [i for i, a in enumerate(attrs.axes) if a != axis]
    names = ("axes", "begin", "end", *(["stride"] if attrs.stride else []))
    other_attrs = attrs.with_(**{name: [attrs[name][i] for i in remaining] for name in names})

    def need(begin: int, end: int) -> OperandRows:
        return OperandRows(((first + begin, first + end),), other_attrs, (begin, end))

    return RowMapping(axis, need)


def _tile_rows(attrs: Attrs, facts: Sequence[Fact], axis: int) -> RowMapping | None:
    return same_rows(attrs, facts, axis) if attrs.repeats[axis] == 1 else None


def _slice_infer(attrs: Attrs, x: Fact) -> Fact:
    return Fact(x.dtype, tuple(count for _, count, _ in ranges(attrs, x)))


def _slice_cpu(attrs: Attrs, x: Array) -> Array:
    for axis, (first, count, step) in enumerate(ranges(attrs, fact_from(x))):
        x = x.take(first + step * np.arange(count), axis)
    return x


def _prepare_slice(
    attrs: Attrs, facts: Sequence[Fact], constants: Sequence[Array | None], scratch: Scratch
) -> Cpu:
    """Returns a function that slices a NumPy array; its result is a view."""
    axis_ranges = ranges(attrs, facts[0])
    ends = [first + count * step for first, count, step in axis_ranges]
    index = tuple(
        slice(first, end if end >= 0 else None, step) if count else slice(0, 0)
        for (first, count, step), end in zip(axis_ranges, ends, strict=True)
    )
    return lambda attrs, x: x[(*index, ...)]  # the ellipsis returns a view for rank 0 too


def _slice_lower(op: Lowering) -> Iterator[Dispatch]:
    source, target = op.in_names[0], op.out_names[0]
    axis_ranges = ranges(op.attrs, op.inputs[0])
    if not op.is_blocked(source):
        copies = [
            _range_copy(
                axis_ranges,
                contiguous_strides(op.inputs[0].shape),
                contiguous_strides(op.outputs[0].shape),
            )
        ]
    else:
        copies = list(_blocked(axis_ranges, memory_shape(op, source), memory_shape(op, target)))
    return copy_regions(op, source, target, *copies)


def _range_copy(
    ranges: Sequence[Range],
    src: Sequence[int],
    dst: Sequence[int],
    offsets: tuple[int, int] = (0, 0),
) -> Copy:
    """Returns the copy of those ranges from strides ``src`` to strides ``dst``.

    ``offsets`` has the offsets of source and target.
    """
    counts = [count for _, count, _ in ranges]
    walk = [s * step for s, (_, _, step) in zip(src, ranges, strict=True)]
    offset = sum(s * first for s, (first, _, _) in zip(src, ranges, strict=True))
    return box(counts, walk, dst, src_offset=offsets[0] + offset, dst_offset=offsets[1])


def _blocked(ranges: list[Range], x: Sequence[int], y: Sequence[int]) -> Iterator[Copy]:
    """Yields copies of those ranges between blocked tensors of memory shapes ``x`` and ``y``.

    There is one copy if blocks stay whole, otherwise one per lane of the result, whose channels
    are four steps apart.
    """
    first, count, step = ranges[1]
    src, dst = contiguous_strides(x), contiguous_strides(y)
    batch, spatial = ranges[0], ranges[2:]
    if _keeps_blocks(ranges[1]):
        # lanes past the last channel are copied with it: they are zeros
        yield _range_copy(
            [batch, (first // 4, -(-count // 4), 1), *spatial, (0, x[-1], 1)], src, dst
        )
        return
    for lane in range(4):
        block, source_lane = divmod(first + step * lane, 4)
        lanes = [batch, (block, count // 4, step), *spatial, (0, 1, 1)]
        yield _range_copy(lanes, src, dst, offsets=(source_lane, lane))


def _keeps_blocks(channels: Range) -> bool:
    first, _, step = channels
    return step == 1 and first % 4 == 0


def _half(node: Node, facts: Mapping[str, Fact]) -> Half:
    """Returns "alike" if the slice moves whole blocks of four channels, otherwise "none".

    A 16-bit channel is only a part of a moved word.
    """
    x = facts[node.inputs[0]]
    keeps_blocks = x.rank > 1 and _keeps_blocks(ranges(node.attrs, x)[1])
    return "alike" if keeps_blocks else "none"


def _sliced(
    axes: list[int], begin: list[int], end: list[int], stride: Sequence[int] = ()
) -> dict[str, list[int]]:
    return {"axes": axes, "begin": begin, "end": end, "stride": list(stride)}


define(
    OpSpec(
        "slice",
        infer=_slice_infer,
        cpu=_slice_cpu,
        prepare=_prepare_slice,
        kernel=replace(KERNEL, lower=_slice_lower, layouts="blocks", half=_half),
        cost=selection_cost,
        tolerance=EXACT,
        traits=Traits(transposed_axes, Parts(joined=False, place=_place), rows=_slice_rows),
        cases=[
            Case(((2, 7, 9),), _sliced([1, 2], [2, 1], [5, 8]), "a window"),
            Case(((1, 8, 4, 4),), _sliced([1], [4], [0]), "end 0 is the end"),
            Case(((2, 16, 3, 5),), _sliced([1, 3], [2, 1], [14, 4]), "channels across blocks"),
            Case(((2, 16, 3),), _sliced([1], [-1], [-100], [-2]), "every other channel, flipped"),
            Case(((6, 5),), _sliced([0], [4], [0], [-1]), "end 0 is index 0 with strides"),
            Case(((6, 5),), _sliced([0, 1], [-1, 0], [-100, 0], [-1, 1]), "all of it, flipped"),
            Case(((6, 5),), _sliced([0, 1], [0, 1], [0, 0], [2, 1]), "end 0 and a stride: empty"),
            Case(((4, 11),), _sliced([1], [1], [10], [3]), "the count is rounded up"),
            Case(((4, 11),), _sliced([1], [10], [1], [-4]), "backwards in steps"),
            Case(((5, 4),), _sliced([0], [-3], [-1]), "from the end"),
            Case(((5, 4),), _sliced([0], [-100], [100]), "clamped"),
            Case(((5, 4),), _sliced([0], [3], [2]), "empty"),
            Case(((0, 4),), _sliced([0, 1], [0, 1], [0, 3]), "of nothing"),
            Case(((),), _sliced([], [], []), "rank 0"),
            Case(((2, 1, 3, 2, 1, 2, 3, 4),), _sliced([2, 7], [1, 1], [3, 4]), "rank 8"),
            Case((integers(40, 70),), _sliced([0, 1], [3, 5], [39, 68])),
            Case((truth_values(33),), _sliced([0], [1], [32], [2])),
        ],
    )
)


def _tile_infer(attrs: Attrs, x: Fact) -> Fact:
    check_length("repeats", attrs.repeats, x.rank, f"each axis of {x}")
    if any(r < 1 for r in attrs.repeats):
        raise ShapeError(f"repeats {list(attrs.repeats)}, wanted 1 or more in each")
    return Fact(x.dtype, tuple(e * r for e, r in zip(x.shape, attrs.repeats, strict=True)))


def _tile_lower(op: Lowering) -> Iterator[Dispatch]:
    (x,), (y,) = op.inputs, op.outputs
    dims = [(1, 0, 0)]
    walks = zip(
        op.attrs.repeats,
        x.shape,
        contiguous_strides(x.shape),
        contiguous_strides(y.shape),
        strict=True,
    )
    for repeat, extent, src, dst in walks:
        # the same source again for every repeat
        dims += [(repeat, 0, extent * dst), (extent, src, dst)]
    extents, src_steps, dst_steps = zip(*dims, strict=True)
    return copy_regions(op, op.in_names[0], op.out_names[0], box(extents, src_steps, dst_steps))


define(
    OpSpec(
        "tile",
        infer=_tile_infer,
        cpu=lambda attrs, x: np.tile(x, attrs.repeats),
        kernel=replace(KERNEL, lower=_tile_lower),
        cost=elementwise_cost(0),
        tolerance=EXACT,
        traits=Traits(rows=_tile_rows),
        cases=[
            Case(((2, 3, 5),), {"repeats": [2, 1, 3]}),
            Case(((1, 8, 1, 1),), {"repeats": [2, 1, 7, 5]}, "axes of one"),
            Case(((3, 16),), {"repeats": [5, 1]}, "aligned rows"),
            Case(((2, 0),), {"repeats": [3, 4]}, "empty"),
            Case(((),), {"repeats": []}, "rank 0"),
            Case((integers(*[2] * 8),), {"repeats": [2] * 8}, "16 dimensions"),
            Case((truth_values(5),), {"repeats": [13]}, "logical"),
        ],
    )
)
