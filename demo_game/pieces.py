"""Work that is done in pieces, in the time that frames have left."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator

from cml_engine.demo_game.accounting import FrameAccount

#: the weight of an earlier longest piece each time, so that one that was long once runs again
_FADING = 0.9
#: a piece begins if this many times the longest one would fit: the next may take longer
_ROOM = 2.0


class Pieces:
    """Repeated work in pieces, each of which runs if the longest of its kind would fit twice.

    ``begin()`` starts the work: it returns an iterator that yields the name of each piece before it
    does the piece. Times of pieces are added to the frame's account under these names.
    """

    def __init__(self, begin: Callable[[], Iterator[str]], account: FrameAccount) -> None:
        self._begin, self._account = begin, account
        self._longest_s: defaultdict[str, float] = defaultdict(float)
        self._pieces: Iterator[str] | None = None
        self._next = ""

    def restart(self) -> None:
        """Drops the pieces that were not done; the work begins anew."""
        self._pieces = None

    def run(self, until: float, *, at_least_one: bool = False) -> None:
        """Does the pieces that fit before ``until``, a time of :func:`time.perf_counter`.

        It begins the work at most once. ``at_least_one`` piece is done whatever time is left.
        """
        if self._pieces is None:
            self._pieces = self._begin()
            self._next = next(self._pieces, "")
        start = time.perf_counter()
        while self._next and (at_least_one or start + _ROOM * self._longest_s[self._next] < until):
            name, self._next = self._next, next(self._pieces, "")
            now = time.perf_counter()
            self._longest_s[name] = max(now - start, _FADING * self._longest_s[name])
            self._account.add(name)
            start, at_least_one = now, False
        if self._next:
            self._longest_s[self._next] *= _FADING
        else:
            self._pieces = None
