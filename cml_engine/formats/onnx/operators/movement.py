"""Imports operators that move elements without computing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cml_engine.formats.onnx.counted_axes import extent, number_of
from cml_engine.formats.onnx.counted_shapes import elements, expanded, padded, reshaped, sliced
from cml_engine.formats.onnx.op_schemas import OnnxCall, at_least, attribute, one_of, op
from cml_engine.formats.onnx.same_operators import BORDERS
from cml_engine.formats.onnx.values import (
    InvalidNode,
    Value,
    allocate,
    checked_axes,
    checked_axis,
    checked_shape,
    concat,
    constant,
    fragment,
    ints,
    number,
    refuse_counted,
    unsupported_error,
)
from cml_engine.io.load_limits import current_budget


@op("Identity", "nothing", takes_sequences=True)
def identity(x: Value) -> Value:
    return x


@op("Dropout", "nothing", since=7)
def dropout(
    call: OnnxCall,
    x: Value,
    ratio: Value | None = attribute(0.5, until=11),
    training_mode: Value | None = None,
    *,
    seed: int | None = None,
) -> list[Value | None]:
    is_training = training_mode is not None and constant(training_mode, "training_mode").any()
    if is_training and (ratio is None or number(ratio, "the ratio") != 0.0):
        raise unsupported_error("training_mode=true")
    if not call.wants(1):
        return [x, None]
    return [x, Value.known(np.ones(allocate(x.shape, 1), np.bool_)).counted(x.counts)]


# -- shapes --------------------------------------------------------------------------------------


@op("Reshape", "reshape")
def reshape(x: Value, shape: Value, *, allowzero: bool = False) -> Value:
    return reshaped(x, elements(shape, "the shape"), copies_zero=not allowzero)


@op("Flatten", "reshape")
def flatten(x: Value, *, axis: int = 1) -> Value:
    if not -x.rank <= axis <= x.rank:
        raise InvalidNode(f"axis {axis} of {x}")
    split_axis = axis if axis >= 0 else axis + x.rank
    halves = [range(split_axis), range(split_axis, x.rank)]
    return reshaped(x, [number_of(x, half) for half in halves], copies_zero=False)


@op("Squeeze", "squeeze")
def squeeze(x: Value, axes: list[int] | None = attribute(until=12)) -> Value:
    if axes is None:
        axes = [a for a, n in enumerate(x.shape) if n == 1]
    return x.squeeze(checked_axes(axes, x.rank))


@op("Unsqueeze", "unsqueeze")
def unsqueeze(x: Value, axes: list[int] = attribute(until=12, required=True)) -> Value:
    return x.unsqueeze(checked_axes(axes, x.rank + len(axes)))


@op("Transpose", "transpose")
def transpose(x: Value, *, perm: list[int] | None = None) -> Value:
    order = list(range(x.rank))[::-1] if perm is None else checked_axes(perm, x.rank)
    if len(order) != x.rank:
        raise InvalidNode(f"perm {order} of {x}")
    return x.transpose(order)


@op("Expand", "tile")
def expand(x: Value, shape: Value) -> Value:
    if shape.array is None or x.counts:
        return expanded(x, elements(shape, "the shape"))
    known_shape = tuple(ints(shape, "the shape"))
    try:
        return x.expand(checked_shape(np.broadcast_shapes(x.shape, known_shape)))
    except ValueError:
        raise InvalidNode(f"{x} does not broadcast to the shape {list(known_shape)[:8]}") from None


@op("Tile", "tile")
def tile(x: Value, repeats: list[int]) -> Value:
    if len(repeats) != x.rank or any(n < 0 for n in repeats):
        raise InvalidNode(f"the repeats {repeats} of {x}")
    return x.tile(repeats)


# -- parts ---------------------------------------------------------------------------------------


@op("Concat", "concat")
def concatenate(*values: Value, axis: int) -> Value:
    axis = checked_axis(axis, values[0].rank)
    if len({(*v.shape[:axis], v.rank, *v.shape[axis + 1 :]) for v in values}) > 1:
        shapes = ", ".join(map(str, values[:8]))
        raise InvalidNode(f"{shapes} differ in another axis than {axis}")
    return concat(values, axis)


@op("Split", "split, slice")
def split(
    call: OnnxCall,
    x: Value,
    split: list[int] | None = attribute(until=12),
    *,
    axis: int = 0,
    num_outputs: int | None = at_least(1, since=18),
) -> list[Value]:
    axis, sizes = checked_axis(axis, x.rank), split
    refuse_counted(x, [axis], "the parts of a split have fixed sizes")
    if sizes is None:
        count = num_outputs or len(call.node.outputs)
        current_budget().check_nodes(count, "the operator")
        part_size = -(-x.shape[axis] // count)
        ends = [min(x.shape[axis], part_size * (i + 1)) for i in range(count)]
        sizes = np.diff([0, *ends]).tolist()
    if sum(sizes) != x.shape[axis] or any(n < 0 for n in sizes):
        raise InvalidNode(f"{x} cannot be split into {list(sizes)} along axis {axis}")
    return [x] if len(sizes) == 1 else x.split(axis, sizes)


_BOUNDS: Any = attribute(kind=int, many=True, until=9, required=True)


@op("Slice", "slice")
def slice_(
    x: Value,
    starts: Value | list[int] = _BOUNDS,
    ends: Value | list[int] = _BOUNDS,
    axes: list[int] | None = attribute(until=9),
    steps: list[int] | None = None,
) -> Value:
    """Imports Slice: negative indices count from the end, then all are clamped."""
    first = starts if isinstance(starts, list) else elements(starts, "the starts")
    last = ends if isinstance(ends, list) else elements(ends, "the ends")
    axes = checked_axes(range(len(first)) if axes is None else axes, x.rank)
    steps = [1] * len(axes) if steps is None else steps
    if not len(first) == len(last) == len(axes) == len(steps) or 0 in steps:
        raise InvalidNode(f"starts {list(first)}, ends {list(last)}, steps {list(steps)}")
    ranges: dict[int, range] = {}
    for axis, start, end, step in zip(axes, first, last, steps, strict=True):
        if isinstance(start, Value) or isinstance(end, Value) or axis in x.counts:
            x = sliced(x, axis, start, end, step)
        else:
            ranges[axis] = _clamp_range(x.shape[axis], start, end, step)
    return x.take(ranges)


def _clamp_range(extent: int, start: int, end: int, step: int) -> range:
    """Returns the indices that a slice selects from one axis.

    With a negative step a start before the first element selects the first one, unlike in Python.
    """
    start, end = (n + extent if n < 0 else n for n in (start, end))
    if step > 0:
        return range(min(max(start, 0), extent), min(max(end, 0), extent), step)
    return range(min(max(start, 0), extent - 1), min(max(end, -1), extent - 1), step)


# -- channels and space --------------------------------------------------------------------------

_BLOCK_SIZE = at_least(1, required=True)


@op("DepthToSpace", "reshape, transpose")
def depth_to_space(
    x: Value, *, blocksize: int = _BLOCK_SIZE, mode: str = one_of("DCR", "CRD", since=11)
) -> Value:
    _, channels, _, _ = _image(x)
    if channels % (blocksize * blocksize):
        raise InvalidNode(f"{channels} channels in blocks of {blocksize} x {blocksize}")
    return _moved_blocks("depth_to_space", x, blocksize, mode)


@op("SpaceToDepth", "reshape, transpose")
def space_to_depth(
    x: Value, *, blocksize: int = _BLOCK_SIZE, mode: str = one_of("DCR", "CRD")
) -> Value:
    _, _, height, width = _image(x)
    if height % blocksize or width % blocksize:
        raise InvalidNode(f"{x} in blocks of {blocksize} x {blocksize}")
    return _moved_blocks("space_to_depth", x, blocksize, mode)


def _moved_blocks(name: str, x: Value, size: int, mode: str) -> Value:
    """Adds the extension's operator ``name``, which moves blocks between space and channels.

    It states no extents, so that the network can be reshaped after it has been converted.
    Returns the result.
    """
    return fragment(name, [x], block_size=size, blocks_first=mode == "DCR").typed(x.dtype)


def _image(x: Value) -> tuple[int, ...]:
    if x.rank != 4:
        raise InvalidNode(f"it wants [batch, channels, height, width], got {x}")
    return x.shape


# -- padding -------------------------------------------------------------------------------------


@op("Pad", "pad; or concat, slice")
def pad(
    x: Value,
    pads: list[int] = attribute(until=10, required=True),
    value: float = attribute(0.0, until=10),
    axes: list[int] | None = None,
    *,
    mode: str = one_of(*BORDERS),
) -> Value:
    """Imports Pad: ``pads`` has the numbers before all axes, then after all.

    Negative padding crops.
    """
    padded = checked_axes(axes, x.rank)
    if len(pads) != 2 * len(padded):
        raise InvalidNode(f"padding {list(pads)} of the axes {list(padded)}, mode '{mode}'")
    padding = [(0, 0)] * x.rank
    for i, axis in enumerate(padded):
        padding[axis] = (pads[i], pads[i + len(padded)])
    return _padded(x, padding, mode, value)


def _padded(x: Value, padding: Sequence[tuple[int, int]], mode: str, value: float) -> Value:
    checked_shape([n + a + b for n, (a, b) in zip(x.shape, padding, strict=True)])
    if not any(a or b for a, b in padding):
        return x
    padding = list(padding)
    for axis in x.counts:
        before, after = padding[axis]
        if min(before, after) < 0:
            end = extent(x, axis) + min(after, 0)
            x = sliced(x, axis, max(-before, 0), end)
            padding[axis] = max(before, 0), max(after, 0)
        if mode != "constant":
            x = padded(x, axis, *padding[axis], BORDERS[mode])
            padding[axis] = 0, 0
    if not any(a or b for a, b in padding):
        return x
    if mode != "wrap" and x.kind == "scalar":
        return x.pad(padding=padding, border=BORDERS[mode], value=value)
    for axis, (before, after) in enumerate(padding):
        x = _padded_axis(x, axis, before, after, mode, value)
    return x


def _padded_axis(x: Value, axis: int, before: int, after: int, mode: Any, value: float) -> Value:
    """Adds slices, concatenations and gathers that pad one axis, and returns the result.

    NNEF's ``pad`` takes floats only and cannot wrap.
    """
    x = x.slice(axis, max(-before, 0), x.shape[axis] - max(-after, 0))
    before, after = max(before, 0), max(after, 0)
    if not before and not after:
        return x
    if mode == "constant":
        parts = []
        for count in (before, after):
            shape = [n if a != axis else count for a, n in enumerate(x.shape)]
            allocate(shape, x.dtype.itemsize)
            parts.append(Value.known(np.full(shape, value, x.dtype)))
        return concat([parts[0], x, parts[1]], axis)
    allocate([before + x.shape[axis] + after])
    indices = np.pad(np.arange(x.shape[axis]), (before, after), mode)
    return x.gather(Value.known(indices), axis=axis)


@op("CenterCropPad", "slice, pad")
def center_crop_pad(x: Value, shape: list[int], *, axes: list[int] | None = None) -> Value:
    padding = [(0, 0)] * x.rank
    for axis, n in zip(checked_axes(axes, x.rank), shape, strict=True):
        start, missing = (x.shape[axis] - n) // 2, n - x.shape[axis]
        if missing < 0:
            x = x.slice(axis, start, start + n)
        else:
            padding[axis] = (missing // 2, missing - missing // 2)
    return _padded(x, padding, "constant", 0.0)


@op("Trilu", "select")
def trilu(x: Value, k: int = 0, *, upper: bool = True) -> Value:
    if 0 in x.shape:
        return x
    rows, columns = allocate(x.shape[-2:], 1)
    k = max(-rows - 1, min(columns + 1, k))
    keep = np.ones((rows, columns), np.bool_)
    keep = np.triu(keep, k) if upper else np.tril(keep, k)
    if x.array is not None:
        return Value.known(np.where(keep, x.array, np.zeros((), x.dtype)))
    first = x.rank - 2
    is_kept = Value.known(keep).counted({a - first: n for a, n in x.counts.items() if a >= first})
    return is_kept.select(x, Value.known(np.zeros((), x.dtype))).typed(x.dtype)
