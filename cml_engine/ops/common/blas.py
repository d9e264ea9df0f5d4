"""Matrix products that do not wait for cores that other threads occupy.

OpenBLAS, which NumPy's wheels contain, cuts a product into as many equal parts as there are
cores, and its threads spin until the last part is done. Beside a busy process, every product
waits for the slowest thread while the others burn their time slices. A network therefore runs
with OpenBLAS on one thread (:func:`one_thread`), and :func:`multiply` cuts large products into
blocks. Helper threads take the blocks one by one and sleep when there are none, so a thread
without a core delays nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from threading import Event, Lock
from typing import cast

import numpy as np
from threadpoolctl import ThreadpoolController

from cml_engine.ir.graph import Array
from cml_engine.ops.common.once import Once

#: multiply-adds of a block: a fraction of a millisecond, far more than the handover takes
_BLOCK = 1 << 22
#: a block's edges are multiples of this, so that BLAS's own tiles stay whole
_EDGE = 64


@Once
def numpy_blas() -> ThreadpoolController:
    """Returns the controller of the threads of NumPy's own BLAS; other libraries are not affected.

    It is created once per process.
    """
    controllers = ThreadpoolController().select(user_api="blas")
    # numpy.libs lies beside the package; the controllers name files without symbolic links
    folder = str(Path(np.__file__).resolve().parent)
    paths = [library.filepath for library in controllers.lib_controllers]
    return controllers.select(filepath=[path for path in paths if path.startswith(folder)])


def one_thread() -> AbstractContextManager[object]:
    """Returns a context manager in whose block BLAS uses one thread.

    Its end restores the number of threads. The setting applies to the whole process, so products
    of other threads use one thread too. If several threads have such blocks, the first one's end
    restores it.
    """
    return cast("AbstractContextManager[object]", numpy_blas().limit(limits=1))


def multiply(a: Array, b: Array, out: Array | None = None) -> Array:
    """Computes ``np.matmul(a, b, out=out)`` for matrices or stacks of matrices.

    The partition into blocks depends on the shapes alone, so results are bit-identical for any
    number of threads.
    """
    if out is None:
        stack = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        out = np.empty((*stack, a.shape[-2], b.shape[-1]), np.result_type(a, b))
    if out.size * a.shape[-1] < 2 * _BLOCK:
        np.matmul(a, b, out=out)
    else:
        share(_blocks(a, b, out))
    return out


def _blocks(a: Array, b: Array, out: Array) -> list[Callable[[], object]]:
    """Returns functions that together compute the product ``a @ b`` into ``out``, in any order.

    Each has about :data:`_BLOCK` multiply-adds: some matrices of a stack, or a part of the
    longer edge of one matrix.
    """
    work = max(out[0].size * a.shape[-1], 1) if len(out) else 1
    if out.ndim > 2:
        a = np.broadcast_to(a, (*out.shape[:-2], *a.shape[-2:]))
        b = np.broadcast_to(b, (*out.shape[:-2], *b.shape[-2:]))
        if work >= _BLOCK:
            return [block for i in range(len(out)) for block in _blocks(a[i], b[i], out[i])]
        return [
            partial(np.matmul, a[s], b[s], out=out[s]) for s in _spans(len(out), _BLOCK // work)
        ]
    rows, columns = out.shape
    if columns >= rows:
        step = _BLOCK // max(rows * a.shape[-1], 1) // _EDGE * _EDGE
        spans = _spans(columns, max(_EDGE, step))
        return [partial(np.matmul, a, b[:, s], out=out[:, s]) for s in spans]
    spans = _spans(rows, max(_EDGE, _BLOCK // work // _EDGE * _EDGE))
    return [partial(np.matmul, a[s], b, out=out[s]) for s in spans]


def _spans(length: int, step: int) -> list[slice]:
    return [slice(first, min(first + step, length)) for first in range(0, length, step)]


class _Shared:
    """Blocks that several threads take one by one."""

    def __init__(self, blocks: Sequence[Callable[[], object]]) -> None:
        self._waiting = iter(blocks)
        self._left = len(blocks)
        self._lock = Lock()
        self._done = Event()
        self._error: Exception | None = None

    def work(self) -> None:
        """Runs blocks until none is left."""
        with np.errstate(all="ignore"):
            for block in self._waiting:
                try:
                    block()
                except Exception as error:
                    self._error = error
                with self._lock:
                    self._left -= 1
                    if not self._left:
                        self._done.set()

    def finish(self) -> None:
        """Works until all blocks are done; does not wait for threads that took no block."""
        self.work()
        self._done.wait()
        if self._error is not None:
            raise self._error


def share(blocks: Sequence[Callable[[], object]]) -> None:
    """Runs all blocks on this thread and the helper threads; each takes the next free block."""
    shared = _Shared(blocks)
    for _ in range(min(_cores(), len(blocks)) - 1):
        _helpers().submit(shared.work)
    shared.finish()


def _cores() -> int:
    return os.cpu_count() or 1


@Once
def _helpers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, _cores() - 1), "cml-products")
