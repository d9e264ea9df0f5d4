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
from cml_engine.ops.declaration.scratch import memory_order

_ZERO = np.zeros((), np.float32)
#: floats of a block (256 KB)
_BLOCK = 1 << 16
_ZEROS = np.zeros(_BLOCK, np.float32)


def apply_in_place(formula: Formula, attrs: Attrs, x: Array, operands: Sequence[Array]) -> bool:
    """Computes ``x = formula(x, *operands)`` in the memory of ``x`` and returns True.

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
    for part, _ in _blocks(x, left_view(_ZERO, x.ndim)):
        np.maximum(part, _zeros(part), out=part)
    return True


def prelu(attrs: Attrs, x: Array, slope: Array) -> bool:
    if not np.isfinite(slope).all():
        return False
    # except for a slope of 0, which turns infinity into NaN
    is_larger_multiple = bool(np.all((slope != 0) & (slope <= 1)))
    for part, slopes in _blocks(x, slope):
        if is_larger_multiple:
            np.maximum(part, part * slopes, out=part)
            continue
        zeros = _zeros(part)
        below = np.minimum(part, zeros)
        below *= slopes
        np.maximum(part, zeros, out=part)
        part += below
    return True


def _zeros(part: Array) -> Array:
    """Returns zeros of the shape of ``part``.

    NumPy's minimum and maximum by a single number take two to three times as long.
    """
    if part.size > _BLOCK:
        return np.zeros_like(part)
    return _ZEROS[: part.size].reshape(part.shape)


def _blocks(x: Array, operand: Array) -> Iterator[tuple[Array, Array]]:
    """Yields corresponding views of ``x`` and ``operand``, small enough to stay in the cache.

    Their axes are in the memory order of ``x``. ``operand`` is repeated to the extents of a row of
    ``x``, because NumPy's inner loops are longer then.
    """
    order = memory_order(x)
    ordered, beside = x.transpose(order), operand.transpose(order)
    if x.size <= _BLOCK:
        yield ordered, beside
        return
    if beside.size > len(beside) == 1:
        beside = np.ascontiguousarray(np.broadcast_to(beside, (1, *ordered.shape[1:])))
    step = max(1, _BLOCK // ordered[0].size)
    for first in range(0, len(ordered), step):
        span = slice(first, first + step)
        yield ordered[span], beside[span] if len(beside) > 1 else beside


def leaky_relu(attrs: Attrs, x: Array) -> bool:
    return prelu(attrs, x, left_view(np.asarray(attrs["alpha"], np.float32), x.ndim))


def clamp(attrs: Attrs, x: Array, low: Array, high: Array) -> bool:
    if low.size == high.size == 1 and low.item() <= high.item():
        np.clip(x, low.item(), high.item(), out=x)  # one pass instead of two slow ones
        return True
    np.copyto(x, high, where=x > high)
    np.copyto(x, low, where=x < low)
    return True
