"""The operators ``gather_elements``, ``scatter_elements`` and ``scatter_nd``.

Each element or row has its own index; a negative index counts from the end. Updates of the same
slot are applied in their order, so the result is bit-identical in every run. Indices are data that
other operators computed: an update with an index out of range does nothing, on both backends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from cml_engine.errors import InputError, ShapeError
from cml_engine.ir.graph import Array, Attrs, Fact
from cml_engine.ops.common.broadcast import contiguous_strides
from cml_engine.ops.common.shapes import MAX_RANK, check_axis, check_type, check_word
from cml_engine.ops.declaration.lowering import Lowering, for_each
from cml_engine.ops.declaration.registry import define
from cml_engine.ops.declaration.spec import (
    EXACT,
    Case,
    Cost,
    Dispatch,
    Kernel,
    OpSpec,
    Random,
    Tolerance,
    gathered_cost,
)
from cml_engine.ops.indexing.scatter_gpu import ELEMENTS, REDUCTIONS, ROWS
from cml_engine.ops.indexing.scatter_places import PlacesOf, element_places, row_places

_MEET = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


# --- shapes -------------------------------------------------------------------------------------


def _check_beside(x: Fact, indices: Fact, axis: int) -> None:
    """Raises :class:`ShapeError` if the indices do not fit ``x``.

    They must be integers of the same rank, and must not exceed ``x`` along axes other than
    ``axis``.
    """
    check_type("integer", indices=indices)
    check_axis(axis, x.rank)
    fits = indices.rank == x.rank and all(
        i <= e for d, (i, e) in enumerate(zip(indices.shape, x.shape, strict=True)) if d != axis
    )
    if not fits:
        raise ShapeError(
            f"indices {indices} of {x}: wanted rank {x.rank}, and in every axis but {axis} at most "
            "the input's extent"
        )


def _gather_infer(attrs: Attrs, x: Fact, indices: Fact) -> Fact:
    _check_beside(x, indices, attrs.axis)
    if x.shape[attrs.axis] == 0 < indices.size:
        raise ShapeError(f"axis {attrs.axis} of {x} is empty: {indices} find nothing in it")
    return Fact(x.dtype, indices.shape)


def _check_updates(attrs: Attrs, x: Fact, updates: Fact, shape: Sequence[int]) -> None:
    if updates != Fact(x.dtype, tuple(shape)):
        raise ShapeError(f"updates are {updates}, wanted {x.dtype}{list(shape)}")
    check_word("reduction", attrs.reduction, REDUCTIONS)
    if x.dtype == "logical" and attrs.reduction != "none":
        raise ShapeError(f"reduction '{attrs.reduction}' of {x}: logical has 'none' only; cast it")


def _elements_infer(attrs: Attrs, x: Fact, indices: Fact, updates: Fact) -> Fact:
    _check_beside(x, indices, attrs.axis)
    _check_updates(attrs, x, updates, indices.shape)
    return x


def _nd_infer(attrs: Attrs, x: Fact, indices: Fact, updates: Fact) -> Fact:
    check_type("integer", indices=indices)
    if indices.rank == 0 or indices.shape[-1] > x.rank:
        raise ShapeError(f"indices {indices}, wanted rows of at most {x.rank} numbers for {x}")
    shape = (*indices.shape[:-1], *x.shape[indices.shape[-1] :])
    _check_updates(attrs, x, updates, shape)
    return x


# --- on the CPU ---------------------------------------------------------------------------------


def _gather_cpu(attrs: Attrs, x: Array, indices: Array) -> Array:
    axis = attrs.axis
    extent = x.shape[axis]
    places = np.where(indices < 0, indices + extent, indices)
    wrong = indices[(places < 0) | (places >= extent)]
    if wrong.size:
        raise InputError(
            f"gather_elements index {wrong.flat[0]} is not in axis {axis}, wanted {-extent} to "
            f"{extent - 1} ({wrong.size} of {indices.size} are wrong); on a GPU they are clamped"
        )
    beside = [slice(None) if d == axis else slice(n) for d, n in enumerate(indices.shape)]
    return np.take_along_axis(x[tuple(beside)], places, axis)


def _scatter_cpu(
    places_of: PlacesOf, attrs: Attrs, x: Array, indices: Array, updates: Array
) -> Array:
    if x.size == 0:
        return np.array(x)
    places, slots = places_of(attrs, indices, x.shape)
    y, inside = np.array(x).reshape(slots, x.size // slots), places >= 0
    at, values = places[inside], updates.reshape(len(places), y.shape[1])[inside]
    if attrs.reduction == "none":
        y[at] = values  # of several the last one
    else:
        _MEET[attrs.reduction].at(y, at, values)
    return y.reshape(x.shape)


# --- on the GPU ---------------------------------------------------------------------------------


def _gather_lower(op: Lowering) -> Iterator[Dispatch]:
    x, indices = op.inputs
    axis, strides = op.attrs.axis, contiguous_strides(x.shape)
    params = {
        "rank": x.rank,
        "extent": indices.shape,
        "stride": [0 if d == axis else s for d, s in enumerate(strides)],
        "slots": x.shape[axis],
        "step": strides[axis],
    }
    yield for_each(op, indices.size, params, {"GATHER": 1}, types="uint int uint")


_GATHER = Kernel(
    "indexing/scatter.hlsl",
    f"n:u rank:u extent:u{MAX_RANK} stride:u{MAX_RANK} slots:u step:u",
    lower=_gather_lower,
    trusted=True,
)
# --- the operators ------------------------------------------------------------------------------


def _scatter_cost(attrs: Attrs, inputs: Sequence[Fact], outputs: Sequence[Fact]) -> Cost:
    """Returns the cost of moving all tensors once, with one operation per update.

    The search for updates, which depends on the device, is left out.
    """
    return Cost.moving(inputs[2].size, inputs, outputs)


_IN_ORDER = Tolerance(
    1e-5, 1e-5, "up to 100 updates of one place, each rounded; in the same order on both backends"
)


def _index(high: int, *shape: int) -> Random:
    """Returns a test input of random indices from ``-high`` to ``high - 1``."""
    return Random(shape, -high, high, "integer")


def _whole(*shape: int) -> Random:
    return Random(shape, -9, 9, "integer")


def _logical(*shape: int) -> Random:
    return Random(shape, dtype="logical")


define(
    OpSpec(
        "gather_elements",
        infer=_gather_infer,
        cpu=_gather_cpu,
        kernel=_GATHER,
        cost=gathered_cost,
        tolerance=EXACT,
        cases=[
            Case(((4, 5), _index(4, 3, 5)), {"axis": 0}, "first axis"),
            Case(((4, 5), _index(5, 2, 70)), {"axis": 1}, "fewer lines, longer ones"),
            Case((_whole(2, 3, 4, 5), _index(3, 1, 6, 4, 2)), {"axis": 1}, "integers"),
            Case((_logical(7), _index(7, 3)), {"axis": 0}, "logical"),
            Case(((1, 1), _index(1, 1, 9)), {"axis": 1}, "extent 1"),
            Case(((2, 0), _index(2, 2, 0)), {"axis": 0}, "empty"),
            Case(((1, 2, 1, 3, 1, 2, 1, 3), _index(2, 1, 4, 1, 3, 1, 2, 1, 3)), {"axis": 1}),
        ],
    )
)


def _elements_cases() -> Iterator[Case]:
    for reduction in REDUCTIONS:
        how = {"reduction": reduction}
        yield Case(((4, 5), _index(4, 3, 5), (3, 5)), {"axis": 0, **how}, "first axis")
        yield Case(((3, 9, 2), _index(9, 2, 70, 1), (2, 70, 1)), {"axis": 1, **how}, "fewer lines")
        yield Case((_whole(30), _index(30, 100), _whole(100)), {"axis": 0, **how}, "integers")
    none = {"axis": 1, "reduction": "none"}
    yield Case(((300, 3), _index(300, 5, 3), (5, 3)), {**none, "axis": 0}, "few of many")
    yield Case((_logical(3, 4), _index(4, 3, 2), _logical(3, 2)), none, "logical")
    yield Case(((2, 4), np.array([[4, -5, 0]]), (1, 3)), none, "indices that are nowhere")
    yield Case(((2, 3), _index(3, 2, 0), (2, 0)), none, "no updates")
    yield Case(((2, 0), _index(1, 2, 1), (2, 1)), none, "no places")
    yield Case(((1, 1), _index(1, 1, 1), (1, 1)), none, "extent 1")


define(
    OpSpec(
        "scatter_elements",
        infer=_elements_infer,
        cpu=partial(_scatter_cpu, element_places),
        kernel=ELEMENTS,
        cost=_scatter_cost,
        tolerance=_IN_ORDER,
        cases=list(_elements_cases()),
    )
)


def _nd_cases() -> Iterator[Case]:
    for reduction in REDUCTIONS:
        how = {"reduction": reduction}
        yield Case(((3, 5), np.array([[2, 4], [0, -5], [2, -1]]), (3,)), how, "single values")
        yield Case(((6, 70), _index(6, 4, 2, 1), (4, 2, 70)), how, "rows")
        yield Case((_whole(2, 3, 4), _index(2, 9, 2), _whole(9, 4)), how, "integers")
    none = {"reduction": "none"}
    yield Case((_logical(4), _index(4, 3, 1), _logical(3)), none, "logical")
    yield Case(((3, 2), np.array([[3], [-4], [1]]), (3, 2)), none, "indices that are nowhere")
    yield Case(((3, 2), np.zeros((2, 0), np.int32), (2, 3, 2)), {"reduction": "add"}, "all of it")
    yield Case(((3, 2), np.zeros((0, 2), np.int32), (0,)), none, "no updates")
    yield Case(((0, 2), np.zeros((3, 1), np.int32), (3, 2)), none, "no places")


define(
    OpSpec(
        "scatter_nd",
        infer=_nd_infer,
        cpu=partial(_scatter_cpu, row_places),
        kernel=ROWS,
        cost=_scatter_cost,
        tolerance=_IN_ORDER,
        cases=list(_nd_cases()),
    )
)
