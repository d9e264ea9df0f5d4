"""A budget of milliseconds per frame, and networks that are run within it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from itertools import count
from threading import RLock
from typing import Any, Literal

from scheduler.admission import Admission, admit
from scheduler.budget import FixedBudget, SpareBudget
from scheduler.checks import checked, checked_count, checked_share, is_ms, refused
from scheduler.clock import Clock, RealClock, SteadyClock
from scheduler.cost_model import CostModel
from scheduler.executor import Executor, Slice, Timing
from scheduler.feedback import WALL_CLOCK, Feedback, in_groups, jobs_apart
from scheduler.filling import fill, seat
from scheduler.first_guess import FirstGuess
from scheduler.job import Job, JobOutput, State
from scheduler.lost_frames import Before, Witness
from scheduler.periodic import Periodic
from scheduler.policy import Policy, least_laxity
from scheduler.record import Recorder, Recording
from scheduler.reports import FrameReport
from scheduler.roster import Roster
from scheduler.status import describe

#: after so many calls of encode without end_frame the host is told
_FORGETFUL = 30
#: frames of render time, beyond which more changes nothing: a loading screen is no renderer
_LONGEST_RENDER = 60


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
        self.frame_ms = checked("frame_ms", frame_ms, above=True)
        self.budget: FixedBudget | SpareBudget = (
            SpareBudget(frame_ms)
            if budget_ms == "spare"
            else FixedBudget(checked("budget_ms", budget_ms))
        )
        self.policy = policy
        self.clock = clock or RealClock()
        self._steady = SteadyClock(self.clock)
        self.max_frames_in_flight = checked_count("max_frames_in_flight", max_frames_in_flight)
        share = checked_share("over_share", over_share)
        self.executor: Executor = gpu.executor() if hasattr(gpu, "executor") else gpu
        self.cost_model = cost_model or CostModel(share, FirstGuess.for_device(self.executor.name))
        #: None, or how many whole operators a frame runs whatever they take: the way of others,
        #: to show and measure beside ours
        self.operators_per_frame: int | None = None
        #: the jobs that have not ended, filed by what they wait for
        self.roster = Roster()
        #: numbers of the jobs that this frame could not go on with for want of memory
        self.held_up: list[int] = []
        self.frame = 0
        self.last_report: FrameReport | None = None
        #: the last error that was nobody's job: what :meth:`describe` shows
        self.last_error = ""
        self._numbers = count()
        self._feedback = Feedback(self.executor.clock_source == WALL_CLOCK, frame_ms)
        self._reads: list[Job] = []
        self._periodic: list[Periodic] = []
        self._periodics = count()
        self._tails: dict[int, tuple[Any, list[float]]] = {}
        self._begun: list[Job] = []
        self._ended: list[Job] = []
        self._ignored = 0
        self._budget_ms = 0.0
        self._recorder: Recorder | None = None
        self._witness = Witness()
        self._before: Before | None = None  # there is one while a frame is encoded and not ended
        self._not_ended = 0
        self._lock = RLock()

    def record(self) -> Recording:
        """Write down from now on what comes in and what is decided: the recording that is
        returned grows with every frame, and :func:`scheduler.record.replay` runs it again. The
        scheduler must have no jobs yet."""
        if len(self.roster):
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

    @property
    def jobs(self) -> list[Job]:
        """The jobs that have not ended, the oldest first."""
        with self._lock:
            return self.roster.jobs

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
            Arrays are copied now: what happens to them afterwards changes nothing. Tensors are
            kept until the job has taken them over or has ended. :class:`cml_engine.InputError`
            where one is missing, unknown, of another shape or type, or of another device.
        priority : its share against other jobs, 2 is twice 1; 0 is only what all others leave of
            a frame, and nothing where they leave nothing.
        deadline_ms : from now; see :func:`scheduler.policy.least_laxity`.
        slot : a job that waits with the same slot is superseded (cancelled) by this one.
        admission : what to do with a deadline that cannot be held beside what is there already:
            nothing, warn, or raise :class:`AdmissionError`.
        """
        now = self._steady.now_ms()
        deadline = None if deadline_ms is None else now + checked("deadline_ms", deadline_ms)
        priority = checked("priority", priority)
        network = getattr(session, "program", session)
        if not hasattr(network, "step_costs"):
            raise refused(
                f"a FrameScheduler runs sessions on a GPU; {_what(session)} is none: "
                "cml.Session(graph, gpu) makes one"
            )
        check = getattr(session, "check_inputs", None)
        given = dict(inputs) if check is None else check(inputs, skip=_on_gpu(inputs))
        given = self.executor.accept(network, given)
        job = Job(
            number=next(self._numbers),
            network=network,
            inputs=given,
            priority=priority,
            submitted_ms=now,
            deadline_at_ms=deadline,
            name=name or str(getattr(network, "name", "job")),
            slot=slot,
            scheduler=self,
            last_served_ms=now,
            costs=tuple(network.step_costs()),
        )
        return self.enlist(job, admission)

    def enlist(self, job: Job, admission: Admission = "accept") -> Job:
        """Take a job that is made already: what :meth:`submit` and a replay end with."""
        makers = [value.job for value in job.inputs.values() if isinstance(value, JobOutput)]
        job.needs = tuple(maker.number for maker in makers if maker.scheduler is self)
        kept = [maker.keep_for_taker() for maker in makers]
        with self._lock:
            self._calibrate(job.network)
            try:
                admit(self, job, admission)
            except Exception:
                job.let_inputs_go()
                raise
            if job.slot is not None:
                self._supersede(job.slot)
            self.roster.add(job)
            if not all(kept):
                self.roster.doom(job)
            if self._recorder:
                self._recorder.submitted(job)
        return job

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
        options: dict[str, Any] = {
            "priority": checked("priority", priority),
            "deadline_ms": checked("period_ms", period_ms, above=True),
            "name": name,
            "slot": f"periodic {next(self._periodics)}",
        }
        now = self._steady.now_ms()
        made = Periodic(self, session, make_inputs, float(period_ms), options, now)
        with self._lock:
            self._periodic.append(made)
        return made

    def forget_periodic(self, periodic: Periodic) -> None:
        """It was stopped."""
        with self._lock:
            self._periodic = [other for other in self._periodic if other is not periodic]

    def _calibrate(self, network: Any) -> None:
        """Take over the times that a network measured at its load, where nothing better is known:
        on a device that cannot time its work in a frame."""
        times = getattr(network, "load_times_ms", None) or ()
        for cost, ms in zip(network.step_costs(), times, strict=False):
            if self.cost_model.samples(cost.key) == 0:
                self.cost_model.learn([(cost, cost.groups)], ms)

    def _supersede(self, slot: str) -> None:
        for old in self.roster.waiting_in(slot):
            self.end(old, "cancelled")
        self.roster.forget_left()

    def end(self, job: Job, state: State, error: str = "") -> None:
        """Take a job out of the running; its outputs exist only if it is done."""
        with self._lock:
            if job.ended:
                return
            now = self._steady.now_ms()
            if self._recorder and state != "done":
                self._recorder.changed(job, state, now)
            began = job.state == "running"
            job.state, job.error = state, error
            job.ended_ms, job.ended_frame = now, self.frame
            self.roster.ended(job)
            if began:
                try:
                    self.executor.end_job(job.network)
                except Exception as failed:
                    self.note(failed)
            if state != "done":  # the end of one that is done may be taken back with its frame
                job.let_inputs_go()
            self._ended.append(job)
            if self._before is None:
                self._let_ended_go()

    def _let_ended_go(self) -> None:
        """No end since the last frame can be taken back any more."""
        ended, self._ended = self._ended, []
        for job in ended:
            if job.ended:
                job.let_network_go()

    def fail(self, job: Job, error: Exception) -> None:
        """The job cannot go on because of this."""
        self.end(job, "failed", str(error) or type(error).__name__)

    def note(self, error: Exception) -> None:
        """Remember an error that no job can be blamed for; the host's frame goes on."""
        self.last_error = f"{type(error).__name__}: {error}"

    def pause(self, job: Job, paused: bool) -> None:
        """See :meth:`Job.pause`."""
        with self._lock:
            job.paused = paused
            self.roster.file_anew(job)
            if self._recorder:
                said = "paused" if paused else "resumed"
                self._recorder.changed(job, said, self._steady.now_ms())

    def describe(self) -> str:
        """What is going on, in words: the budget, why the last frame stopped, what the thread that
        prepares networks is doing, and what each of the jobs waits for."""
        with self._lock:
            return describe(self)

    def in_its_seat(self, job: Job) -> Job | None:
        """The job that runs on the network's memory."""
        with self._lock:
            running = self.roster.running.values()
            return next((j for j in running if j is not job and seat(j) == seat(job)), None)

    @property
    def ignored_values(self) -> int:
        """How many times were given in the middle of frames that cannot be times (NaN, infinite,
        negative, a clock that went back): each was left out."""
        return self._ignored + self._steady.ignored

    @property
    def rate(self) -> float:
        """GPU milliseconds for networks per millisecond of wall time."""
        return self._aim_ms(self._sane_budget()) / self.frame_ms

    def _sane_budget(self) -> float:
        """The budget's next frame; the last one that was a number where this is none."""
        budget = self.budget.next_ms()
        if is_ms(budget):
            self._budget_ms = float(budget)
        return self._budget_ms

    def _aim_ms(self, budget_ms: float) -> float:
        return self.cost_model.aim_ms(budget_ms) / self._feedback.caution

    def eta_ms(self, job: Job) -> float:
        """Wall time to the end of the job, as the policy would run it beside the others."""
        if job.ended:
            return 0.0
        with self._lock:
            return self._eta_ms(job, self._steady.now_ms())

    def _eta_ms(self, job: Job, now: float) -> float:
        mates = [*(j for j in self.roster.jobs if not j.paused and j is not job), job]
        ahead = 0.0
        for other in self.policy(mates, now, self.rate):
            if other is job:
                break
            ahead += other.remaining_ms
        return (ahead + job.remaining_ms) / max(self.rate, 1e-9) + self.frame_ms

    def tail_ms(self, job: Job, step: int) -> float:
        """Predicted time of a network's steps from ``step`` on (kept for this frame)."""
        key = id(job.network)
        known = self._tails.get(key)
        sums = [0.0] if known is None else known[1]
        if known is None:
            for cost in reversed(job.costs):
                sums.append(sums[-1] + self.cost_model.predict_ms(cost, cost.groups))
            sums.reverse()
            # with the network itself: another one may come to lie where it was
            self._tails[key] = job.network, sums
        return sums[step] if step < len(sums) else 0.0

    # --- a frame

    def render_took(self, ms: float) -> None:
        """The renderer's own GPU time of a recent frame, for ``budget_ms="spare"``. What cannot be
        a time is left out, and counted (:attr:`ignored_values`)."""
        if not is_ms(ms):
            self._ignored += 1
            return
        self.budget.observe(min(float(ms), _LONGEST_RENDER * self.frame_ms))

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
        now = self._steady.now_ms()
        report = FrameReport(self.frame, now, self._sane_budget(), 0.0, "frame not ended")
        self._fail_all_where_lost(report)  # which may be why the host did not end it
        return report

    def _encode(self, encoder: Any) -> FrameReport:
        start = _cpu_ms()
        self._not_ended = 0
        self._tails.clear()
        now = self._steady.now_ms()
        for periodic in list(self._periodic):
            periodic.due(now)
        self.budget.begin_frame()
        if not is_ms(self.budget.next_ms()):
            self._ignored += 1
        budget = self._sane_budget()
        report = FrameReport(self.frame, now, budget, self._aim_ms(budget))
        self.roster.forget_left()
        self._before, self.held_up = Before(self.roster.running.values()), []
        waiting = self.executor.frames_in_flight >= self.max_frames_in_flight
        ready = self._ready() if self._recorder else {}
        chosen = fill(self, encoder, report, now, waiting)
        if self._recorder:
            # one may have lost its memory to another's preparation
            after = self._ready()
            ready = {key: was and after.get(key, True) for key, was in ready.items()}
            self._recorder.encoded(report, ready, waiting, self.operators_per_frame, self.held_up)
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

    def _ready(self) -> dict[int, bool]:
        """Which of the networks that jobs wait for are ready."""
        found = {}
        for queue in self.roster.queues:
            try:
                found[id(queue.network)] = bool(queue.network.ready)
            except Exception:  # its jobs fail where this matters
                found[id(queue.network)] = False
        return found

    def will_start(self, job: Job) -> None:
        """The frame starts this job: remember how it was."""
        if self._before is not None:
            self._before.add(job)
        self._begun.append(job)

    def _append(self, encoder: Any, report: FrameReport, groups: list[list[Slice]]) -> None:
        numbers = {part.job for part in report.slices}
        working = [job for job in self.roster.running.values() if job.number in numbers]
        self._witness.encoded(self.frame, working)
        failed: list[tuple[Job, Exception]] = []
        try:
            refused = self.executor.encode(encoder, self.frame, groups) or ()
            failed = [(j, e) for network, e in refused for j in working if j.network is network]
        except Exception as error:  # the device is lost, or refuses the frame as a whole
            failed = [(job, error) for job in working]
            if not working:
                self.note(error)
            report.reason = "device error"
        for job, why in failed:
            report.reason = "device error"
            self.fail(job, why)
        if report.reason == "device error":
            self._fail_all_where_lost(report)
        self._finish(encoder, report)
        self._request_reads(encoder)

    def _fail_all_where_lost(self, report: FrameReport) -> None:
        try:
            self.executor.check()
        except Exception as error:
            report.reason = "device error"
            for job in self.roster.jobs:
                self.fail(job, error)

    def _finish(self, encoder: Any, report: FrameReport) -> None:
        for job in [job for job in self.roster.running.values() if job.all_encoded]:
            try:
                job.result = self.executor.finish_job(encoder, job.network)
            except Exception as error:
                self.fail(job, error)
                continue
            if job.result is None:
                job.held_up = "memory for its outputs"
                self.held_up.append(job.number)
                continue
            self.end(job, "done")
            report.finished.append(job.number)
            if job.wants_read:
                self._reads.append(job)

    def _request_reads(self, encoder: Any) -> None:
        reads, self._reads = self._reads, []
        for job in reads:
            if job.result is not None:
                try:
                    self.executor.request_read(encoder, job.result)
                except Exception as error:
                    job.read_error = error

    def read(self, job: Job, name: str) -> Any:
        """See :meth:`Job.read`."""
        with self._lock:  # or the job ends between a look at its state and what follows from it
            if not job.ended:
                job.wants_read = True
                return None
            job.need_done(name)
            if not job.wants_read:
                job.wants_read = True
                self._reads.append(job)
            if job.read_error is not None:
                raise job.read_error
            return self.executor.read(job.result, name)

    def end_frame(self) -> list[FrameReport]:
        """Call after the host's submit. Learns from the timings that have arrived and returns the
        reports of the frames that are now measured. Never waits."""
        with self._lock:
            self._before = None
            for job in self._begun:
                job.let_inputs_go()
            self._begun.clear()
            self._let_ended_go()
            self.roster.frame_is_over()
            timings = self._timings()
            now = self._steady.now_ms()
            if self._recorder:
                self._recorder.ended_frame(timings, now)
            self.frame += 1
            return self._feedback.ended(timings, now, self.cost_model)

    def _timings(self) -> list[Timing]:
        """What has arrived of what earlier frames took."""
        try:
            timings = self.executor.end_frame(self.frame)
            self._fail_unsubmitted()
        except Exception as error:
            self.note(error)
            return []
        sane = [timing for timing in timings if is_ms(timing.ms)]
        self._ignored += len(timings) - len(sane)
        return sane

    def _fail_unsubmitted(self) -> None:
        lost = self.executor.take_unsubmitted()
        if not lost:
            return
        for job in self._witness.harmed(lost, self.roster.jobs):
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
            self._before.restore(self.executor, self.roster)
            self._before = None
            self._begun.clear()
            self._let_ended_go()
            try:
                self.executor.abandon_frame(self.frame)
            except Exception as error:
                self.note(error)
            self._feedback.abandoned()
            if self._recorder:
                self._recorder.abandoned_frame()
            self.frame += 1


def _on_gpu(inputs: Mapping[str, Any]) -> frozenset[str]:
    """Inputs that are not host arrays: the executor checks these."""
    return frozenset(
        name for name, v in inputs.items() if isinstance(v, JobOutput) or hasattr(v, "buffer")
    )


def _what(session: Any) -> str:
    """A session that is none, in words."""
    backend = getattr(session, "backend", None)
    return f"one on the {backend.upper()}" if isinstance(backend, str) else f"{session!r}"


_REAL = RealClock()


def _cpu_ms() -> float:
    return _REAL.now_ms()
