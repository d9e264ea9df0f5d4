"""Teaches the measured times of frames to the cost model, and their intervals to a back-off."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from cml_engine.compiler.plan import StepCost, Timing
from cml_engine.scheduler.planning.cost_model import CostModel, FirstGuess
from cml_engine.scheduler.reports import FrameReport, GroupTime

#: a frame longer than usual by this factor is late, not just jitter
_LATE = 1.15
#: the factor of the back-off for a late frame, its decay per frame in time, its limit
_GROWTH, _DECAY, _MOST_BACK_OFF = 1.25, 0.99, 16.0
#: weights of a new value: of the host's own frame time, and of an interval
_BELIEVED, _SMOOTHED = 0.25, 0.1
#: while frames are late, two frames in this number run no networks, to see if they are the cause
_SKIP_EVERY = 48
#: limit of an interval, in frames: a loading screen is not a frame
LONGEST = 60


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
        interval = min(now_ms - before, LONGEST * self.frame_ms)
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


@dataclass(slots=True)
class _InFlight:
    """A frame whose timings have not all arrived: its groups of steps, and the known times."""

    report: FrameReport
    groups: list[list[tuple[StepCost, int]]]
    ms: dict[int, float] = field(default_factory=dict)


class FrameTimings:
    """Collects the timings of frames and teaches them to a cost model.

    With ``wall_clock`` the device sends no timings, and only the intervals between the host's
    frames are known: they adjust :attr:`back_off`.
    """

    def __init__(self, wall_clock: bool, frame_ms: float) -> None:
        self._wall_clock = wall_clock
        self._awaited: deque[_InFlight] = deque()
        self._encoded: _InFlight | None = None
        self.back_off = BackOff(frame_ms)

    def encoded(self, report: FrameReport, groups: list[list[tuple[StepCost, int]]]) -> None:
        """Records that a frame was encoded.

        Each group has the steps, with workgroups, that are timed as one.
        """
        self._encoded = _InFlight(report, groups)

    def abandoned(self) -> None:
        """Drops the frame that was encoded last, which will never run."""
        self._encoded = None

    def ended(
        self, timings: Sequence[Timing], now_ms: float, model: CostModel
    ) -> list[FrameReport]:
        """Records that the host has submitted the frame, and teaches arrived timings to the model.

        Returns the reports of the earlier frames that are now measured, oldest first.
        """
        if self._encoded is not None:
            self._awaited.append(self._encoded)
            self._encoded = None
        interval = self.back_off.frame_ended(now_ms)
        if self._wall_clock:
            groups = self._awaited[-1].groups if self._awaited else []
            if interval is not None and not self.back_off.judge(interval, bool(groups)):
                _confirm_guesses(groups, model)
            self._awaited.clear()
            return []
        newest = -1
        for timing in timings:
            newest = max(newest, timing.frame)
            for entry in self._awaited:
                if entry.report.frame == timing.frame:
                    entry.ms[timing.group] = timing.ms
        return self._learn(newest, model)

    def _learn(self, newest: int, model: CostModel) -> list[FrameReport]:
        """Teaches the frames up to number ``newest`` to the model and returns their reports.

        The timings of these frames have all arrived, or never will. A frame that lacks some is
        dropped.
        """
        done: list[FrameReport] = []
        while self._awaited and (
            self._awaited[0].report.frame <= newest or not self._awaited[0].groups
        ):
            entry = self._awaited.popleft()
            if entry.groups and len(entry.ms) == len(entry.groups):
                done.append(_learn_frame(entry, model))
        return done


class CopyCosts:
    """Predicts the GPU time of copies into textures, which the next frame's budget must pay for.

    Their costs are learned apart from the networks' costs, because a host requests a copy at any
    time and no plan depends on it.
    """

    def __init__(self, guess: FirstGuess) -> None:
        self.pending_ms = 0.0
        self._model = CostModel(guess=guess)

    def add(self, cost: StepCost) -> None:
        """Adds a copy's predicted time to :attr:`pending_ms`."""
        self.pending_ms += self._model.predict_ms(cost, cost.groups)

    def take(self) -> float:
        """Returns the pending milliseconds and resets them to 0.

        They are subtracted from the next frame's budget.
        """
        copy_ms, self.pending_ms = self.pending_ms, 0.0
        return copy_ms

    def learn(self, measured: Iterable[tuple[StepCost, float]]) -> None:
        """Learns from copies and their measured milliseconds."""
        for cost, ms in measured:
            self._model.learn([(cost, cost.groups)], ms)


def _confirm_guesses(groups: Sequence[Sequence[tuple[StepCost, int]]], model: CostModel) -> None:
    """Teaches the model its own predictions for unmeasured steps of a frame that was in time.

    Without timestamps nothing is measured, so steps would otherwise be probed with small slices in
    every run.
    """
    for step, count in (part for parts in groups for part in parts):
        if not model.is_measured(step):
            model.learn([(step, count)], model.predict_ms(step, count))


def _learn_frame(entry: _InFlight, model: CostModel) -> FrameReport:
    report = entry.report
    report.measured_ms = sum(entry.ms.values())
    first = 0
    for index, parts in enumerate(entry.groups):
        ms = entry.ms[index]
        model.learn(parts, ms)
        report.group_times.append(GroupTime(first, len(parts), ms))
        if len(parts) == 1:
            report.slices[first].measured_ms = ms
        first += len(parts)
    return report
