"""Exports operators that move elements, and type casts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cml_engine.formats.onnx.export.call import ExportCall
from cml_engine.formats.onnx.export.export_rules import rule
from cml_engine.ir.graph import NUMPY_DTYPE
from cml_engine.ops.common.window import border_index
from cml_engine.ops.movement.slicing import ranges

_LAST = np.iinfo(np.int64).min
_MODES = {"replicate": "edge", "reflect": "reflect"}


@rule("reshape", onnx="`Reshape`")
def _reshape(c: ExportCall) -> str:
    return c.reshape(c.x, c.out.shape)


@rule("squeeze", "unsqueeze", onnx="`Squeeze`, `Unsqueeze`")
def _squeeze(c: ExportCall) -> str:
    if not c.attrs.axes:
        return c.x
    op = "Squeeze" if c.node.op == "squeeze" else "Unsqueeze"
    return c.add(op, c.x, c.indices(*c.attrs.axes))


@rule("transpose", onnx="`Transpose`")
def _transpose(c: ExportCall) -> str:
    given = [int(axis) for axis in c.attrs.axes]
    return c.transpose(c.x, [*given, *range(len(given), len(c.shape))])


@rule("concat", onnx="`Concat`")
def _concat(c: ExportCall) -> str:
    return c.add("Concat", *c.tensors, axis=int(c.attrs.axis))


@rule("stack", onnx="`Unsqueeze`, `Concat`")
def _stack(c: ExportCall) -> str:
    axis = int(c.attrs.axis)
    parts = [c.add("Unsqueeze", name, c.indices(axis)) for name in c.tensors]
    return c.add("Concat", *parts, axis=axis)


@rule("split", onnx="`Split`")
def _split(c: ExportCall) -> list[str]:
    axis = int(c.attrs.axis)
    sizes = c.indices(*(fact.shape[axis] for fact in c.results))
    return c.split("Split", c.x, sizes, results=len(c.results), axis=axis)


@rule("unstack", onnx="`Split`, `Squeeze`")
def _unstack(c: ExportCall) -> list[str]:
    axis = int(c.attrs.axis)
    parts = c.split("Split", c.x, c.indices(*[1] * len(c.results)), results=len(c.results),
                    axis=axis)  # fmt: skip
    return [c.add("Squeeze", part, c.indices(axis)) for part in parts]


@rule("slice", onnx="`Slice`")
def _slice(c: ExportCall) -> str:
    taken = ranges(c.attrs, c.fact(0))
    axes = [a for a, part in enumerate(taken) if part != (0, c.shape[a], 1)]
    return slice_axes(c, c.x, {axis: taken[axis] for axis in axes})


def slice_axes(c: ExportCall, x: str, taken: dict[int, tuple[int, int, int]]) -> str:
    """Returns ``x`` sliced; ``taken`` gives the first index, the count and the step by axis."""
    if not taken:
        return x
    firsts, counts, steps = zip(*taken.values(), strict=True)
    ends = [f + n * s for f, n, s in zip(firsts, counts, steps, strict=True)]
    lasts = [_LAST if end < 0 else end for end in ends]
    lists = (firsts, lasts, tuple(taken), steps)
    return c.add("Slice", x, *(c.indices(*values) for values in lists))


@rule("tile", onnx="`Tile`")
def _tile(c: ExportCall) -> str:
    return c.add("Tile", c.x, c.indices(*c.attrs.repeats))


@rule("pad", onnx="`Pad`; `Gather` for border reflect-even, and where a border is longer than the "
      "input")  # fmt: skip
def _pad(c: ExportCall) -> str:
    return pad_axes(c, c.x, c.shape, c.attrs.padding, c.attrs.border, float(c.attrs.value))


def pad_axes(
    c: ExportCall, x: str, shape: Sequence[int], padding: Sequence[tuple[int, int]], border: str,
    value: float = 0.0,
) -> str:  # fmt: skip
    """Returns ``x``, whose shape is ``shape``, padded before and after each axis.

    Negative padding crops. A border that ONNX's ``Pad`` cannot express is gathered by a table of
    indices.
    """
    pairs = [(int(before), int(after)) for before, after in padding]
    if not any(map(any, pairs)):
        return x
    fits = all(0 <= n < max(e, 1) for e, pair in zip(shape, pairs, strict=True) for n in pair)
    if border == "constant" or (border in _MODES and fits):
        pads = c.indices(*(p for p, _ in pairs), *(q for _, q in pairs))
        if border in _MODES:
            return c.add("Pad", x, pads, mode=_MODES[border])
        fill = c.constant(np.array(value, NUMPY_DTYPE[c.fact(0).dtype]))
        return c.add("Pad", x, pads, fill, mode="constant")
    for axis, (extent, (before, after)) in enumerate(zip(shape, pairs, strict=True)):
        if before or after:
            at = border_index(border, np.arange(-before, extent + after), extent)
            x = c.add("Gather", x, c.constant(at.astype(np.int64)), axis=axis)
    return x


@rule("cast", onnx="`Cast`; from scalar to integer guarded: what does not fit becomes the nearest, "
      "NaN 0", function=True)  # fmt: skip
def _cast(c: ExportCall) -> str:
    source, target = c.fact(0).dtype, c.out.dtype
    if source == target:
        return c.x
    if (source, target) != ("scalar", "integer"):
        return c.cast(c.x, target)
    high, low = (
        c.add("GreaterOrEqual", c.x, c.real(2.0**31)),
        c.add("Less", c.x, c.real(-(2.0**31))),
    )
    lost = c.add("Or", c.add("IsNaN", c.x), c.add("Or", high, low))
    inside = c.cast(c.where(lost, c.real(0.0), c.x), "integer")
    info = np.iinfo(np.int32)
    least = c.where(low, c.whole(info.min), inside)
    return c.where(high, c.whole(info.max), least)


def merge_axes(shape: Sequence[int], axes: Sequence[int]) -> list[int]:
    """Returns a permutation for ``Transpose`` that moves ``axes`` to the end, in their order."""
    return [*(a for a in range(len(shape)) if a not in axes), *axes]
