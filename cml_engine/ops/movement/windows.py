"""The operator ``concat_windows``: a window of each operand, concatenated, in one dispatch.

No model has it: a pass puts it in the place of a ``concat`` of slices
(``compiler/passes/join_slices.py``). Shader: ``shaders_hlsl/movement/windows.hlsl``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np

from cml_engine.errors import ShapeError
from cml_engine.ir.graph import Array, Attrs, Fact
from cml_engine.ops.common.shapes import MAX_RANK, contiguous_strides
from cml_engine.ops.declaration.lowering import Lowering
from cml_engine.ops.declaration.registry import define
from cml_engine.ops.declaration.spec import (
    EXACT,
    Case,
    Cost,
    Dispatch,
    OperandRows,
    OpSpec,
    Random,
    RowMapping,
    Traits,
    engine_kernel,
)
from cml_engine.ops.movement.strided_copy import Copy, Dim, box, copy_regions

#: tensors that one dispatch reads: with its result, as many as every device of WebGPU's binds
MAX_PARTS = 7
_GROUP, _ITEMS = 64, 2
#: dimensions of the windows of one dispatch, by variant: few need more than the first
_RANKS = (4, MAX_RANK)
_DIMS = "shape src_stride dst_stride"
_KERNEL = engine_kernel(
    "movement/windows.hlsl",
    " ".join(f"{name}:u{MAX_PARTS}" for name in ("begin", "size", "src_offset", "dst_offset"))
    + "".join(f" {name}:u{MAX_PARTS * MAX_RANK}" for name in _DIMS.split()),
    group=_GROUP,
)


def _shapes(attrs: Attrs) -> list[tuple[int, ...]]:
    """Returns the shape of each window."""
    extents, axis = list(attrs.extents), attrs.axis
    return [(*extents[:axis], count, *extents[axis + 1 :]) for count in attrs.counts]


def _infer(attrs: Attrs, *values: Fact) -> Fact:
    for fact, first, shape in zip(values, attrs.begins, _shapes(attrs), strict=True):
        if any(b + n > e for b, n, e in zip(first, shape, fact.shape, strict=True)):
            raise ShapeError(f"concat_windows of {shape} at {first} of {fact}: it reaches beyond")
    extents = list(attrs.extents)
    extents[attrs.axis] = sum(attrs.counts)
    return Fact(values[0].dtype, tuple(extents))


def _cpu(attrs: Attrs, *values: Array) -> Array:
    windows = [
        x[tuple(slice(b, b + n) for b, n in zip(first, shape, strict=True))]
        for x, first, shape in zip(values, attrs.begins, _shapes(attrs), strict=True)
    ]
    return np.concatenate(windows, attrs.axis)


def _copies(op: Lowering) -> list[Copy]:
    """Returns the copy of each window from its operand to the result."""
    axis, target = op.attrs.axis, contiguous_strides(op.outputs[0].shape)
    offsets = [0, *accumulate(op.attrs.counts)]
    copies = []
    for x, first, shape, at in zip(
        op.inputs, op.attrs.begins, _shapes(op.attrs), offsets, strict=False
    ):
        source = contiguous_strides(x.shape)
        offset = sum(s * b for s, b in zip(source, first, strict=True))
        copies.append(box(shape, source, target, offset, at * target[axis]))
    return copies


def _lower(op: Lowering) -> Iterator[Dispatch]:
    copies, target = _copies(op), op.out_names[0]
    if op.limits.software or len(copies) == 1:
        # a launch costs little there, and copies of single kinds have faster loops
        for name, copy in zip(op.in_names, copies, strict=True):
            yield from copy_regions(op, name, target, copy)
        return
    if op.outputs[0].size:
        yield _in_one(op.in_names, target, copies)


def _in_one(sources: Sequence[str], target: str, copies: Sequence[Copy]) -> Dispatch:
    rank = next(r for r in _RANKS if r >= max(len(copy.dims) for copy in copies))
    begins = [0, *accumulate(-(-copy.size // (_GROUP * _ITEMS)) for copy in copies)]
    # the shader counts from the innermost
    dims = [[*copy.dims[::-1], *[Dim(1, 0, 0)] * (rank - len(copy.dims))] for copy in copies]
    flat = [dim for part in dims for dim in part]
    return Dispatch(
        groups=begins.pop(),
        tensors=(*sources, target),
        params={
            "begin": begins,
            "size": [copy.size for copy in copies],
            "src_offset": [copy.src_offset for copy in copies],
            "dst_offset": [copy.dst_offset for copy in copies],
            "shape": [dim.extent for dim in flat],
            "src_stride": [dim.src for dim in flat],
            "dst_stride": [dim.dst for dim in flat],
        },
        defines={
            "PARTS": len(copies),
            "RANK": rank,
            "ITEMS": _ITEMS,
            "OUT": f"T{len(copies)}",
            **{f"T{i}_TYPE": "uint" for i in range(len(copies) + 1)},
        },
    )


def _cost(attrs: Attrs, inputs: Sequence[Fact], outputs: Sequence[Fact]) -> Cost:
    return Cost(0, outputs[0].nbytes, outputs[0].nbytes)


def _rows(attrs: Attrs, facts: Sequence[Fact], axis: int) -> RowMapping | None:
    """Returns the row mapping of consecutive rows of each operand; None along the joined axis."""
    if axis == attrs.axis:
        return None
    firsts = [begin[axis] for begin in attrs.begins]

    def need(begin: int, end: int) -> OperandRows:
        extents, begins = list(attrs.extents), [list(b) for b in attrs.begins]
        extents[axis] = end - begin
        for first in begins:
            first[axis] = 0
        spans = tuple((first + begin, first + end) for first in firsts)
        return OperandRows(
            spans, Attrs({**attrs, "extents": extents, "begins": begins}), (begin, end)
        )

    return RowMapping(axis, need)


def _case(
    shapes: Sequence[tuple[int, ...]],
    begins: Sequence[Sequence[int]],
    counts: Sequence[int],
    extents: Sequence[int],
    note: str,
    axis: int = 1,
    dtype: str = "scalar",
) -> Case:
    inputs = tuple(Random(shape, -99, 99, dtype) for shape in shapes)
    attrs = {"axis": axis, "begins": begins, "counts": counts, "extents": extents}
    return Case(inputs, attrs, note)


_START = [0, 0, 0, 0]
define(
    OpSpec(
        "concat_windows",
        infer=_infer,
        cpu=_cpu,
        kernel=replace(_KERNEL, lower=_lower),
        cost=_cost,
        tolerance=EXACT,
        custom=True,
        traits=Traits(rows=_rows),
        cases=[
            _case(
                [(1, 4, 15, 17), (1, 1, 13, 14), (1, 3, 9, 11)],
                [[0, 0, 3, 2], [0, 0, 1, 3], _START],
                [4, 1, 3],
                [1, 0, 9, 11],
                "maps and a border",
            ),
            _case(
                [(2, 5, 3, 4)] * 7,
                [[0, i % 3, 0, 0] for i in range(7)],
                [1, 2, 3, 1, 2, 1, 2],
                [2, 0, 3, 4],
                "seven parts of channels, twice",
            ),
            _case([(2, 9), (3, 12)], [[0, 2], [1, 3]], [1, 2], [0, 7], "rows", axis=0),
            _case([(5, 7)], [[1, 2]], [3], [4, 0], "one part"),
            _case([(1, 3), (1, 3)], [[0, 1], [0, 2]], [1, 1], [1, 0], "extents of one"),
            _case([(3, 4), (3, 4)], [[0, 1], [1, 0]], [0, 2], [2, 0], "an empty part"),
            _case([(0, 4), (2, 4)], [[0, 0], [1, 0]], [1, 2], [0, 0], "no rows"),
            _case(
                [(2, 3, 2, 3, 2, 3, 2, 3), (2, 2, 2, 2, 2, 2, 2, 2)],
                [[0, 1] * 4, [0] * 8],
                [2, 1],
                [0, 2, 1, 2, 2, 2, 1, 2],
                "rank 8",
                axis=0,
            ),
            _case([(9,), (300,)], [[1], [2]], [7, 290], [0], "integers", 0, "integer"),
        ],
    )
)
