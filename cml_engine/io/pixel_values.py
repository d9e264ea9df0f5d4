"""Converts the integer samples of picture files from and to floats in [0, 1]."""

from __future__ import annotations

import numpy as np

from cml_engine.ir.graph import Array


def quantize_pixels(planes: Array, bits: int) -> Array:
    """Converts floats in [0, 1] to uint8 or uint16; values outside are clipped, NaN becomes 0."""
    most = (1 << bits) - 1
    clean = np.nan_to_num(np.clip(planes, 0, 1), nan=0.0).astype(np.float64)
    found: Array = np.rint(clean * most).astype(np.uint8 if bits == 8 else np.uint16)
    return found


def dequantize_pixels(samples: Array) -> Array:
    """Converts unsigned integers to float32 in [0, 1]; floats and booleans keep their values.

    Raises ``ValueError`` for other types.
    """
    if samples.dtype.kind == "f":
        return samples.astype(np.float32)
    if samples.dtype.kind == "b":
        return samples.astype(np.float32)
    if samples.dtype.kind != "u":
        raise ValueError(f"it has samples of type {samples.dtype}; wanted unsigned ones or floats")
    return (samples / float(np.iinfo(samples.dtype).max)).astype(np.float32)
