"""From a frame's timings back to the cost model."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduler.cost_model import CostModel
from scheduler.executor import Slice, StepCost, Timing
from scheduler.reports import FrameReport

#: a slice of a frame, what is known of its step, and its predicted ms
Chosen = tuple[Slice, StepCost, float]
#: frames whose prediction is below this share of the budget say nothing about the tail
_TELLING = 0.25
#: what :attr:`Executor.clock_source` says of a device that cannot time its own work
WALL_CLOCK = "wall clock"
#: a frame this much longer than it should be is late, not just jittery
_LATE = 1.15


@dataclass(slots=True)
class _InFlight:
    """A frame whose timings are awaited: the parts of each timed group."""

    report: FrameReport
    groups: list[list[tuple[StepCost, int]]]
    ms: dict[int, float] = field(default_factory=dict)


class Feedback:
    """Waits for the timings of frames and teaches them to a cost model.

    ``wall_clock``: the device sends none. Then only the host's own frames tell: one that took
    longer than ``frame_ms`` had too much to do, and what it is longer by is put down to the
    networks.
    """

    def __init__(self, wall_clock: bool, frame_ms: float) -> None:
        self._wall_clock, self._frame_ms = wall_clock, frame_ms
        self._awaited: deque[_InFlight] = deque()
        self._encoded: _InFlight | None = None
        self._ended_ms: float | None = None

    def encoded(self, report: FrameReport, groups: list[list[tuple[StepCost, int]]]) -> None:
        """A frame with these timed groups was encoded."""
        self._encoded = _InFlight(report, groups)

    def ended(
        self, timings: Sequence[Timing], now_ms: float, model: CostModel
    ) -> list[FrameReport]:
        """The host has submitted the frame, and these timings have arrived; the reports of the
        frames that are now measured."""
        if self._encoded is not None:
            self._awaited.append(self._encoded)
            self._encoded = None
        if self._wall_clock:
            self._learn_from_interval(now_ms, model)
            self._awaited.clear()
            return []
        by_frame = {entry.report.frame: entry for entry in self._awaited}
        for timing in timings:
            entry = by_frame.get(timing.frame)
            if entry is not None:
                entry.ms[timing.group] = timing.ms
        return self._learn(max((t.frame for t in timings), default=-1), model)

    def _learn(self, newest: int, model: CostModel) -> list[FrameReport]:
        """Frames up to ``newest`` have sent all that they will."""
        done: list[FrameReport] = []
        while self._awaited and (
            self._awaited[0].report.frame <= newest or not self._awaited[0].groups
        ):
            entry = self._awaited.popleft()
            if entry.groups and len(entry.ms) == len(entry.groups):
                done.append(_learn_frame(entry, model))
        return done

    def _learn_from_interval(self, now_ms: float, model: CostModel) -> None:
        before, self._ended_ms = self._ended_ms, now_ms
        entry = self._awaited[-1] if self._awaited else None
        if before is None or entry is None or not entry.groups:
            return
        excess = now_ms - before - self._frame_ms * _LATE
        if excess > 0:
            predicted = entry.report.predicted_ms
            parts = [part for group in entry.groups for part in group]
            # the spread within a frame stays unknown: the margin keeps its prior
            model.learn(parts, predicted + min(excess, predicted))


def _learn_frame(entry: _InFlight, model: CostModel) -> FrameReport:
    report = entry.report
    report.measured_ms = sum(entry.ms.values())
    if report.predicted_ms > _TELLING * report.aim_ms:
        model.learn_frame(report.predicted_ms, report.measured_ms)
    for index, parts in enumerate(entry.groups):
        model.learn(parts, entry.ms[index])
    return report


def in_groups(chosen: Sequence[Chosen], limit: int) -> list[list[Chosen]]:
    """At most ``limit`` runs of neighbours, of about the same predicted time; a run is timed."""
    if len(chosen) <= limit:
        return [[part] for part in chosen]
    target = sum(ms for _, _, ms in chosen) / limit
    groups: list[list[Chosen]] = [[]]
    filled = 0.0
    for index, part in enumerate(chosen):
        rest = len(chosen) - index
        if groups[-1] and filled >= target and len(groups) < limit and rest:
            groups.append([])
            filled = 0.0
        groups[-1].append(part)
        filled += part[2]
    return groups
