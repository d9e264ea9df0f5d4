"""Pooling, upsampling and concatenation in NumPy that keep the inputs' memory order.

Sessions use them. Feature maps that a ``conv`` stores channels last stay channels last, in
reused memory. The values are identical to those of the definitions: ``pooling/cpu.py`` and the
operators of ``resampling/`` and ``movement/``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import as_strided

from cml_engine.ir.graph import Array, Attrs, Fact
from cml_engine.ops.common.window import window_of
from cml_engine.ops.declaration.scratch import Scratch
from cml_engine.ops.declaration.spec import Cpu
from cml_engine.ops.pooling.cpu import pad_window, taps_of


def prepare_max_pool(
    attrs: Attrs, facts: Sequence[Fact], constants: Sequence[Array | None], scratch: Scratch
) -> Cpu:
    """Returns a function that computes max pooling for these attributes and shapes, tap by tap.

    A NaN in a window is its result; of two zeros of different sign either may be.
    """
    window = window_of(attrs, facts[0])
    shape = tuple(axis.narrow for axis in window)
    border = attrs["border"]
    around = -np.inf if border == "ignore" else 0.0
    ends = [(axis.narrow - 1) * axis.stride + axis.reach for axis in window]
    inside = all(a.before == 0 and n <= a.wide for a, n in zip(window, ends, strict=True))

    def pool(attrs: Attrs, x: Array) -> Array:
        out = scratch.result_as(x, shape)
        padded = x if inside else pad_window(x, window, border, around)
        first, *others = taps_of(padded, window)
        np.copyto(out, first)
        for value in others:
            np.maximum(out, value, out=out)
        return out

    return pool


def prepare_nearest_upsample(
    attrs: Attrs, facts: Sequence[Fact], constants: Sequence[Array | None], scratch: Scratch
) -> Cpu | None:
    """Returns a function that upsamples by copying every value to its block; None if not floats.

    None selects the operator's definition.
    """
    if facts[0].dtype != "scalar":
        return None
    extents = list(zip(facts[0].shape, (1, 1, *attrs["factor"]), strict=True))
    shape = tuple(n * factor for n, factor in extents)
    blocks = [extent for pair in extents for extent in pair]
    apart = [extent for n, _ in extents for extent in (n, 1)]

    def upsample(attrs: Attrs, x: Array) -> Array:
        out = scratch.result_as(x, shape)
        pairs = zip(out.strides, extents, strict=True)
        strides = [stride for s, (_, factor) in pairs for stride in (s * factor, s)]
        as_strided(out, blocks, strides)[:] = x.reshape(apart)
        return out

    return upsample


def prepare_concat(
    attrs: Attrs, facts: Sequence[Fact], constants: Sequence[Array | None], scratch: Scratch
) -> Cpu | None:
    """Returns a function that concatenates in the memory order of the largest part.

    Returns None for non-float types, which selects the operator's definition.
    """
    if facts[0].dtype != "scalar":
        return None
    axis = attrs["axis"]
    extent = sum(f.shape[axis] for f in facts)
    shape = (*facts[0].shape[:axis], extent, *facts[0].shape[axis + 1 :])
    largest = max(range(len(facts)), key=lambda i: facts[i].size)

    def concat(attrs: Attrs, *parts: Array) -> Array:
        return np.concatenate(parts, axis, out=scratch.result_as(parts[largest], shape))

    return concat
