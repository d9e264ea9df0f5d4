"""Learns how much predicted work fits in a frame, from the times of earlier frames.

The idea is the same for every budget: plan the most work for which at most ``over_share`` more
frames miss their target than would miss it without networks. A frame takes::

    elapsed + expected + predicted + excess

``elapsed`` is reported by the host before the networks, ``expected`` is the running median of the
time beside the prediction, ``predicted`` is the plan, and ``excess`` is the rest.
``room = target - elapsed - expected``, and the plan leaves room for a high quantile of the excess
(:class:`TailMargin`). A frame whose excess is larger than the room would have been late with any
plan, so it limits none, unless frames without networks show that the networks are the cause.

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

The last row needs an estimator of its own, :class:`BackOff`: a display hides how long a frame took
within its interval, and a quantile of a hidden value cannot be learned.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from scheduler.clock import check_number, is_ms
from scheduler.executor import WALL_CLOCK, Executor
from scheduler.planning.cost_model import CostModel
from scheduler.planning.margin import LEAST_SHARE, MEDIAN_FRAMES, RunningMedian, TailMargin
from scheduler.reports import FrameReport

#: a frame longer than usual by this factor is late, not just jitter
_LATE = 1.15
#: the factor of the back-off for a late frame, its decay per frame in time, its limit
_GROWTH, _DECAY, _MOST_BACK_OFF = 1.25, 0.99, 16.0
#: weights of a new value: of the host's own frame time, and of an interval
_BELIEVED, _SMOOTHED = 0.25, 0.1
#: while frames are late, two frames in this number run no networks, to see if they are the cause
_SKIP_EVERY = 48
#: limit of an interval, in frames: a loading screen is not a frame
_LONGEST = 60


@dataclass(slots=True)
class BackOff:
    """A divisor of the budget that grows while the host's frames are late.

    While frames take longer than ``frame_ms``, the networks get less, down to a sixteenth. If that
    does not help, the host itself is slow, and its frames are compared with its own usual interval
    from then on. Frames without networks show this at once, so a late frame is sometimes followed
    by two of them (:attr:`skip_due`).
    """

    frame_ms: float
    #: the divisor of the budget, at least 1
    factor: float = 1.0
    #: the interval of a frame that is not late; the target at first
    usual_ms: float = 0.0
    #: when the last frame ended
    ended_ms: float | None = None
    #: the smoothed time from the end of one frame to the end of the next
    interval_ms: float = 0.0
    intervals: int = 0
    #: True if the next frame should run no networks, to see if the host alone is late
    skip_due: bool = False
    #: frames in a row without networks, and frames since the last of them
    without: int = 0
    since_skip: int = _SKIP_EVERY

    def __post_init__(self) -> None:
        self.usual_ms = self.usual_ms or self.frame_ms
        self.interval_ms = self.interval_ms or self.frame_ms

    def frame_ended(self, now_ms: float) -> float | None:
        """Records the end of a frame; returns the milliseconds since the end of the frame before.

        Returns None for the first frame. A very long interval is cut off.
        """
        before, self.ended_ms = self.ended_ms, now_ms
        if before is None:
            return None
        interval = min(now_ms - before, _LONGEST * self.frame_ms)
        self.intervals += 1
        self.interval_ms += max(_SMOOTHED, 1 / self.intervals) * (interval - self.interval_ms)
        return interval

    def judge(self, interval: float, ran: bool) -> bool:
        """Updates :attr:`factor` after a frame of ``interval`` ms; returns True if it was late.

        ``ran`` is True if the frame ran networks. Frames without them show the usual frame time.
        """
        late = interval > _LATE * self.usual_ms
        self.without = 0 if ran else self.without + 1
        self.since_skip += 1
        if self.without == 1:  # the device may have been at the frame before
            self._learn_usual(interval, _BELIEVED)
        elif self.without:
            self._learn_usual(interval, 1.0 if self.without == 2 else _BELIEVED)
            self.skip_due, self.since_skip = False, 0
        elif late and self.factor == _MOST_BACK_OFF:
            self._learn_usual(interval, _BELIEVED)
        elif interval < self.usual_ms:
            self._learn_usual(interval, _SMOOTHED)
        if late and ran and self.since_skip > _SKIP_EVERY:
            self.skip_due = True
        elif late and ran:
            self.factor = min(_MOST_BACK_OFF, self.factor * _GROWTH)
        else:
            self.factor = 1 + (self.factor - 1) * _DECAY ** (interval / self.frame_ms)
        return late

    def _learn_usual(self, interval: float, weight: float) -> None:
        self.usual_ms += weight * (max(interval, self.frame_ms) - self.usual_ms)


#: one frame in this number is timed if timing is expensive and not needed in every frame
_TIMED_EVERY = 8
#: frames after which the networks' own times are no longer awaited
_PATIENCE = 8
#: remembered frames, and remembered frames without networks
_WINDOW, _BASELINE = 2400, 128
#: half of the plan is made at first, and three quarters after this many frames, because rare long
#: frames are not known yet
_DOUBTED = 20
#: a delay of more than this share of the frame's room is expected in the next frame too
_DELAYED = 0.3
#: frames in the median of the elapsed time, and the limits of a frame's ratio to it
_ELAPSED_FRAMES, _QUICKEST, _SLOWEST = 61, 0.9, 3.0
#: the most frames in a row without networks for lack of room, and the same if the elapsed time
#: says that the frame is still on time without them
_SKIPS, _SKIPS_ON_TIME = 2, 12
#: if frames are late whatever runs, one in this number runs no networks, to see if they are the
#: cause; half as often once _BASELINE_KNOWN of them are known
_BASELINE_EVERY, _BASELINE_KNOWN = 48, 32
#: the weight of the last plan in the usual plan
_PLAN_WEIGHT = 0.05


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


@dataclass(slots=True)
class SpareBudget:
    """A budget of the time that the rest of a frame of ``frame_ms`` leaves.

    It stays between ``floor_ms`` and ``ceiling_ms``. ``headroom`` is the share of the frame that
    stays unused because render times do not cover the whole frame; it is ignored if the host
    reports whole frames (:meth:`FrameScheduler.frame_took`).

    Examples
    --------
    >>> cml.SpareBudget(frame_ms=1000 / 60, ceiling_ms=6.0).clamp(9.0)
    6.0
    """

    frame_ms: float
    floor_ms: float = 0.5
    ceiling_ms: float = 12.0
    headroom: float = 0.1

    def __post_init__(self) -> None:
        check_number("frame_ms", self.frame_ms, above=True)
        for name in ("floor_ms", "ceiling_ms", "headroom"):
            check_number(name, getattr(self, name))

    def clamp(self, ms: float) -> float:
        """Returns ``ms`` limited to the range from ``floor_ms`` to ``ceiling_ms``."""
        return min(self.ceiling_ms, max(self.floor_ms, ms))


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
    #: :attr:`FrameController._skips` and ``_since_baseline`` before the frame
    before: tuple[int, int]


class FrameController:
    """Learns from the total times of frames how many milliseconds of networks to plan in a frame.

    It plans the most work for which late frames stay rare. With ``reports_elapsed`` the host
    says how much of a frame has passed before its networks. The excess is then the networks' own
    and grows with them, and a frame that has been slower than usual so far is expected to stay
    slow, because the cause is still there.
    """

    def __init__(self, share: float, *, reports_elapsed: bool) -> None:
        self._share, self._reports_elapsed = share, reports_elapsed
        self._margin = (
            TailMargin(share)
            if reports_elapsed
            else TailMargin(share, window=_WINDOW, aimed=1.0, grows=False)
        )
        self._expected = RunningMedian()
        self._is_delayed = False
        self._last_ms = 0.0
        self._elapsed: deque[float] = deque(maxlen=_ELAPSED_FRAMES)
        self._slow = 1.0
        self._elapsed_ms = self._target_ms = 0.0
        self._frames: deque[_Frame] = deque(maxlen=MEDIAN_FRAMES)
        self._learned = self._silent = self._skips = self._since_baseline = 0
        self._skips_now = False
        #: the plan of the next frame until something changes it
        self._planned: tuple[float, float] | None = None
        #: for each remembered frame whether it had networks and was late beyond their prediction
        self._late: deque[bool] = deque(maxlen=_WINDOW)
        self._late_count = 0
        #: for each remembered frame without networks whether it was late
        self._baseline: deque[bool] = deque(maxlen=_BASELINE)
        #: the planned milliseconds of a usual frame
        self.usual_ms = 0.0

    # --- the plan

    def begin_frame(self, target_ms: float, elapsed_ms: float = 0.0) -> None:
        """Starts a frame that should take ``target_ms``, of which ``elapsed_ms`` have passed."""
        self._target_ms, self._elapsed_ms, self._planned = target_ms, elapsed_ms, None
        if self._reports_elapsed:
            self._elapsed.append(elapsed_ms)
            usual_ms = sorted(self._elapsed)[len(self._elapsed) // 2]
            self._slow = min(_SLOWEST, max(_QUICKEST, elapsed_ms / usual_ms)) if usual_ms else 1.0

    @property
    def is_known(self) -> bool:
        """True if enough recent frame times are known, or the host reports elapsed times."""
        recent = self._expected.is_known and self._silent <= 2 * MEDIAN_FRAMES
        return self._reports_elapsed or recent

    @property
    def expected_ms(self) -> float:
        """The expected ms of the next frame beside the elapsed time and the prediction."""
        return max(0.0, self._last_ms if self._is_delayed else self._expected.value)

    @property
    def _left_ms(self) -> float:
        return self._target_ms - self._elapsed_ms

    @property
    def room_ms(self) -> float:
        """The most predicted milliseconds of networks that fit in the frame, without a margin."""
        return self._plan[0]

    @property
    def aim_ms(self) -> float:
        """The predicted ms of networks to plan for: the room less a margin; 0 without room."""
        return self._plan[1]

    @property
    def _plan(self) -> tuple[float, float]:
        """:attr:`room_ms` and :attr:`aim_ms`, computed once per frame."""
        if self._planned is None:
            room_ms = max(0.0, self._left_ms / self._slow - self.expected_ms)
            self._planned = room_ms, self._less_margin(room_ms)
        return self._planned

    def _less_margin(self, room_ms: float) -> float:
        if not room_ms:
            return 0.0
        certainty = 1 - 0.5 * _DOUBTED / (_DOUBTED + self._learned)
        planned_ms = certainty * self._margin.aim_ms(room_ms)
        allowed, caused = max(1.0, self._share * len(self._late)), self._caused()
        return (
            max(LEAST_SHARE * room_ms, planned_ms * allowed / caused)
            if caused > allowed
            else planned_ms
        )

    def _caused(self) -> float:
        """Returns the number of remembered frames that were late because of the networks.

        These are the late frames beyond what frames without networks and chance explain.
        """
        frames = len(self._baseline)
        if not frames or not self._late_count:
            return 0.0
        share = (sum(self._baseline) + 1) / (frames + 2)
        expected = share * len(self._late)
        spread = math.sqrt(expected * (1 + len(self._late) / frames))
        return max(0.0, self._late_count - expected - 2 * spread)

    @property
    def baseline_due(self) -> bool:
        """True if the next frame should run no networks, to test if they cause late frames."""
        every = _BASELINE_EVERY * (1 + len(self._baseline) / _BASELINE_KNOWN)
        allowed = max(1.0, 0.5 * self._share * len(self._late))
        return self._since_baseline >= every and self._late_count > allowed

    def skips(self, least_ms: float) -> bool:
        """Decides if the frame runs no networks, and returns True if so.

        Either a baseline is due, or less than ``least_ms`` fit in the frame. A frame with
        networks costs some tenths of a millisecond by itself, so very little work is not worth
        it. Only a few frames in a row are skipped for lack of room.
        """
        if self._reports_elapsed:
            max_skips, hopeless = (_SKIPS_ON_TIME if self._left_ms > 0 else _SKIPS), False
        else:
            max_skips, hopeless = _SKIPS, not self.room_ms and not self._is_delayed
        no_room = self._is_delayed or (self.aim_ms < least_ms and not hopeless)
        self._skips_now = no_room and self._skips < max_skips
        return self._skips_now or self.baseline_due

    # --- what was measured

    def encoded(self, number: int, aim_ms: float, predicted_ms: float) -> None:
        """Records that frame ``number`` runs ``predicted_ms`` of the planned ``aim_ms``."""
        skipped, self._skips_now = self._skips_now and not predicted_ms, False
        expected = self.expected_ms if self._expected.is_known else None
        before = self._skips, self._since_baseline
        self._frames.append(
            _Frame(
                number, predicted_ms, self._elapsed_ms, self.room_ms, self._slow, expected,
                skipped, before,
            )
        )  # fmt: skip
        self._skips = self._skips + 1 if skipped else 0
        if predicted_ms:
            self._since_baseline += 1
        elif not skipped:
            self._since_baseline = 0
        self._silent += 1
        self.usual_ms += _PLAN_WEIGHT * (aim_ms - self.usual_ms) if self.usual_ms else aim_ms

    def abandoned(self) -> None:
        """Drops the frame that was encoded last, which never ran."""
        if self._frames:
            self._skips, self._since_baseline = self._frames.pop().before

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
        if not self._reports_elapsed:
            self._learn_late(frame, beyond_ms)
        elif frame.skipped:
            self._expected.forget()
        is_sample = frame.predicted_ms or not (frame.skipped or self._reports_elapsed)
        if is_sample and frame.expected_ms is not None and frame.room_ms:
            unforeseen_ms = frame.predicted_ms + beyond_ms - frame.expected_ms
            self._margin.learn(frame.predicted_ms, max(0.0, unforeseen_ms), frame.room_ms)
            self._learned += 1
        if frame.predicted_ms or not self._reports_elapsed:
            self._expect(beyond_ms)

    def _expect(self, ms: float) -> None:
        self._expected.add(ms)
        usual_ms, self._last_ms = self._expected.value, ms
        room_ms = max(0.0, self._target_ms - usual_ms)
        self._is_delayed = not self._reports_elapsed and ms - usual_ms > _DELAYED * room_ms

    def _learn_late(self, frame: _Frame, beyond_ms: float) -> None:
        late = beyond_ms > self._target_ms
        if not frame.predicted_ms and not frame.skipped:
            self._baseline.append(late)
        if len(self._late) == _WINDOW:
            self._late_count -= self._late[0]
        self._late.append(late and frame.predicted_ms > 0)
        self._late_count += self._late[-1]


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
        self._rendered: deque[_Rendered] = deque(maxlen=MEDIAN_FRAMES)
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
        elif valid_ms is not None:
            self._current = self._last
            self._last.begin_frame(self._frame_ms, valid_ms)
            return
        headroom_share = (
            0.0 if isinstance(budget, FixedBudget) or self._whole_frames else budget.headroom
        )
        self._current = self._beside
        self._beside.begin_frame((1 - headroom_share) * self._frame_ms)

    def rate(self, aim_ms: float) -> float:
        """Returns the planned GPU milliseconds per millisecond of wall time.

        ``aim_ms`` is the next frame's plan.
        """
        planned_ms = (self._current is self._last and self._last.usual_ms) or aim_ms
        return planned_ms / self._frame_ms

    def plan(
        self, budget: FixedBudget | SpareBudget, model: CostModel, back_off: float
    ) -> tuple[float, float]:
        """Returns the milliseconds that the next frame's networks may take, and those to plan for.

        ``back_off`` divides the plan. A budget that is not a number is replaced by the last
        valid one.
        """
        if isinstance(budget, FixedBudget):
            ms = float(budget.ms) if is_ms(budget.ms) else self._budget_ms
            return ms, model.aim_ms(ms) / back_off if budget.aim_ms is None else budget.aim_ms
        current = self._current
        if not current.is_known:
            return budget.floor_ms, model.aim_ms(budget.floor_ms) / back_off
        return budget.clamp(current.room_ms), budget.clamp(current.aim_ms / back_off)

    def times(self, frame: int, budget: FixedBudget | SpareBudget) -> bool:
        """Returns True if slices of known steps should be timed in frame number ``frame``.

        If timing is expensive and the host reports whole frames, only some frames are timed:
        whole frames keep the budget, and timings only follow the costs of the steps.
        """
        knows_frames = self._current is self._last or (self._whole_frames and self._beside.is_known)
        kept_by_frames = isinstance(budget, SpareBudget) and knows_frames
        return not (self._timing_is_expensive and kept_by_frames) or frame % _TIMED_EVERY == 0

    def skips_frame(self, budget: FixedBudget | SpareBudget) -> bool:
        """Returns True if the next frame runs no networks, for lack of room or as a baseline."""
        if self.skips or isinstance(budget, FixedBudget):
            return self.skips
        return self._current.is_known and self._current.skips(budget.floor_ms)

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
        return min(float(ms), _LONGEST * self._frame_ms)

    def measured(self, frame: int, ms: float) -> None:
        """Records the measured milliseconds of the networks of frame number ``frame``."""
        for entry in self._rendered:
            if entry.number == frame:
                entry.networks_ms = ms

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
