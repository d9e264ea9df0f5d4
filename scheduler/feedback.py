"""Feeds the measured times of frames back into the cost model."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from scheduler.executor import Slice, StepCost, Timing
from scheduler.planning.cost_model import CostModel
from scheduler.reports import FrameReport, SliceReport

#: a slice of a frame, the cost of its step, and its predicted milliseconds
Chosen = tuple[Slice, StepCost, float]
#: a frame whose prediction is below this share of the budget says nothing about the tail
_TELLING = 0.25
#: measurements after which a step is known; frames with others say nothing about the tail either
_KNOWN = 6
#: if all steps are known, one frame in this number has its slices timed one by one, because each
#: timing makes the device wait for the work before it (50 µs on a software driver)
_APART_EVERY = 16
#: a frame longer than usual by this factor is late, not just jitter
_LATE = 1.15
#: the factor of the back-off for a late frame, its decay per frame in time, its limit
_GROWTH, _DECAY, _MOST_BACK_OFF = 1.25, 0.99, 16.0
#: weights of a new value: of the host's own frame time, and of an interval
_BELIEVED, _SMOOTHED = 0.25, 0.1
#: while frames are late, two frames in this number run no networks, to see if they are the cause
_REST_EVERY = 48
#: limit of an interval, in frames: a loading screen is not a frame
_LONGEST = 60


@dataclass(slots=True)
class _InFlight:
    """A frame whose timings have not arrived, with the parts of each timed group."""

    report: FrameReport
    groups: list[list[tuple[StepCost, int]]]
    ms: dict[int, float] = field(default_factory=dict)


class Feedback:
    """Waits for the timings of frames and teaches them to a cost model.

    With ``wall_clock`` the device sends no timings, and only the intervals between the host's
    frames are known. While frames take longer than ``frame_ms``, the networks get less, down to
    a sixteenth. If that does not help, the host itself is slow, and its frames are compared with
    its own usual interval from then on. Frames without networks show this at once, so a late
    frame is sometimes followed by two of them (:attr:`rest_due`).
    """

    def __init__(self, wall_clock: bool, frame_ms: float) -> None:
        self._wall_clock, self._frame_ms = wall_clock, frame_ms
        self._awaited: deque[_InFlight] = deque()
        self._encoded: _InFlight | None = None
        self._ended_ms: float | None = None
        self._usual_ms = frame_ms
        #: the smoothed time from the end of one frame to the end of the next
        self.interval_ms = frame_ms
        self._intervals = 0
        #: True if the next frame should run no networks, to see if the host alone is late
        self.rest_due = False
        self._without = 0
        self._since_rest = _REST_EVERY
        #: the divisor of the budget while frames are late and nothing is measured; at least 1
        self.back_off = 1.0

    def state(self) -> dict[str, float | None]:
        """Returns what was learned from the host's frames, for :meth:`resume`."""
        return {
            "back_off": self.back_off,
            "usual": self._usual_ms,
            "ended": self._ended_ms,
            "interval": self.interval_ms,
            "intervals": self._intervals,
            "without": self._without,
            "since_rest": self._since_rest,
            "rest_due": self.rest_due,
        }

    def resume(self, state: Mapping[str, Any]) -> None:
        """Restores a :meth:`state`, without the frames whose timings have not arrived."""
        self.back_off, self._usual_ms = state["back_off"], state["usual"]
        self._ended_ms = state["ended"]
        self.interval_ms, self._intervals = state["interval"], state["intervals"]
        self._without, self._since_rest = state["without"], state["since_rest"]
        self.rest_due = state["rest_due"]
        self._awaited.clear()
        self._encoded = None

    def encoded(self, report: FrameReport, groups: list[list[tuple[StepCost, int]]]) -> None:
        """Notes that a frame with these timed groups was encoded."""
        self._encoded = _InFlight(report, groups)

    def abandoned(self) -> None:
        """Drops the frame that was encoded last, which will never run."""
        self._encoded = None

    def ended(
        self, timings: Sequence[Timing], now_ms: float, model: CostModel
    ) -> list[FrameReport]:
        """Notes that the host has submitted the frame, and learns from the timings.

        Returns the reports of the frames that are now measured.
        """
        if self._encoded is not None:
            self._awaited.append(self._encoded)
            self._encoded = None
        self._heed_interval(now_ms, model)
        if self._wall_clock:
            self._awaited.clear()
            return []
        by_frame = {entry.report.frame: entry for entry in self._awaited}
        for timing in timings:
            entry = by_frame.get(timing.frame)
            if entry is not None:
                entry.ms[timing.group] = timing.ms
        return self._learn(max((t.frame for t in timings), default=-1), model)

    def _learn(self, newest: int, model: CostModel) -> list[FrameReport]:
        """Learns from the frames up to ``newest`` and returns their reports.

        The timings of these frames are complete.
        """
        done: list[FrameReport] = []
        while self._awaited and (
            self._awaited[0].report.frame <= newest or not self._awaited[0].groups
        ):
            entry = self._awaited.popleft()
            if entry.groups and len(entry.ms) == len(entry.groups):
                done.append(_learn_frame(entry, model))
        return done

    def _heed_interval(self, now_ms: float, model: CostModel) -> None:
        before, self._ended_ms = self._ended_ms, now_ms
        if before is None:
            return
        interval = min(now_ms - before, _LONGEST * self._frame_ms)
        self._intervals += 1
        self.interval_ms += max(_SMOOTHED, 1 / self._intervals) * (interval - self.interval_ms)
        if self._wall_clock:
            groups = self._awaited[-1].groups if self._awaited else []
            if not self._judge(interval, bool(groups)):
                _take_for_granted(groups, model)

    def _judge(self, interval: float, ran: bool) -> bool:
        """Returns True if a frame was late.

        Learns the usual frame time from frames without networks.
        """
        late = interval > _LATE * self._usual_ms
        self._without = 0 if ran else self._without + 1
        self._since_rest += 1
        if self._without == 1:  # the device may have been at the frame before
            self._learn_usual(interval, _BELIEVED)
        elif self._without:
            self._learn_usual(interval, 1.0 if self._without == 2 else _BELIEVED)
            self.rest_due, self._since_rest = False, 0
        elif late and self.back_off == _MOST_BACK_OFF:
            self._learn_usual(interval, _BELIEVED)
        elif interval < self._usual_ms:
            self._learn_usual(interval, _SMOOTHED)
        if late and ran and self._since_rest > _REST_EVERY:
            self.rest_due = True
        elif late and ran:
            self.back_off = min(_MOST_BACK_OFF, self.back_off * _GROWTH)
        else:
            self.back_off = 1 + (self.back_off - 1) * _DECAY ** (interval / self._frame_ms)
        return late

    def _learn_usual(self, interval: float, weight: float) -> None:
        self._usual_ms += weight * (max(interval, self._frame_ms) - self._usual_ms)


def _take_for_granted(groups: Sequence[Sequence[tuple[StepCost, int]]], model: CostModel) -> None:
    """Confirms guessed costs of steps that ran in a frame that was in time.

    Without timestamps nothing is measured, so steps would otherwise be probed with small slices in
    every run.
    """
    guessed = [part for parts in groups for part in parts if not model.samples(part[0].key)]
    model.learn(guessed, sum(model.predict_ms(step, count) for step, count in guessed))


def _learn_frame(entry: _InFlight, model: CostModel) -> FrameReport:
    report = entry.report
    report.measured_ms = sum(entry.ms.values())
    # a wrong first guess does not mean that the device is noisy, and a frame that was not planned
    # says nothing about how well plans are met
    steps = (step for parts in entry.groups for step, _ in parts)
    known = report.planned and all_known(steps, model)
    if known and report.predicted_ms > _TELLING * report.aim_ms:
        model.learn_frame(report.predicted_ms, report.measured_ms, report.budget_ms)
    first = 0
    for index, parts in enumerate(entry.groups):
        model.learn(parts, entry.ms[index])
        _share_out(report.slices[first : first + len(parts)], entry.ms[index])
        first += len(parts)
    return report


def _share_out(slices: Sequence[SliceReport], ms: float) -> None:
    """Divides the time of a timed group among its slices in proportion to their predictions."""
    predicted = sum(part.predicted_ms for part in slices)
    for part in slices:
        share = part.predicted_ms / predicted if predicted else 1 / len(slices)
        part.measured_ms = ms * share


def all_known(steps: Iterable[StepCost], model: CostModel) -> bool:
    """Returns True if all steps were measured often enough to be trusted."""
    return all(model.samples(step.key) >= _KNOWN for step in steps)


def in_groups(chosen: Sequence[Chosen], limit: int, frame: int, known: bool) -> list[list[Chosen]]:
    """Returns the frame's slices as at most ``limit`` groups of neighbours, each timed as one.

    A group is one slice if single steps are still to be learned, else all slices of a job.
    """
    if known and frame % _APART_EVERY:
        parts = [list(run) for _, run in groupby(chosen, key=lambda part: id(part[0].network))]
    else:
        parts = [[part] for part in chosen]
    return parts if len(parts) <= limit else _balanced(chosen, limit)


def jobs_apart(groups: Sequence[Sequence[Chosen]]) -> bool:
    """Returns True if no two jobs share a timing."""
    return all(len({id(part.network) for part, _, _ in group}) == 1 for group in groups)


def _balanced(chosen: Sequence[Chosen], limit: int) -> list[list[Chosen]]:
    """Returns at most ``limit`` groups of neighbours of about the same predicted time."""
    target = sum(ms for _, _, ms in chosen) / limit
    groups: list[list[Chosen]] = [[]]
    filled = 0.0
    for part in chosen:
        if groups[-1] and filled >= target and len(groups) < limit:
            groups.append([])
            filled = 0.0
        groups[-1].append(part)
        filled += part[2]
    return groups
