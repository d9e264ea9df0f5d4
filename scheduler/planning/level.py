"""A running level of a per-frame value that follows lasting changes and ignores single spikes."""

from __future__ import annotations

from collections import deque

#: the number of values in the median, and in a row that raise the level
FRAMES, _SURE = 15, 3


class Level:
    """The median of the last values, or the least of the last three if that is more.

    The level follows lasting changes, upwards at once, and ignores single values.
    """

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=FRAMES)
        self.ms = 0.0

    def follow(self, ms: float) -> None:
        """Adds a value."""
        self._last.append(ms)
        recent = list(self._last)
        self.ms = max(sorted(recent)[len(recent) // 2], min(recent[-_SURE:]))

    @property
    def sure(self) -> bool:
        """True if there were enough values to trust the level."""
        return len(self._last) >= _SURE

    def forget(self) -> None:
        """Weakens the latest values, as if the smallest of them had come again."""
        if self._last:
            self.follow(min(self._last))
