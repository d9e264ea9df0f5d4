"""The operators on regions of interest: each region is pooled or resampled to the same size.

A row of ``rois`` holds the first corner, then the second one, outermost axis first: ``y0 x0 y1
x1``. Rois and batch indices are data that other operators computed, which a GPU cannot refuse:
whatever they hold has one meaning, the same in NumPy (docs/design/nnef.md, "Regions of interest").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
    Kernel,
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
    if {"method", "resize_method"} & set(attrs):
        _check_resampling(attrs, x, prod(shape))
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


def _check_resampling(attrs: Attrs, x: Fact, results: int) -> None:
    check_word("method", _method(attrs), METHODS)
    if "sampling_rate" in attrs:
        check_sizes("sampling_rate", attrs.sampling_rate, x)
    if results and 0 in x.shape[2:]:
        raise ShapeError(f"rois of {x}, which is empty: there is nothing to interpolate")


def _method(attrs: Attrs) -> str:
    return str(attrs["resize_method" if "resize_method" in attrs else "method"])


def _rates(attrs: Attrs) -> list[int]:
    """Returns the number of samples per result on each axis; 1 without a ``sampling_rate``."""
    return [int(r) for r in attrs.get("sampling_rate", [1] * len(attrs.output_size))]


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


def _resample_cpu(reduce: Callable[[Array, tuple[int, ...]], Array], attrs: Attrs, x: Array,
                  rois: Array, batch_index: Array) -> Array:  # fmt: skip
    sizes, rates = list(attrs.output_size), _rates(attrs)
    y = np.zeros((len(rois), x.shape[1], *sizes), np.float32)
    corners = _corners(rois)
    blocks = [part for pair in zip(sizes, rates, strict=True) for part in pair]
    for n, item in enumerate(items(x, rois, batch_index)):
        resampled = item.astype(np.float64)
        for i, (size, rate) in enumerate(zip(sizes, rates, strict=True)):
            positions = _positions(_method(attrs), corners[n, :, i], size * rate)
            resampled = _interpolated(resampled, positions, i + 1)
        samples = resampled.reshape(x.shape[1], *blocks)
        y[n] = reduce(samples, tuple(range(2, samples.ndim, 2)))
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
    is_resampled = {"method", "resize_method"} & set(op.attrs)
    rate = inner_first(_rates(op.attrs)) if is_resampled else [1, 1, 1]
    params: dict[str, AttrValue] = {
        "batch": x.shape[0],
        "channels": x.shape[1],
        "per_roi": int(batch_index.rank > 0),
        "in_extent": inner_first(x.shape[2:]),
        "out_extent": inner_first(op.attrs.output_size),
        "rate": rate,
        "nothing": 0xFF800000 if "MAX" in define else 0,
    }
    if is_resampled:
        defines |= word("method", _method(op.attrs))
    pool = "_POOL" in define
    width, *lines = x.shape[:1:-1] if pool else rate
    # a pool's rows are a loop over lines in one over planes
    parts = list(_parts(prod(lines), width, nested=2 if pool and spatial == 3 else 1))
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
    "n:u batch:u channels:u per_roi:u in_extent:u3 out_extent:u3 rate:u3 "
    "nothing:u row_begin:u row_end:u x_begin:u x_end:u last:u"
)


def _kernel(define: str) -> Kernel:
    return engine_kernel("resampling/roi.hlsl", _PARAMS, lower=partial(_lower, define))


# --- the operators ------------------------------------------------------------------------------


def _pool_cost(attrs: Attrs, inputs: Sequence[Fact], outputs: Sequence[Fact]) -> Cost:
    """Returns the cost of roi pooling under the assumption that a roi covers a quarter of the map.

    The rois' real sizes are not known beforehand.
    """
    x, rois = inputs[0], inputs[1].shape[0]
    covered = rois * x.shape[1] * prod(x.shape[2:]) / 4
    return Cost(covered, min(4 * covered, x.nbytes), outputs[0].nbytes)


_sample_cost = sampling_cost(3.0, lambda attrs, axes: 2**axes * prod(_rates(attrs)))


def _rows(*rows: Sequence[float]) -> Array:
    return np.array(rows, np.float32)


def _index(*items: int) -> Array:
    return np.array(items, np.int32)


_INSIDE = _rows((0, 0, 8, 9), (1.2, 2.7, 6.9, 8.1), (3, 3, 5, 9), (0.5, 0.5, 3.5, 4.5))
_ODD = _rows(
    (2, 3, 2, 3), (6, 7, 1, 2), (-5, -4, 3, 4), (5, 6, 20, 30), (50, 60, 70, 80), (-9, -9, -2, -1),
    (3, np.nan, np.nan, 5), (-np.inf, -3e38, np.inf, 3e38), (2.5, 3.5, 4.5, 6.5), (7, 8, 7.4, 8.4),
)  # fmt: skip


def _cases(
    more: Mapping[str, Sequence[object]], variations: Sequence[Mapping[str, Sequence[object]]] = ()
) -> Iterator[Case]:
    """Yields test cases with the attributes ``more``, in one to three spatial axes.

    ``variations`` has sets of attributes that replace ``more``, for two spatial axes.
    """
    two = {"output_size": [3, 2], **more}
    yield Case(((2, 3, 8, 9), _INSIDE, _index(0, 1, 1, 0)), two, "inside")
    yield Case(((2, 3, 8, 9), _INSIDE, _index(0, 1, 1, 0)[:, None]), two, "index [N,1]")
    yield Case(((2, 3, 8, 9), _ODD, _index(0, 1, 0, 1, 0, 1, 0, 1, 0, 1)), two, "degenerate rois")
    yield Case(((2, 1, 8, 9), _INSIDE, _index(-3, 7, 1, 2**31 - 1)), two, "no such batch item")
    yield Case(((2, 1, 8, 9), _INSIDE, np.int32(1)), two, "one index for all")
    for changes in variations:
        yield Case(((2, 2, 8, 9), _ODD, np.int32(0)), {"output_size": [2, 5], **changes})
    on_a_line = {
        "output_size": [4],
        **{k: v[:1] if k == "sampling_rate" else v for k, v in more.items()},
    }
    yield Case(
        ((2, 5, 11), _rows((0, 11), (2.5, 7.1)), _index(1, 0)), on_a_line, "one spatial axis"
    )
    three = {k: [2, 1, 2] if k == "sampling_rate" else v for k, v in more.items()}
    box = _rows((0, 1, 0, 4, 4, 5), (1.4, 0.2, 2.2, 3.1, 3.9, 4.4))
    yield Case(((1, 2, 4, 5, 5), box, _index(0, 0)), {"output_size": [2, 3, 2], **three}, "volume")
    yield Case(((1, 64, 6, 7), Random((9, 4), 0, 7), np.zeros(9, np.int32)), two, "many groups")
    yield Case(((1, 3, 4, 4), (0, 4), Random((0,), 0, 1, "integer")), two, "no rois")
    yield Case(((1, 0, 4, 4), _rows((0, 0, 3, 3)), _index(0)), two, "no channels")


def _declare(name: str, shader_define: str, cpu: Callable[..., Array], cost: Callable[..., Cost],
             cases: Iterator[Case], tolerance: Tolerance) -> None:  # fmt: skip
    define(
        OpSpec(
            name,
            infer=_infer,
            cpu=cpu,
            kernel=_kernel(shader_define),
            cost=cost,
            cases=tuple(cases),
            tolerance=tolerance,
        )
    )


_METHOD_CASES = [{"method": m} for m in METHODS[1:]]
_ALIGN_CASES = [{"sampling_rate": [2, 3], "resize_method": m} for m in METHODS[1:]]
_ALIGN = {"sampling_rate": [2, 2], "resize_method": "symmetric"}
_WHOLE = Case(((1, 2, 40, 33), _rows((0, 0, 40, 33)), _index(0)), {"output_size": [1, 1]}, "whole")

_declare(
    "avg_roi_pool", "AVG_POOL", partial(_pool_cpu, _mean), _pool_cost,
    iter([*_cases({}), _WHOLE, Case(((1, 2, 0, 3), _rows((0, 0, 3, 3)), _index(0)),
                                    {"output_size": [2, 2]}, "an empty map")]), SUMMATION,
)  # fmt: skip
_declare(
    "max_roi_pool", "MAX_POOL", partial(_pool_cpu, _greatest), _pool_cost,
    iter([*_cases({}), _WHOLE, Case((_rows((1, np.nan, -np.inf), (2, 3, -9))[None, None],
                                     _rows((0, 0, 2, 3), (0, 2, 1, 3)), _index(0, 0)),
                                    {"output_size": [1, 1]}, "NaN wins")]), EXACT,
)  # fmt: skip
_declare(
    "roi_resample", "SAMPLE", partial(_resample_cpu, _greatest), _sample_cost,
    _cases({"method": "symmetric"}, _METHOD_CASES), POSITION,
)  # fmt: skip
_declare(
    "avg_roi_align", "AVG_ALIGN", partial(_resample_cpu, _mean), _sample_cost,
    _cases(_ALIGN, _ALIGN_CASES), POSITION,
)  # fmt: skip
_declare(
    "max_roi_align", "MAX_ALIGN", partial(_resample_cpu, _greatest), _sample_cost,
    _cases(_ALIGN, _ALIGN_CASES), POSITION,
)  # fmt: skip
