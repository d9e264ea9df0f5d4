"""Random calls of the extensions in tests/extension_formulas.py; see tests/generate.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.calls import Call

if TYPE_CHECKING:
    from tests.generate import Draw

Array = np.ndarray[Any, Any]
_REDUCTIONS = ["none", "add", "mul", "min", "max"]


def _like(d: Draw, x: Array, shape: Any) -> Array:
    """Values of the same type."""
    if x.dtype.kind == "f":
        return d.scalars(shape)
    return d.logicals(shape) if x.dtype.kind == "b" else d.integers(shape, 9, -9)


def _elements_of(op: str, d: Draw) -> Call:
    shape = [max(e, 1) for e in d.shape(d.integer(1, 4), 5)]
    x, axis = d.any(shape), d.integer(0, len(shape) - 1)
    beside = [d.integer(0, 6) if a == axis else d.integer(1, e) for a, e in enumerate(shape)]
    indices = d.integers(beside, shape[axis], -shape[axis])
    if op == "gather_elements":
        return Call(op, (x, indices), {"axis": axis})
    reduction = "none" if x.dtype.kind == "b" else d.choice(_REDUCTIONS)
    attrs = {"axis": axis, "reduction": reduction}
    return Call(op, (x, indices, _like(d, x, beside)), attrs)


def _scatter_nd_of(op: str, d: Draw) -> Call:
    shape = [max(e, 1) for e in d.shape(d.integer(1, 4), 4)]
    x, places = d.any(shape), d.integer(1, len(shape))
    rows = d.shape(d.integer(0, 2), 4)
    parts = [d.integers([*rows, 1], shape[i], -shape[i]) for i in range(places)]
    updates = _like(d, x, [*rows, *shape[places:]])
    reduction = "none" if x.dtype.kind == "b" else d.choice(_REDUCTIONS)
    return Call(op, (x, np.concatenate(parts, -1), updates), {"reduction": reduction})


def _reversed_of(op: str, d: Draw) -> Call:
    shape = d.shape(d.integer(2, 4), 5)
    time, batch = d.integer(0, len(shape) - 1), d.integer(0, len(shape) - 2)
    batch += batch >= time
    lengths = d.integers([shape[batch]], shape[time] + 1)
    return Call(op, (d.any(shape), lengths), {"time_axis": time, "batch_axis": batch})


def _product_of(op: str, d: Draw) -> Call:
    shape = d.shape(d.integer(1, 4), 6)
    return Call(op, (d.scalars(shape),), {"axes": d.axes(len(shape), least=1)})


def _grid_of(op: str, d: Draw) -> Call:
    spatial = d.integer(1, 3)
    extents = [d.integer(1, 5) for _ in range(spatial)]
    batch = d.integer(1, 2)
    grid = d.scalars([batch, *d.shape(spatial, 3), spatial], -1.6, 1.6)
    attrs = {
        "method": d.choice(["nearest", "linear", "cubic"]),
        "border": d.choice(["constant", "replicate", "reflect"]), "align_corners": d.flag(),
    }  # fmt: skip
    return Call(op, (d.scalars([batch, d.integer(1, 5), *extents]), grid), attrs)


def _roi_of(op: str, d: Draw) -> Call:
    x, count = d.scalars([2, d.integer(1, 3), d.integer(1, 7), d.integer(1, 7)]), d.integer(0, 3)
    low = d.scalars([count, 2], -2, 5)
    rois = np.hstack([low, low + d.scalars([count, 2], -1, 6)])
    index = d.integers(d.choice([[count], [count, 1], []]), 2)
    return Call(op, (x, rois.astype(np.float32), index), {
        "output_size": [d.integer(1, 3), d.integer(1, 3)], "sampling_ratio": d.integer(0, 2),
        "scale": d.choice([1.0, 0.5]), "half_pixel": d.flag(), "mode": d.choice(["avg", "max"]),
    })  # fmt: skip


FAMILIES: tuple[tuple[Callable[[str, Draw], Call], str], ...] = (
    (_elements_of, "gather_elements scatter_elements"),
    (_scatter_nd_of, "scatter_nd"),
    (_reversed_of, "reverse_sequence"),
    (_product_of, "prod_reduce"),
    (_grid_of, "grid_sample"),
    (_roi_of, "roi_align"),
)
