"""The margin of a fixed budget: what frames take beyond their prediction is left free."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable

from cml_engine.scheduler.reports import FrameReport

#: the share of the allowed frames over budget that the margin aims at: the quantile is an estimate
_AIMED_SHARE = 0.8
#: the least plan as a share of the budget: a frame over budget with less work is not late because
#: of that work
LEAST_SHARE = 0.125
#: a frame whose prediction is below this share of its plan says nothing about the tail
_TELLING = 0.25
#: a frame smaller than this share of its budget counts as one of this size, because its excess is
#: not expected to grow with the size of the next frame
_SMALL = 0.25
#: frames that must have been seen before their spread is trusted
_ENOUGH = 8
#: recent frames that count, and the divisor of a budget until enough frames are known
WINDOW, PRIOR = 1200, 1.3


class TailMargin:
    """Computes how much to plan so that at most ``share`` of the frames exceed their budget.

    The excess over a prediction grows with the frame if the device is slower for a while, and
    does not if another program takes its cores for a moment. A frame does not show which it was,
    so the excess is scaled by the square root of the frame's size. This settles in both cases: a
    proportional margin would shrink the frames after a disturbance of fixed length, which would
    then be a larger multiple of them.

    Parameters
    ----------
    share : the share of frames that may go over.
    frames : earlier :attr:`frames` to begin with.
    """

    def __init__(
        self, share: float = 0.01, frames: Iterable[tuple[float, float, bool]] = ()
    ) -> None:
        self.share, self._aimed = share, _AIMED_SHARE * share
        self._recent: deque[tuple[float, float, bool]] = deque(maxlen=WINDOW)
        self._sorted: list[float] = []
        for frame in frames:
            self._remember(*frame)

    @property
    def frames(self) -> list[tuple[float, float, bool]]:
        """The recent frames, oldest first: predicted and measured milliseconds, and a flag.

        The flag is True if the frame would have been over its budget with any plan.
        """
        return list(self._recent)

    def aim_ms(self, budget_ms: float) -> float:
        """Returns the milliseconds of slices to plan for a frame, at least 1/8 of the budget.

        This is the root of ``aim + x sqrt(aim) = budget`` for a high quantile ``x`` of the
        excess over the square root of the prediction.
        """
        if len(self._sorted) < _ENOUGH:
            return budget_ms / PRIOR
        half = 0.5 * max(0.0, self._quantile())
        return max((math.sqrt(half * half + budget_ms) - half) ** 2, LEAST_SHARE * budget_ms)

    def _quantile(self) -> float:
        count = len(self._sorted)
        rank = math.ceil((1 - self._aimed) * (count + 1)) - 1
        if rank < count:
            return self._sorted[rank]
        # too few frames to have seen the tail: extrapolate beyond the worst one
        median = self._sorted[count // 2]
        extrapolation = 0.5 * (self._sorted[-1] - median) * (1 - count * self._aimed)
        return self._sorted[-1] + max(0.0, extrapolation)

    def learn_frame(self, report: FrameReport) -> None:
        """Learns from a measured frame, if its budget limited it and its costs were settled.

        A wrong first guess does not mean that the device is noisy, and a frame that was not planned
        says nothing about how well plans are met.
        """
        is_settled = report.planned and all(part.settled for part in report.slices)
        if is_settled and report.predicted_ms > _TELLING * report.aim_ms:
            self.learn(report.predicted_ms, report.measured_ms or 0.0, report.budget_ms)

    def learn(self, predicted_ms: float, measured_ms: float, budget_ms: float) -> None:
        """Learns that a full frame took ``measured_ms`` with a budget of ``budget_ms``.

        Invalid times are ignored.
        """
        if not (predicted_ms > 0 and measured_ms > 0 and math.isfinite(predicted_ms + measured_ms)):
            return
        lift_ms = max(0.0, _SMALL * budget_ms - predicted_ms)
        hopeless = measured_ms - predicted_ms > budget_ms
        self._remember(predicted_ms + lift_ms, measured_ms + lift_ms, hopeless)

    def _remember(self, predicted_ms: float, measured_ms: float, hopeless: bool) -> None:
        if len(self._recent) == self._recent.maxlen:
            del self._sorted[bisect_left(self._sorted, self._excess(*self._recent[0]))]
        self._recent.append((predicted_ms, measured_ms, hopeless))
        insort(self._sorted, self._excess(*self._recent[-1]))

    def _excess(self, predicted_ms: float, measured_ms: float, hopeless: bool) -> float:
        """Returns the measured less the predicted ms, over the square root of the prediction.

        It is 0 for a hitch longer than the budget, which no plan would have met.
        """
        return 0.0 if hopeless else (measured_ms - predicted_ms) / math.sqrt(predicted_ms)
