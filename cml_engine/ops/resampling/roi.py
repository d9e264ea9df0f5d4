"""The operators on regions of interest: each region is pooled or resampled to the same size.

A row of ``rois`` holds the first corner, then the second one, outermost axis first: ``y0 x0 y1
x1``. Rois and batch indices are data that other operators computed, which a GPU cannot refuse:
whatever they hold has one meaning, the same in NumPy (docs/design/nnef.md, "Regions of interest").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from math import prod

import numpy as np

from cml_engine.errors import ShapeError
from cml_engine.ir.graph import Array, Attrs, AttrValue, Fact
from cml_engine.ops.common.shapes import check_sizes, check_spatial, check_word, inner_first
from cml_engine.ops.declaration.lowering import LOOP_ITERATIONS, MAX_ITERATIONS, Lowering, for_each
from cml_engine.ops.declaration.registry import define
from cml_engine.ops.declaration.spec import (
    EXACT,
    POSITION,
    SUMMATION,
    Case,
    Cost,
    Defines,
    Dispatch,
    OpSpec,
    Random,
    Tolerance,
    engine_kernel,
    sampling_cost,
    word,
)

METHODS = ("symmetric", "asymmetric", "aligned")
#: coordinates are clamped to +-LIMIT: single precision counts no further one by one
LIMIT = 2.0**24


# --- shapes -------------------------------------------------------------------------------------


def _infer(attrs: Attrs, x: Fact, rois: Fact, batch_index: Fact) -> Fact:
    check_inputs(x, rois, batch_index)
    check_sizes("output_size", attrs.output_size, x)
    if rois.shape[0] and x.shape[0] == 0:
        raise ShapeError(f"{rois.shape[0]} rois of {x}, which has no batch item to take them from")
    shape = (rois.shape[0], x.shape[1], *(int(n) for n in attrs.output_size))
    if "method" in attrs:
        check_word("method", attrs.method, METHODS)
        if prod(shape) and 0 in x.shape[2:]:
            raise ShapeError(f"rois of {x}, which is empty: there is nothing to interpolate")
    return Fact("scalar", shape)


def check_inputs(x: Fact, rois: Fact, batch_index: Fact) -> int:
    check_spatial("rois", x)
    spatial = x.rank - 2
    if rois.rank != 2 or rois.shape[1] != 2 * spatial:
        raise ShapeError(
            f"rois are {rois}, wanted [number of rois, {2 * spatial}]: two corners on each of the "
            f"{spatial} spatial axes of {x}"
        )
    count = rois.shape[0]
    if batch_index.shape not in ((), (count,), (count, 1)):
        raise ShapeError(f"batch_index is {batch_index}, wanted [{count},1]: one for each roi")
    return spatial


# --- on the CPU ---------------------------------------------------------------------------------


def _corners(rois: Array) -> Array:
    """Returns the corners as float64 ``[roi, first or second, axis]``, clamped, with NaN as 0."""
    finite = np.nan_to_num(rois.astype(np.float64), nan=0.0, posinf=LIMIT, neginf=-LIMIT)
    return finite.clip(-LIMIT, LIMIT).reshape(len(rois), 2, rois.shape[1] // 2)


def items(x: Array, rois: Array, batch_index: Array) -> list[Array]:
    """Returns the batch item of each roi; an index out of range takes the nearest item."""
    index = np.broadcast_to(batch_index.reshape(-1), len(rois)).clip(0, len(x) - 1)
    return [x[i] for i in index]


def _cell_ranges(corners: Array, cells: int, extent: int) -> list[slice]:
    """Returns the ranges of the input that a roi's cells cover on one axis, clipped to the input.

    All cells have the same size and stride before clipping.
    """
    first, last = (int(corner) for corner in corners)
    size = max(last - first, 0)
    starts = [first + i * (size // cells) for i in range(cells)]
    cell_size = -(-size // cells)
    return [slice(min(max(s, 0), extent), min(max(s + cell_size, 0), extent)) for s in starts]


def _pool_cpu(reduce: Callable[[Array, tuple[int, ...]], Array], attrs: Attrs, x: Array,
              rois: Array, batch_index: Array) -> Array:  # fmt: skip
    y = np.zeros((len(rois), x.shape[1], *attrs.output_size), np.float32)
    corners = np.floor(_corners(rois) + 0.5).astype(np.int64)
    axes = tuple(range(1, x.ndim - 1))
    for n, item in enumerate(items(x, rois, batch_index)):
        ranges = [
            _cell_ranges(corners[n, :, i], cells, x.shape[2 + i])
            for i, cells in enumerate(attrs.output_size)
        ]
        for cell in np.ndindex(*attrs.output_size):
            parts = [ranges[i][index] for i, index in enumerate(cell)]
            values = item[(slice(None), *parts)]
            if values.size:  # a cell without values gives 0
                y[(n, slice(None), *cell)] = reduce(values, axes)
    return y


def _mean(values: Array, axes: tuple[int, ...]) -> Array:
    return np.asarray(values.mean(axes, dtype=np.float64))


def _greatest(values: Array, axes: tuple[int, ...]) -> Array:
    return np.asarray(values.max(axes))


def _positions(method: str, corners: Array, count: int) -> Array:
    """Returns ``count`` sample positions of a roi on one axis, as fractional indices."""
    first, last = (float(corner) for corner in corners)
    i, size = np.arange(count), last - first
    if method == "symmetric":
        return np.asarray(first + (i + 0.5) * size / count - 0.5)
    if method == "asymmetric":
        return np.asarray(first + i * size / count)
    return np.asarray(first + i * (size - 1) / max(count - 1, 1))


def _resample_cpu(attrs: Attrs, x: Array, rois: Array, batch_index: Array) -> Array:
    y = np.zeros((len(rois), x.shape[1], *attrs.output_size), np.float32)
    corners = _corners(rois)
    for n, item in enumerate(items(x, rois, batch_index)):
        resampled = item.astype(np.float64)
        for i, size in enumerate(attrs.output_size):
            positions = _positions(attrs.method, corners[n, :, i], size)
            resampled = _interpolated(resampled, positions, i + 1)
        y[n] = resampled
    return y


def _interpolated(x: Array, positions: Array, axis: int) -> Array:
    """Interpolates linearly along an axis; positions past its ends get the values of the ends."""
    low, end = np.floor(positions), x.shape[axis] - 1
    part = (positions - low).reshape([-1 if d == axis else 1 for d in range(x.ndim)])
    before = x.take(low.clip(0, end).astype(np.int64), axis)
    after = x.take((low + 1).clip(0, end).astype(np.int64), axis)
    return np.asarray(before * (1 - part) + after * part)


# --- on the GPU ---------------------------------------------------------------------------------


def _lower(define: str, op: Lowering) -> Iterator[Dispatch]:
    x, rois, batch_index = op.inputs
    spatial = x.rank - 2
    defines: Defines = {"SPATIAL": spatial, define: 1, "T2_TYPE": "int"}
    params: dict[str, AttrValue] = {
        "batch": x.shape[0],
        "channels": x.shape[1],
        "per_roi": int(batch_index.rank > 0),
        "in_extent": inner_first(x.shape[2:]),
        "out_extent": inner_first(op.attrs.output_size),
        "nothing": 0xFF800000 if define == "MAX_POOL" else 0,
    }
    is_pool = define != "SAMPLE"
    if not is_pool:
        defines |= word("method", op.attrs.method)
    width, *lines = x.shape[:1:-1] if is_pool else (1,)
    # rows are a loop over lines in one over planes
    parts = list(_parts(prod(lines), width, nested=2 if spatial == 3 else 1))
    for part in parts:
        launch_params = {**params, **part, "last": int(part is parts[-1])}
        yield for_each(op, op.outputs[0].size, launch_params, defines)


def _parts(rows: int, width: int, nested: int) -> Iterator[dict[str, int]]:
    """Yields the parameters of launches that cover ``rows`` times ``width`` values per thread.

    Each row starts ``nested`` loops anew, which limits the values of one launch.
    """
    columns = min(width, MAX_ITERATIONS // 4)
    step = MAX_ITERATIONS // (columns + nested * LOOP_ITERATIONS)
    for row in range(0, max(rows, 1), step):
        for column in range(0, max(width, 1), max(columns, 1)):
            yield {
                "row_begin": row,
                "row_end": min(row + step, rows),
                "x_begin": column,
                "x_end": min(column + columns, width),
            }


_PARAMS = (
    "n:u batch:u channels:u per_roi:u in_extent:u3 out_extent:u3 "
    "nothing:u row_begin:u row_end:u x_begin:u x_end:u last:u"
)


# --- the operators ------------------------------------------------------------------------------


def _pool_cost(attrs: Attrs, inputs: Sequence[Fact], outputs: Sequence[Fact]) -> Cost:
    """Returns the cost of roi pooling under the assumption that a roi covers a quarter of the map.

    The rois' real sizes are not known beforehand.
    """
    x, rois = inputs[0], inputs[1].shape[0]
    covered = rois * x.shape[1] * prod(x.shape[2:]) / 4
    return Cost(covered, min(4 * covered, x.nbytes), outputs[0].nbytes)


def _rows(*rows: Sequence[float]) -> Array:
    return np.array(rows, np.float32)


def _index(*items: int) -> Array:
    return np.array(items, np.int32)


_INSIDE = _rows((0, 0, 8, 9), (1.2, 2.7, 6.9, 8.1), (3, 3, 5, 9), (0.5, 0.5, 3.5, 4.5))
_ODD = _rows(
    (2, 3, 2, 3), (6, 7, 1, 2), (-5, -4, 3, 4), (5, 6, 20, 30), (50, 60, 70, 80), (-9, -9, -2, -1),
    (3, np.nan, np.nan, 5), (-np.inf, -3e38, np.inf, 3e38), (2.5, 3.5, 4.5, 6.5), (7, 8, 7.4, 8.4),
)  # fmt: skip


def _cases(**more: str) -> Iterator[Case]:
    """Yields test cases with the attributes ``more``, in one to three spatial axes."""
    two = {"output_size": [3, 2], **more}
    yield Case(((2, 3, 8, 9), _INSIDE, _index(0, 1, 1, 0)), two, "inside")
    yield Case(((2, 3, 8, 9), _INSIDE, _index(0, 1, 1, 0)[:, None]), two, "index [N,1]")
    yield Case(((2, 3, 8, 9), _ODD, _index(0, 1, 0, 1, 0, 1, 0, 1, 0, 1)), two, "degenerate rois")
    yield Case(((2, 1, 8, 9), _INSIDE, _index(-3, 7, 1, 2**31 - 1)), two, "no such batch item")
    yield Case(((2, 1, 8, 9), _INSIDE, np.int32(1)), two, "one index for all")
    line = _rows((0, 11), (2.5, 7.1))
    yield Case(((2, 5, 11), line, _index(1, 0)), {"output_size": [4], **more}, "one spatial axis")
    box = _rows((0, 1, 0, 4, 4, 5), (1.4, 0.2, 2.2, 3.1, 3.9, 4.4))
    yield Case(((1, 2, 4, 5, 5), box, _index(0, 0)), {"output_size": [2, 3, 2], **more}, "volume")
    yield Case(((1, 64, 6, 7), Random((9, 4), 0, 7), np.zeros(9, np.int32)), two, "many groups")
    yield Case(((1, 3, 4, 4), (0, 4), Random((0,), 0, 1, "integer")), two, "no rois")
    yield Case(((1, 0, 4, 4), _rows((0, 0, 3, 3)), _index(0)), two, "no channels")


def _declare(name: str, shader_define: str, cpu: Callable[..., Array], cost: Callable[..., Cost],
             cases: Iterable[Case], tolerance: Tolerance) -> None:  # fmt: skip
    define(
        OpSpec(
            name,
            infer=_infer,
            cpu=cpu,
            kernel=engine_kernel(
                "resampling/roi.hlsl", _PARAMS, lower=partial(_lower, shader_define)
            ),
            cost=cost,
            cases=tuple(cases),
            tolerance=tolerance,
        )
    )


_WHOLE = Case(((1, 2, 40, 33), _rows((0, 0, 40, 33)), _index(0)), {"output_size": [1, 1]}, "whole")

_declare(
    "avg_roi_pool", "AVG_POOL", partial(_pool_cpu, _mean), _pool_cost,
    [*_cases(), _WHOLE, Case(((1, 2, 0, 3), _rows((0, 0, 3, 3)), _index(0)),
                             {"output_size": [2, 2]}, "an empty map")], SUMMATION,
)  # fmt: skip
_declare(
    "max_roi_pool", "MAX_POOL", partial(_pool_cpu, _greatest), _pool_cost,
    [*_cases(), _WHOLE, Case((_rows((1, np.nan, -np.inf), (2, 3, -9))[None, None],
                              _rows((0, 0, 2, 3), (0, 2, 1, 3)), _index(0, 0)),
                             {"output_size": [1, 1]}, "NaN wins")], EXACT,
)  # fmt: skip
_declare(
    "roi_resample", "SAMPLE", _resample_cpu, sampling_cost(3.0, lambda attrs, axes: 2**axes),
    [*_cases(method="symmetric"),
     *(Case(((2, 2, 8, 9), _ODD, np.int32(0)), {"output_size": [2, 5], "method": method})
       for method in METHODS[1:])], POSITION,
)  # fmt: skip
