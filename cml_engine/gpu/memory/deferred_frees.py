"""Frees of memory that wait until no frame is being encoded."""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import Callable
from threading import RLock

_log = logging.getLogger(__name__)


class DeferredFrees:
    """A queue of functions that free memory, called only while no frame is being encoded.

    Commands that use the memory may be encoded and not submitted yet.
    """

    def __init__(self, lock: RLock) -> None:
        self._lock = lock
        #: the executors that are encoding a frame
        self._encoding: weakref.WeakSet[object] = weakref.WeakSet()
        # finalizers may run at any time, so they only queue their work here
        self._queue: deque[Callable[[], None]] = deque()
        self._is_running = False

    def add(self, free: Callable[[], None]) -> None:
        """Queues ``free``, which :meth:`run` calls while no frame is encoded.

        Safe in any thread or finalizer.
        """
        self._queue.append(free)

    def begin_frame(self, executor: object) -> None:
        """Marks the executor as encoding; its previous frame has been submitted."""
        self._encoding.discard(executor)
        self.run()
        self._encoding.add(executor)

    def end_frame(self, executor: object) -> None:
        """Marks the executor's frame as submitted; runs the queue if no other is encoded."""
        self._encoding.discard(executor)
        self.run()

    def run(self) -> None:
        """Runs the queued frees, unless a frame is being encoded.

        Errors are logged and not raised, because they are not the caller's. A nested call
        returns at once; the outer loop also runs the work that was queued meanwhile, so the
        call stack stays flat.
        """
        if not self._queue or self._encoding:
            return
        with self._lock:
            if self._is_running:
                return
            self._is_running = True
            try:
                while self._queue:
                    work = self._queue.popleft()
                    try:
                        work()
                    except Exception:
                        _log.exception("giving GPU memory back has failed: %r", work)
            finally:
                self._is_running = False
