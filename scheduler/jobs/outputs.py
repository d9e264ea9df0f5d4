"""The outputs of a job that is done, and who still needs them."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

#: jobs of several schedulers may take each other's outputs, so this is not a scheduler's own
_lock = Lock()


class Outputs:
    """A handle of the device, held until the host has released it and nobody takes it any more."""

    def __init__(self, release: Callable[[Any], None]) -> None:
        self.result: Any = None
        #: whether the host needs them no longer
        self.released = False
        self._release = release
        self._takers = 0

    def keep_for_taker(self) -> bool:
        """A job will take one: they stay until :meth:`taken`. False where they are gone."""
        with _lock:
            if self.released:
                return False
            self._takers += 1
            return True

    def taken(self) -> None:
        """A job of :meth:`keep_for_taker` has what it needs, or needs it no longer."""
        with _lock:
            self._takers -= 1
            last = self.released and not self._takers
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
