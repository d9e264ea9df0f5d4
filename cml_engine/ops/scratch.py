"""Memory that the operators of one program use one after the other.

A fresh NumPy array of some megabytes is fresh pages of the system's, and touching these for the
first time costs as much as what is computed into them.
"""

from __future__ import annotations

import threading
from math import prod
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

#: floats (48 MB): what is larger is not kept
_MOST = 12 << 20


class Scratch(threading.local):
    """Buffers by name, as large as the largest use so far. Each thread has its own, so that two
    may run one program at a time. What an operator takes is its own until it returns."""

    def __init__(self) -> None:
        self._buffers: dict[str, Array] = {}

    def take(self, name: str, *shape: int) -> Array:
        """Uninitialised memory for floats of that shape."""
        size = prod(shape)
        if size > _MOST:
            return np.empty(shape, np.float32)
        buffer = self._buffers.get(name)
        if buffer is None or buffer.size < size:
            buffer = self._buffers[name] = np.empty(size, np.float32)
        return buffer[:size].reshape(shape)
