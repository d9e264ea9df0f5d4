"""Operators that only move elements: reshape, transpose, concat, split, slice, tile, ….

They support any dtype, because every element is a 32-bit word on the GPU. reshape, squeeze and
unsqueeze move nothing: their result is the input's memory. The others are strided copies
(``strided_copy.py``), one for each tensor that is read or written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from math import prod

import numpy as np

from cml_engine.errors import ShapeError
from cml_engine.ir.graph import Array, Attrs, Fact, fact_from
from cml_engine.ops.common.shapes import (
    check_axes,
    check_axis,
    check_same,
    contiguous_strides,
    fill_reshape,
)
from cml_engine.ops.common.window import exclude_axes, gather_rows, scale_rows
from cml_engine.ops.declaration.lowering import Lowering
from cml_engine.ops.declaration.registry import define
from cml_engine.ops.declaration.scratch import Scratch
from cml_engine.ops.declaration.spec import (
    EXACT,
    Case,
    Cpu,
    Dispatch,
    OperandRows,
    OpSpec,
    Parts,
    RowMapping,
    RowsOf,
    Traits,
    along_axis,
    integers,
    transposed_axis,
    truth_values,
)
from cml_engine.ops.declaration.spec import elementwise_cost as _cost
from cml_engine.ops.movement.join import join_blocks
from cml_engine.ops.movement.strided_copy import KERNEL, box, copy_regions, memory_shape

_MOVE = _cost(0)


# --- reshape, squeeze, unsqueeze: other shapes of the same memory -------------------------------


def _reshape_infer(attrs: Attrs, x: Fact) -> Fact:
    start = int(attrs.axis_start)
    count = x.rank - start if attrs.axis_count == -1 else int(attrs.axis_count)
    if not (0 <= start <= x.rank and 0 <= count <= x.rank - start):
        raise ShapeError(
            f"axis_start={attrs.axis_start}, axis_count={attrs.axis_count} reach past {x}, "
            f"wanted axes within 0 to {x.rank}"
        )
    filled = fill_reshape(attrs.shape, x.shape[start : start + count])
    return Fact(x.dtype, (*x.shape[:start], *filled, *x.shape[start + count :]))


def _reshape_rows(attrs: Attrs, facts: Sequence[Fact], axis: int) -> RowMapping | None:
    """Returns the row mapping of a reshape; None if rows do not map to rows.

    Each row of the operand must stay a row, become several, or become part of one.
    """
    return _rows_as(facts[0].shape, _reshape_infer(attrs, facts[0]).shape, axis)


def _rows_as(shape: Sequence[int], result_shape: Sequence[int], axis: int) -> RowMapping | None:
    inner, outer = prod(shape[axis + 1 :]), prod(shape[:axis])
    for result_axis, extent in enumerate(result_shape):
        if extent > 1 and prod(result_shape[:result_axis]) == outer:
            return _rows_of_size(
                result_shape, axis, result_axis, inner, prod(result_shape[result_axis + 1 :])
            )
    return None


def _rows_of_size(
    result_shape: Sequence[int], axis: int, result_axis: int, old: int, new: int
) -> RowMapping | None:
    """Returns the row mapping of a reshape from rows of ``old`` elements to rows of ``new``.

    ``axis`` is the operand's axis, ``result_axis`` the axis of the result's shape ``result_shape``.
    Returns None if neither size is a multiple of the other.
    """
    if old % new and new % old:
        return None
    mapping = (
        scale_rows(Attrs(), axis, old // new, result_axis)
        if old >= new
        else gather_rows(Attrs(), axis, new // old, result_axis)
    )

    def need(begin: int, end: int) -> OperandRows:
        operand_rows = mapping.need(begin, end)
        rows = operand_rows.rows[1] - operand_rows.rows[0]
        shape = [*result_shape[:result_axis], rows, *result_shape[result_axis + 1 :]]
        attrs = Attrs(shape=shape, axis_start=0, axis_count=-1)
        return OperandRows(operand_rows.inputs, attrs, operand_rows.rows)

    return RowMapping(result_axis, need, mapping.step)


def _squeeze_rows(attrs: Attrs, facts: Sequence[Fact], axis: int) -> RowMapping | None:
    if axis in attrs.axes:
        return None
    return scale_rows(attrs, axis, 1, axis - sum(a < axis for a in attrs.axes))


def _unsqueeze_rows(attrs: Attrs, facts: Sequence[Fact], axis: int) -> RowMapping:
    result_axes = [a for a in range(facts[0].rank + len(attrs.axes)) if a not in attrs.axes]
    return scale_rows(attrs, axis, 1, result_axes[axis])


def _transpose_rows(attrs: Attrs, facts: Sequence[Fact], axis: int) -> RowMapping:
    return scale_rows(attrs, axis, 1, _order(attrs, facts[0].rank).index(axis))


def _squeeze_infer(attrs: Attrs, x: Fact) -> Fact:
    axes = check_axes(attrs.axes, x.rank)
    if wrong := [a for a in axes if x.shape[a] != 1]:
        raise ShapeError(
            f"squeeze of axis {wrong[0]} with extent {x.shape[wrong[0]]} of {x}, wanted extent 1; "
            f"use reshape to merge axes"
        )
    return Fact(x.dtype, tuple(e for i, e in enumerate(x.shape) if i not in axes))


def _unsqueeze_infer(attrs: Attrs, x: Fact) -> Fact:
    # axes are positions in the result, in any order
    shape = list(x.shape)
    for axis in sorted(check_axes(attrs.axes, x.rank + len(attrs.axes))):
        shape.insert(axis, 1)
    return Fact(x.dtype, tuple(shape))


def _define_shape(
    name: str, infer: Callable[[Attrs, Fact], Fact], rows: RowsOf, *cases: Case
) -> None:
    """Registers an operator that only changes the shape of its operand, to the one from ``infer``.

    The result is the operand's memory.
    """
    define(
        OpSpec(
            name,
            infer=infer,
            cpu=lambda attrs, x: x.reshape(infer(attrs, fact_from(x)).shape),
            cost=_MOVE,
            tolerance=EXACT,
            alias=True,
            traits=Traits(rows=rows),
            cases=list(cases),
        )
    )


_define_shape(
    "reshape",
    _reshape_infer,
    _reshape_rows,
    Case(((2, 3, 4),), {"shape": [0, -1], "axis_start": 0, "axis_count": -1}, "copy, rest"),
    Case(((2, 3, 4),), {"shape": [2, 2], "axis_start": 2, "axis_count": 1}, "last axis"),
    Case(((2, 4, 3),), {"shape": [-1, 2], "axis_start": 1, "axis_count": 1}, "middle axis"),
    Case(((2, 3),), {"shape": [1, 1], "axis_start": 1, "axis_count": 0}, "insert only"),
    Case(((1, 1),), {"shape": [], "axis_start": 0, "axis_count": -1}, "to rank 0"),
    Case(((),), {"shape": [1] * 8, "axis_start": 0, "axis_count": -1}, "rank 0 to 8"),
    Case(((0, 5),), {"shape": [0, 1, 5], "axis_start": 0, "axis_count": -1}, "empty"),
    Case((integers(6),), {"shape": [2, 3], "axis_start": 0, "axis_count": -1}, "integer"),
)
_define_shape(
    "squeeze",
    _squeeze_infer,
    _squeeze_rows,
    Case(((1, 3, 1, 5),), {"axes": [0, 2]}),
    Case(((3, 1),), {"axes": []}, "nothing to do"),
    Case(((1, 0, 1),), {"axes": [2]}, "empty"),
    Case((truth_values(1, 1, 1, 1, 1, 1, 1, 1),), {"axes": list(range(8))}, "rank 8 to 0"),
)
_define_shape(
    "unsqueeze",
    _unsqueeze_infer,
    _unsqueeze_rows,
    Case(((3, 5),), {"axes": [0, 3]}, "positions in the result"),
    Case(((3, 5),), {"axes": [3, 0]}, "in any order"),
    Case(((3, 5),), {"axes": [1, 0]}, "in any order, neighbours"),
    Case(((),), {"axes": list(range(8))}, "rank 0 to 8"),
    Case((integers(0, 3),), {"axes": [1]}, "empty"),
)


# --- transpose ----------------------------------------------------------------------------------


def _order(attrs: Attrs, rank: int) -> list[int]:
    """Returns the full permutation; axes missing from ``axes`` keep their order at the end."""
    axes = [int(a) for a in attrs.axes]
    if len(axes) > rank or sorted(axes) != list(range(len(axes))):
        raise ShapeError(
            f"transpose axes {axes} for a tensor of rank {rank}, wanted each of 0 to "
            f"{len(axes) - 1} once, at most {rank} of them"
        )
    return axes + list(range(len(axes), rank))


def _transpose_infer(attrs: Attrs, x: Fact) -> Fact:
    return Fact(x.dtype, tuple(x.shape[a] for a in _order(attrs, x.rank)))


def _transpose_lower(op: Lowering) -> Iterator[Dispatch]:
    (x,), (y,) = op.inputs, op.outputs
    walk = contiguous_strides(x.shape)
    src = [walk[a] for a in _order(op.attrs, x.rank)]
    yield from copy_regions(
        op, op.in_names[0], op.out_names[0], box(y.shape, src, contiguous_strides(y.shape))
    )


define(
    OpSpec(
        "transpose",
        infer=_transpose_infer,
        cpu=lambda attrs, x: np.ascontiguousarray(x.transpose(_order(attrs, x.ndim))).reshape(
            _transpose_infer(attrs, fact_from(x)).shape
        ),
        kernel=replace(KERNEL, lower=_transpose_lower),
        cost=_MOVE,
        tolerance=EXACT,
        traits=Traits(rows=_transpose_rows),
        cases=[
            Case(((33, 65),), {"axes": [1, 0]}, "matrix, odd sides"),
            Case(((2, 3, 5, 7),), {"axes": [0, 2, 3, 1]}, "channels last"),
            Case(((2, 3, 8, 16),), {"axes": [0, 2, 1]}, "fewer axes than rank, rows kept"),
            Case(((3, 40, 1, 70),), {"axes": [3, 0, 2, 1]}, "a matrix inside, an axis of one"),
            Case(((1, 2, 2, 3, 5, 4),), {"axes": [0, 3, 1, 4, 2, 5]}, "pixel shuffle, rank 6"),
            Case(((2, 1, 3, 2, 1, 2, 3, 2),), {"axes": [7, 5, 3, 1, 6, 4, 2, 0]}, "rank 8"),
            Case((integers(5, 0, 3),), {"axes": [2, 1, 0]}, "empty"),
            Case((truth_values(6, 9, 4),), {"axes": [1, 0, 2]}, "logical"),
            Case(((),), {"axes": []}, "rank 0"),
        ],
    )
)


# --- concat, split, stack, unstack: one copy for each part --------------------------------------


def _concat_infer(attrs: Attrs, *values: Fact) -> Fact:
    check_same(values, free_axis=attrs.axis)
    axis = check_axis(attrs.axis, values[0].rank)
    shape = list(values[0].shape)
    shape[axis] = sum(v.shape[axis] for v in values)
    return Fact(values[0].dtype, tuple(shape))


def _stack_infer(attrs: Attrs, *values: Fact) -> Fact:
    check_same(values)
    shape = list(values[0].shape)
    shape.insert(check_axis(attrs.axis, len(shape) + 1), len(values))
    return Fact(values[0].dtype, tuple(shape))


def _split_sizes(attrs: Attrs, x: Fact) -> list[int]:
    axis, ratios = check_axis(attrs.axis, x.rank), [int(r) for r in attrs.ratios]
    if not ratios or min(ratios) < 1 or x.shape[axis] % sum(ratios):
        raise ShapeError(
            f"split of axis {axis} of {x} by ratios {ratios}: wanted ratios of 1 or more whose "
            f"sum ({sum(ratios)}) divides the extent {x.shape[axis]}; they are ratios, not sizes"
        )
    unit = x.shape[axis] // sum(ratios)
    return [unit * r for r in ratios]


def _split_infer(attrs: Attrs, x: Fact) -> list[Fact]:
    a = attrs.axis
    sizes = _split_sizes(attrs, x)
    return [Fact(x.dtype, (*x.shape[:a], size, *x.shape[a + 1 :])) for size in sizes]


def _unstack_infer(attrs: Attrs, x: Fact) -> list[Fact]:
    axis = check_axis(attrs.axis, x.rank)
    return [Fact(x.dtype, x.shape[:axis] + x.shape[axis + 1 :])] * x.shape[axis]


def _split_cpu(attrs: Attrs, x: Array) -> list[Array]:
    cuts = list(accumulate(_split_sizes(attrs, fact_from(x))))[:-1]
    return [np.ascontiguousarray(part) for part in np.split(x, cuts, attrs.axis)]


def prepare_concat(
    attrs: Attrs, facts: Sequence[Fact], constants: Sequence[Array | None], scratch: Scratch
) -> Cpu | None:
    """Returns a function that concatenates in the memory order of the largest part.

    Returns None for non-float types, which selects the operator's definition.
    """
    if facts[0].dtype != "scalar":
        return None
    axis = attrs["axis"]
    extent = sum(f.shape[axis] for f in facts)
    shape = (*facts[0].shape[:axis], extent, *facts[0].shape[axis + 1 :])
    largest = max(range(len(facts)), key=lambda i: facts[i].size)

    def concat(attrs: Attrs, *parts: Array) -> Array:
        return np.concatenate(parts, axis, out=scratch.result_as(parts[largest], shape))

    return concat


def _join_lower(op: Lowering) -> Iterator[Dispatch]:
    channels = [f.shape[1] for f in op.inputs if f.rank > 1]
    across = op.attrs.axis == 1 and any(count % 4 for count in channels[:-1])
    if across and op.is_blocked(op.out_names[0]):
        yield from join_blocks(op, channels)
    else:
        yield from _parts(op, op.in_names, op.out_names[0], joins=True)


def _part_lower(op: Lowering) -> Iterator[Dispatch]:
    yield from _parts(op, op.out_names, op.in_names[0], joins=False)


def _parts(op: Lowering, parts: Sequence[str], whole: str, joins: bool) -> Iterator[Dispatch]:
    """Yields the copies between ``whole`` and its parts, which follow each other along the
    axis.

    If ``joins``, the parts are copied into the whole, otherwise the reverse.
    """
    axis = op.attrs.axis
    walk = contiguous_strides(memory_shape(op, whole))
    step = walk[axis]
    start = 0
    for name in parts:
        shape = memory_shape(op, name)
        if len(shape) < len(walk):  # stack: the parts lack the axis
            shape = (*shape[:axis], 1, *shape[axis:])
        if joins:
            yield from copy_regions(
                op,
                name,
                whole,
                box(shape, contiguous_strides(shape), walk, dst_offset=start),
            )
        else:
            yield from copy_regions(
                op,
                whole,
                name,
                box(shape, walk, contiguous_strides(shape), src_offset=start),
            )
        start += step * shape[axis]


define(
    OpSpec(
        "concat",
        infer=_concat_infer,
        cpu=lambda attrs, *values: np.concatenate(values, attrs.axis),
        prepare=prepare_concat,
        kernel=replace(
            KERNEL,
            lower=_join_lower,
            layouts="joins",
            half="alike",
        ),
        cost=_MOVE,
        tolerance=EXACT,
        traits=Traits(
            transposed_axis, Parts(joined=True, place=along_axis), rows=exclude_axes("axis")
        ),
        cases=[
            Case(((2, 3, 15, 17), (2, 4, 15, 17), (2, 1, 15, 17)), {"axis": 1}, "channels, odd"),
            Case(((1, 4, 8, 8), (1, 8, 8, 8)), {"axis": 1}, "aligned runs"),
            Case(((2, 1, 3), (2, 0, 3), (2, 6, 3), (2, 2, 3)), {"axis": 1}, "within blocks"),
            Case(((2, 4, 3, 2), (2, 4, 3, 5)), {"axis": 3}, "another axis than the channels"),
            Case(((3, 5), (3, 0), (3, 2)), {"axis": 1}, "one is empty"),
            Case(((3, 1), (3, 1)), {"axis": 1}, "columns"),
            Case(((0, 4), (0, 4)), {"axis": 0}, "all empty"),
            Case(((1, 1, 1, 2, 1, 1, 1, 3),) * 2, {"axis": 7}, "rank 8"),
            Case((integers(7), integers(9)), {"axis": 0}, "integer"),
            Case((truth_values(2, 3),), {"axis": 0}, "a single logical"),
        ],
    )
)
define(
    OpSpec(
        "stack",
        infer=_stack_infer,
        cpu=lambda attrs, *values: np.stack(values, attrs.axis),
        kernel=replace(KERNEL, lower=_join_lower),
        cost=_MOVE,
        tolerance=EXACT,
        traits=Traits(parts=Parts(joined=True, place=along_axis)),
        cases=[
            Case(((2, 3),) * 3, {"axis": 0}, "rows"),
            Case(((25, 37),) * 2, {"axis": 2}, "interleaved"),
            Case(((), ()), {"axis": 0}, "rank 0"),
            Case((integers(2, 0),) * 2, {"axis": 1}, "empty"),
            Case((truth_values(1, 2, 1, 2, 1, 2, 3),) * 2, {"axis": 3}, "to rank 8"),
        ],
    )
)
define(
    OpSpec(
        "split",
        infer=_split_infer,
        cpu=_split_cpu,
        kernel=replace(
            KERNEL,
            lower=_part_lower,
            layouts="blocks",
            half="alike",
        ),
        cost=_MOVE,
        tolerance=EXACT,
        traits=Traits(parts=Parts(joined=False, place=along_axis), rows=exclude_axes("axis")),
        cases=[
            Case(((2, 12, 13, 15),), {"axis": 1, "ratios": [1, 2, 1]}, "ratios, not sizes"),
            Case(((1, 8, 4, 4),), {"axis": 1, "ratios": [1, 1]}, "aligned halves"),
            Case(((2, 4, 9),), {"axis": 2, "ratios": [1, 2]}, "another axis than the channels"),
            Case(((3, 5),), {"axis": 1, "ratios": [1, 4]}, "sizes as ratios"),
            Case(((3, 0),), {"axis": 1, "ratios": [2, 1]}, "empty"),
            Case((integers(1, 1, 1, 1, 1, 1, 1, 6),), {"axis": 7, "ratios": [5, 1]}, "rank 8"),
            Case((truth_values(9),), {"axis": 0, "ratios": [3]}, "one part"),
        ],
    )
)
define(
    OpSpec(
        "unstack",
        infer=_unstack_infer,
        cpu=lambda attrs, x: [x.take(i, attrs.axis) for i in range(x.shape[attrs.axis])],
        kernel=replace(KERNEL, lower=_part_lower),
        cost=_MOVE,
        tolerance=EXACT,
        traits=Traits(parts=Parts(joined=False, place=along_axis)),
        cases=[
            Case(((3, 25, 37),), {"axis": 0}, "rows"),
            Case(((3, 5, 2),), {"axis": 2}, "interleaved"),
            Case(((1, 4),), {"axis": 0}, "one part"),
            Case(((2, 0, 3),), {"axis": 0}, "empty"),
            Case((integers(3),), {"axis": 0}, "to rank 0"),
            Case((truth_values(1, 2, 1, 2, 1, 2, 3, 1),), {"axis": 6}, "rank 8"),
        ],
    )
)
