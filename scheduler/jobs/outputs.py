"""The outputs of a job that is done, and who still needs them."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any
from weakref import WeakSet

#: jobs of several schedulers may take each other's outputs, so this is not a scheduler's own
_lock = Lock()


class Outputs:
    """A handle of the device, held until the host has released it and no job waits to take it."""

    def __init__(self, release: Callable[[Any], None]) -> None:
        self.result: Any = None
        #: whether the host needs them no longer
        self.released = False
        self._release = release
        self._takers: WeakSet[Any] = WeakSet()

    def keep_for(self, taker: object) -> bool:
        """Keeps them for a job until :meth:`taken`. Returns False where they are released."""
        with _lock:
            if not self.released:
                self._takers.add(taker)
            return not self.released

    def taken(self, taker: object) -> None:
        """The job has what it needs, or needs it no longer. One that came too late for
        :meth:`keep_for` changes nothing."""
        with _lock:
            was_taker = taker in self._takers
            self._takers.discard(taker)
            last = was_taker and self.released and not self._takers
        if last:
            self.give_back()

    def release(self) -> None:
        """The host needs them no longer."""
        with _lock:
            self.released = True
            idle = not self._takers
        if idle:
            self.give_back()

    def give_back(self) -> None:
        """Return the memory now."""
        result, self.result = self.result, None
        if result is not None:
            self._release(result)

    def take_back(self) -> None:
        """What made them is undone: they will be made again."""
        self.released = False
        self.give_back()
