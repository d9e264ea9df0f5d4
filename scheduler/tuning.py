"""Tunes kernels in a running game: measures them in the budget that the other networks leave.

>>> bench = cml_engine.tuning.Bench(session, again=False)               # doctest: +SKIP
>>> tuning = Tuning(scheduler, bench)                                   # doctest: +SKIP
>>> tuning.observe(scheduler.end_frame())       # in every frame        # doctest: +SKIP
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cml_engine.errors import DeviceError, InputError
from cml_engine.errors.arguments import TIMES, check_instance, shortened
from cml_engine.scheduler.clock import check_number
from cml_engine.scheduler.executor import WALL_CLOCK, Network
from cml_engine.scheduler.frame_scheduler import FrameScheduler
from cml_engine.scheduler.jobs.job import Job
from cml_engine.scheduler.reports import FrameReport, SliceReport

if TYPE_CHECKING:
    from cml_engine.compiler.plan import Plan
    from cml_engine.compiler.tuning_tables import Record
    from cml_engine.tuning.trial import Trial
    from cml_engine.tuning.tune import Bench

#: frames after a job's end in which its last timings must arrive, else the pair is run again
_PATIENCE = 60
#: repeated pairs in a row after which the option counts as one that cannot be timed
_MOST_VAIN = 8


@dataclass
class _Run:
    """A job that runs one option, with the milliseconds and workgroups that were timed so far."""

    option: str
    job: Job
    groups: int
    ms: float = 0.0
    timed: int = 0
    exact: bool = True

    def add(self, slices: Sequence[SliceReport], ms: float) -> None:
        """Adds the time of a group of slices, some of them the job's."""
        self.ms += ms
        self.timed += sum(part.count for part in slices if part.job == self.job.number)
        self.exact &= all(part.job == self.job.number for part in slices)

    @property
    def complete(self) -> bool:
        return self.job.state == "done" and self.timed == self.groups


class Tuning:
    """Measures a bench's choices in a scheduler's frames, as jobs of priority 0.

    Pairs of an option and the default run one after the other within the frames' budget, sliced
    like all jobs, and are timed by the frames' own timestamps. Threads compute plans, build
    pipelines and write decisions; a frame neither waits nor builds. A decision is saved at once,
    and sessions that are created later use it.

    Parameters
    ----------
    rounds : the number of measurements per option, see :class:`cml_engine.tuning.Trial`.
    priority : the priority of the jobs; at 0 they get only the time that the game's own jobs leave.

    Examples
    --------
    >>> from cml_engine.tuning import Bench
    >>> tuning = cml.Tuning(scheduler, Bench(network))
    >>> tuning.stop()
    """

    def __init__(
        self, scheduler: FrameScheduler, bench: Bench, *, rounds: int = 15, priority: float = 0
    ) -> None:
        check_instance(FrameScheduler, scheduler, "scheduler")
        TIMES.check(rounds, "rounds")
        check_number("priority", priority)
        if not hasattr(bench, "candidates"):
            raise InputError(f"bench: wanted a Bench, got {shortened(repr(bench))}")
        if scheduler.executor.clock_source == WALL_CLOCK:
            raise DeviceError("this device cannot time parts of a frame: run `cml tune MODEL`")
        self.scheduler, self.bench = scheduler, bench
        self._timed_all, scheduler.times_all = scheduler.times_all, True
        self.rounds, self.priority = rounds, priority
        self.total = len(bench.candidates)
        #: the decisions so far
        self.records: list[Record] = []
        self.decided = 0
        self._waiting = list(bench.candidates)
        self._thread = ThreadPoolExecutor(1, "cml-tuning")
        self._saving: list[Future[Path]] = []
        self._plans: Future[dict[str, Plan]] | None = None
        self._trial: Trial | None = None
        self._programs: dict[str, Network] = {}
        self._runs: list[_Run] = []
        self._vain = 0

    @property
    def done(self) -> bool:
        """True if every choice is decided and every decision is written."""
        return not self._waiting and not self._saving

    def observe(self, measured: Sequence[FrameReport]) -> bool:
        """Takes the reports that :meth:`FrameScheduler.end_frame` returned, and does the next step.

        Call it in every frame. Returns True if all choices are decided and written.
        """
        self._take(measured)
        self._look_at_saves()
        if not self._waiting:
            self._end()
        elif self._trial is None:
            self._begin()
        elif self._runs:
            self._judge(self._trial)
        else:
            self._submit(self._trial)
        return self.done

    def stop(self) -> None:
        """Cancels the measurements; decisions made so far are kept.

        A later bench with ``again=False`` continues from them.
        """
        self._clear()
        self._waiting.clear()
        self._end()

    def _end(self) -> None:
        self._thread.shutdown(wait=False)
        self.scheduler.times_all = self._timed_all

    def _look_at_saves(self) -> None:
        for saved in [s for s in self._saving if s.done()]:
            self._saving.remove(saved)
            if (error := saved.exception()) is not None:
                message = f"what tuning found is not kept: {error}"
                warnings.warn(message, RuntimeWarning, stacklevel=3)

    def _take(self, measured: Sequence[FrameReport]) -> None:
        by_job = {run.job.number: run for run in self._runs}
        for report in measured:
            for group in report.group_times:
                slices = report.slices[group.first : group.first + group.count]
                for job in {part.job for part in slices} & by_job.keys():
                    by_job[job].add(slices, group.ms)

    def _begin(self) -> None:
        """Computes the next choice's plans on a thread; starts its trial once they are done."""
        if self._plans is None:
            self._plans = self._thread.submit(self.bench.plans, self._waiting[0])
        elif self._plans.done():
            try:
                plans = self._plans.result()
            except Exception as error:  # the game continues without this candidate
                warnings.warn(f"tuning leaves out a choice: {error}", RuntimeWarning, stacklevel=3)
                self._next()
                return
            self._trial = self.bench.trial(self._waiting[0], plans, self.rounds)

    def _submit(self, trial: Trial) -> None:
        pair = trial.next()
        if pair is None:
            self._decide(trial)
            return
        for option in pair:
            try:
                self._runs.append(self._run(option, pair))
            except Exception as error:  # no memory for it
                self._give_up(trial, option, str(error))
                return

    def _run(self, option: str, pair: tuple[str, str]) -> _Run:
        assert self._plans is not None
        if option not in self._programs:
            # at most two at a time are on the device
            self._programs = {k: v for k, v in self._programs.items() if k in pair}
            plan = self._plans.result()[option]
            self._programs[option] = self.bench.program(plan, deferred=True)
        program = self._programs[option]
        # no inputs: their values make no difference to the time
        job = self.scheduler.submit(program, {}, priority=self.priority, name=f"tuning {option}")
        return _Run(option, job, sum(step.groups for step in program.step_costs()))

    def _judge(self, trial: Trial) -> None:
        """Passes the times of the current pair of jobs to the trial once they have arrived.

        A failed job removes its option. A pair without a time of its own is run again.
        """
        for run in self._runs:
            if run.job.state in ("failed", "cancelled"):
                self._give_up(trial, run.option, run.job.error or run.job.state)
                return
        if all(run.complete for run in self._runs):
            exact = all(run.exact for run in self._runs)
            times = {run.option: run.ms for run in self._runs}
            self._clear()
            if exact:
                self._vain = 0
                trial.record(times)
            else:
                self._again(trial, times)
        elif all(self._overdue(run) for run in self._runs):
            self._again(trial, {run.option: 0.0 for run in self._runs})

    def _overdue(self, run: _Run) -> bool:
        end_frame = run.job.ended_frame
        return end_frame is not None and self.scheduler.frame > end_frame + _PATIENCE

    def _again(self, trial: Trial, pair: Mapping[str, float]) -> None:
        self._clear()
        self._vain += 1
        if self._vain >= _MOST_VAIN:
            for option in pair:
                if option != trial.default:
                    self._give_up(trial, option, "its time could not be told from that of others")

    def _give_up(self, trial: Trial, option: str, why: str) -> None:
        self._clear()
        self._vain = 0
        trial.drop(option, why)

    def _decide(self, trial: Trial) -> None:
        record = self.bench.record(self._waiting[0], trial)
        if record is not None:
            self.records.append(record)
            self._saving.append(self._thread.submit(self.bench.save, [record]))
        self._next()

    def _next(self) -> None:
        self._waiting.pop(0)
        self.decided += 1
        self._plans, self._trial = None, None
        self._programs.clear()

    def _clear(self) -> None:
        for run in self._runs:
            run.job.cancel()
            run.job.release()
        self._runs.clear()
