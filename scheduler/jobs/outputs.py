"""The outputs of a finished job, and the jobs that still need them."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from weakref import WeakSet

from scheduler.executor import Handle

#: global, because jobs of several schedulers may take each other's outputs
_lock = Lock()


class Outputs:
    """The device's handle of a job's outputs.

    It is freed once the host has released it and no job needs it.
    """

    def __init__(self, release: Callable[[Handle], None]) -> None:
        self.result: Handle = None
        #: True once the host has released the outputs
        self.released = False
        self._release = release
        self._consumers: WeakSet[object] = WeakSet()

    def add_consumer(self, consumer: object) -> bool:
        """Keeps the outputs for job ``consumer`` until :meth:`remove_consumer`.

        Returns False, and keeps nothing, if the host has already released them.
        """
        with _lock:
            if not self.released:
                self._consumers.add(consumer)
            return not self.released

    def remove_consumer(self, consumer: object) -> None:
        """Notes that job ``consumer`` has copied the outputs or no longer needs them.

        Frees them if the host has released them and this was the last job. Has no effect for a
        job that :meth:`add_consumer` refused.
        """
        with _lock:
            was_taker = consumer in self._consumers
            self._consumers.discard(consumer)
            last = was_taker and self.released and not self._consumers
        if last:
            self.give_back()

    def release(self) -> None:
        """Records that the host no longer needs the outputs; frees them if no job does either."""
        with _lock:
            self.released = True
            idle = not self._consumers
        if idle:
            self.give_back()

    def give_back(self) -> None:
        """Frees the outputs' memory on the device now; no effect if there is none."""
        result, self.result = self.result, None
        if result is not None:
            self._release(result)

    def take_back(self) -> None:
        """Frees the outputs because their job's end is undone; the job can produce new ones."""
        self.released = False
        self.give_back()
