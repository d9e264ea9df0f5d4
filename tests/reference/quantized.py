"""Quantized operators by their definition, in float64.

ONNX Runtime is no oracle of them: on processors without VNNI its products of bytes saturate at 16
bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def _along(values: Any, axis: int | None, rank: int) -> Array:
    """Returns one value per element of ``axis`` so that it broadcasts; a single one stays."""
    array = np.asarray(values, np.float64)
    if array.ndim == 0 or axis is None:
        return array
    return array.reshape([-1 if a == axis % rank else 1 for a in range(rank)])


def dequantized(x: Array, scale: Any, zero: Any, axis: int | None = None) -> Array:
    """Returns the numbers that integers represent."""
    scales, zeros = (_along(v, axis, x.ndim) for v in (scale, zero))
    return (x.astype(np.float64) - zeros) * scales


def quantized(y: Array, scale: Any, zero: Array) -> Array:
    """Returns numbers as integers of the type of ``zero``; halves are rounded to even."""
    limits = np.iinfo(zero.dtype)
    rounded = np.rint(np.asarray(y, np.float64) / np.float64(scale)) + np.float64(zero)
    return rounded.clip(limits.min, limits.max).astype(zero.dtype)


def dynamically_quantized(x: Array) -> Array:
    """Returns the numbers that x's integers of 8 bits represent, as DynamicQuantizeLinear."""
    low, high = min(x.min(), 0), max(x.max(), 0)
    scale = (np.float32(high) - np.float32(low)) / np.float32(255) or np.float32(1)
    zero = np.uint8(np.rint(-np.float32(low) / scale))
    return dequantized(quantized(x, scale, zero), scale, zero)


def windows(x: Array, size: tuple[int, int]) -> Array:
    """Returns the windows of the last two axes, as two more axes."""
    return np.lib.stride_tricks.sliding_window_view(x, size, (2, 3))
