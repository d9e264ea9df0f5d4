"""Random calls of the extensions in extension_formulas.py; see tests/generate.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.reference.calls import SampleCall
from tests.reference.formulas import FormulaWindow

if TYPE_CHECKING:
    from tests.generate import Draw

Array = np.ndarray[Any, Any]
_REDUCTIONS = ["none", "add", "mul", "min", "max"]


def _like(d: Draw, x: Array, shape: Any) -> Array:
    """Returns random values of the same type."""
    if x.dtype.kind == "f":
        return d.scalars(shape)
    return d.logicals(shape) if x.dtype.kind == "b" else d.integers(shape, 9, -9)


def _elements_of(op: str, d: Draw) -> SampleCall:
    shape = [max(e, 1) for e in d.shape(d.integer(1, 4), 5)]
    x, axis = d.any(shape), d.integer(0, len(shape) - 1)
    beside = [d.integer(0, 6) if a == axis else d.integer(1, e) for a, e in enumerate(shape)]
    indices = d.integers(beside, shape[axis], -shape[axis])
    if op == "gather_elements":
        return SampleCall(op, (x, indices), {"axis": axis})
    reduction = "none" if x.dtype.kind == "b" else d.choice(_REDUCTIONS)
    attrs = {"axis": axis, "reduction": reduction}
    return SampleCall(op, (x, indices, _like(d, x, beside)), attrs)


def _scatter_nd_of(op: str, d: Draw) -> SampleCall:
    shape = [max(e, 1) for e in d.shape(d.integer(1, 4), 4)]
    x, places = d.any(shape), d.integer(1, len(shape))
    rows = d.shape(d.integer(0, 2), 4)
    parts = [d.integers([*rows, 1], shape[i], -shape[i]) for i in range(places)]
    updates = _like(d, x, [*rows, *shape[places:]])
    reduction = "none" if x.dtype.kind == "b" else d.choice(_REDUCTIONS)
    return SampleCall(op, (x, np.concatenate(parts, -1), updates), {"reduction": reduction})


def _reversed_of(op: str, d: Draw) -> SampleCall:
    shape = d.shape(d.integer(2, 4), 5)
    time, batch = d.integer(0, len(shape) - 1), d.integer(0, len(shape) - 2)
    batch += batch >= time
    lengths = d.integers([shape[batch]], shape[time] + 1)
    return SampleCall(op, (d.any(shape), lengths), {"time_axis": time, "batch_axis": batch})


def _product_of(op: str, d: Draw) -> SampleCall:
    shape = d.shape(d.integer(1, 4), 6)
    return SampleCall(op, (d.scalars(shape),), {"axes": d.axes(len(shape), least=1)})


def _grid_of(op: str, d: Draw) -> SampleCall:
    spatial = d.integer(1, 3)
    extents = [d.integer(1, 5) for _ in range(spatial)]
    batch = d.integer(1, 2)
    grid = d.scalars([batch, *d.shape(spatial, 3), spatial], -1.6, 1.6)
    attrs = {
        "method": d.choice(["nearest", "linear", "cubic"]),
        "border": d.choice(["constant", "replicate", "reflect"]), "align_corners": d.flag(),
    }  # fmt: skip
    return SampleCall(op, (d.scalars([batch, d.integer(1, 5), *extents]), grid), attrs)


def _roi_of(op: str, d: Draw) -> SampleCall:
    x, count = d.scalars([2, d.integer(1, 3), d.integer(1, 7), d.integer(1, 7)]), d.integer(0, 3)
    low = d.scalars([count, 2], -2, 5)
    rois = np.hstack([low, low + d.scalars([count, 2], -1, 6)])
    index = d.integers(d.choice([[count], [count, 1], []]), 2)
    return SampleCall(op, (x, rois.astype(np.float32), index), {
        "output_size": [d.integer(1, 3), d.integer(1, 3)], "sampling_ratio": d.integer(0, 2),
        "scale": d.choice([1.0, 0.5]), "half_pixel": d.flag(), "mode": d.choice(["avg", "max"]),
    })  # fmt: skip


def _nonzero_of(op: str, d: Draw) -> SampleCall:
    shape = d.shape(d.integer(0, 4), 4)
    x = d.any(shape)
    x = x * d.logicals(shape) if x.dtype.kind != "b" else x
    attrs = {"capacity": d.integer(0, 12), "fill": d.choice([-1, 0, 99])}
    return SampleCall(op, (np.asarray(x),), attrs)


def _nms_of(op: str, d: Draw) -> SampleCall:
    batch, kinds, count = d.integer(1, 2), d.integer(1, 3), d.integer(1, 12)
    first, size = d.scalars([batch, count, 2], 0, 4), d.scalars([batch, count, 2], 0.3, 3)
    centers = d.flag()
    boxes = np.concatenate([first, size if centers else first + size], -1)
    return SampleCall(op, (boxes, d.scalars([batch, kinds, count])), {
        "max_per_class": d.integer(0, 5), "iou_threshold": d.choice([0.0, 0.35, 0.7]),
        "score_threshold": d.choice([-3.4e38, 0.1]), "center_point_box": centers,
        "fill": d.choice([-1, 0]),
    })  # fmt: skip


def _windows(d: Draw, spatial: int) -> tuple[list[int], dict[str, Any]]:
    """Returns random extents and windows that fit into them."""
    size, stride, dilation, padding, extents = [], [], [], [], []
    for _ in range(spatial):
        size.append(d.integer(1, 3))
        stride.append(d.integer(1, 2))
        dilation.append(d.integer(1, 2))
        padding.append((d.integer(0, 2), d.integer(0, 2)))
        extents.append((size[-1] - 1) * dilation[-1] + d.integer(1, 4))
    attrs = {"padding": padding, "stride": stride, "dilation": dilation}
    return extents, {"size": size, **{k: v for k, v in attrs.items() if k == "padding" or d.flag()}}


def _counts(extents: list[int], attrs: dict[str, Any]) -> list[int]:
    window = FormulaWindow(extents, attrs["size"], attrs["padding"], attrs.get("stride", ()),
                    attrs.get("dilation", ()))  # fmt: skip
    return window.narrow


def _col2im_of(op: str, d: Draw) -> SampleCall:
    extents, attrs = _windows(d, d.integer(1, 3))
    rows = d.integer(1, 3) * int(np.prod(attrs["size"]))
    x = d.scalars([d.integer(1, 2), rows, int(np.prod(_counts(extents, attrs)))])
    return SampleCall(op, (x,), {"output_size": extents, **attrs})


def _deform_of(op: str, d: Draw) -> SampleCall:
    extents, attrs = _windows(d, 2)
    moved, groups, each = d.integer(1, 2), d.integer(1, 2), d.integer(1, 2)
    batch, channels = d.integer(1, 2), moved * groups * each
    rows = moved * int(np.prod(attrs["size"]))
    places = _counts(extents, attrs)
    mask = d.scalars([batch, rows, *places]) if d.flag() else np.float32(1)
    arrays = [d.scalars([batch, channels, *extents]), d.scalars([batch, 2 * rows, *places])]
    attrs["offset_groups"] = moved
    if op == "deform_columns":
        return SampleCall(op, (*arrays, np.asarray(mask)), attrs)
    out = groups * d.integer(1, 2)
    filter = d.scalars([out, channels // groups, *attrs["size"]])
    bias = d.choice([np.asarray(np.float32(0.5)), d.scalars([1, out])])
    return SampleCall(op, (arrays[0], filter, arrays[1], np.asarray(mask), bias),
                {**attrs, "groups": groups})  # fmt: skip


def _int_product_of(op: str, d: Draw) -> SampleCall:
    def values(shape: Any) -> Array:
        return d.integers(shape, *d.choice([(256, -128), (2**31 - 1, -(2**31))]))

    if op == "int_matmul":
        m, n, k = d.integer(1, 5), d.integer(1, 5), d.integer(1, 9)
        batch = d.shape(d.integer(0, 2), 3)
        parts = [[1 if d.integer(0, 3) == 0 else e for e in batch] for _ in range(2)]
        return SampleCall(op, (values([*parts[0], m, k]), values([*parts[1], k, n])))
    extents, attrs = _windows(d, d.integer(1, 3))
    groups, each, out = d.integer(1, 2), d.integer(1, 3), d.integer(1, 2)
    size = attrs.pop("size")
    x = values([d.integer(1, 2), groups * each, *extents])
    return SampleCall(op, (x, values([groups * out, each, *size])), {**attrs, "groups": groups})


def _nbits_of(op: str, d: Draw) -> SampleCall:
    bits, rows, inner = d.choice([2, 4, 8]), d.integer(1, 5), d.integer(1, 70)
    block = d.choice([16, 32])
    blocks = -(-inner // block)
    words = d.integers([rows, blocks * block * bits // 32], 2**31 - 1, -(2**31))
    zero = d.choice([np.asarray(np.float32(8)), d.scalars([rows, blocks], 0, 8)])
    x, scales = d.scalars([*d.shape(d.integer(1, 2), 3), inner]), d.scalars([rows, blocks])
    return SampleCall(op, (x, words, scales, zero), {"block_size": block, "bits": bits})


def _codes_of(op: str, d: Draw) -> SampleCall:
    shape = [max(e, 1) for e in d.shape(d.integer(1, 3), 5)]
    if op == "dynamic_quantize_linear":
        return SampleCall(op, (d.scalars(shape),), {"axes": list(range(len(shape)))})
    beside = shape[:1] if d.flag() else []
    zero = d.integers(beside, 9, -9).astype(np.float32)
    if op == "dequantize_linear":
        return SampleCall(op, (d.integers(shape, 256, -128), d.scalars(beside, 0.01, 2), zero))
    limits = d.choice([{"low": -128.0, "high": 127.0}, {"low": 0.0, "high": 255.0}])
    return SampleCall(op, (d.scalars(shape), d.scalars(beside, 0.01, 0.5), zero), limits)


FAMILIES: tuple[tuple[Callable[[str, Draw], SampleCall], str], ...] = (
    (_elements_of, "gather_elements scatter_elements"),
    (_scatter_nd_of, "scatter_nd"),
    (_reversed_of, "reverse_sequence"),
    (_product_of, "prod_reduce"),
    (_grid_of, "grid_sample"),
    (_roi_of, "roi_align"),
    (_nonzero_of, "nonzero"),
    (_nms_of, "non_max_suppression"),
    (_col2im_of, "col2im"),
    (_deform_of, "deform_columns deform_conv"),
    (_int_product_of, "int_matmul int_conv"),
    (_nbits_of, "matmul_nbits"),
    (_codes_of, "quantize_linear dequantize_linear dynamic_quantize_linear"),
)
