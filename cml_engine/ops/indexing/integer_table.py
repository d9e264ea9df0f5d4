"""The operator ``integer_table``, which looks words up in a table."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cml_engine.errors import ShapeError
from cml_engine.ir.graph import Array, Attrs, Fact
from cml_engine.ir.integer_rule import LARGE_TABLE, SMALL_TABLE
from cml_engine.ops.common import integer_arrays as arrays
from cml_engine.ops.declaration.lowering import Lowering, for_each
from cml_engine.ops.declaration.registry import define
from cml_engine.ops.declaration.spec import (
    EXACT,
    Case,
    Dispatch,
    OpSpec,
    elementwise_cost,
    engine_kernel,
)

_ITEMS = 4


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
