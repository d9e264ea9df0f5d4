"""What a process has one of: made when it is first wanted, by whichever thread wants it first."""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")


class Once(Generic[T]):
    """A decorator: the function is called once, and all callers get what it gave. (With
    ``functools.cache`` two threads may both call it.) A process that was forked makes its own, for
    threads and pipes do not come along."""

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
        """Make another one when it is wanted next."""
        self._made.clear()
