"""The operators ``top_k``, running sums and products, ``reverse_sequence`` and ``gather_nd``.

All but the last work along the lines of one axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import isqrt, prod

import numpy as np

from cml_engine.errors import InputError, ShapeError
from cml_engine.ir.graph import Array, Attrs, Fact
from cml_engine.ops.common.shapes import check_axis
from cml_engine.ops.declaration.lowering import Lowering, for_each
from cml_engine.ops.declaration.registry import define
from cml_engine.ops.declaration.spec import (
    EXACT,
    Case,
    Cost,
    Dispatch,
    OpSpec,
    Random,
    Tolerance,
    elementwise_cost,
    engine_kernel,
    gathered_cost,
    integers,
    moving_cost,
)
from cml_engine.ops.indexing.scatter import row_places

_kernel = partial(engine_kernel, "reduction/ordering.hlsl")
#: a longer line is cut into chunks, so that no thread's loop is long (lowering.py)
_LONG_LINE, _CHUNK = 4096, 1024


# --- top_k --------------------------------------------------------------------------------------


def _top_k_infer(attrs: Attrs, x: Fact) -> list[Fact]:
    axis = check_axis(attrs.axis, x.rank)
    if not 0 <= attrs.k <= x.shape[axis]:
        raise ShapeError(f"k = {attrs.k} of axis {axis} of {x}: wanted 0 to {x.shape[axis]}")
    shape = (*x.shape[:axis], int(attrs.k), *x.shape[axis + 1 :])
    return [Fact("scalar", shape), Fact("integer", shape)]


def sort_keys(x: Array) -> Array:
    """Returns uint32 keys that sort like the float values.

    A NaN is above infinity; both zeros have the same key.
    """
    bits = np.where(x == 0, np.float32(0), x).astype(np.float32).view(np.uint32)
    keys = np.where(bits >> 31, ~bits, bits | np.uint32(0x80000000))
    return np.where(np.isnan(x), np.uint32(0xFFFFFFFF), keys)


def _top_k_cpu(attrs: Attrs, x: Array) -> list[Array]:
    keys = sort_keys(x)
    order = np.argsort(~keys if attrs.largest else keys, attrs.axis, kind="stable")
    index = order.take(np.arange(attrs.k), attrs.axis)
    return [np.take_along_axis(x, index, attrs.axis), index.astype(np.int32)]


def _top_k_lower(op: Lowering) -> Iterator[Dispatch]:
    """Yields dispatches that rank each value among the others of its line.

    A long line is cut into chunks, whose sorted values are merged, two runs at a time.
    """
    x, axis, k = op.inputs[0], op.attrs.axis, int(op.attrs.k)
    if op.outputs[0].size == 0:
        return
    extent, inner = x.shape[axis], prod(x.shape[axis + 1 :])
    outer = x.size // (extent * inner)
    chunk = extent if extent <= _LONG_LINE else _CHUNK
    run, remaining = min(k, chunk), _front(extent, chunk, k)

    def targets(total: int, last: bool) -> tuple[str, ...]:
        if last:
            return op.out_names
        return op.scratch(outer * total * inner), op.scratch(outer * total * inner)

    source = targets(remaining, remaining == run == k)
    largest = int(op.attrs.largest)
    params = {"extent": extent, "inner": inner, "chunk": chunk, "kept": run, "total": remaining}
    yield for_each(
        op, x.size, params, {"LARGEST": largest, "TOP_K": 1}, types="uint uint int",
        tensors=(*op.in_names, *source), writes=2,
    )  # fmt: skip
    while source != op.out_names:
        extent, merged = remaining, min(2 * run, k)
        remaining = _front(extent, 2 * run, k)
        target = targets(remaining, extent <= 2 * run)
        params = {
            "extent": extent,
            "inner": inner,
            "chunk": run,
            "kept": merged,
            "total": remaining,
        }
        read, written = outer * extent * inner, outer * remaining * inner
        yield for_each(
            op, read, params, {"LARGEST": largest, "MERGE": 1}, types="uint int uint int",
            tensors=(*source, *target), writes=2, cost=Cost(0, 12 * read, 8 * written),
        )  # fmt: skip
        source, run = target, merged


def _front(extent: int, chunk: int, k: int) -> int:
    """Returns how many values of a line remain if each of its chunks keeps ``k`` at most."""
    return extent // chunk * min(k, chunk) + min(k, extent % chunk)


_ODD = np.array([[0.0, -0.0, np.nan, np.inf, -np.inf, 1, 1, -1, np.nan, 1e-40]], np.float32)


def _top_k_cases() -> Iterator[Case]:
    for largest in (True, False):
        yield Case(((3, 7, 5),), {"k": 3, "axis": 1, "largest": largest}, "middle axis")
        yield Case(((2, 300),), {"k": 10, "axis": 1, "largest": largest}, "last axis")
        yield Case((_ODD,), {"k": 10, "axis": 1, "largest": largest}, "equals, NaN, zeros")
        yield Case(((4,),), {"k": 4, "axis": 0, "largest": largest}, "all of it: a sort")
    yield Case(((4, 3),), {"k": 0, "axis": 0, "largest": True}, "none")
    yield Case(((0, 3),), {"k": 2, "axis": 1, "largest": True}, "no lines")


define(
    OpSpec(
        "top_k",
        infer=_top_k_infer,
        cpu=_top_k_cpu,
        kernel=_kernel("n:u extent:u inner:u chunk:u kept:u total:u", lower=_top_k_lower),
        # every value is compared with all others of its line
        cost=moving_cost(
            lambda attrs, inputs, outputs: 2.0 * inputs[0].size * inputs[0].shape[attrs.axis]
        ),
        tolerance=EXACT,
        cases=list(_top_k_cases()),
    )
)


# --- cumsum, cumprod ----------------------------------------------------------------------------


def _running_infer(attrs: Attrs, x: Fact) -> Fact:
    check_axis(attrs.axis, x.rank)
    return x


def _running_cpu(product: bool, attrs: Attrs, x: Array) -> Array:
    y = np.flip(x, attrs.axis) if attrs.reverse else x
    total = (np.cumprod if product else np.cumsum)(y, attrs.axis, dtype=np.float64)
    if attrs.exclusive:
        total = np.roll(total, 1, attrs.axis)
        if total.size:
            np.moveaxis(total, attrs.axis, 0)[0] = int(product)
    total = np.flip(total, attrs.axis) if attrs.reverse else total
    return np.asarray(total.astype(np.float32))


def _running_lower(product: bool, op: Lowering) -> Iterator[Dispatch]:
    x, attrs = op.inputs[0], op.attrs
    if x.size == 0:
        return
    extent, lines = x.shape[attrs.axis], x.size // x.shape[attrs.axis]
    chunk = extent if extent <= _LONG_LINE else max(_CHUNK, isqrt(extent))
    chunks = -(-extent // chunk)
    params = {
        "extent": extent,
        "inner": prod(x.shape[attrs.axis + 1 :]),
        "chunk": chunk,
        "chunks": chunks,
        "product": int(product),
        "exclusive": int(attrs.exclusive),
        "backwards": int(attrs.reverse),
    }

    def step(name: str, threads: int, *tensors: str, **defines: int | str) -> Dispatch:
        cost = None if chunks == 1 else Cost(4 * threads, 4 * threads, 8 * threads)
        stated = {"RUNNING": 1, "STEP": name, **defines}
        return for_each(op, threads, params, stated, tensors=tensors, cost=cost)

    source, target = op.in_names[0], op.out_names[0]
    if chunks == 1:
        yield step("WHOLE", lines, source, target, OUT="T1")
        return
    sums = op.scratch(2 * lines * chunks)
    yield step("SUMS", lines * chunks, source, sums, T1_TYPE="float2")
    yield step("BEFORE", lines, sums, T0_TYPE="float2")
    yield step("REST", lines * chunks, source, sums, target, OUT="T2", T1_TYPE="float2")


def _running_cases(product: bool) -> Iterator[Case]:
    def values(*shape: int) -> Random:
        return Random(shape, *((0.8, 1.25) if product else (-1.0, 1.0)))

    for exclusive in (False, True):
        for reverse in (False, True):
            attrs = {"exclusive": exclusive, "reverse": reverse}
            yield Case((values(20, 9, 7),), {"axis": 1, **attrs}, "middle axis")
            yield Case((values(3, 130),), {"axis": 1, **attrs}, "last axis")
            yield Case((values(70, 2),), {"axis": 0, **attrs}, "first axis")
    attrs = {"exclusive": False, "reverse": False}
    yield Case(((3, 0, 2),), {"axis": 1, **attrs}, "empty")
    yield Case(((1,),), {"axis": 0, **attrs}, "one value")


_RUNNING = {
    "cumsum": Tolerance(
        4e-6, 1e-5, "a sum of up to 130 values, whose lost digits are carried along"
    ),
    "cumprod": Tolerance(1e-5, 1e-6, "up to 130 factors, each product rounded"),
}
for _name, _tolerance in _RUNNING.items():
    _product = _name == "cumprod"
    define(
        OpSpec(
            _name,
            infer=_running_infer,
            cpu=partial(_running_cpu, _product),
            kernel=_kernel(
                "n:u extent:u inner:u chunk:u chunks:u product:u exclusive:u backwards:u",
                lower=partial(_running_lower, _product),
            ),
            cost=elementwise_cost(1),
            tolerance=_tolerance,
            cases=list(_running_cases(_product)),
        )
    )


# --- reverse_sequence ---------------------------------------------------------------------------


def _reversed_infer(attrs: Attrs, x: Fact, lengths: Fact) -> Fact:
    time, batch = (check_axis(attrs[name], x.rank, name) for name in ("time_axis", "batch_axis"))
    if time == batch:
        raise ShapeError(f"time_axis and batch_axis are both {time}, wanted two axes")
    if lengths != Fact("integer", (x.shape[batch],)):
        raise ShapeError(
            f"lengths are {lengths}, wanted integer[{x.shape[batch]}]: one for each place of axis "
            f"{batch} of {x}"
        )
    return x


def _reversed_cpu(attrs: Attrs, x: Array, lengths: Array) -> Array:
    lines = np.moveaxis(x, (attrs.batch_axis, attrs.time_axis), (0, 1))
    y = np.array(lines)
    for line, result, length in zip(lines, y, lengths.clip(0, lines.shape[1]), strict=True):
        result[:length] = line[:length][::-1]
    return np.moveaxis(y, (0, 1), (attrs.batch_axis, attrs.time_axis))


def _reversed_lower(op: Lowering) -> Iterator[Dispatch]:
    x, attrs = op.inputs[0], op.attrs
    params = {
        "extent": x.shape[attrs.time_axis],
        "inner": prod(x.shape[attrs.time_axis + 1 :]),
        "batch": x.shape[attrs.batch_axis],
        "batch_inner": prod(x.shape[attrs.batch_axis + 1 :]),
    }
    yield for_each(op, x.size, params, {"REVERSED": 1}, types="uint int uint")


define(
    OpSpec(
        "reverse_sequence",
        infer=_reversed_infer,
        cpu=_reversed_cpu,
        kernel=_kernel("n:u extent:u inner:u batch:u batch_inner:u", lower=_reversed_lower),
        cost=elementwise_cost(0),
        tolerance=EXACT,
        cases=[
            Case(((4, 3), np.array([4, 0, 1])), {"time_axis": 0, "batch_axis": 1}),
            Case(((2, 3, 9, 2), np.array([2, 9])), {"time_axis": 2, "batch_axis": 0}, "inside"),
            Case(
                (integers(2, 70, below=9), np.array([99, -5])),
                {"time_axis": 1, "batch_axis": 0},
                "lengths that are none",
            ),
            Case(((0, 3), np.zeros(3, np.int32)), {"time_axis": 0, "batch_axis": 1}, "empty"),
        ],
    )
)


# --- gather_nd ----------------------------------------------------------------------------------


def _gather_nd_infer(attrs: Attrs, x: Fact, indices: Fact) -> Fact:
    if indices.rank == 0 or indices.shape[-1] > x.rank:
        raise ShapeError(f"indices {indices}, wanted rows of at most {x.rank} numbers for {x}")
    indexed_axes = indices.shape[-1]
    if prod(indices.shape[:-1]) and 0 in x.shape[:indexed_axes]:
        raise ShapeError(f"{indices} find nothing in {x}, which is empty on the indexed axes")
    return Fact(x.dtype, (*indices.shape[:-1], *x.shape[indexed_axes:]))


def _gather_nd_cpu(attrs: Attrs, x: Array, indices: Array) -> Array:
    slots, count = row_places(attrs, indices, x.shape)
    wrong = (slots < 0).reshape(indices.shape[:-1])
    if wrong.any():
        row = indices[wrong][0].tolist()
        raise InputError(
            f"gather_nd index {row} is not in {list(x.shape)} ({int(wrong.sum())} of {wrong.size} "
            "are wrong); on a GPU they are clamped"
        )
    return x.reshape(count, *x.shape[indices.shape[-1] :])[slots.reshape(wrong.shape)]


def _gather_nd_lower(op: Lowering) -> Iterator[Dispatch]:
    x, indices = op.inputs
    indexed_axes = indices.shape[-1]
    params = {
        "row": prod(x.shape[indexed_axes:]),
        "places": indexed_axes,
        "limit": [*x.shape[:indexed_axes], 0][:8],
    }
    yield for_each(op, op.outputs[0].size, params, {"GATHER_ND": 1}, types="uint int uint")


def _rows(*rows: Sequence[int]) -> Array:
    return np.array(rows, np.int32)


define(
    OpSpec(
        "gather_nd",
        infer=_gather_nd_infer,
        cpu=_gather_nd_cpu,
        kernel=_kernel("n:u row:u places:u limit:u8", lower=_gather_nd_lower),
        cost=gathered_cost,
        tolerance=EXACT,
        cases=[
            Case(((4, 5), _rows((0, 0), (3, 4), (1, 2))), {}, "single values"),
            Case(((4, 5, 3), _rows((3, 0), (0, 4))), {}, "rows"),
            Case(((4, 5, 3), _rows((-4, 0), (2, -1))), {}, "from the end"),
            Case(((4, 5, 3), _rows((2,), (0,), (1,))), {}, "planes"),
            Case(
                ((2, 3, 2, 2), _rows((1, 2, 0, 1), (0, 0, 1, 1))[:, None]), {}, "rank 3 of places"
            ),
            Case((integers(6, 70, below=9), _rows((5,), (5,), (0,))), {}, "integers"),
            Case(((3, 2), np.zeros((2, 0), np.int32)), {}, "rows of no numbers: all of it"),
            Case(((3, 2), np.zeros((0, 2), np.int32)), {}, "no rows"),
        ],
    )
)
