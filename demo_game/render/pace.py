"""Adapts the work of a picture so that frames keep their time, without oscillating.

A picture is drawn at one of several efforts: resolution, mesh, distance of plants. Only the time
at the present effort is known. The effort falls as soon as enough frames were too long, and rises
only when there has been room for the next one for a while. An effort that had to be left soon
after is tried again after twice the time.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

#: frames whose times decide, and the percentile of their times that is compared with the target
_FRAMES, _SHARE = 24, 0.8
#: frames with room before a higher effort is tried, and the longest such wait
_PATIENCE, _MOST_PATIENCE = 90, 1440
#: an effort that is left within so many frames was a mistake
_SOON = 180
#: share of the target that the next effort's estimated time must stay below before it is tried
_ROOM = 0.9


@dataclass(frozen=True, slots=True)
class Effort:
    """One step of drawing effort.

    ``scale`` of the target's sides is drawn. ``fine`` selects the fine mesh of tiles. ``plants``
    is the share of the preset's distance to which plants are drawn.
    """

    scale: float
    fine: bool = True
    plants: float = 1.0

    @property
    def pixels(self) -> float:
        """The share of the target's pixels that are drawn."""
        return self.scale * self.scale


#: from the most work to the least
EFFORTS = (
    Effort(1.0),
    Effort(0.85),
    Effort(0.72),
    Effort(0.61, False, 0.8),
    Effort(0.52, False, 0.7),
    Effort(0.44, False, 0.6),
    Effort(0.36, False, 0.4),
)


class DrawingPace:
    """Chooses the effort of pictures so that a frame without networks takes at most ``most_ms``.

    ``first`` is the index of the first effort in :data:`EFFORTS`.
    """

    def __init__(self, most_ms: float, first: int = 0) -> None:
        self.most_ms = most_ms
        self._at = first
        self._times: deque[float] = deque(maxlen=_FRAMES)
        self._since = self._room = 0
        self._patience = _PATIENCE
        self._climbed = False

    @property
    def effort(self) -> Effort:
        """The effort of the next picture."""
        return EFFORTS[self._at]

    def add_time(self, ms: float) -> None:
        """Records a frame's time without networks, and changes the effort if needed."""
        if not (math.isfinite(ms) and ms > 0):
            return
        self._times.append(ms)
        self._since += 1
        if len(self._times) < _FRAMES:
            return
        typical_ms = sorted(self._times)[int(_SHARE * _FRAMES)]
        if typical_ms > self.most_ms:
            self._down()
        elif typical_ms * self._next_cost_ratio() < _ROOM * self.most_ms:
            self._room += 1
            if self._room >= self._patience:
                self._up()
        else:
            self._room = 0

    def _next_cost_ratio(self) -> float:
        """Returns an upper bound of the next higher effort's time, relative to the present one's.

        Infinite if there is no higher effort.
        """
        if self._at == 0:
            return math.inf
        return EFFORTS[self._at - 1].pixels / self.effort.pixels

    def _down(self) -> None:
        if self._at == len(EFFORTS) - 1:
            return
        if self._climbed:
            soon = self._since < _SOON
            self._patience = min(2 * self._patience, _MOST_PATIENCE) if soon else _PATIENCE
        self._at += 1
        self._begin(climbed=False)

    def _up(self) -> None:
        self._at -= 1
        self._begin(climbed=True)

    def _begin(self, climbed: bool) -> None:
        self._climbed = climbed
        self._times.clear()
        self._since = self._room = 0
