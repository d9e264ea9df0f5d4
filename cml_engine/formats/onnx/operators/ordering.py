"""Imports sorting and running sums."""

from __future__ import annotations

import numpy as np

from cml_engine.formats.onnx.attributes import at_least, required
from cml_engine.formats.onnx.call import OnnxCall
from cml_engine.formats.onnx.op_schemas import op
from cml_engine.formats.onnx.ranges.interval import EXACT, sum_of
from cml_engine.formats.onnx.values import Value


@op("TopK", nnef="top_k", attrs={"axis": -1, "k": required(at_least(0))}, until=9)
def top_k_1(call: OnnxCall) -> list[Value]:
    return _top_k(call, call.attr("k"), True)


@op("TopK", nnef="top_k", inputs=2, attrs={"axis": -1}, since=10, until=10)
def top_k_10(call: OnnxCall) -> list[Value]:
    return _top_k(call, call.ints(1, "k")[0], True)


@op("TopK", nnef="top_k", inputs=2, attrs={"axis": -1, "largest": 1, "sorted": 1}, since=11)
def top_k(call: OnnxCall) -> list[Value]:
    return _top_k(call, call.ints(1, "k")[0], bool(call.attr("largest")))


def _top_k(call: OnnxCall, k: int, largest: bool) -> list[Value]:
    axis = call.axis(call.attr("axis"), call[0].rank)
    x = call.scalar(call[0])
    values, indices = call.ops("top_k", 2, x, k=k, axis=axis, largest=largest)
    return [call.cast(values, call[0].kind).typed(call[0].dtype), indices.typed(np.int64)]


@op("CumSum", nnef="cumsum; or int_matmul", inputs=2, attrs={"exclusive": 0, "reverse": 0})
def cumsum(call: OnnxCall) -> Value:
    return _running(call, "cumsum")


@op("CumProd", nnef="cumprod", inputs=2, attrs={"exclusive": 0, "reverse": 0})
def cumprod(call: OnnxCall) -> Value:
    return _running(call, "cumprod")


def _running(call: OnnxCall, name: str) -> Value:
    axis = call.axis(call.ints(1, "the axis")[0], call[0].rank)
    flags = {key: bool(call.attr(key)) for key in ("exclusive", "reverse")}
    if name == "cumsum" and _leaves_floats(call, axis):
        return _integer_sums(call, axis, **flags)
    y = call.op(name, call.scalar(call[0]), axis=axis, **flags)
    return call.cast(y, call[0].kind).typed(call[0].dtype)


#: the longest axis of an integer running sum, which is a product with a square matrix
_MAX_COLUMNS = 2048


def _leaves_floats(call: OnnxCall, axis: int) -> bool:
    x, count = call[0], call[0].shape[axis]
    if x.kind != "integer" or not 0 < count <= _MAX_COLUMNS:
        return False
    return not sum_of(call.emit.intervals.of(x), count).within(EXACT)


def _integer_sums(call: OnnxCall, axis: int, exclusive: bool, reverse: bool) -> Value:
    """Adds a product with a triangular matrix of ones, which gives running sums of integers.

    Returns the result.
    """
    x, count = call[0], call[0].shape[axis]
    order = [a for a in range(x.rank) if a != axis] + [axis]
    moved = call.transpose(x, order)
    ones = np.triu(np.ones((count, count), np.int64), 1 if exclusive else 0)
    rows = call.reshape(moved, [-1, count])
    y = call.op("int_matmul", rows, Value.known(ones.T if reverse else ones))
    return call.transpose(call.reshape(y, moved.shape), np.argsort(order).tolist()).typed(x.dtype)
