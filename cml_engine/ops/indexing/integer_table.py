"""The operator ``integer_table``: looks up a word's function value in a table (docs/integer.md)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cml_engine.errors import ShapeError
from cml_engine.ir.graph import Array, Attrs, Fact
from cml_engine.ir.integer_rule import LARGE_TABLE, SMALL_TABLE
from cml_engine.ops.common import integer_arrays as arrays
from cml_engine.ops.declaration.lowering import Lowering, for_each
from cml_engine.ops.declaration.registry import define
from cml_engine.ops.declaration.spec import EXACT, Case, Dispatch, Kernel, OpSpec, elementwise_cost

_ITEMS = 4


def _infer(attrs: Attrs, x: Fact, table: Fact) -> Fact:
    if table.shape not in ((SMALL_TABLE,), (LARGE_TABLE,)):
        raise ShapeError(
            f"a table of shape {list(table.shape)}; wanted {SMALL_TABLE} entries for words of 8 "
            f"bits, {LARGE_TABLE} for words of 16"
        )
    return x


def _cpu(attrs: Attrs, x: Array, table: Array) -> Array:
    return np.asarray(arrays.look_up(x, table, attrs["first"]), np.float32)


def _lower(op: Lowering) -> Iterator[Dispatch]:
    points = {"POINTS": 1} if op.inputs[1].size == LARGE_TABLE else {}
    params, defines = {"first": op.attrs["first"]}, {"ITEMS": _ITEMS, **points}
    yield for_each(op, op.outputs[0].size, params, defines, items=_ITEMS)


_KERNEL = Kernel("indexing/integer_table.hlsl", "n:u first:i", lower=_lower, trusted=True)


def _case(size: int, most: int, first: int) -> Case:
    random = np.random.default_rng(size)
    last = first + (255 if size == SMALL_TABLE else 65535)
    words = random.integers(first, last + 1, (3, 700))
    words[0, :2] = first, last
    table = random.integers(-most, most + 1, size)
    return Case((words.astype(np.float32), table.astype(np.float32)), {"first": first})


define(
    OpSpec(
        "integer_table",
        infer=_infer,
        cpu=_cpu,
        kernel=_KERNEL,
        cost=elementwise_cost(4),
        tolerance=EXACT,
        custom=True,
        cases=[
            _case(SMALL_TABLE, 127, -128),
            _case(SMALL_TABLE, 32767, 0),
            _case(LARGE_TABLE, 32767, -32768),
            _case(LARGE_TABLE, 127, 0),
        ],
    )
)
