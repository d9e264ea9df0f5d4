"""Imports operators that move elements without computing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cml_engine.formats.onnx.attributes import INT, INTS, at_least, one_of, required
from cml_engine.formats.onnx.call import OnnxCall
from cml_engine.formats.onnx.op_schemas import MANY, op
from cml_engine.formats.onnx.values import Value


@op("Identity", nnef="nothing")
def identity(call: OnnxCall) -> Value:
    return call[0]


@op("Dropout", nnef="nothing", attrs={"ratio": 0.5, "seed": INT}, since=7, until=11)
@op("Dropout", nnef="nothing", inputs=3, attrs={"seed": INT}, since=12)
def dropout(call: OnnxCall) -> list[Value | None]:
    training = call.has(2) and bool(call.array(2, "training_mode").reshape(-1)[0])
    if training and call.number(1, 0.5) != 0.0:
        raise call.unsupported_error("training_mode=true")
    if not call.wants(1):
        return [call[0], None]
    return [call[0], Value.known(np.ones(call.allocate(call[0].shape, 1), np.bool_))]


# -- shapes --------------------------------------------------------------------------------------


@op("Reshape", nnef="reshape", inputs=2, attrs={"allowzero": 0})
def reshape(call: OnnxCall) -> Value:
    x, wanted = call[0], call.ints(1, "the shape")
    if not call.attr("allowzero"):
        if any(n == 0 and i >= x.rank for i, n in enumerate(wanted)):
            raise call.shape_error(f"the shape {wanted} copies an extent that {x} lacks")
        wanted = [x.shape[i] if n == 0 else n for i, n in enumerate(wanted)]
    return call.reshape(x, _fill_shape(call, wanted, x))


def _fill_shape(call: OnnxCall, wanted: list[int], x: Value) -> list[int]:
    size = int(np.prod(x.shape, dtype=object))
    if wanted.count(-1) > 1 or any(n < -1 for n in wanted):
        raise call.shape_error(f"the shape {wanted}")
    if -1 in wanted:
        rest = int(np.prod([n for n in wanted if n != -1], dtype=object))
        if rest == 0 or size % rest:
            raise call.shape_error(f"{x} does not fit the shape {wanted}")
        wanted = [size // rest if n == -1 else n for n in wanted]
    if int(np.prod(wanted, dtype=object)) != size:
        raise call.shape_error(f"{x} does not fit the shape {wanted}")
    return wanted


@op("Flatten", nnef="reshape", attrs={"axis": 1})
def flatten(call: OnnxCall) -> Value:
    x, axis = call[0], call.attr("axis")
    if not -x.rank <= axis <= x.rank:
        raise call.shape_error(f"axis {axis} of {x}")
    at = axis if axis >= 0 else axis + x.rank
    halves = [x.shape[:at], x.shape[at:]]
    return call.reshape(x, [int(np.prod(half, dtype=object)) for half in halves])


@op("Squeeze", nnef="squeeze", attrs={"axes": INTS}, until=12)
def squeeze_1(call: OnnxCall) -> Value:
    return _squeeze(call, call.attr("axes"))


@op("Squeeze", nnef="squeeze", inputs=2, since=13)
def squeeze(call: OnnxCall) -> Value:
    return _squeeze(call, call.ints(1, "the axes") if call.has(1) else None)


def _squeeze(call: OnnxCall, axes: Sequence[int] | None) -> Value:
    x = call[0]
    if axes is None:
        axes = [a for a, n in enumerate(x.shape) if n == 1]
    return call.squeeze(x, call.axes(axes, x.rank))


@op("Unsqueeze", nnef="unsqueeze", attrs={"axes": required(INTS)}, until=12)
def unsqueeze_1(call: OnnxCall) -> Value:
    return _unsqueeze(call, call.attr("axes"))


@op("Unsqueeze", nnef="unsqueeze", inputs=2, since=13)
def unsqueeze(call: OnnxCall) -> Value:
    return _unsqueeze(call, call.ints(1, "the axes"))


def _unsqueeze(call: OnnxCall, axes: Sequence[int]) -> Value:
    return call.unsqueeze(call[0], call.axes(axes, call[0].rank + len(axes)))


@op("Transpose", nnef="transpose", attrs={"perm": INTS})
def transpose(call: OnnxCall) -> Value:
    order = call.attr("perm")
    rank = call[0].rank
    order = list(range(rank))[::-1] if order is None else call.axes(order, rank)
    if len(order) != rank:
        raise call.shape_error(f"perm {order} of {call[0]}")
    return call.transpose(call[0], order)


@op("Expand", nnef="tile", inputs=2)
def expand(call: OnnxCall) -> Value:
    common = np.broadcast_shapes(call[0].shape, tuple(call.ints(1, "the shape")))
    return call.expand(call[0], call.checked_shape(common))


@op("Tile", nnef="tile", inputs=2)
def tile(call: OnnxCall) -> Value:
    repeats = call.ints(1, "the repeats")
    x = call[0]
    if len(repeats) != x.rank or any(n < 0 for n in repeats):
        raise call.shape_error(f"the repeats {repeats} of {x}")
    shape = call.checked_shape([n * r for n, r in zip(x.shape, repeats, strict=True)])
    if x.array is not None:
        call.allocate(shape, x.dtype.itemsize)
        return Value.known(np.tile(x.array, repeats))
    if 0 in shape:
        return Value.known(np.zeros(shape, x.dtype))
    if all(n == 1 for n in repeats):
        return x
    return call.op("tile", x, repeats=repeats).typed(x.dtype)


# -- parts ---------------------------------------------------------------------------------------


@op("Concat", nnef="concat", inputs=MANY, attrs={"axis": int})
def concat(call: OnnxCall) -> Value:
    values = [call[i] for i in range(len(call.inputs))]
    return call.concat(values, call.axis(call.attr("axis"), values[0].rank))


@op("Split", nnef="split, slice", attrs={"axis": 0, "split": INTS}, until=12)
def split_2(call: OnnxCall) -> list[Value]:
    return _split(call, call.attr("split"), None)


@op("Split", nnef="split, slice", inputs=2, attrs={"axis": 0}, since=13, until=17)
def split_13(call: OnnxCall) -> list[Value]:
    return _split(call, call.ints(1, "the sizes") if call.has(1) else None, None)


@op("Split", nnef="split, slice", inputs=2, attrs={"axis": 0, "num_outputs": at_least(1)}, since=18)
def split(call: OnnxCall) -> list[Value]:
    sizes = call.ints(1, "the sizes") if call.has(1) else None
    return _split(call, sizes, call.attr("num_outputs"))


def _split(call: OnnxCall, sizes: Sequence[int] | None, count: int | None) -> list[Value]:
    x = call[0]
    axis = call.axis(call.attr("axis"), x.rank)
    if sizes is None:
        count = count or call.results
        call.check_written_out(count)
        each = -(-x.shape[axis] // count)
        ends = [min(x.shape[axis], each * (i + 1)) for i in range(count)]
        sizes = np.diff([0, *ends]).tolist()
    if sum(sizes) != x.shape[axis] or any(n < 0 for n in sizes):
        raise call.shape_error(f"{x} cannot be split into {list(sizes)} along axis {axis}")
    return [x] if len(sizes) == 1 else call.split(x, axis, sizes)


@op(
    "Slice",
    nnef="slice",
    attrs={"axes": INTS, "starts": required(INTS), "ends": required(INTS)},
    until=9,
)
def slice_1(call: OnnxCall) -> Value:
    starts, ends = call.attr("starts"), call.attr("ends")
    axes = call.attr("axes")
    return slice_axes(
        call, call[0], starts, ends, range(len(starts)) if axes is None else axes, None
    )


@op("Slice", nnef="slice", inputs=5, since=10)
def slice_10(call: OnnxCall) -> Value:
    starts, ends = call.ints(1, "the starts"), call.ints(2, "the ends")
    axes = call.ints(3, "the axes") if call.has(3) else list(range(len(starts)))
    steps = call.ints(4, "the steps") if call.has(4) else None
    return slice_axes(call, call[0], starts, ends, axes, steps)


def slice_axes(
    call: OnnxCall,
    x: Value,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int],
    steps: Sequence[int] | None,
) -> Value:
    """Adds a slice of the given axes as in ONNX and returns the result.

    Negative indices count from the end, then all are clamped.
    """
    axes = call.axes(axes, x.rank)
    steps = steps or [1] * len(axes)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise call.shape_error(f"starts {list(starts)}, ends {list(ends)}, steps {list(steps)}")
    ranges = {
        axis: _clamp_range(x.shape[axis], start, end, step)
        for axis, start, end, step in zip(axes, starts, ends, steps, strict=True)
    }
    return take_ranges(call, x, ranges)


def _clamp_range(extent: int, start: int, end: int, step: int) -> range:
    """Returns the indices that a slice selects from one axis.

    With a negative step a start before the first element selects the first one, unlike in Python.
    """
    start, end = (n + extent if n < 0 else n for n in (start, end))
    if step > 0:
        return range(min(max(start, 0), extent), min(max(end, 0), extent), step)
    return range(min(max(start, 0), extent - 1), min(max(end, -1), extent - 1), step)


def take_ranges(call: OnnxCall, x: Value, ranges: dict[int, range]) -> Value:
    """Adds a slice that selects the elements of ``ranges``, by axis, and returns the result."""
    ranges = {a: r for a, r in ranges.items() if r != range(x.shape[a])}
    if x.array is not None:
        array = x.array
        for axis, r in ranges.items():
            array = array.take(r, axis)
        return Value.known(array)
    if any(len(r) == 0 for r in ranges.values()):
        shape = [len(ranges[a]) if a in ranges else n for a, n in enumerate(x.shape)]
        return Value.known(np.zeros(shape, x.dtype))
    if not ranges:
        return x
    bounds = [_bounds(r, x.shape[axis]) for axis, r in ranges.items()]
    begin, end, stride = (list(column) for column in zip(*bounds, strict=True))
    steps = {} if all(s == 1 for s in stride) else {"stride": stride}
    result = call.op("slice", x, axes=list(ranges), begin=begin, end=end, **steps)
    return result.typed(x.dtype)


def _bounds(r: range, extent: int) -> tuple[int, int, int]:
    """Returns NNEF's begin, end and stride of a slice that selects a range of indices."""
    if len(r) == 1:
        return r[0], r[0] + 1, 1
    if r.step > 0:
        return r[0], r[-1] + 1, r.step
    end = r[-1] - 1
    return r[0], end if end >= 0 else -extent - 1, r.step


# -- channels and space --------------------------------------------------------------------------


_BLOCKS = {"blocksize": required(at_least(1)), "mode": one_of("DCR", "CRD")}


@op(
    "DepthToSpace",
    nnef="reshape, transpose",
    attrs={"blocksize": required(at_least(1))},
    until=10,
)
@op("DepthToSpace", nnef="reshape, transpose", attrs=_BLOCKS, since=11)
def depth_to_space(call: OnnxCall) -> Value:
    x, b = call[0], call.attr("blocksize")
    _, c, _, _ = _image(call, x)
    if c % (b * b):
        raise call.shape_error(f"{c} channels in blocks of {b} x {b}")
    return _moved_blocks(call, "depth_to_space", call.opset < 11 or call.attr("mode") == "DCR")


@op("SpaceToDepth", nnef="reshape, transpose", attrs=_BLOCKS)
def space_to_depth(call: OnnxCall) -> Value:
    x, b = call[0], call.attr("blocksize")
    _, _, h, w = _image(call, x)
    if h % b or w % b:
        raise call.shape_error(f"{x} in blocks of {b} x {b}")
    return _moved_blocks(call, "space_to_depth", call.attr("mode") == "DCR")


def _moved_blocks(call: OnnxCall, fragment: str, blocks_first: bool) -> Value:
    """Adds the extension's operator ``fragment``, which moves blocks between space and channels.

    It states no extents, so that the network can be reshaped after it has been converted.
    Returns the result.
    """
    attrs = {"block_size": call.attr("blocksize"), "blocks_first": blocks_first}
    (moved,) = call.fragment(fragment, 1, call[0], **attrs)
    return moved.typed(call[0].dtype)


def _image(call: OnnxCall, x: Value) -> tuple[int, ...]:
    if x.rank != 4:
        raise call.shape_error(f"it wants [batch, channels, height, width], got {x}")
    return x.shape


# -- padding -------------------------------------------------------------------------------------

#: NNEF's names of ONNX's modes
_BORDERS = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": ""}


@op(
    "Pad",
    nnef="pad",
    attrs={"mode": one_of(*_BORDERS), "pads": required(INTS), "value": 0.0},
    until=10,
)
def pad_2(call: OnnxCall) -> Value:
    rank = call[0].rank
    return pad_axes(
        call, call[0], call.attr("pads"), range(rank), call.attr("mode"), call.attr("value")
    )


@op("Pad", nnef="pad; or concat, slice", inputs=4, attrs={"mode": one_of(*_BORDERS)}, since=11)
def pad(call: OnnxCall) -> Value:
    x = call[0]
    pads = call.ints(1, "the padding")
    axes = call.axes(call.ints(3, "the axes"), x.rank) if call.has(3) else range(x.rank)
    return pad_axes(call, x, pads, axes, call.attr("mode"), call.number(2))


def pad_axes(
    call: OnnxCall, x: Value, pads: Sequence[int], axes: Sequence[int], mode: str, value: float
) -> Value:
    """Adds operators that pad the given axes; ``pads`` has the numbers before all, then after all.

    Negative padding crops. ``mode`` is ONNX's name of the border. Returns the result.
    """
    if len(pads) != 2 * len(axes):
        raise call.shape_error(f"padding {list(pads)} of the axes {list(axes)}, mode '{mode}'")
    sides = [(0, 0)] * x.rank
    for i, axis in enumerate(axes):
        sides[axis] = (pads[i], pads[i + len(axes)])
    call.checked_shape([n + a + b for n, (a, b) in zip(x.shape, sides, strict=True)])
    if not any(a or b for a, b in sides):
        return x
    if mode != "wrap" and x.kind == "scalar":
        return call.op("pad", x, padding=sides, border=_BORDERS[mode], value=value)
    for axis, (before, after) in enumerate(sides):
        x = _padded_axis(call, x, axis, before, after, mode, value)
    return x


def _padded_axis(
    call: OnnxCall, x: Value, axis: int, before: int, after: int, mode: str, value: float
) -> Value:
    """Adds slices, concatenations and gathers that pad one axis, and returns the result.

    NNEF's ``pad`` takes floats only and cannot wrap.
    """
    x = take_ranges(call, x, {axis: range(max(-before, 0), x.shape[axis] - max(-after, 0))})
    before, after = max(before, 0), max(after, 0)
    if not before and not after:
        return x
    if mode == "constant":
        sides = [[n if a != axis else k for a, n in enumerate(x.shape)] for k in (before, after)]
        for shape in sides:
            call.allocate(shape, x.dtype.itemsize)
        fill = [Value.known(np.full(shape, value, x.dtype)) for shape in sides]
        return call.concat([fill[0], x, fill[1]], axis)
    call.allocate([before + x.shape[axis] + after])
    places = np.pad(np.arange(x.shape[axis]), (before, after), mode)  # type: ignore[call-overload]
    return call.op("gather", x, Value.known(places), axis=axis).typed(x.dtype)


@op("CenterCropPad", nnef="slice, pad", inputs=2, attrs={"axes": INTS})
def center_crop_pad(call: OnnxCall) -> Value:
    x, wanted = call[0], call.ints(1, "the shape")
    axes = call.attr("axes")
    axes = list(range(x.rank)) if axes is None else call.axes(axes, x.rank)
    pads = {}
    for axis, n in zip(axes, wanted, strict=True):
        have = x.shape[axis]
        if n < have:
            start = (have - n) // 2
            x = take_ranges(call, x, {axis: range(start, start + n)})
        pads[axis] = (max(n - have, 0) // 2, max(n - have, 0) - max(n - have, 0) // 2)
    sides = [*(pads[a][0] for a in axes), *(pads[a][1] for a in axes)]
    return pad_axes(call, x, sides, axes, "constant", 0.0)


# -- triangles -----------------------------------------------------------------------------------


@op("Trilu", nnef="select", inputs=2, attrs={"upper": 1})
def trilu(call: OnnxCall) -> Value:
    x, k = call[0], call.ints(1, "k")[0] if call.has(1) else 0
    if 0 in x.shape:
        return x
    rows, columns = call.allocate(x.shape[-2:], 1)
    k = max(-rows - 1, min(columns + 1, k))
    keep = np.ones((rows, columns), np.bool_)
    keep = np.triu(keep, k) if call.attr("upper") else np.tril(keep, k)
    if x.array is not None:
        return Value.known(np.where(keep, x.array, np.zeros((), x.dtype)))
    zero = Value.known(np.zeros((), x.dtype))
    return call.zip("select", Value.known(keep), x, zero).typed(x.dtype)
