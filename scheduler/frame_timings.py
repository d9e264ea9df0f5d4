"""Teaches the measured times of frames to the cost model."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from cml_engine.compiler.plan import StepCost, Timing
from cml_engine.scheduler.planning.controller import BackOff
from cml_engine.scheduler.planning.cost_model import CostModel, FirstGuess
from cml_engine.scheduler.reports import FrameReport, GroupTime


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
