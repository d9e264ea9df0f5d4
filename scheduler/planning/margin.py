"""How much of a budget may be planned for, so that few frames exceed it."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque

#: the part of the allowed frames over budget that the margin aims at
_AIMED_SHARE = 0.8
#: a plan below this share of the budget would not help: where that goes over, it is not by its
#: own work
_LEAST = 0.125
#: a frame below this share of its budget is taken for one of that size: what it took beyond its
#: prediction is not expected to grow with the next one's size
_SMALL = 0.25
#: frames that must have been seen before their spread is believed
_ENOUGH = 8


class TailMargin:
    """Plans so many milliseconds that at most ``share`` of the frames exceed their budget.

    What a frame takes beyond its prediction grows with the frame where the device runs slower for
    a while, and does not where something else takes its cores for a moment. Which of the two it
    was cannot be seen from a frame, so the excess is scaled by the square root of the frame's
    size. Where frames are of the size that is planned, both views agree with that; and in either
    case the plan settles: a margin in proportion alone shrinks the frames for a disturbance of
    fixed length, which then is a larger multiple of them, and so on.

    Parameters
    ----------
    share : the part of frames that may go over.
    window : so many recent frames count.
    prior : what a budget is divided by until there are enough frames to know better.
    """

    def __init__(self, share: float = 0.01, window: int = 1200, prior: float = 1.3) -> None:
        self.share = share
        self._prior = prior
        self._recent: deque[tuple[float, float, bool]] = deque(maxlen=window)
        self._sorted: list[float] = []

    @property
    def frames(self) -> list[tuple[float, float, bool]]:
        """The recent frames' (predicted, measured) milliseconds, oldest first, and whether a frame
        would have been over its budget whatever was planned."""
        return list(self._recent)

    def aim_ms(self, budget_ms: float) -> float:
        """The predicted milliseconds to plan for: the root of ``aim + x sqrt(aim) = budget`` for
        a high quantile ``x`` of the excess over the square root of the prediction; at least an
        eighth of the budget."""
        if len(self._sorted) < _ENOUGH:
            return budget_ms / self._prior
        half = 0.5 * max(0.0, self._quantile())
        aim = float((math.sqrt(half * half + budget_ms) - half) ** 2)
        return max(aim, _LEAST * budget_ms)

    def _quantile(self) -> float:
        count = len(self._sorted)
        # aim at a little less than the allowed share: the quantile is itself an estimate
        aimed = _AIMED_SHARE * self.share
        rank = math.ceil((1 - aimed) * (count + 1)) - 1
        if rank < count:
            return self._sorted[rank]
        # too few frames to have seen the tail: reach beyond the worst one, by its own distance
        median = self._sorted[count // 2]
        reach = 0.5 * (self._sorted[-1] - median) * (1 - count * aimed)
        return self._sorted[-1] + max(0.0, reach)

    def learn(self, predicted_ms: float, measured_ms: float, budget_ms: float) -> None:
        """A full frame took ``measured_ms``, where ``budget_ms`` were allowed."""
        lifted = max(0.0, _SMALL * budget_ms - predicted_ms)
        hopeless = measured_ms - predicted_ms > budget_ms
        self.remember(predicted_ms + lifted, measured_ms + lifted, hopeless)

    def remember(self, predicted_ms: float, measured_ms: float, hopeless: bool = False) -> None:
        """A frame of :attr:`frames`."""
        if len(self._recent) == self._recent.maxlen:
            del self._sorted[bisect_left(self._sorted, _excess(*self._recent[0]))]
        self._recent.append((predicted_ms, measured_ms, hopeless))
        insort(self._sorted, _excess(*self._recent[-1]))


def _excess(predicted_ms: float, measured_ms: float, hopeless: bool) -> float:
    """A hitch longer than the budget itself, which no plan would have met, limits none."""
    if hopeless:
        return 0.0
    return (measured_ms - predicted_ms) / math.sqrt(predicted_ms)
