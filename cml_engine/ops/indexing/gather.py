"""The operators ``gather`` (entries of an axis by index), ``cast``, ``to_bits`` and ``from_bits``.

``cast`` converts values to another type; ``to_bits`` and ``from_bits`` keep the 32 bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from math import prod

import numpy as np

from cml_engine.errors import InputError, ShapeError
from cml_engine.ir.graph import NUMPY_DTYPE, Array, Attrs, Fact
from cml_engine.ir.integer_rule import LARGE_TABLE, SMALL_TABLE
from cml_engine.ir.layout import HLSL_TYPE
from cml_engine.ops.common import integer_arrays as arrays
from cml_engine.ops.common.shapes import check_axis, check_word, fact_of
from cml_engine.ops.declaration.lowering import Lowering, for_each
from cml_engine.ops.declaration.registry import define
from cml_engine.ops.declaration.spec import (
    EXACT,
    Case,
    Defines,
    Dispatch,
    OpSpec,
    Random,
    elementwise_cost,
    engine_kernel,
    gathered_cost,
)

_ITEMS = 4


def _gather_infer(attrs: Attrs, x: Fact, indices: Fact) -> Fact:
    axis = check_axis(attrs.axis, x.rank)
    if x.shape[axis] == 0 < indices.size:
        raise ShapeError(f"axis {axis} of {x} is empty: {indices.size} indices find nothing in it")
    return fact_of(x.dtype, [*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]])


def _gather_cpu(attrs: Attrs, x: Array, indices: Array) -> Array:
    extent = x.shape[attrs.axis]
    wrong = indices[(indices < 0) | (indices >= extent)]
    if wrong.size:
        raise InputError(
            f"gather index {wrong.flat[0]} is not in axis {attrs.axis}, wanted 0 to {extent - 1} "
            f"({wrong.size} of {indices.size} indices are wrong); on a GPU they are clamped"
        )
    return x.take(indices, attrs.axis)


def _gather_lower(op: Lowering) -> Iterator[Dispatch]:
    x, indices = op.inputs
    axis = op.attrs.axis
    row = prod(x.shape[axis + 1 :])
    width, item = (4, "uint4") if row % 4 == 0 else (1, "uint")
    blocks = -(-row // (width * _ITEMS))
    params = {
        "blocks": blocks,
        "row": row // width,
        "extent": x.shape[axis],
        "indices": indices.size,
    }
    n = prod(x.shape[:axis]) * indices.size * blocks
    yield for_each(op, n, params, {"ITEMS": _ITEMS}, types=f"{item} int {item}")


_GATHER = engine_kernel(
    "indexing/gather.hlsl",
    "n:u blocks:u row:u extent:u indices:u",
    lower=_gather_lower,
)


def _index(high: int, *shape: int) -> Random:
    return Random(shape, 0, high, "integer")


define(
    OpSpec(
        "gather",
        infer=_gather_infer,
        cpu=_gather_cpu,
        kernel=_GATHER,
        cost=gathered_cost,
        tolerance=EXACT,
        cases=[
            Case(((10, 7), _index(10, 3)), {"axis": 0}, "rows"),
            Case(((10, 16), _index(10, 3, 5)), {"axis": 0}, "embedding, aligned rows"),
            Case(((2, 9, 3), _index(9, 4)), {"axis": 1}, "middle axis"),
            Case(((5, 6), _index(6, 2, 2)), {"axis": 1}, "last axis"),
            Case(((5, 6), _index(6)), {"axis": 1}, "a single index removes the axis"),
            Case(((1, 3), _index(1, 7)), {"axis": 0}, "extent 1"),
            Case(((5, 6), _index(5, 0)), {"axis": 0}, "no index"),
            Case(((4, 0), _index(4, 2)), {"axis": 0}, "empty rows"),
            Case((Random((3, 1, 2, 1, 3, 1, 2, 2), -9, 9, "integer"), _index(3, 5)), {"axis": 4}),
            Case((Random((6, 3), dtype="logical"), _index(6, 9)), {"axis": 0}, "logical"),
        ],
    )
)


def _cast_infer(attrs: Attrs, x: Fact) -> Fact:
    check_word("cast to", attrs.dtype, NUMPY_DTYPE)
    return Fact(attrs.dtype, x.shape)


def _cast_cpu(attrs: Attrs, x: Array) -> Array:
    """Converts an array to the type ``attrs.dtype``.

    From floats to integers, values are truncated towards zero and clamped to the range, and NaN
    becomes 0. C leaves out-of-range values undefined, and processors differ.
    """
    if attrs.dtype == "integer" and x.dtype.kind == "f":
        limit = np.iinfo(np.int32)
        return np.nan_to_num(x.astype(np.float64)).clip(limit.min, limit.max).astype(np.int32)
    return x.astype(NUMPY_DTYPE[attrs.dtype])


def _cast_lower(op: Lowering) -> Iterator[Dispatch]:
    (x,), (y,) = op.inputs, op.outputs
    conversion: Defines = {}
    if y.dtype == "logical":
        conversion = {"FLOAT_TO_LOGICAL" if x.dtype == "scalar" else "TO_LOGICAL": 1}
    elif (x.dtype, y.dtype) == ("scalar", "integer"):
        conversion = {"FLOAT_TO_INT": 1}
    yield _moved(op, f"{HLSL_TYPE[x.dtype]} {HLSL_TYPE[y.dtype]}", conversion)


def _moved(op: Lowering, types: str, conversion: Mapping[str, int | str]) -> Dispatch:
    """Returns a dispatch that converts every element.

    ``types`` are the HLSL types of both tensors.
    """
    defines = {"CAST": 1, "ITEMS": _ITEMS, **conversion}
    return for_each(op, op.outputs[0].size, {}, defines, types=types, items=_ITEMS)


_CAST = engine_kernel("indexing/gather.hlsl", "n:u", lower=_cast_lower)
_ODD = (np.inf, -np.inf, np.nan)
_EDGES = np.array(
    [0.0, -0.0, 0.5, -0.5, 1.9, -1.9, 2.0**31 - 128, 2.0**31, -(2.0**31), 3e9, -3e9, 1e-30, *_ODD],
    np.float32,
)

define(
    OpSpec(
        "cast",
        infer=_cast_infer,
        cpu=_cast_cpu,
        kernel=_CAST,
        cost=elementwise_cost(1),
        tolerance=EXACT,
        cases=[
            Case((Random((3, 700), -99, 99),), {"dtype": "integer"}, "towards zero"),
            Case((_EDGES,), {"dtype": "integer"}, "what an integer cannot hold"),
            Case((_EDGES,), {"dtype": "logical"}, "is it not 0"),
            Case((Random((5, 7), -3, 3, "integer"),), {"dtype": "scalar"}),
            Case((Random((5, 7), -3, 3, "integer"),), {"dtype": "logical"}),
            Case((Random((1,), dtype="logical"),), {"dtype": "scalar"}),
            Case((Random((65,), dtype="logical"),), {"dtype": "integer"}),
            Case(((2, 0),), {"dtype": "integer"}, "empty"),
            Case(((),), {"dtype": "scalar"}, "rank 0, same dtype"),
            Case((Random((1, 2, 1, 2, 1, 2, 1, 3), -5, 5),), {"dtype": "integer"}, "rank 8"),
        ],
    )
)


def _bits_cpu(target: str, attrs: Attrs, x: Array) -> Array:
    return np.array(x, order="C").view(NUMPY_DTYPE[target])


def _bits_lower(op: Lowering) -> Iterator[Dispatch]:
    """Yields a dispatch that copies 32-bit words as integers, not through floats."""
    yield _moved(op, "uint uint", {})


for _name, _source, _target in (
    ("to_bits", "scalar", "integer"),
    ("from_bits", "integer", "scalar"),
):
    _patterns = np.array([0x7FC00001, 0x80000000, 1, 0x7FC0BEEF, 0x3F800000], np.uint32)
    define(
        OpSpec(
            _name,
            infer=lambda attrs, x, _target=_target: Fact(_target, x.shape),
            cpu=partial(_bits_cpu, _target),
            kernel=engine_kernel("indexing/gather.hlsl", "n:u", lower=_bits_lower),
            cost=elementwise_cost(0),
            tolerance=EXACT,
            cases=[
                Case((Random((3, 700), -99, 99, _source),)),
                Case((_patterns.view(NUMPY_DTYPE[_source]),), note="NaN, -0, a denormal"),
                Case((Random((2, 0), dtype=_source),), note="empty"),
            ],
        )
    )


# --- integer_table ------------------------------------------------------------------------------


def _table_infer(attrs: Attrs, x: Fact, table: Fact) -> Fact:
    if table.shape not in ((SMALL_TABLE,), (LARGE_TABLE,)):
        raise ShapeError(
            f"a table of shape {list(table.shape)}; wanted {SMALL_TABLE} entries for words of 8 "
            f"bits, {LARGE_TABLE} for words of 16"
        )
    return x


def _table_cpu(attrs: Attrs, x: Array, table: Array) -> Array:
    return np.asarray(arrays.look_up(x, table, attrs["first"]), np.float32)


def _table_lower(op: Lowering) -> Iterator[Dispatch]:
    points = {"POINTS": 1} if op.inputs[1].size == LARGE_TABLE else {}
    params, defines = {"first": op.attrs["first"]}, {"ITEMS": _ITEMS, **points}
    yield for_each(op, op.outputs[0].size, params, defines, items=_ITEMS)


_TABLE = engine_kernel("indexing/integer_table.hlsl", "n:u first:i", lower=_table_lower)


def _table_case(size: int, largest: int, first: int) -> Case:
    random = np.random.default_rng(size)
    last = first + (255 if size == SMALL_TABLE else 65535)
    indices = random.integers(first, last + 1, (3, 700))
    indices[0, :2] = first, last
    table = random.integers(-largest, largest + 1, size)
    return Case((indices.astype(np.float32), table.astype(np.float32)), {"first": first})


define(
    OpSpec(
        "integer_table",
        infer=_table_infer,
        cpu=_table_cpu,
        kernel=_TABLE,
        cost=elementwise_cost(4),
        tolerance=EXACT,
        custom=True,
        cases=[
            _table_case(SMALL_TABLE, 127, -128),
            _table_case(SMALL_TABLE, 32767, 0),
            _table_case(LARGE_TABLE, 32767, -32768),
            _table_case(LARGE_TABLE, 127, 0),
        ],
    )
)
