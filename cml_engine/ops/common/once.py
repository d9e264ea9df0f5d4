"""Values that a process creates once, on first use, from any thread."""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")


class Once(Generic[T]):
    """A decorator that calls a function once per process and returns its result to all callers.

    With ``functools.cache``, two threads could both call the function. A forked process calls it
    again, because threads and pipes are not inherited.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self.__doc__ = make.__doc__
        self._make = make
        self._made: dict[int, T] = {}
        self._lock = Lock()

    def __call__(self) -> T:
        process = os.getpid()
        if process not in self._made:
            with self._lock:
                if process not in self._made:
                    self._made[process] = self._make()
        return self._made[process]

    def forget(self) -> None:
        """Discards the result; the next call creates a new one."""
        self._made.clear()
