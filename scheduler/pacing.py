"""Converts a budget into the milliseconds to plan for in a frame."""

from __future__ import annotations

from scheduler.checks import is_ms
from scheduler.executor import WALL_CLOCK, Executor
from scheduler.planning.budget import FixedBudget, SpareBudget
from scheduler.planning.cost_model import CostModel
from scheduler.planning.frame_slack import FrameSlack
from scheduler.planning.rest_of_frame import RestOfFrame
from scheduler.reports import FrameReport

#: limit of render times, in frames: a loading screen is not a frame
_LONGEST = 60
#: one frame in this number is timed if timing is expensive and not needed in every frame
_TIMED_EVERY = 8
#: frames after which the networks' own times are no longer awaited
_PATIENCE = 8


class Pacing:
    """Converts budgets into planned milliseconds, using the times of the last frames."""

    def __init__(self, frame_ms: float, share: float, executor: Executor) -> None:
        self.slack = FrameSlack(share)
        self.rest = RestOfFrame(share)
        #: the number of invalid times that were ignored
        self.ignored = 0
        #: True if the next frame runs no networks (set by a replay)
        self.rests = False
        self._frame_ms = frame_ms
        self._executor, self._timed = executor, executor.clock_source != WALL_CLOCK
        self._budget_ms = 0.0
        #: True if the networks run last in the frame, after the elapsed time that the host reported
        self._last = False

    def begin_frame(self, budget: FixedBudget | SpareBudget, elapsed_ms: float | None) -> None:
        """Starts a frame, ``elapsed_ms`` of which have passed."""
        known = None if elapsed_ms is None else self._sane(elapsed_ms)
        self._last = known is not None and isinstance(budget, SpareBudget)
        if known is not None and self._last:
            self.rest.begin_frame(known, self._frame_ms - known)

    def rate(self, aim_ms: float) -> float:
        """Returns planned GPU milliseconds per millisecond of wall time.

        ``aim_ms`` is the next frame's plan.
        """
        usual = (self._last and self.rest.usual_ms) or aim_ms
        return usual / self._frame_ms

    def frame_of(
        self, budget: FixedBudget | SpareBudget, model: CostModel, back_off: float
    ) -> tuple[float, float]:
        """Returns the milliseconds that the next frame allows, and those to plan for.

        A budget that is not a number is replaced by the last valid one.
        """
        ms = budget.next_ms()
        if is_ms(ms):
            self._budget_ms = float(ms)
        if isinstance(budget, FixedBudget):
            aim = budget.aim_ms
            return self._budget_ms, model.aim_ms(self._budget_ms) / back_off if aim is None else aim
        if self._last:
            return budget.within(self.rest.room_ms), budget.within(self.rest.aim_ms / back_off)
        if not self._budget_ms or not self._learned:
            return self._budget_ms, model.aim_ms(self._budget_ms) / back_off
        target = self._target(budget)
        wanted = self.slack.aim_ms(target)
        room = budget.within(target - self.slack.level_ms)
        return room, budget.within(wanted or 0.0)

    @property
    def _learned(self) -> bool:
        """True if whole frames decide the plan.

        Without timestamps a wrong cost would look like other work in the frame and the plan would
        oscillate, so late frames decide there (:mod:`scheduler.feedback`).
        """
        return self._timed and self.slack.known

    def times(self, frame: int, budget: FixedBudget | SpareBudget) -> bool:
        """Returns True if slices of known steps are timed in the frame.

        If the host reports whole frames, the budget is kept by these, and timings only follow
        the costs of the steps.
        """
        whole = self._learned and self.slack.whole_frames
        by_frames = isinstance(budget, SpareBudget) and (whole or self._last)
        return not (self._executor.timing_is_dear and by_frames) or frame % _TIMED_EVERY == 0

    def _target(self, budget: SpareBudget) -> float:
        """Returns the milliseconds that a frame may take, by the kind of times that are known."""
        share = 1.0 if self.slack.whole_frames else 1 - budget.headroom
        return share * self._frame_ms

    def rest_due(self, budget: FixedBudget | SpareBudget) -> bool:
        """Returns True if the next frame runs no networks, for lack of room or for a baseline."""
        if self.rests or not isinstance(budget, SpareBudget):
            return self.rests
        if self._last:
            return self.rest.rests(budget.floor_ms)
        return self._learned and self.slack.rests(self._target(budget), budget.floor_ms)

    def encoded(self, report: FrameReport, aim_ms: float) -> None:
        """Notes that the frame has been encoded, and that ``aim_ms`` could have been planned."""
        if self._last:
            self.rest.encoded(aim_ms, report.predicted_ms)
        else:
            timed = report.timed
            self.slack.encoded(report.frame, aim_ms, report.predicted_ms, timed=timed)

    def abandoned(self) -> None:
        """Drops the frame that was encoded last, which never ran."""
        (self.rest if self._last else self.slack).abandoned()

    def render_took(self, budget: FixedBudget | SpareBudget, ms: float) -> None:
        """Takes the time given to :meth:`FrameScheduler.render_took`."""
        known = self._sane(ms)
        if known is not None:
            budget.observe(known)
            self.slack.rendered(known)

    def frame_took(self, budget: FixedBudget | SpareBudget, ms: float) -> None:
        """Takes the time given to :meth:`FrameScheduler.frame_took`."""
        known = self._sane(ms)
        if known is not None and self._last:
            self.rest.took(known)
        elif known is not None:
            rest = self.slack.took(known)
            if not self._timed and rest is not None:
                budget.observe(rest)

    def _sane(self, ms: float) -> float | None:
        if not is_ms(ms):
            self.ignored += 1
            return None
        return min(float(ms), _LONGEST * self._frame_ms)

    def learn(self, budget: FixedBudget | SpareBudget) -> None:
        """Learns from all times of the last frames that have arrived."""
        target = self._target(budget) if isinstance(budget, SpareBudget) else self._frame_ms
        self.slack.learn(target, _PATIENCE)
