"""The operator ``pad``: adds a border around a tensor; negative padding crops it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from cml_engine.errors import ShapeError
from cml_engine.ir.graph import NUMPY_DTYPE, Array, Attrs, AttrValue, Fact
from cml_engine.ops.common.shapes import check_length, check_word, contiguous_strides
from cml_engine.ops.common.window import BORDERS, WindowAxis, pad_border, under_windows
from cml_engine.ops.declaration.lowering import Lowering, for_each
from cml_engine.ops.declaration.registry import define
from cml_engine.ops.declaration.spec import (
    EXACT,
    Case,
    Cost,
    Dispatch,
    OperandRows,
    OpSpec,
    Order,
    RowMapping,
    Traits,
    elementwise_cost,
    engine_kernel,
    integers,
    truth_values,
    word,
)

_RANKS = (1, 2, 3, 8)
_ITEMS = 8


def _infer(attrs: Attrs, x: Fact) -> Fact:
    check_word("pad border", attrs.border, BORDERS)
    check_length("padding", attrs.padding, x.rank, f"each axis of {x}")
    shape = [p + e + q for e, (p, q) in zip(x.shape, attrs.padding, strict=True)]
    for axis, (extent, out) in enumerate(zip(x.shape, shape, strict=True)):
        if out < 0:
            raise ShapeError(
                f"padding {tuple(attrs.padding[axis])} of axis {axis} with extent {extent} leaves "
                f"{out}, wanted 0 or more; crop less"
            )
        if extent == 0 < out and attrs.border != "constant":
            raise ShapeError(
                f"axis {axis} of {x} is empty, so border '{attrs.border}' has nothing to repeat; "
                f"use border 'constant'"
            )
    return Fact(x.dtype, tuple(shape))


def _cpu(attrs: Attrs, x: Array) -> Array:
    def filled(shape: tuple[int, ...]) -> Array:
        return np.full(shape, attrs.value, x.dtype)

    return np.array(pad_border(x, attrs.padding, attrs.border, filled))


@dataclass(frozen=True, slots=True)
class _Dim:
    """One axis: its extents before and after padding (``out``), and the padding ``before``.

    Negative padding crops.
    """

    extent: int
    out: int
    before: int

    @property
    def kept(self) -> bool:
        return self.before == 0 and self.extent == self.out


def _merge_axes(
    x: Sequence[int], y: Sequence[int], padding: Sequence[tuple[int, int]], border: str
) -> list[_Dim]:
    """Returns the axes, each inner one without padding merged with its outer neighbour.

    ``x`` and ``y`` are the extents before and after. The outer one may have padding only if the
    border is constant.
    """
    dims: list[_Dim] = []
    for extent, out, (before, _) in zip(x, y, padding, strict=True):
        dim = _Dim(extent, out, before)
        last = dims[-1] if dims else None
        if last and dim.kept and (last.kept or border == "constant"):
            dims[-1] = _Dim(last.extent * extent, last.out * out, last.before * extent)
        else:
            dims.append(dim)
    return dims or [_Dim(1, 1, 0)]


def _lower(op: Lowering) -> Iterator[Dispatch]:
    (x,), (source,), (target,), attrs = op.inputs, op.in_names, op.out_names, op.attrs
    value = _word(attrs.value, x.dtype)
    yield pad_dispatch(op, source, target, x.shape, attrs.padding, attrs.border, value)


def pad_dispatch(
    op: Lowering,
    source: str,
    target: str,
    shape: Sequence[int],
    padding: Sequence[tuple[int, int]],
    border: str,
    value: int = 0,
    cost: Cost | None = None,
) -> Dispatch:
    """Returns the dispatch that copies ``source``, of that ``shape``, to ``target`` with a border.

    ``padding`` is (before, after) per axis; ``value`` is the 32-bit word of a constant border.
    """
    result = [
        before + extent + after for extent, (before, after) in zip(shape, padding, strict=True)
    ]
    dims = _merge_axes(shape, result, padding, border)
    row = dims[-1]
    width = 4 if all(v % 4 == 0 for v in (row.extent, row.out, row.before)) else 1
    if width == 4 and not (row.kept or border == "constant"):
        width = 1
    dims[-1] = _Dim(row.extent // width, row.out // width, row.before // width)
    blocks = -(-dims[-1].out // _ITEMS)
    params = {"blocks": blocks, "value": value, **_params(dims)}
    rank = next(r for r in _RANKS if r >= len(dims))
    defines = {"RANK": rank, **word("border", border), "ITEMS": _ITEMS}
    n = prod(d.out for d in dims[:-1]) * blocks
    types = "uint4 uint4" if width == 4 else "uint uint"
    tensors = (source, target)
    return for_each(op, n, params, defines, types=types, tensors=tensors, kernel=_KERNEL, cost=cost)


def _params(dims: Sequence[_Dim]) -> dict[str, AttrValue]:
    inner_first = [*dims[::-1], *[_Dim(1, 1, 0)] * (8 - len(dims))]
    return {
        "in_extent": [d.extent for d in inner_first],
        "out_extent": [d.out for d in inner_first],
        "before": [d.before for d in inner_first],
        "src_stride": contiguous_strides([d.extent for d in dims])[::-1],
    }


def _word(value: float, dtype: str) -> int:
    """Returns the 32-bit word that stores a value of that type on the GPU."""
    if dtype == "logical":
        return int(bool(value))
    return int(np.asarray(value, NUMPY_DTYPE[dtype]).view(np.uint32))


_KERNEL = engine_kernel(
    "movement/padding.hlsl",
    "n:u blocks:u value:u in_extent:u8 out_extent:u8 before:i8 src_stride:u8",
    lower=_lower,
)


def _rows(attrs: Attrs, facts: Sequence[Fact], axis: int) -> RowMapping:
    before, after = attrs.padding[axis]
    extent = facts[0].shape[axis]
    window = WindowAxis(extent, before + extent + after, before=before, after=after)

    def need(begin: int, end: int) -> OperandRows:
        span, around = under_windows(window, attrs.border, begin, end)
        padding = [around if i == axis else pair for i, pair in enumerate(attrs.padding)]
        return OperandRows((span,), attrs.with_(padding=padding), (begin, end))

    return RowMapping(axis, need)


def _attrs(
    padding: list[tuple[int, int]], border: str = "constant", value: float = 0.0
) -> dict[str, AttrValue]:
    return {"padding": padding, "border": border, "value": value}


_IMAGE = [(0, 0), (0, 0), (1, 2), (3, 0)]
_MIXED = [(1, 0), (0, 2), (-1, 3), (4, -2)]


def _transposed_padding(attrs: Attrs, order: Order) -> Attrs:
    return attrs.with_(padding=[attrs["padding"][axis] for axis in np.argsort(order)])


define(
    OpSpec(
        "pad",
        infer=_infer,
        cpu=_cpu,
        kernel=_KERNEL,
        cost=elementwise_cost(0),
        tolerance=EXACT,
        traits=Traits(_transposed_padding, rows=_rows),
        cases=[
            Case(((2, 3, 5, 7),), _attrs(_IMAGE), "an image"),
            Case(((2, 3, 5, 7),), _attrs(_IMAGE, value=-1.5), "value"),
            Case(((1, 4, 3, 9),), _attrs([(0, 0), (0, 4), (0, 0), (0, 0)]), "channels appended"),
            Case(((2, 8, 4, 4),), _attrs([(0, 0), (4, 8), (0, 0), (0, 0)]), "aligned channels"),
            Case(((2, 3, 6, 7),), _attrs(_MIXED, value=2.0), "all axes, borders and crops"),
            *[Case(((2, 3, 6, 7),), _attrs(_MIXED, b)) for b in BORDERS[1:]],
            *[Case(((1, 2, 8),), _attrs([(0, 0), (3, 2), (0, 0)], b)) for b in BORDERS[1:]],
            *[Case(((2, 3),), _attrs([(7, 9), (11, 8)], b), "many times") for b in BORDERS[1:]],
            *[Case(((1, 4),), _attrs([(2, 3), (1, 1)], b), "extent 1") for b in BORDERS[1:]],
            Case(((3, 4),), _attrs([(-1, -2), (0, 0)]), "crop to nothing"),
            Case(((3, 5),), _attrs([(0, 0), (-6, 4)], value=3.0), "cropped beyond the end"),
            Case(((0, 3),), _attrs([(1, 2), (1, 1)], value=5.0), "of nothing"),
            Case(((),), _attrs([]), "rank 0"),
            Case(((1, 2, 1, 2, 1, 2, 1, 2),), _attrs([(1, 1)] * 8), "rank 8"),
            Case((integers(5, 6),), _attrs([(1, 1), (2, 2)], value=-7)),
            Case((truth_values(9),), _attrs([(1, 1)], "replicate")),
        ],
    ),
    any_type=True,
)
