"""Large arrays whose elements are all equal, which are stored as one element.

NumPy represents them as views with strides of 0. They are read-only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cml_engine.ir.graph import Array, DType

#: the least number of elements; smaller arrays are contiguous, which other code is faster with
_LEAST = 1 << 16


def filled(value: Array, shape: Sequence[int]) -> Array:
    """Returns an array of this shape in which every element is ``value``, an array of one element.

    A large one is stored as one element.
    """
    view = np.broadcast_to(value.reshape(()), tuple(shape))
    return view if is_single_value(view) else np.array(view)


def is_single_value(array: Array) -> bool:
    """Returns True if a large array is stored as one element."""
    return array.size >= _LEAST and not any(
        stride for extent, stride in zip(array.shape, array.strides, strict=True) if extent > 1
    )


def distinct(array: Array) -> Array:
    """Returns an array with the same values, which is the array or one element in its place."""
    return array[(slice(1),) * array.ndim] if is_single_value(array) else array


def converted(array: Array, dtype: DType) -> Array:
    """Returns the array in another type; an array of one value stays one.

    Floats beyond the type's range become infinite.
    """
    if array.dtype == dtype:
        return array
    with np.errstate(over="ignore"):
        if is_single_value(array):
            return filled(distinct(array).astype(dtype), array.shape)
        return array.astype(dtype)


def stored_bytes(array: Array) -> int:
    """Returns the bytes of memory that the elements of an array take."""
    return distinct(array).nbytes
