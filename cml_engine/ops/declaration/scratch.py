"""Scratch memory that the operators of one program reuse.

A new NumPy array of some megabytes consists of new pages, and touching them for the first time
costs as much as the computation that fills them.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from cml_engine.ir.graph import Array

#: weights and their prepared form, by the method of preparation and the weights' ``id``
Prepared = dict[tuple[str, int], tuple[Array, Array]]

#: the largest retained buffer in floats (48 MB)
_MAX_SIZE = 12 << 20
#: the smallest reused result in floats (16 KB); NumPy allocates smaller arrays quickly
_MIN_SIZE = 1 << 12


def _references(arrays: Sequence[Array], index: int) -> int:
    return sys.getrefcount(arrays[index])


#: the reference count of an array that only a list refers to; a view refers to its base array
_IDLE = _references([np.empty(0, np.float32)], 0)


class Scratch(threading.local):
    """Buffers by name, each as large as its largest use so far.

    Each thread has its own buffers, so two threads may run one program at a time. A buffer of
    :meth:`take` belongs to an operator until it returns. A buffer of :meth:`result` is reused
    when no array refers to it any more.
    """

    def __init__(self, prepared: Prepared | None = None) -> None:
        self._prepared: Prepared = {} if prepared is None else prepared
        self._buffers: dict[str, Array] = {}
        self._results: list[Array] = []

    def prepared(self, method: str, weights: Array, prepare: Callable[[Array], Array]) -> Array:
        """Returns ``prepare(weights)``, computed once for all programs of a network.

        ``method`` names the preparation. The result must depend on the weights alone, not on the
        shapes of inputs.
        """
        entry = self._prepared.get((method, id(weights)))
        if entry is None:  # the entry keeps the weights alive, so their id stays unique
            entry = self._prepared[method, id(weights)] = weights, prepare(weights)
        return entry[1]

    def take(self, name: str, *shape: int) -> Array:
        """Returns uninitialized float32 memory of that shape, in the buffer called ``name``.

        The buffer is reused by the next call with the name, unless it is too large to keep.
        """
        size = prod(shape)
        if size > _MAX_SIZE:
            return np.empty(shape, np.float32)
        buffer = self._buffers.get(name)
        if buffer is None or buffer.size < size:
            buffer = self._buffers[name] = np.empty(size, np.float32)
        return buffer[:size].reshape(shape)

    def result(self, *shape: int) -> Array:
        """Returns uninitialized float32 memory for a result.

        It is a buffer that no array refers to any more, or a new one.
        """
        size = prod(shape)
        if not _MIN_SIZE <= size <= _MAX_SIZE:
            return np.empty(shape, np.float32)
        results = self._results
        idle = [i for i in range(len(results)) if _references(results, i) == _IDLE]
        fitting = [i for i in idle if results[i].size >= size]
        if fitting:
            index = min(fitting, key=lambda i: results[i].size)
        else:
            if idle:  # drop one that is too small, so that the number of buffers does not grow
                del results[max(idle, key=lambda i: results[i].size)]
            index = len(results)
            results.append(np.empty(size, np.float32))
        return results[index][:size].reshape(shape)

    def result_as(self, x: Array, shape: tuple[int, ...]) -> Array:
        """Returns uninitialized memory of ``shape`` in the memory order of ``x``."""
        order = memory_order(x)
        buffer = self.result(*(shape[axis] for axis in order))
        return buffer.transpose([order.index(axis) for axis in range(x.ndim)])


def memory_order(x: Array) -> list[int]:
    """Returns the indices of the dimensions in the order of their strides, the longest first.

    Dimensions of extent 1 come last.
    """
    return sorted(range(x.ndim), key=lambda axis: -abs(x.strides[axis]) if x.shape[axis] > 1 else 0)
