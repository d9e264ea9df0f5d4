"""Imports gather, scatter and selection by index."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from cml_engine.formats.onnx.attributes import INT, at_least, one_of
from cml_engine.formats.onnx.call import OnnxCall
from cml_engine.formats.onnx.op_schemas import ML, op
from cml_engine.formats.onnx.operators.arithmetic import wrap
from cml_engine.formats.onnx.values import Value
from cml_engine.ir.graph import Array


def _known_indices(call: OnnxCall, array: Array, extent: int) -> Array:
    """Returns known indices as int64, with negative ones, which count from the end, made positive.

    Raises an error if an index is outside ``extent`` elements.
    """
    if array.size and (array.min() < -extent or array.max() >= extent):
        wrong = array[(array < -extent) | (array >= extent)].flat[0]
        raise call.shape_error(f"index {wrong} of {extent} elements")
    return np.asarray(array % extent if extent else array, np.int64)


def wrap_indices(call: OnnxCall, indices: Value, extents: list[int]) -> Value:
    """Adds operators that make negative indices, which count from the end, positive.

    ``extents`` has one extent for all indices, or one per element of the last axis. Returns the
    indices.
    """
    if indices.array is not None:
        whole = np.array(extents).reshape(-1)
        return Value.known(np.where(indices.array < 0, indices.array + whole, indices.array))
    added: Any = extents[0] if len(extents) == 1 else Value.known(np.array(extents, np.int64))
    back = call.zip("int_add", indices, added)
    return call.op("select", call.op("int_lt", indices, 0), back, indices).typed(indices.dtype)


def _gather_fold(call: OnnxCall, x: Array, indices: Array) -> Array:
    axis = call.axis(call.attr("axis"), x.ndim)
    call.allocate([*indices.shape, *x.shape[:axis], *x.shape[axis + 1 :]], x.itemsize)
    return x.take(_known_indices(call, indices, x.shape[axis]), axis)


@op("Gather", nnef="gather; or slice, squeeze", inputs=2, attrs={"axis": 0}, fold=_gather_fold)
def gather(call: OnnxCall) -> Value:
    x, indices = call[0], call[1]
    axis = call.axis(call.attr("axis"), x.rank)
    extent = x.shape[axis]
    if indices.array is None:
        return call.op("gather", x, wrap_indices(call, indices, [extent]), axis=axis).typed(x.dtype)
    places = _known_indices(call, indices.array, extent)
    flat = places.reshape(-1).tolist()
    if flat and places.ndim <= 1 and flat == list(range(flat[0], flat[0] + len(flat))):
        part = call.slice(x, axis, flat[0], flat[0] + len(flat))
        return part if places.ndim else call.squeeze(part, [axis])
    return call.op("gather", x, Value.known(places), axis=axis).typed(x.dtype)


@op("ArrayFeatureExtractor", nnef="gather", inputs=2, domain=ML)
def array_feature_extractor(call: OnnxCall) -> Value:
    x, indices = call[0], call[1]
    x = call.unsqueeze(x, [0]) if x.rank == 1 else x
    flat = call.reshape(indices, [prod(indices.shape)])
    places = wrap_indices(call, flat, [x.shape[-1]])
    return call.op("gather", x, places, axis=x.rank - 1).typed(x.dtype)


@op("GatherND", nnef="gather_nd", inputs=2, attrs={"batch_dims": at_least(0, 0)})
def gather_nd(call: OnnxCall) -> Value:
    x, indices, batch = call[0], call[1], call.attr("batch_dims")
    depth = indices.shape[-1]
    indices = wrap_indices(call, indices, list(x.shape[batch : batch + depth]))
    if batch:
        # prepend each element's batch indices to the given indices
        grid = np.indices(indices.shape[:-1])[:batch]
        own = Value.known(np.moveaxis(grid, 0, -1).astype(np.int64))
        indices = call.concat([own, indices], indices.rank - 1)
    return call.op("gather_nd", x, indices).typed(x.dtype)


@op("GatherElements", nnef="gather_elements", inputs=2, attrs={"axis": 0})
def gather_elements(call: OnnxCall) -> Value:
    axis = call.axis(call.attr("axis"), call[0].rank)
    return call.op("gather_elements", call[0], call[1], axis=axis).typed(call[0].dtype)


_REDUCTION = one_of("none", "add", "mul", "max", "min")
_SCATTER_FROM_16 = {"axis": 0, "reduction": _REDUCTION}


def _reduction(call: OnnxCall) -> str:
    found = str(call.attributes.get("reduction", "none"))
    if found != "none" and call[0].kind == "logical":
        raise call.unsupported_error(f"reduction='{found}' of truth values")
    return found


@op("Scatter", nnef="scatter_elements", inputs=3, attrs={"axis": 0}, until=10)
@op("ScatterElements", nnef="scatter_elements", inputs=3, attrs={"axis": 0}, until=15)
@op("ScatterElements", nnef="scatter_elements", inputs=3, attrs=_SCATTER_FROM_16, since=16)
def scatter_elements(call: OnnxCall) -> Value:
    x = call[0]
    axis, reduction = call.axis(call.attr("axis"), x.rank), _reduction(call)
    y = call.op("scatter_elements", x, call[1], call[2], axis=axis, reduction=reduction)
    return _cast_result(call, y)


@op("ScatterND", nnef="scatter_nd", inputs=3, attrs={}, until=15)
@op("ScatterND", nnef="scatter_nd", inputs=3, attrs={"reduction": _REDUCTION}, since=16)
def scatter_nd(call: OnnxCall) -> Value:
    y = call.op("scatter_nd", call[0], call[1], call[2], reduction=_reduction(call))
    return _cast_result(call, y)


def _cast_result(call: OnnxCall, result: Value) -> Value:
    """Returns a scatter's result with the type of the first input.

    Sums and products wrap around.
    """
    if result.kind == "integer" and _reduction(call) in ("add", "mul"):
        return wrap(result, call[0].dtype, call)
    return result.typed(call[0].dtype)


# -- one hot -------------------------------------------------------------------------------------


@op("OneHot", nnef="int_eq, select", inputs=3, attrs={"axis": -1})
def one_hot(call: OnnxCall) -> Value:
    indices, depth = call[0], int(call.number(1))
    values = call[2]
    axis = call.axis(call.attr("axis"), indices.rank + 1)
    lifted = call.unsqueeze(call.cast(indices, "integer"), [axis])
    shape = [depth if a == axis else 1 for a in range(lifted.rank)]
    call.checked_shape([*indices.shape, *call.allocate([depth])])
    places = Value.known(np.arange(depth).reshape(shape))
    hit = call.zip("int_eq", wrap_indices(call, lifted, [depth]), places)
    off, on = (call.reshape(call.slice(values, 0, i, i + 1), []) for i in range(2))
    return call.zip("select", hit, on, off).typed(values.dtype)


# -- what depends on values ----------------------------------------------------------------------


@op("NonZero", nnef="nonzero")
def non_zero(call: OnnxCall) -> Value:
    x = call[0]
    if x.array is not None:
        call.allocate([x.rank, x.array.size])
        return Value.known(np.array(np.nonzero(x.array), np.int64))
    room = int(np.prod(x.shape))
    places, count = call.ops("nonzero", 2, x, capacity=room)
    call.emit.also(f"{call.node.outputs[0]}_count", count, places, 1)
    return places.typed(np.int64)


@op("NonMaxSuppression", nnef="non_max_suppression", inputs=5, attrs={"center_point_box": 0})
def non_max_suppression(call: OnnxCall) -> Value:
    """Imports NonMaxSuppression; the result has the largest possible number of rows.

    Rows after the last selected box are -1. The number of boxes is an extra output of the graph.
    """
    limit = int(call.number(2)) if call.has(2) else 0
    if limit < 1:
        return Value.known(np.zeros((0, 3), np.int64))
    more = {"score_threshold": call.number(4)} if call.has(4) else {}
    mark = call.emit.mark()
    chosen, count = call.ops(
        "non_max_suppression",
        2,
        call[0],
        call[1],
        max_per_class=min(limit, call[0].shape[1]),
        iou_threshold=call.number(3),
        center_point_box=bool(call.attr("center_point_box")),
        **more,
    )
    if call[0].array is not None and call[1].array is not None:
        rows, found = call.emit.evaluate([chosen, count], mark)
        assert rows is not None and found is not None
        return call.slice(rows.typed(np.int64), 0, 0, int(call.known_values(found, "the count")[0]))
    call.emit.also(f"{call.node.outputs[0]}_count", count, chosen, 0)
    return chosen.typed(np.int64)


@op("Compress", nnef="gather", inputs=2, attrs={"axis": INT})
def compress(call: OnnxCall) -> Value:
    x, axis = call[0], call.attr("axis")
    kept = np.flatnonzero(call.array(1, "the condition"))
    if axis is None:
        x, axis = call.reshape(x, [int(np.prod(x.shape))]), 0
    axis = call.axis(axis, x.rank)
    if kept.size and kept[-1] >= x.shape[axis]:
        raise call.shape_error(f"a condition of {call[1].shape[0]} for {x.shape[axis]} elements")
    if x.array is not None:
        return Value.known(x.array.take(kept, axis))
    return call.op("gather", x, Value.known(kept), axis=axis).typed(x.dtype)
