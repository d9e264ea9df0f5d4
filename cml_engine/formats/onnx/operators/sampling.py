"""Imports operators that sample images at computed positions, and TensorScatter."""

from __future__ import annotations

import numpy as np

from cml_engine.formats.onnx.attributes import at_least, one_of, per_axis, required
from cml_engine.formats.onnx.call import OnnxCall
from cml_engine.formats.onnx.op_schemas import op
from cml_engine.formats.onnx.operators.windows import WINDOW, explicit_padding
from cml_engine.formats.onnx.values import Value


@op(
    "MaxUnpool",
    nnef="scatter_elements, pad",
    inputs=3,
    attrs={
        "kernel_shape": required(per_axis(1)),
        "pads": WINDOW["pads"],
        "strides": WINDOW["strides"],
    },
)
def max_unpool(call: OnnxCall) -> Value:
    x, strides, size = call[0], call.attr("strides"), call.attr("kernel_shape")
    extents = [
        (n - 1) * s - a - b + k
        for n, s, (a, b), k in zip(x.shape[2:], strides, explicit_padding(call), size, strict=True)
    ]
    shape = call.allocate([*x.shape[:2], *extents], 4)
    zero = Value.known(np.zeros(int(np.prod(shape)), np.float32))
    count = int(np.prod(x.shape))
    places = call.reshape(call[1], [count])
    flat = call.op("scatter_elements", zero, places, call.reshape(x, [count]), axis=0)
    y = call.reshape(flat, shape)
    if not call.has(2):
        return y
    wanted = call.ints(2, "the output's shape")
    sides = [(0, w - n) for w, n in zip(wanted, shape, strict=True)]
    if not any(after for _, after in sides):
        return y
    return call.op("pad", y, padding=sides, border="constant", value=0.0)


@op(
    "TensorScatter",
    nnef="scatter_elements",
    inputs=3,
    attrs={"axis": -2, "mode": one_of("linear", "circular")},
)
def tensor_scatter(call: OnnxCall) -> Value:
    """Imports TensorScatter: the first input, a cache, with the second written along one axis.

    The third input gives the start index of each batch item (default 0).
    """
    cache, update = call[0], call[1]
    axis = call.axis(call.attr("axis"), cache.rank)
    along = [-1 if a == axis else 1 for a in range(cache.rank)]
    steps = Value.known(np.broadcast_to(np.arange(update.shape[axis]).reshape(along), update.shape))
    if not call.has(2):
        places = steps
    else:
        first = call.reshape(call[2], [call[2].shape[0], *[1] * (cache.rank - 1)])
        places = call.op("int_add", steps, first)
    if call.attr("mode") == "circular":
        places = call.op("int_mod", places, cache.shape[axis])
    return call.op("scatter_elements", cache, places, update, axis=axis).typed(cache.dtype)


@op("ReverseSequence", nnef="reverse_sequence", inputs=2, attrs={"batch_axis": 1, "time_axis": 0})
def reverse_sequence(call: OnnxCall) -> Value:
    axes = {key: call.attr(key) for key in ("batch_axis", "time_axis")}
    return call.op("reverse_sequence", call[0], call[1], **axes).typed(call[0].dtype)


# -- grids and regions ---------------------------------------------------------------------------

_METHODS = {"bilinear": "linear", "bicubic": "cubic", "linear": "linear", "cubic": "cubic",
            "nearest": "nearest"}  # fmt: skip
_BORDERS = {"zeros": "constant", "border": "replicate", "reflection": "reflect"}


_GRID = {"align_corners": 0, "mode": one_of(*_METHODS), "padding_mode": one_of(*_BORDERS)}
_GRID_FROM_20 = {**_GRID, "mode": one_of("linear", *_METHODS)}


@op("GridSample", nnef="grid_sample", inputs=2, attrs=_GRID, until=19)
@op("GridSample", nnef="grid_sample", inputs=2, attrs=_GRID_FROM_20, since=20)
def grid_sample(call: OnnxCall) -> Value:
    method, border = call.attr("mode"), call.attr("padding_mode")
    return call.op(
        "grid_sample",
        call[0],
        call[1],
        method=_METHODS[method],
        border=_BORDERS[border],
        align_corners=bool(call.attr("align_corners")),
    )


_ROI = {
    "mode": one_of("avg", "max"),
    "output_height": at_least(1, 1),
    "output_width": at_least(1, 1),
    "sampling_ratio": at_least(0, 0),
    "spatial_scale": 1.0,
}
_ROI_PLACES = one_of("half_pixel", "output_half_pixel")


@op("RoiAlign", nnef="roi_align", inputs=3, attrs=_ROI, until=15)
@op("RoiAlign", nnef="roi_align", inputs=3, since=16,
    attrs={**_ROI, "coordinate_transformation_mode": _ROI_PLACES})  # fmt: skip
def roi_align(call: OnnxCall) -> Value:
    centred = call.attributes.get("coordinate_transformation_mode", "output_half_pixel")
    return call.op(
        "roi_align",
        call[0],
        call[1],
        call[2],
        output_size=[call.attr("output_height"), call.attr("output_width")],
        sampling_ratio=call.attr("sampling_ratio"),
        scale=call.attr("spatial_scale"),
        half_pixel=centred == "half_pixel",
        mode=call.attr("mode"),
    )
