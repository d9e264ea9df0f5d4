"""A budget of milliseconds per frame, and networks that are run within it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from threading import RLock
from typing import Any, Literal

from scheduler.admission import Admission, admit
from scheduler.budget import FixedBudget, SpareBudget
from scheduler.clock import Clock, RealClock
from scheduler.cost_model import CostModel
from scheduler.executor import Executor, Slice
from scheduler.feedback import WALL_CLOCK, Feedback, in_groups, jobs_apart
from scheduler.filling import fill
from scheduler.first_guess import FirstGuess
from scheduler.job import Job, JobOutput, State
from scheduler.lost_frames import Before, Witness
from scheduler.periodic import Periodic
from scheduler.policy import Policy, least_laxity
from scheduler.record import Recorder, Recording
from scheduler.reports import FrameReport

#: after so many calls of encode without end_frame the host is told
_FORGETFUL = 30


class FrameScheduler:
    """Runs networks beside a renderer, within ``budget_ms`` of GPU time per frame.

    Parameters
    ----------
    gpu : the :class:`cml_engine.Gpu` that the sessions run on (anything with ``executor()``).
    frame_ms : the frame time that the game wants, in ms.
    budget_ms : GPU milliseconds per frame, or ``"spare"``: what the renderer leaves of
        ``frame_ms``, by the times given to :meth:`render_took`.
    over_share : the part of frames that may exceed the budget; the margin is chosen for it.
    policy : the order of jobs, see ``scheduler/policy.py``.
    clock, cost_model : injected for tests, simulations and warm starts.

    In every frame of the host's loop: :meth:`encode`, the host's own submit, :meth:`end_frame`.
    None of them waits, builds a pipeline or creates a buffer in steady state. These are calls of
    the thread that renders; jobs may be submitted, looked at and cancelled from any.
    """

    def __init__(
        self,
        gpu: Any,
        frame_ms: float = 1000 / 60,
        budget_ms: float | Literal["spare"] = "spare",
        *,
        over_share: float = 0.01,
        policy: Policy = least_laxity,
        clock: Clock | None = None,
        cost_model: CostModel | None = None,
        max_frames_in_flight: int = 4,
    ) -> None:
        if frame_ms <= 0 or (budget_ms != "spare" and float(budget_ms) < 0):
            raise ValueError(f"frame_ms {frame_ms} and budget_ms {budget_ms} must be positive")
        self.executor: Executor = gpu.executor() if hasattr(gpu, "executor") else gpu
        self.frame_ms = frame_ms
        self.budget: FixedBudget | SpareBudget = (
            SpareBudget(frame_ms) if budget_ms == "spare" else FixedBudget(float(budget_ms))
        )
        self.policy = policy
        self.clock = clock or RealClock()
        self.cost_model = cost_model or CostModel(
            over_share, FirstGuess.for_device(self.executor.name)
        )
        self.max_frames_in_flight = max_frames_in_flight
        #: None, or how many whole operators a frame runs whatever they take: the way of others,
        #: to show and measure beside ours
        self.operators_per_frame: int | None = None
        self.jobs: list[Job] = []
        self.frame = 0
        self.last_report: FrameReport | None = None
        self._numbers = count()
        self._feedback = Feedback(self.executor.clock_source == WALL_CLOCK, frame_ms)
        self._reads: list[Job] = []
        self._periodic: list[Periodic] = []
        self._tails: dict[int, list[float]] = {}
        self._recorder: Recorder | None = None
        self._witness = Witness()
        self._before: Before | None = None  # there is one while a frame is encoded and not ended
        self._not_ended = 0
        self._lock = RLock()

    def record(self) -> Recording:
        """Write down from now on what comes in and what is decided: the recording that is
        returned grows with every frame, and :func:`scheduler.record.replay` runs it again. The
        scheduler must have no jobs yet."""
        if any(not job.ended for job in self.jobs):
            raise RuntimeError("start recording before the first submit")
        self._recorder = Recorder(self)
        # go on with what the recording holds of what was learned, to the last bit
        self.resume(self._recorder.recording.options)
        return self._recorder.recording

    def resume(self, options: Mapping[str, Any]) -> None:
        """Know what the scheduler of a recording with these ``options`` knew when it began."""
        self.cost_model = CostModel.from_json(options["cost_model"], options["over_share"])
        for predicted_ms, measured_ms in options["tail"]:
            self.cost_model.tail.remember(predicted_ms, measured_ms)
        self._feedback.resume(options["feedback"])
        self.frame = options["frame"]

    def learned_from_frames(self) -> dict[str, float | None]:
        """What late frames have taught where nothing is timed: part of a recording."""
        return self._feedback.state()

    # --- jobs

    def submit(
        self,
        session: Any,
        inputs: Mapping[str, Any],
        *,
        priority: float = 1.0,
        deadline_ms: float | None = None,
        name: str | None = None,
        slot: str | None = None,
        admission: Admission = "accept",
    ) -> Job:
        """Run the session on these inputs, in parts, as the budget allows.

        Parameters
        ----------
        inputs : arrays, GPU tensors, or other jobs' :meth:`Job.output`, which it then waits for.
        priority : its share against other jobs, 2 is twice 1; 0 is only what all others leave of
            a frame, and nothing where they leave nothing.
        deadline_ms : from now; see :func:`scheduler.policy.least_laxity`.
        slot : a job that waits with the same slot is superseded (cancelled) by this one.
        admission : what to do with a deadline that cannot be held beside what is there already:
            nothing, warn, or raise :class:`AdmissionError`.
        """
        if priority < 0:
            raise ValueError(f"priority {priority} must not be less than 0")
        network = getattr(session, "program", session)
        if not hasattr(network, "step_costs"):
            raise TypeError("a FrameScheduler runs sessions on a GPU; this one runs on the CPU")
        check = getattr(session, "check_inputs", None)
        given = dict(inputs) if check is None else check(inputs, skip=_on_gpu(inputs))
        with self._lock:
            job = self._new_job(network, given, priority, deadline_ms, name, slot)
            self._calibrate(network)
            admit(self, job, admission)
            if slot is not None:
                self._supersede(slot)
            # a newcomer starts level with the others: it may not make up for its absence
            level = [j.virtual_ms for j in self.jobs if j.idle == job.idle]
            job.virtual_ms = min(level, default=0.0)
            self.jobs.append(job)
            if self._recorder:
                self._recorder.submitted(job)
        return job

    def _new_job(
        self,
        network: Any,
        given: Mapping[str, Any],
        priority: float,
        deadline_ms: float | None,
        name: str | None,
        slot: str | None,
    ) -> Job:
        now = self.clock.now_ms()
        return Job(
            number=next(self._numbers),
            network=network,
            inputs=given,
            priority=priority,
            submitted_ms=now,
            deadline_at_ms=None if deadline_ms is None else now + deadline_ms,
            name=name or str(getattr(network, "name", "job")),
            slot=slot,
            scheduler=self,
            last_served_ms=now,
            costs=tuple(network.step_costs()),
        )

    def submit_periodic(
        self,
        session: Any,
        make_inputs: Callable[[], Mapping[str, Any]],
        period_ms: float,
        *,
        priority: float = 1.0,
        name: str | None = None,
    ) -> Periodic:
        """Run the session every ``period_ms`` on what ``make_inputs()`` gives then, with the
        period as the deadline."""
        if period_ms <= 0:
            raise ValueError(f"period_ms {period_ms} must be greater than 0")
        options: dict[str, Any] = {
            "priority": priority,
            "deadline_ms": period_ms,
            "name": name,
            "slot": f"periodic {len(self._periodic)}",
        }
        made = Periodic(self, session, make_inputs, period_ms, options, self.clock.now_ms())
        self._periodic.append(made)
        return made

    def _calibrate(self, network: Any) -> None:
        """Take over the times that a network measured at its load, where nothing better is known:
        on a device that cannot time its work in a frame."""
        times = getattr(network, "load_times_ms", None) or ()
        for cost, ms in zip(network.step_costs(), times, strict=False):
            if self.cost_model.samples(cost.key) == 0:
                self.cost_model.learn([(cost, cost.groups)], ms)

    def _supersede(self, slot: str) -> None:
        for old in self.jobs:
            if old.slot == slot and old.state == "queued":
                self.end(old, "cancelled")
        self.jobs = [j for j in self.jobs if not j.ended]

    def end(self, job: Job, state: State, error: str = "") -> None:
        """Take a job out of the running; its outputs exist only if it is done."""
        with self._lock:
            if job.ended:
                return
            if self._recorder and state != "done":
                self._recorder.changed(job, state, self.clock.now_ms())
            if job.state == "running":
                self.executor.end_job(job.network)
            job.state, job.error = state, error
            job.ended_ms, job.ended_frame = self.clock.now_ms(), self.frame

    def pause(self, job: Job, paused: bool) -> None:
        """See :meth:`Job.pause`."""
        with self._lock:
            job.paused = paused
            if self._recorder:
                said = "paused" if paused else "resumed"
                self._recorder.changed(job, said, self.clock.now_ms())

    @property
    def rate(self) -> float:
        """GPU milliseconds for networks per millisecond of wall time."""
        return self._aim_ms(self.budget.next_ms()) / self.frame_ms

    def _aim_ms(self, budget_ms: float) -> float:
        return self.cost_model.aim_ms(budget_ms) / self._feedback.caution

    def eta_ms(self, job: Job) -> float:
        """Wall time to the end of the job, as the policy would run it beside the others."""
        if job.ended:
            return 0.0
        with self._lock:
            return self._eta_ms(job, self.clock.now_ms())

    def _eta_ms(self, job: Job, now: float) -> float:
        mates = [*(j for j in self.jobs if not j.ended and not j.paused and j is not job), job]
        ahead = 0.0
        for other in self.policy(mates, now, self.rate):
            if other is job:
                break
            ahead += other.remaining_ms
        return (ahead + job.remaining_ms) / max(self.rate, 1e-9) + self.frame_ms

    def tail_ms(self, job: Job, step: int) -> float:
        """Predicted time of a network's steps from ``step`` on (kept for this frame)."""
        key = id(job.network)
        sums = self._tails.get(key)
        if sums is None:
            sums = [0.0]
            for cost in reversed(job.costs):
                sums.append(sums[-1] + self.cost_model.predict_ms(cost, cost.groups))
            sums.reverse()
            self._tails[key] = sums
        return sums[step] if step < len(sums) else 0.0

    # --- a frame

    def render_took(self, ms: float) -> None:
        """The renderer's own GPU time of a recent frame, for ``budget_ms="spare"``."""
        self.budget.observe(ms)

    def encode(self, encoder: Any) -> FrameReport:
        """Append this frame's slices to the host's command encoder. Never waits.

        Nothing is appended until the frame before was ended: whether it was submitted is not
        known, and an upload now would overtake it.
        """
        with self._lock:
            if self._before is not None:
                return self._refuse_frame()
            return self._encode(encoder)

    def _refuse_frame(self) -> FrameReport:
        self._not_ended += 1
        if self._not_ended == _FORGETFUL:
            warnings.warn(
                f"encode() was called {_FORGETFUL} times without end_frame(): nothing runs until "
                "it is called, once after every submit (or abandon_frame() instead of a submit)",
                RuntimeWarning,
                stacklevel=3,
            )
        now = self.clock.now_ms()
        report = FrameReport(self.frame, now, self.budget.next_ms(), 0.0, "frame not ended")
        try:
            self.executor.check()
        except Exception as error:  # a lost device is why the host did not end it
            report.reason = "device error"
            for job in self.jobs:
                self.end(job, "failed", str(error))
        return report

    def _encode(self, encoder: Any) -> FrameReport:
        start = _cpu_ms()
        self._not_ended = 0
        self._tails.clear()
        now = self.clock.now_ms()
        for periodic in self._periodic:
            periodic.due(now)
        budget = self.budget.next_ms()
        report = FrameReport(self.frame, now, budget, self._aim_ms(budget))
        self.jobs = [job for job in self.jobs if not job.ended]
        self._before = Before(self.jobs)
        waiting = self.executor.frames_in_flight >= self.max_frames_in_flight
        ready = {id(job.network): job.network.ready for job in self.jobs}
        chosen = fill(self, encoder, report, now, waiting)
        if self._recorder:
            # one may have lost its memory to another's preparation
            ready = {key: was and _ready_now(self.jobs, key) for key, was in ready.items()}
            self._recorder.encoded(report, ready, waiting, self.operators_per_frame)
        groups = in_groups(chosen, self.executor.max_groups, self.frame, self.cost_model)
        report.jobs_apart = jobs_apart(groups)
        encoding = _cpu_ms()
        self._append(encoder, report, [[part for part, _, _ in group] for group in groups])
        report.encode_ms = _cpu_ms() - encoding
        timed = [[(cost, part.count) for part, cost, _ in group] for group in groups]
        self._feedback.encoded(report, timed)
        self.last_report = report
        report.cpu_ms = _cpu_ms() - start
        return report

    def _append(self, encoder: Any, report: FrameReport, groups: list[list[Slice]]) -> None:
        numbers = {part.job for part in report.slices}
        working = [job for job in self.jobs if job.number in numbers]
        self._witness.encoded(self.frame, working)
        try:
            self.executor.encode(encoder, self.frame, groups)
            self._finish(encoder, report)
            self._request_reads(encoder)
        except Exception as error:  # the device is lost, or refuses a kernel of these
            report.reason = "device error"
            for job in working:
                self.end(job, "failed", str(error))

    def _finish(self, encoder: Any, report: FrameReport) -> None:
        for job in self.jobs:
            if job.state == "running" and job.all_encoded:
                try:
                    job.result = self.executor.finish_job(encoder, job.network)
                except Exception as error:
                    self.end(job, "failed", str(error))
                    continue
                self.end(job, "done")
                report.finished.append(job.number)
                if job.wants_read:
                    self._reads.append(job)

    def _request_reads(self, encoder: Any) -> None:
        for job in self._reads:
            if job.result is not None:
                self.executor.request_read(encoder, job.result)
        self._reads.clear()

    def read(self, job: Job, name: str) -> Any:
        """See :meth:`Job.read`."""
        with self._lock:
            if not job.wants_read:
                job.wants_read = True
                self._reads.append(job)
            return self.executor.read(job.result, name)

    def end_frame(self) -> list[FrameReport]:
        """Call after the host's submit. Learns from the timings that have arrived and returns the
        reports of the frames that are now measured. Never waits."""
        with self._lock:
            self._before = None
            timings = self.executor.end_frame(self.frame)
            self._fail_unsubmitted()
            now = self.clock.now_ms()
            if self._recorder:
                self._recorder.ended_frame(timings, now)
            self.frame += 1
            return self._feedback.ended(timings, now, self.cost_model)

    def _fail_unsubmitted(self) -> None:
        lost = self.executor.take_unsubmitted()
        for job in self._witness.harmed(lost, self.jobs):
            if job.state not in ("cancelled", "failed"):
                said = (
                    f"job '{job.name}': frame {lost[0]} was encoded and never submitted, its "
                    "result would be wrong. Submit every encoder, or call abandon_frame()"
                )
                job.release()
                self.end(job, "failed", said)
                job.state, job.error = "failed", said  # even where it was done

    def abandon_frame(self) -> None:
        """Call instead of the submit and :meth:`end_frame` where the encoder is thrown away (the
        window changed its size, its surface was lost). The jobs go on from where they were."""
        with self._lock:
            if self._before is None:
                return
            going_on = self._before.restore(self.executor)
            self._before = None
            self.jobs += [job for job in going_on if job not in self.jobs]
            self.executor.abandon_frame(self.frame)
            self._feedback.abandoned()
            if self._recorder:
                self._recorder.abandoned_frame()
            self.frame += 1


def _ready_now(jobs: Sequence[Job], key: int) -> bool:
    return all(job.network.ready for job in jobs if id(job.network) == key)


def _on_gpu(inputs: Mapping[str, Any]) -> frozenset[str]:
    """Inputs that are not host arrays: their facts are checked when they are copied."""
    return frozenset(
        name for name, v in inputs.items() if isinstance(v, JobOutput) or hasattr(v, "buffer")
    )


_REAL = RealClock()


def _cpu_ms() -> float:
    return _REAL.now_ms()
