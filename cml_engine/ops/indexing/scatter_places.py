"""Computes the slot that each scattered update writes to; -1 for an index that is out of range."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from cml_engine.ir.graph import Array, Attrs
from cml_engine.ops.common.broadcast import contiguous_strides

#: ``places(attrs, indices, the input's shape)`` returns each update's slot and the number of slots
PlacesOf = Callable[[Attrs, Array, tuple[int, ...]], tuple[Array, int]]


def element_places(attrs: Attrs, indices: Array, shape: tuple[int, ...]) -> tuple[Array, int]:
    """Returns the slot of each update of scatter_elements, flattened, and the number of slots.

    Every element of the tensor of that ``shape`` is a slot.
    """
    extent, strides = shape[attrs.axis], contiguous_strides(shape)
    own: Array = np.where(indices < 0, indices.astype(np.int64) + extent, indices)
    at = np.zeros(indices.shape, np.int64)
    for axis, places in enumerate(np.indices(indices.shape, np.int64)):
        at += strides[axis] * (own if axis == attrs.axis else places)
    return np.where((own >= 0) & (own < extent), at, -1).reshape(-1), prod(shape)


def row_places(attrs: Attrs, indices: Array, shape: tuple[int, ...]) -> tuple[Array, int]:
    """Returns the slot of each update of scatter_nd, flattened, and the number of slots.

    A slot spans the axes of ``shape`` that are not indexed.
    """
    count = indices.shape[-1]
    extents = np.array(shape[:count], np.int64)
    rows = indices.reshape(prod(indices.shape[:-1]), count).astype(np.int64)
    rows = np.where(rows < 0, rows + extents, rows)
    at = np.zeros(len(rows), np.int64)
    for axis, extent in enumerate(extents):
        at = at * extent + rows[:, axis]
    inside = ((rows >= 0) & (rows < extents)).all(-1)
    return np.where(inside, at, -1), prod(shape[:count])
