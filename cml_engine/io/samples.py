"""Whole numbers of a picture's file from and to numbers of 0 to 1."""

from __future__ import annotations

import numpy as np

from cml_engine.ir.graph import Array


def steps_of(planes: Array, bits: int) -> Array:
    """What lies outside [0, 1] becomes its nearest end, NaN 0."""
    most = (1 << bits) - 1
    clean = np.nan_to_num(np.clip(planes, 0, 1), nan=0.0).astype(np.float64)
    found: Array = np.rint(clean * most).astype(np.uint8 if bits == 8 else np.uint16)
    return found


def numbers_of(samples: Array) -> Array:
    """Whole numbers without a sign as 0 to 1; floats as they are."""
    if samples.dtype.kind == "f":
        return samples.astype(np.float32)
    if samples.dtype.kind == "b":
        return samples.astype(np.float32)
    if samples.dtype.kind != "u":
        raise ValueError(f"it has samples of type {samples.dtype}; wanted unsigned ones or floats")
    return (samples / float(np.iinfo(samples.dtype).max)).astype(np.float32)
