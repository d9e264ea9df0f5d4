"""Teaches the measured times of frames to the cost model, and groups slices for timing."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from cml_engine.compiler.plan import StepCost, Timing
from cml_engine.scheduler.executor import WALL_CLOCK, Executor
from cml_engine.scheduler.planning.controller import BackOff
from cml_engine.scheduler.planning.cost_model import CostModel, FirstGuess
from cml_engine.scheduler.planning.plan import PlannedSlice
from cml_engine.scheduler.reports import FrameReport, GroupTime

#: if all costs are settled, one frame in this number has slices timed one by one, because each
#: timing makes the device wait for the work before it (50 µs on a software driver)
_APART_EVERY = 16
#: more slices than any frame has
_UNLIMITED = 1 << 31


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
        by_frame = {entry.report.frame: entry for entry in self._awaited}
        for timing in timings:
            entry = by_frame.get(timing.frame)
            if entry is not None:
                entry.ms[timing.group] = timing.ms
        return self._learn(max((t.frame for t in timings), default=-1), model)

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
        if not model.samples(step.key):
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


def most_timed_alone(max_groups: int) -> int:
    """Returns how many slices of a frame can be timed one by one, between groups of the others."""
    return max(1, (max_groups - 1) // 2)


def most_unsettled(executor: Executor) -> int:
    """Returns the most slices of a frame whose costs are not settled: all are to be timed."""
    timed = executor.clock_source != WALL_CLOCK
    return most_timed_alone(executor.max_groups) if timed else _UNLIMITED


def group_slices(
    slices: Sequence[PlannedSlice], limit: int, frame: int
) -> list[list[PlannedSlice]]:
    """Returns the frame's slices as at most ``limit`` groups of neighbours, each timed as one.

    Slices whose costs are not settled are groups of their own, and in some frames those that were
    timed least often. The others are timed by job, as far as there are enough timings.
    """
    if limit == 1:
        return [list(slices)] if slices else []
    alone = _timed_alone(slices, limit, frame)

    def runs(by_job: bool) -> list[list[PlannedSlice]]:
        def key(numbered: tuple[int, PlannedSlice]) -> tuple[int, int]:
            number, part = numbered
            return number if number in alone else -1, part.job.number if by_job else 0

        return [[part for _, part in run] for _, run in groupby(enumerate(slices), key)]

    by_job = runs(by_job=True)
    return by_job if len(by_job) <= limit else runs(by_job=False)


def _timed_alone(slices: Sequence[PlannedSlice], limit: int, frame: int) -> set[int]:
    """Returns the numbers of the slices that are to be timed alone."""
    all_settled = all(part.settled for part in slices)
    candidates = [
        i
        for i, part in enumerate(slices)
        if not part.settled or (all_settled and frame % _APART_EVERY == 0)
    ]
    if len(slices) > limit or not all_settled:
        candidates.sort(key=lambda i: slices[i].samples)
    most = limit if len(slices) <= limit else most_timed_alone(limit)
    return set(candidates[:most])
