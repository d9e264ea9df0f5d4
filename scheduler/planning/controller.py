"""Learns how much predicted work fits in a frame, from the times of earlier frames.

The objective is the same for every budget that the host's frames bound: the most work for the
frames that it makes late. A frame takes::

    elapsed + expected + predicted + excess

``elapsed`` is reported by the host before the networks, ``expected`` is the running median of the
time beside the prediction (the cost of having networks in a frame at all), ``predicted`` is the
plan, and ``excess`` is the rest. With ``room = target - elapsed - expected``, a plan makes the
frame late if ``excess > room - predicted``; how often that happens is known from the last frames.
An excess grows with the square root of ``expected + predicted``, as that of a fixed budget. Each
frame gets the plan with the largest ``predicted - price * late``. The ``price`` is the work that a
late frame must be worth: it rises with the risk of each plan and with each frame that is late
because of the networks, and falls in all others, so that the share of late frames settles at the
host's ``over_share``. A frame in which no plan is worth its price runs no networks; that makes
fewer, fuller frames where having networks is expensive. Work that must be done in any case
(``least_ms``) does not ask for the price.

Only the signal differs:

==========================  ==============  ========  ==========  ==============================
budget                      target          elapsed   expected    time of a frame
==========================  ==============  ========  ==========  ==============================
fixed                       ``budget_ms``   0         0           GPU time of its slices
spare, ``render_took``      less headroom   0         learned     render time + that of its slices
spare, ``frame_took``       ``frame_ms``    0         learned     the whole frame
spare, ``elapsed_ms``       ``frame_ms``    reported  learned     the whole frame
wall clock, any of these    as above        as above  as above    on time or late, nothing more
==========================  ==============  ========  ==========  ==============================

A fixed budget needs no price: its plan is the largest that is kept in all but ``over_share`` of the
frames (:class:`TailMargin`). The last row needs an estimator of its own, ``BackOff``: a display
hides how long a frame took within its interval, and a distribution of a hidden value
cannot be learned.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from cml_engine.scheduler.clock import check_number, is_ms
from cml_engine.scheduler.executor import WALL_CLOCK, Executor
from cml_engine.scheduler.frame_timings import LONGEST
from cml_engine.scheduler.reports import FrameReport

#: one frame in this number is timed if timing is expensive and the costs are settled
_TIMED_EVERY = 16
#: frames after which the networks' own times are no longer awaited
_PATIENCE = 8
#: remembered frames, and remembered frames without networks
_WINDOW, _BASELINE = 1200, 128
#: plans that are compared for a frame: equal parts of its room, and the least share of the target
#: that is worth a frame's submit
_PLANS, _LEAST_PLAN = 32, 1 / 32
#: the least factor on an excess
_LEAST_SIZE = math.sqrt(_LEAST_PLAN)
#: until frames are known, an excess is assumed to be longer than this share of the target in one
#: frame of e; the assumption counts as so many frames
_ASSUMED_EXCESS, _ASSUMED_FRAMES = 0.1, 2.0
#: the logarithm of a late frame's price in targets of work, at first, and its limits; the first
#: price is high because nothing is known of the longest excesses
_LOG_PRICE, _LEAST_LOG_PRICE, _MOST_LOG_PRICE = math.log(8.0), math.log(0.05), math.log(100.0)
#: at first the price falls faster by this factor; once so many excesses are known, at its own pace
_HASTE, _HASTY_FRAMES = 3.0, 100
#: where the elapsed time is reported, the price follows half the risk that each frame takes, which
#: is steady, and half what comes of it, which corrects it; the risk is a little underestimated, so
#: the price settles at this part of the share
_RISK_WEIGHT, _AIMED_PART = 0.5, 0.85
#: a frame whose prediction is below this share of its plan or room says nothing about the excess
_TELLING = 0.25
#: a delay of more than this share of the frame's room is expected in the next frame too
_DELAYED = 0.3
#: frames in the median of the elapsed time, and the limits of a frame's ratio to it
_ELAPSED_FRAMES, _QUICKEST, _SLOWEST = 61, 0.9, 3.0
#: if frames are late whatever runs, one in this number runs no networks, to see if they are the
#: cause; half as often once _BASELINE_KNOWN of them are known
_BASELINE_EVERY, _BASELINE_KNOWN = 48, 32
#: the weight of the last plan in the usual plan, and of the last frame in shares of frames
_PLAN_WEIGHT = 0.05
#: milliseconds over which guaranteed work is averaged, and in which it may come last
_AVERAGED_MS, _OVERDUE_MS = 1000.0, 250.0
#: the share of frames late for guaranteed work from which a sentence says so
_TOLD = 0.01
#: the share of the allowed frames over budget that the margin aims at: the quantile is an estimate
_AIMED_SHARE = 0.8
#: the least plan as a share of the budget: a frame over budget with less work is not late because
#: of that work
_LEAST_SHARE = 0.125
#: a frame smaller than this share of its budget counts as one of this size, because its excess is
#: not expected to grow with the size of the next frame
_SMALL = 0.25
#: frames that must have been seen before their spread is trusted
_ENOUGH = 8
#: the divisor of a budget until enough frames are known
_PRIOR = 1.3


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
        self._recent: deque[tuple[float, float, bool]] = deque(maxlen=_WINDOW)
        self._excesses = _Recent(_WINDOW)
        for frame in frames:
            self._remember(*frame)

    @property
    def frames(self) -> list[tuple[float, float, bool]]:
        """The recent frames, oldest first: (predicted ms, measured ms, hopeless).

        ``hopeless`` is True if the frame would have been over its budget with every plan.
        """
        return list(self._recent)

    def aim_ms(self, budget_ms: float) -> float:
        """Returns the milliseconds of slices to plan for a frame, at least 1/8 of the budget.

        This is the root of ``aim + x sqrt(aim) = budget`` for a high quantile ``x`` of the
        excess over the square root of the prediction.
        """
        if len(self._recent) < _ENOUGH:
            return budget_ms / _PRIOR
        half = 0.5 * max(0.0, self._quantile())
        return max((math.sqrt(half * half + budget_ms) - half) ** 2, _LEAST_SHARE * budget_ms)

    def _quantile(self) -> float:
        excesses = self._excesses.ascending
        count = len(excesses)
        rank = math.ceil((1 - self._aimed) * (count + 1)) - 1
        if rank < count:
            return excesses[rank]
        # too few frames to have seen the tail: extrapolate beyond the worst one
        extrapolation = 0.5 * (excesses[-1] - self._excesses.median) * (1 - count * self._aimed)
        return excesses[-1] + max(0.0, extrapolation)

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
        self._recent.append((predicted_ms, measured_ms, hopeless))
        self._excesses.add(self._excess(predicted_ms, measured_ms, hopeless))

    def _excess(self, predicted_ms: float, measured_ms: float, hopeless: bool) -> float:
        """Returns the measured less the predicted ms, over the square root of the prediction.

        It is 0 for a hitch longer than the budget, which no plan would have met.
        """
        return 0.0 if hopeless else (measured_ms - predicted_ms) / math.sqrt(predicted_ms)


@dataclass(slots=True)
class FixedBudget:
    """A budget of the same ``ms`` in every frame.

    ``aim_ms`` is the predicted time to plan for; if None, it is ``ms`` less a learned margin.

    Examples
    --------
    >>> cml.FixedBudget(4.0).ms
    4.0
    """

    ms: float
    aim_ms: float | None = None

    def __post_init__(self) -> None:
        check_number("ms", self.ms)
        if self.aim_ms is not None:
            check_number("aim_ms", self.aim_ms)


@dataclass(slots=True)
class SpareBudget:
    """A budget of the time that the rest of a frame of ``frame_ms`` leaves.

    ``least_ms`` is the guaranteed work: the average of a frame over a second, which the networks
    get even if frames are late for it. No frame gets more than ``ceiling_ms``. ``headroom`` is the
    share of the frame that stays unused because render times do not cover the whole frame; it is
    ignored if the host reports whole frames (:meth:`FrameScheduler.frame_took`).

    Examples
    --------
    >>> cml.SpareBudget(frame_ms=1000 / 60, ceiling_ms=6.0).least_ms
    0.5
    """

    frame_ms: float
    least_ms: float = 0.5
    ceiling_ms: float = 12.0
    headroom: float = 0.1

    def __post_init__(self) -> None:
        check_number("frame_ms", self.frame_ms, above=True)
        for name in ("least_ms", "ceiling_ms", "headroom"):
            check_number(name, getattr(self, name))


#: the number of values in a running median, and in a row that raise it
_MEDIAN_FRAMES, _RAISING = 15, 3


class _RunningMedian:
    """The median of the last values, or the least of the last three if that is more.

    It follows lasting changes, upwards at once, and ignores single values.
    """

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=_MEDIAN_FRAMES)
        self.value = 0.0

    def add(self, value: float) -> None:
        """Adds a value and updates :attr:`value`."""
        self._last.append(value)
        recent = list(self._last)
        self.value = max(sorted(recent)[len(recent) // 2], min(recent[-_RAISING:]))

    @property
    def is_known(self) -> bool:
        """True if there were at least three values."""
        return len(self._last) >= _RAISING

    def forget(self) -> None:
        """Adds the smallest remembered value again, which lowers a median that may be old."""
        if self._last:
            self.add(min(self._last))


class _Recent:
    """The last ``size`` times, kept in order of size too."""

    def __init__(self, size: int) -> None:
        self._recent: deque[float] = deque(maxlen=size)
        #: the times in ascending order
        self.ascending: list[float] = []

    def add(self, ms: float) -> None:
        if len(self._recent) == self._recent.maxlen:
            del self.ascending[bisect_left(self.ascending, self._recent[0])]
        self._recent.append(ms)
        insort(self.ascending, ms)

    @property
    def median(self) -> float:
        """The upper median; 0 without any times."""
        return self.ascending[len(self.ascending) // 2] if self.ascending else 0.0


@dataclass(slots=True)
class _Frame:
    """The values with which a frame was planned, kept until the frame's total time is known."""

    number: int
    predicted_ms: float
    elapsed_ms: float
    room_ms: float
    slow: float
    #: the expected time; None if it was not known yet
    expected_ms: float | None
    #: True if it runs nothing for lack of room; it is then no sample of frames without networks
    skipped: bool
    #: True if it runs guaranteed work
    forced: bool
    #: the probability that it is late, before it ran; 0 if it runs no networks, or the host does
    #: not report the elapsed time
    risk: float
    #: the controller's state before the frame: the owed work, and frames since the last baseline
    before: tuple[float, int]


class FrameController:
    """Learns from the total times of frames how many milliseconds of networks to plan in a frame.

    It plans the most work for the frames that it makes late; the head of this module has the
    rule. With ``reports_elapsed`` the host says how much of a frame has passed before its
    networks. A frame that has been slower than usual so far is expected to stay slow, because the
    cause is still there.
    """

    def __init__(self, share: float, *, reports_elapsed: bool) -> None:
        self._share, self._reports_elapsed = share, reports_elapsed
        self._excess = _Recent(_WINDOW)
        self._log_price = _LOG_PRICE
        self._expected = _RunningMedian()
        #: the expected ms of the next frame beside the elapsed time and the prediction
        self.expected_ms = 0.0
        self._is_delayed = False
        self._last_ms = 0.0
        self._elapsed = _Recent(_ELAPSED_FRAMES)
        self._slow = 1.0
        self._elapsed_ms = self._target_ms = self._least_ms = 0.0
        self._frames: deque[_Frame] = deque(maxlen=_MEDIAN_FRAMES)
        self._silent = self._since_baseline = 0
        #: guaranteed work that was not done yet
        self._owed_ms = 0.0
        #: the plan of the next frame until something changes it
        self._planned: _FramePlan | None = None
        #: for each remembered frame with networks whether it was late beyond their prediction
        self._late: deque[bool] = deque(maxlen=_WINDOW)
        self._late_count = 0
        #: for each remembered frame without networks whether it was late
        self._baseline: deque[bool] = deque(maxlen=_BASELINE)
        #: the planned milliseconds of a usual frame
        self.usual_ms = 0.0
        #: the share of the last frames that were late for guaranteed work
        self.forced_late_share = 0.0

    # --- the plan

    def begin_frame(self, target_ms: float, elapsed_ms: float = 0.0, least_ms: float = 0.0) -> None:
        """Starts a frame that should take ``target_ms``, of which ``elapsed_ms`` have passed.

        ``least_ms`` is the guaranteed work, an average over the frames of a second.
        """
        self._target_ms, self._elapsed_ms, self._planned = target_ms, elapsed_ms, None
        self._least_ms = least_ms
        if self._reports_elapsed:
            self._elapsed.add(elapsed_ms)
            usual_ms = self._elapsed.median
            self._slow = min(_SLOWEST, max(_QUICKEST, elapsed_ms / usual_ms)) if usual_ms else 1.0

    @property
    def usual_elapsed_ms(self) -> float:
        """The median of the elapsed times that the host reported; 0 without any."""
        return self._elapsed.median

    @property
    def is_known(self) -> bool:
        """True if enough recent frame times are known, or the host reports elapsed times."""
        return self._reports_elapsed or (
            self._expected.is_known and self._silent <= 2 * _MEDIAN_FRAMES
        )

    @property
    def room_ms(self) -> float:
        """The most predicted milliseconds of networks that fit in the frame if nothing exceeds."""
        return self.plan.room_ms

    @property
    def aim_ms(self) -> float:
        """The predicted ms of networks to plan for; 0 if none are worth a late frame."""
        return self.plan.aim_ms

    @property
    def plan(self) -> _FramePlan:
        """The plan of the next frame, computed once until something changes it."""
        if self._planned is None:
            left_ms = (self._target_ms - self._elapsed_ms) / self._slow
            room_ms = left_ms - self.expected_ms
            owed_ms, room_ms = self._guaranteed_ms(room_ms), max(0.0, room_ms)
            aim_ms = self._best_plan(room_ms)
            self._planned = _FramePlan(room_ms, max(aim_ms, owed_ms), owed_ms > aim_ms)
        return self._planned

    def _best_plan(self, room_ms: float) -> float:
        """Returns the plan with the largest difference of its work and the price of its risk."""
        least_ms = _LEAST_PLAN * self._target_ms
        if room_ms < least_ms or not room_ms or self._is_delayed:
            return 0.0
        price_ms = math.exp(self._log_price) * self._target_ms
        late_anyway = 0.0
        if not self._reports_elapsed:  # the frame may be late whatever runs
            late_anyway = self._share_late(room_ms, 0.0) * (1 - self._share_caused)
        least_risk = self._share_late(room_ms, least_ms) - late_anyway
        best_ms = best_worth_ms = 0.0
        for part in range(_PLANS, 0, -1):
            plan_ms = room_ms * part / _PLANS
            # no smaller plan is worth more than this
            most_ms = plan_ms - price_ms * least_risk
            if plan_ms < least_ms or most_ms <= 0 or most_ms < best_worth_ms:
                break
            worth_ms = plan_ms - price_ms * (self._share_late(room_ms, plan_ms) - late_anyway)
            if worth_ms > 0 and worth_ms >= best_worth_ms:  # of equal ones the smallest
                best_ms, best_worth_ms = plan_ms, worth_ms
        return best_ms

    def _share_late(self, room_ms: float, plan_ms: float) -> float:
        """Returns the probability that a frame with this room and plan is late."""
        excess_ms = (room_ms - plan_ms) / self._size(self.expected_ms + plan_ms)
        excesses = self._excess.ascending
        known = len(excesses)
        longer = known - bisect_right(excesses, excess_ms)
        assumed = 1.0
        if excess_ms > 0:
            assumed = math.exp(-excess_ms / (_ASSUMED_EXCESS * self._target_ms))
        return (longer + _ASSUMED_FRAMES * assumed) / (known + _ASSUMED_FRAMES)

    def _size(self, ms: float) -> float:
        """Returns the factor on the excess of a frame that takes ``ms`` after the elapsed time."""
        share = ms / (self._target_ms or 1.0)
        return math.sqrt(share) if share > _LEAST_PLAN else _LEAST_SIZE

    def _guaranteed_ms(self, room_ms: float) -> float:
        """Returns the owed work that the frame must do, late or not; 0 as long as it can wait.

        A frame that is late anyway does it, up to the end of the interval in which it will be
        shown. If the work is overdue, any frame does as much as gives the most work for its risk.
        """
        if self._owed_ms < self._least_ms or not self._owed_ms:
            return 0.0
        is_late_anyway = self._elapsed_ms > self._target_ms
        is_overdue = self._owed_ms >= self._least_ms * _OVERDUE_MS / self._target_ms
        if not (is_late_anyway or is_overdue):
            return 0.0
        late_room_ms = room_ms + self._target_ms * (not is_late_anyway)
        while late_room_ms < self._least_ms:
            late_room_ms += self._target_ms
        best_ms = min(self._owed_ms, late_room_ms)
        if is_late_anyway or room_ms <= 0:
            return best_ms
        most_per_risk = best_ms / (1.0 + self._share)
        for part in range(1, _PLANS + 1):
            plan_ms = min(self._owed_ms, room_ms * part / _PLANS)
            per_risk = plan_ms / (self._share_late(room_ms, plan_ms) + self._share)
            if per_risk > most_per_risk:
                best_ms, most_per_risk = plan_ms, per_risk
        return best_ms

    @property
    def baseline_due(self) -> bool:
        """True if the next frame should run no networks, to test if they cause late frames."""
        every = _BASELINE_EVERY * (1 + len(self._baseline) / _BASELINE_KNOWN)
        allowed = max(1.0, 0.5 * self._share * len(self._late))
        return self._since_baseline >= every and self._late_count > allowed

    @property
    def skips(self) -> bool:
        """True if the frame runs no networks: none are worth it, or a baseline is due."""
        plan = self.plan
        return not plan.aim_ms or (not plan.forced and self.baseline_due)

    # --- what was measured

    def encoded(self, number: int, aim_ms: float, predicted_ms: float) -> None:
        """Records that frame ``number`` runs ``predicted_ms`` of the planned ``aim_ms``.

        A frame that runs nothing although something was planned has nothing to do.
        """
        plan = self.plan
        skipped = not plan.aim_ms and not predicted_ms
        expected = self.expected_ms if self._expected.is_known else None
        before = self._owed_ms, self._since_baseline
        forced = plan.forced and predicted_ms > 0
        risk = 0.0
        if predicted_ms and self._reports_elapsed:
            risk = self._share_late(plan.room_ms, predicted_ms)
        self._frames.append(
            _Frame(
                number, predicted_ms, self._elapsed_ms, plan.room_ms, self._slow, expected,
                skipped, forced, risk, before,
            )
        )  # fmt: skip
        if predicted_ms or skipped:
            most_ms = self._least_ms * _AVERAGED_MS / self._target_ms
            owed_ms = self._owed_ms + self._least_ms - predicted_ms
            self._owed_ms = max(0.0, min(most_ms, owed_ms))
        else:
            self._owed_ms = 0.0
        if predicted_ms:
            self._since_baseline += 1
        elif not skipped:
            self._since_baseline = 0
        self._silent += 1
        self.usual_ms += _PLAN_WEIGHT * (aim_ms - self.usual_ms) if self.usual_ms else aim_ms

    def abandoned(self) -> None:
        """Drops the frame that was encoded last, which never ran."""
        if self._frames:
            self._owed_ms, self._since_baseline = self._frames.pop().before

    def took(self, ms: float, number: int | None = None) -> None:
        """Learns the total time of frame ``number``, or of the frame that was encoded last.

        Times come in the order of the frames; those of skipped numbers do not come any more.
        """
        while self._frames:
            frame = self._frames.popleft()
            if not self._frames if number is None else frame.number == number:
                self._learn(frame, ms)
                return

    def _learn(self, frame: _Frame, ms: float) -> None:
        self._silent, self._planned = 0, None
        beyond_ms = (ms - frame.elapsed_ms) / frame.slow - frame.predicted_ms
        self._learn_price(frame, ms)
        if self._reports_elapsed and frame.skipped:
            self._expected.forget()
        is_telling = frame.predicted_ms > _TELLING * frame.room_ms or not (
            self._reports_elapsed or frame.skipped
        )
        if is_telling and frame.expected_ms is not None and frame.room_ms:
            size = self._size(frame.expected_ms + frame.predicted_ms)
            self._excess.add((beyond_ms - frame.expected_ms) / size)
        if frame.predicted_ms or not self._reports_elapsed:
            self._expect(max(0.0, beyond_ms))
        self.expected_ms = self._last_ms if self._is_delayed else self._expected.value

    def _expect(self, ms: float) -> None:
        self._expected.add(ms)
        usual_ms, self._last_ms = self._expected.value, ms
        room_ms = max(0.0, self._target_ms - usual_ms)
        self._is_delayed = not self._reports_elapsed and ms - usual_ms > _DELAYED * room_ms

    def _learn_price(self, frame: _Frame, ms: float) -> None:
        """Raises the price of late frames if the networks made this one late, else lowers it."""
        is_late = ms > self._target_ms
        caused = 0.0
        if self._reports_elapsed:
            on_time = frame.elapsed_ms <= self._target_ms
            caused = float(is_late and on_time and frame.predicted_ms > 0)
        else:
            late_anyway = ms - frame.predicted_ms > self._target_ms
            if frame.predicted_ms:
                if len(self._late) == _WINDOW:
                    self._late_count -= self._late[0]
                self._late.append(late_anyway)
                self._late_count += late_anyway
                caused = self._share_caused if late_anyway else float(is_late)
            elif not frame.skipped:
                self._baseline.append(late_anyway)
        self.forced_late_share += _PLAN_WEIGHT * (caused * frame.forced - self.forced_late_share)
        share = self._share
        if self._reports_elapsed:
            caused += _RISK_WEIGHT * (frame.risk - caused)
            share *= _AIMED_PART
        unknown = max(0.0, 1.0 - len(self._excess.ascending) / _HASTY_FRAMES)
        share *= 1.0 + (_HASTE - 1.0) * unknown
        step = (0.0 if frame.forced else caused) - share
        self._log_price = min(_MOST_LOG_PRICE, max(_LEAST_LOG_PRICE, self._log_price + step))

    @property
    def _share_caused(self) -> float:
        """The share of the late frames with networks that frames without them do not explain."""
        if not self._baseline or not self._late_count:
            return 0.0
        with_networks = self._late_count / len(self._late)
        without = (sum(self._baseline) + 1) / (len(self._baseline) + 2)
        return max(0.0, 1.0 - without / with_networks)


@dataclass(slots=True)
class _FramePlan:
    """The room of a frame, the milliseconds to plan for, and True if these are guaranteed."""

    room_ms: float
    aim_ms: float
    forced: bool


@dataclass(slots=True)
class _Rendered:
    """A frame for which the render time and the networks' time are still collected."""

    number: int
    predicted_ms: float
    #: True if the time of its networks will be known
    timed: bool
    render_ms: float | None = None
    networks_ms: float | None = None


class BudgetController:
    """Turns a budget into the milliseconds to plan for, by the times that the host reports.

    It has one :class:`FrameController` for frames with a reported elapsed time, and one for all
    others.
    """

    def __init__(self, frame_ms: float, share: float, executor: Executor) -> None:
        self._last = FrameController(share, reports_elapsed=True)
        self._beside = FrameController(share, reports_elapsed=False)
        #: the part of a fixed budget that a plan leaves free
        self.margin = TailMargin(share)
        self._rendered: deque[_Rendered] = deque(maxlen=_MEDIAN_FRAMES)
        #: True if the host reports whole frames, not only render times
        self._whole_frames = False
        #: the number of invalid times that were ignored
        self.ignored = 0
        #: True if the next frame runs no networks (set by a replay)
        self.skips = False
        self._frame_ms = frame_ms
        self._timing_is_expensive = (
            executor.timing_is_expensive and executor.clock_source != WALL_CLOCK
        )
        self._budget_ms = 0.0
        #: the controller of the current frame
        self._current = self._beside

    def begin_frame(self, budget: FixedBudget | SpareBudget, elapsed_ms: float | None) -> None:
        """Starts a frame; ``elapsed_ms`` of it have passed, or None if the host does not say."""
        valid_ms = None if elapsed_ms is None else self._valid(elapsed_ms)
        if isinstance(budget, FixedBudget):
            if is_ms(budget.ms):
                self._budget_ms = float(budget.ms)
            else:
                self.ignored += 1
            headroom = least_ms = 0.0
        elif valid_ms is not None:
            self._current = self._last
            self._last.begin_frame(self._frame_ms, valid_ms, budget.least_ms)
            return
        else:
            headroom = 0.0 if self._whole_frames else budget.headroom
            least_ms = budget.least_ms
        self._current = self._beside
        self._beside.begin_frame((1 - headroom) * self._frame_ms, least_ms=least_ms)

    def rate(self, aim_ms: float) -> float:
        """Returns the planned GPU milliseconds per millisecond of wall time.

        ``aim_ms`` is the next frame's plan.
        """
        planned_ms = (self._current is self._last and self._last.usual_ms) or aim_ms
        return planned_ms / self._frame_ms

    def plan(self, budget: FixedBudget | SpareBudget, back_off: float) -> tuple[float, float]:
        """Returns the milliseconds that the next frame's networks may take, and those to plan for.

        ``back_off`` divides the plan. A budget that is not a number is replaced by the last
        valid one.
        """
        if isinstance(budget, FixedBudget):
            ms = float(budget.ms) if is_ms(budget.ms) else self._budget_ms
            return ms, self.margin.aim_ms(ms) / back_off if budget.aim_ms is None else budget.aim_ms
        current = self._current
        if not current.is_known:
            return budget.least_ms, self.margin.aim_ms(budget.least_ms) / back_off
        plan = current.plan
        allowed_ms = max(plan.room_ms, plan.aim_ms)
        return min(budget.ceiling_ms, allowed_ms), min(budget.ceiling_ms, plan.aim_ms / back_off)

    def times(self, frame: int) -> bool:
        """Returns True if slices of settled costs should be timed in frame number ``frame``.

        If timing is expensive, only some frames are timed, which is enough to follow the costs.
        """
        return not self._timing_is_expensive or frame % _TIMED_EVERY == 0

    def skips_frame(self, budget: FixedBudget | SpareBudget) -> bool:
        """Returns True if the next frame runs no networks, for lack of room or as a baseline."""
        if self.skips or isinstance(budget, FixedBudget):
            return self.skips
        return self._current.is_known and self._current.skips

    def describe(self, budget: FixedBudget | SpareBudget) -> str:
        """Returns a sentence about a spare budget: what it lacks, or what it costs; "" for none."""
        if isinstance(budget, FixedBudget):
            return ""
        if not self._current.is_known:
            return (
                "the time that the frame leaves is not known: call render_took() or frame_took() "
                f"in each frame; until then the networks get {budget.least_ms:.1f} ms"
            )
        late_share = self._current.forced_late_share
        if late_share < _TOLD:
            return ""
        elapsed_ms = self._current.usual_elapsed_ms or self._current.expected_ms
        return (
            f"the picture alone takes {elapsed_ms:.1f} of {self._frame_ms:.1f} ms: the networks "
            f"get their guaranteed {budget.least_ms:.1f} ms per frame, "
            f"{100 * late_share:.0f} % more frames are late for it"
        )

    def encoded(self, report: FrameReport, aim_ms: float) -> None:
        """Records an encoded frame; ``aim_ms`` is the time that was to be planned in it."""
        self._current.encoded(report.frame, aim_ms, report.predicted_ms)
        if self._current is self._beside:
            timed = report.timed and report.predicted_ms > 0
            self._rendered.append(_Rendered(report.frame, report.predicted_ms, timed))

    def abandoned(self) -> None:
        """Drops the frame that was encoded last, which never ran."""
        self._current.abandoned()
        if self._current is self._beside and self._rendered:
            self._rendered.pop()

    def render_took(self, ms: float) -> None:
        """Records a time from :meth:`FrameScheduler.render_took`.

        It belongs to the oldest frame without a render time.
        """
        valid_ms = self._valid(ms)
        frame = next((f for f in self._rendered if f.render_ms is None), None)
        if valid_ms is not None and frame is not None:
            frame.render_ms = valid_ms

    def frame_took(self, ms: float) -> None:
        """Learns a time from :meth:`FrameScheduler.frame_took`, of the frame encoded last."""
        valid_ms = self._valid(ms)
        if valid_ms is not None:
            self._whole_frames = self._whole_frames or self._current is self._beside
            self._current.took(valid_ms)

    def _valid(self, ms: float) -> float | None:
        if not is_ms(ms):
            self.ignored += 1
            return None
        return min(float(ms), LONGEST * self._frame_ms)

    def measured(self, report: FrameReport) -> None:
        """Learns from the measured milliseconds of the networks of a frame."""
        self.margin.learn_frame(report)
        for entry in self._rendered:
            if entry.number == report.frame:
                entry.networks_ms = report.measured_ms or 0.0

    def learn(self) -> None:
        """Learns from the frames whose render time and networks' time are both known.

        A networks' time that does not arrive for too long is replaced by its prediction.
        """
        while self._rendered and not self._whole_frames:
            first = self._rendered[0]
            networks_took_ms = first.networks_ms
            waits = first.timed and networks_took_ms is None and len(self._rendered) <= _PATIENCE
            if first.render_ms is None or waits:
                return
            self._rendered.popleft()
            networks_took_ms = first.predicted_ms if networks_took_ms is None else networks_took_ms
            self._beside.took(first.render_ms + networks_took_ms, first.number)
