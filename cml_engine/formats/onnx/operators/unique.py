"""Imports the operator Unique."""

from __future__ import annotations

from math import prod

import numpy as np

from cml_engine.formats.onnx.attributes import INT
from cml_engine.formats.onnx.call import OnnxCall
from cml_engine.formats.onnx.op_schemas import op
from cml_engine.formats.onnx.values import Value
from cml_engine.ir.graph import Array

#: the most comparisons of numbers: every part is compared with every other
_MAX_COMPARED = 1 << 22


def _of_known(call: OnnxCall, x: Array) -> list[Value]:
    axis = call.attr("axis")
    values, index, inverse, counts = np.unique(x, True, True, True, axis=axis)
    inverse = inverse.reshape(-1)
    if not call.attr("sorted"):
        order = np.argsort(index)
        values, index, counts = values.take(order, axis or 0), index[order], counts[order]
        inverse = np.argsort(order)[inverse]
    return [
        Value.known(values),
        *(Value.known(a.astype(np.int64)) for a in (index, inverse, counts)),
    ]


@op(
    "Unique",
    nnef="eq, lt, all_reduce, argmax_reduce, sum_reduce, gather, select",
    attrs={"axis": INT, "sorted": 1},
)
def unique(call: OnnxCall) -> list[Value]:
    """Imports Unique: the distinct parts of a tensor, in results of the largest possible extent.

    Entries after the last distinct part are -1. The number of distinct parts is an extra output
    of the graph.
    """
    x = call[0]
    if x.array is not None:
        return _of_known(call, x.array)
    axis = None if call.attr("axis") is None else call.axis(call.attr("axis"), x.rank)
    count = prod(x.shape) if axis is None else x.shape[axis]
    if x.kind == "logical" or not 0 < count * prod(x.shape) <= _MAX_COMPARED:
        raise call.unsupported_error(
            f"Unique of {count:,} parts, {prod(x.shape):,} of {x.dtype} in all"
        )
    order = [axis or 0, *(a for a in range(x.rank) if a != (axis or 0))]
    moved = call.transpose(x, order) if axis is not None else x
    rows = call.reshape(moved, [count, prod(x.shape) // count])
    same, less = _compare_rows(call, rows)
    column = Value.known(np.arange(count).reshape(-1, 1))
    line = Value.known(np.arange(count).reshape(1, -1))
    # the first of equal parts is kept; its rank is the number of kept parts before it
    alike = call.op("select", same, 1.0, 0.0)
    first = call.op("argmax_reduce", alike, axes=[1])
    counts_itself = call.transpose(call.op("int_eq", first, column), [1, 0])
    ones = call.op("select", counts_itself, 1.0, 0.0)
    before = less if call.attr("sorted") else call.op("int_lt", line, first)
    before = call.op("select", before, ones, 0.0)
    place = call.cast(call.op("sum_reduce", before, axes=[1]), "integer")
    # the part at each rank
    holds = call.op("int_eq", call.transpose(place, [1, 0]), column)
    holds = call.op("and", holds, counts_itself)
    at = call.op("argmax_reduce", call.op("select", holds, 1.0, 0.0), axes=[1])
    is_found = call.op("any_reduce", holds, axes=[1])
    found = call.cast(call.op("sum_reduce", ones, axes=[0, 1]), "integer")
    flat = call.squeeze(at, [1])

    def filled(value: Value) -> Value:
        return call.op("select", is_found, value, -1 if value.kind == "integer" else -1.0)

    values = call.reshape(filled(call.op("gather", rows, flat, axis=0)), moved.shape)
    if axis is None:
        values = call.reshape(values, [count])
    else:
        values = call.transpose(values, np.argsort(order).tolist())
    times = call.cast(call.op("sum_reduce", alike, axes=[1]), "integer")
    times = filled(call.op("gather", times, flat, axis=0))
    results = [values.typed(x.dtype), *(call.squeeze(v, [1]) for v in (filled(at), place, times))]
    for i, along in ((0, axis or 0), (1, 0), (3, 0)):
        if call.wants(i):
            count_of_it = call.squeeze(found, [1])
            call.emit.also(f"{call.node.outputs[i]}_count", count_of_it, results[i], along)
    return [results[0], *(v.typed(np.int64) for v in results[1:])]


def _compare_rows(call: OnnxCall, rows: Value) -> tuple[Value, Value]:
    """Adds comparisons of all pairs of rows and returns two matrices [i, j] of logicals.

    They are True where rows i and j are equal, and where j precedes i. Rows are ordered by the
    first number that differs. NaN is the greatest number and equal to itself.
    """
    kind = "int_" if rows.kind == "integer" else ""
    a, b = call.unsqueeze(rows, [1]), call.unsqueeze(rows, [0])
    same, less = call.op(f"{kind}eq", a, b), call.op(f"{kind}lt", b, a)
    if not kind:
        none_a, none_b = call.op("is_nan", a), call.op("is_nan", b)
        same = call.op("or", same, call.op("and", none_a, none_b))
        less = call.op("or", less, call.op("and", none_a, call.op("not", none_b)))
    if rows.shape[1] == 1:
        return call.squeeze(same, [2]), call.squeeze(less, [2])
    differs = call.op("argmax_reduce", call.op("select", same, 0.0, 1.0), axes=[2])
    decided = call.op("gather_elements", call.op("select", less, 1.0, 0.0), differs, axis=2)
    is_less = call.op("gt", call.squeeze(decided, [2]), 0.5)
    return call.squeeze(call.op("all_reduce", same, axes=[2]), [2]), is_less
