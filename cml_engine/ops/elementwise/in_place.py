"""Functions that apply an elementwise operator in place, to a result that has no other reader.

They are ``Formula.in_place`` of the rows of ``elementwise.py``. They give the same values as the
definitions (NaN and infinity included; of the two zeros perhaps the other one) without a mask and
with at most one temporary: ``np.where`` takes ten times as long.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from cml_engine.ir.graph import Array, Attrs
from cml_engine.ops.common.shapes import left_view
from cml_engine.ops.declaration.expression import Formula

_ZERO = np.float32(0)
#: floats of a block (256 KB)
_BLOCK = 1 << 16
_ZEROS = np.zeros(_BLOCK, np.float32)


def apply_in_place(formula: Formula, attrs: Attrs, x: Array, operands: Sequence[Array]) -> bool:
    """Computes ``x = formula(x, *others)`` in the memory of ``x`` and returns True.

    Returns False, and changes nothing, if that is not possible.
    """
    if not all(_fits(x, operand) for operand in operands):
        return False
    views = [left_view(operand, x.ndim) for operand in operands]
    if isinstance(formula.numpy, np.ufunc) and x.dtype == np.float32:
        formula.numpy(x, *views, out=x)
        return True
    return formula.in_place is not None and formula.in_place(attrs, x, *views)


def _fits(x: Array, operand: Array) -> bool:
    """Returns True if broadcasting with ``operand`` keeps the shape and type of ``x``."""
    pairs = zip(operand.shape, x.shape, strict=False)
    return (
        operand.dtype == x.dtype
        and operand.ndim <= x.ndim
        and all(n in (1, extent) for n, extent in pairs)
    )


def relu(attrs: Attrs, x: Array) -> bool:
    ordered = x.transpose(sorted(range(x.ndim), key=lambda i: -x.strides[i]))
    if not ordered.flags.c_contiguous:
        np.maximum(x, _ZERO, out=x)
        return True
    flat = ordered.reshape(-1)
    for first in range(0, flat.size, _BLOCK):
        part = flat[first : first + _BLOCK]
        # with a single number it takes thrice as long
        np.maximum(part, _ZEROS[: part.size], out=part)
    return True


def prelu(attrs: Attrs, x: Array, slope: Array) -> bool:
    if not np.isfinite(slope).all():
        return False
    gentle = bool(np.all((slope > 0) & (slope <= 1)))
    zero: Array = np.zeros(0, np.float32)
    for part, slopes in _blocks(x, slope):
        if gentle:
            # the larger of the two; not so for a slope of 0, for that makes NaN of infinity
            np.maximum(part, part * slopes, out=part)
            continue
        if zero.shape != part.shape:
            zero = np.zeros_like(part)  # NumPy's minimum by a single number takes twice as long
        below = np.minimum(part, zero)
        below *= slopes
        np.maximum(part, zero, out=part)
        np.add(part, below, out=part)
    return True


def _blocks(x: Array, operand: Array) -> Iterator[tuple[Array, Array]]:
    """Yields corresponding views of ``x`` and ``operand``, small enough to stay in the cache."""
    if x.size <= _BLOCK:
        yield x, operand
        return
    axis = max(range(x.ndim), key=lambda i: x.strides[i] if x.shape[i] > 1 else 0)
    extent = x.shape[axis]
    step = max(1, _BLOCK * extent // x.size)
    for first in range(0, extent, step):
        index = (slice(None),) * axis + (slice(first, first + step),)
        along = operand.ndim > axis and operand.shape[axis] > 1
        yield x[index], operand[index] if along else operand


def leaky_relu(attrs: Attrs, x: Array) -> bool:
    return prelu(attrs, x, np.asarray(attrs["alpha"], np.float32))


def clamp(attrs: Attrs, x: Array, low: Array, high: Array) -> bool:
    if low.size == high.size == 1 and low.item() <= high.item():
        np.clip(x, low.item(), high.item(), out=x)  # one pass in the place of two slow ones
        return True
    np.copyto(x, high, where=x > high)
    np.copyto(x, low, where=x < low)
    return True
