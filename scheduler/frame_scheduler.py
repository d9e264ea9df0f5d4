"""The frame scheduler: runs networks within a budget of milliseconds per frame."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import count
from threading import Lock, current_thread
from time import perf_counter
from typing import TYPE_CHECKING, Literal, get_args
from weakref import WeakMethod

from cml_engine.compiler.plan import Timing
from cml_engine.errors import InputError
from cml_engine.errors.arguments import (
    check_callable,
    check_choice,
    check_flag,
    check_instance,
    check_text,
    shortened,
)
from cml_engine.io.json_files import JsonObject
from cml_engine.scheduler.clock import (
    Clock,
    RealClock,
    SteadyClock,
    check_count,
    check_number,
    check_share,
    is_ms,
)
from cml_engine.scheduler.executor import WALL_CLOCK, Executor, ExecutorSource, Network
from cml_engine.scheduler.frame import (
    advance_jobs,
    collect_state,
    encode_slices,
    fail_all_where_lost,
    group_slices,
    networks_ready,
    plan_and_start,
)
from cml_engine.scheduler.frame_timings import BackOff, FrameTimings
from cml_engine.scheduler.jobs.job import Job
from cml_engine.scheduler.jobs.lifecycle import (
    Admission,
    FramePace,
    Lifecycle,
    accept_inputs,
    network_of,
    one_line,
)
from cml_engine.scheduler.planning.controller import (
    BudgetController,
    FixedBudget,
    SpareBudget,
    TailMargin,
)
from cml_engine.scheduler.planning.cost_model import CostModel, FirstGuess
from cml_engine.scheduler.planning.plan import FrameInputs, Planner, plan_frame
from cml_engine.scheduler.planning.policy import Policy, least_laxity
from cml_engine.scheduler.recording import Recorder, Recording
from cml_engine.scheduler.reports import FrameReport

if TYPE_CHECKING:
    import wgpu

    from cml_engine.gpu.gpu import Gpu
    from cml_engine.ir.graph import Array
    from cml_engine.runtime.session import Session
    from cml_engine.scheduler.tiling import TiledJob


@dataclass
class Periodic:
    """A network run every ``period_ms``, created by :meth:`FrameScheduler.submit_periodic`.

    Its jobs share a slot: a run that still waits when the next is due is superseded, so a device
    that cannot keep up skips runs instead of queueing them. ``latest`` is the newest job that is
    done; its outputs are kept until the next job is done.

    If ``make_inputs`` raises, or its inputs are refused, the periodic job stops: :attr:`stopped` is
    True and :attr:`error` has the reason. The frame and the other jobs continue.

    Examples
    --------
    >>> periodic = scheduler.submit_periodic(network, lambda: {"image": image}, period_ms=100.0)
    >>> periodic.latest is None
    True
    >>> periodic.stop()
    """

    scheduler: FrameScheduler
    session: Session | Network | None
    make_inputs: Callable[[], Mapping[str, object]] | None
    period_ms: float
    priority: float
    name: str | None
    slot: str
    next_ms: float
    stopped: bool = False
    error: str = ""
    _latest: Job | None = None
    _under_way: list[Job] = field(default_factory=list)
    #: a host may inspect or stop the object while a frame submits the next run
    _lock: Lock = field(default_factory=Lock)

    @property
    def latest(self) -> Job | None:
        """The newest job that is done; None before the first."""
        with self._lock:
            under_way = []
            for job in self._under_way:
                if not job.ended:
                    under_way.append(job)
                elif job.state == "done":
                    self._latest = job
            self._under_way = under_way
            return self._latest

    def due(self, now_ms: float) -> None:
        """Submits the next run if its time has come; runs that were missed are skipped."""
        _ = self.latest  # drops ended jobs
        with self._lock:
            session, make_inputs = self.session, self.make_inputs
        if session is None or make_inputs is None or now_ms < self.next_ms:
            return
        missed = (now_ms - self.next_ms) // self.period_ms
        self.next_ms += (missed + 1) * self.period_ms
        try:
            job = self.scheduler.submit(
                session, make_inputs(), priority=self.priority, deadline_ms=self.period_ms,
                name=self.name, slot=self.slot,
            )  # fmt: skip
        except Exception as error:  # the host's own code, in the middle of a frame
            name = self.name or "job"
            self.error = (
                f"periodic job '{name}': its inputs could not be made, it is stopped: "
                f"{type(error).__name__}: {error}"
            )
            self.stop()
            return
        with self._lock:
            self._under_way.append(job)

    def stop(self) -> None:
        """Stops further runs and drops the session; a run that has begun continues."""
        with self._lock:
            self.stopped = True
            self.session = self.make_inputs = None
        self.scheduler.forget_periodic(self)


#: the options of a recording that :meth:`FrameScheduler.resume` reads
_RESUMED = frozenset({"cost_model", "over_share", "tail", "feedback", "frame"})
#: the most jobs in the text of :meth:`FrameScheduler.describe`
_SHOWN = 12
#: one frame in this number looks for a lost device if it has no slices, although there are jobs
_LOOK_EVERY = 64
#: calls of encode without end_frame, or the reverse, after which the host is warned
_FORGETFUL = 30


class FrameScheduler:
    """Runs networks beside a renderer, within ``budget_ms`` of GPU time per frame.

    Every frame of the host's loop calls :meth:`encode`, submits, and calls :meth:`end_frame`.
    None of these waits, builds a pipeline or creates a buffer in steady state. Call them on the
    thread that renders; jobs may be submitted, inspected and cancelled on any thread.

    Parameters
    ----------
    gpu : the :class:`cml_engine.Gpu` of the sessions (any object with ``executor()``).
    frame_ms : the target frame time in milliseconds.
    budget_ms : GPU milliseconds per frame, or ``"spare"``: the part of ``frame_ms`` that the
        renderer leaves, by the times given to :meth:`frame_took` or :meth:`render_took`.
    over_share : the share of frames that may exceed the budget, or with ``"spare"`` miss the frame
        time because of the networks; the scheduler chooses its margin for this share.
    policy : the order of jobs, see ``scheduler/planning/policy.py``.
    clock, cost_model : injected for tests, simulations and warm starts.
    max_frames_in_flight : the number of frames with pending timings at which no more work is added.

    Examples
    --------
    >>> scheduler = cml.FrameScheduler(gpu, frame_ms=1000 / 60, budget_ms=4.0)
    >>> job = scheduler.submit(network, {"image": image})
    >>> while job.state != "done":
    ...     encoder = gpu.device.create_command_encoder()
    ...     report = scheduler.encode(encoder)
    ...     _ = gpu.device.queue.submit([encoder.finish()])
    ...     reports = scheduler.end_frame()
    """

    def __init__(
        self,
        gpu: Gpu | ExecutorSource,
        frame_ms: float = 1000 / 60,
        budget_ms: float | Literal["spare"] = "spare",
        *,
        over_share: float = 0.01,
        policy: Policy = least_laxity,
        clock: Clock | None = None,
        cost_model: CostModel | None = None,
        max_frames_in_flight: int = 4,
    ) -> None:
        if not callable(getattr(gpu, "executor", None)):
            raise InputError(f"gpu: wanted a cml.Gpu, got {shortened(repr(gpu))}")
        self.frame_ms = frame_ms = check_number("frame_ms", frame_ms, above=True)
        self.budget = _budget_of(budget_ms, frame_ms)
        self.policy: Policy = check_callable(policy, "policy")
        if clock is not None and not callable(getattr(clock, "now_ms", None)):
            raise InputError(f"clock: wanted an object with now_ms(), got {clock!r}")
        self.clock = RealClock() if clock is None else clock
        self._steady = SteadyClock(self.clock)
        self.max_frames_in_flight = check_count("max_frames_in_flight", max_frames_in_flight)
        share = check_share("over_share", over_share)
        self.executor: Executor = gpu.executor()
        if cost_model is None:
            cost_model = CostModel(FirstGuess.for_device(self.executor.name))
        self.cost_model: CostModel = check_instance(CostModel, cost_model, "cost_model")
        #: decides the slices of a frame; replaced for comparisons
        self.planner: Planner = plan_frame
        #: True if all slices are timed, even if that is expensive on the device
        self.times_all = False
        self.frame = 0
        self.last_report: FrameReport | None = None
        self._numbers = count()
        self._timing = FrameTimings(self.executor.clock_source == WALL_CLOCK, frame_ms)
        self._periodic: list[Periodic] = []
        self._periodics = count()
        self._ignored = 0
        self.controller = BudgetController(frame_ms, share, self.executor)
        #: calls of encode without end_frame, or the reverse, since the last frame began
        self._unpaired = 0
        #: the rate of the last frame
        self._rate = self.rate
        self.lifecycle = Lifecycle(self.executor, self._steady, self._pace())
        self.lifecycle.run_frame = WeakMethod(self._run_frame)

    def __repr__(self) -> str:
        return f"<FrameScheduler, {self.describe()}>"

    def _pace(self) -> FramePace:
        """Returns the frame number, interval, rate and models from which jobs estimate their end.

        If the host's frames take longer than ``frame_ms``, the networks get as much GPU time per
        frame, and less per second.
        """
        interval = max(self.frame_ms, self._timing.back_off.interval_ms)
        rate = self._rate * self.frame_ms / interval
        return FramePace(self.frame, interval, rate, self.policy, self.cost_model, self.last_report)

    def record(self) -> Recording:
        """Starts a recording of all inputs and decisions, and returns it.

        The recording grows with every frame; ``scheduler/tools/replay.py`` runs it again.
        Raises :class:`cml_engine.InputError` if the scheduler already has jobs.
        """
        if self.jobs:
            raise InputError(
                "a recording begins before the first job is submitted: call record() first"
            )
        recording = Recording(
            options={
                "frame_ms": self.frame_ms,
                "budget_ms": self.next_budget_ms,
                "spare": isinstance(self.budget, SpareBudget),
                "granule": self.executor.granule,
                "max_groups": self.executor.max_groups,
                "policy": self.policy.__name__,
                "cost_model": self.cost_model.to_json(),
                "tail": self.controller.margin.frames,
                "over_share": self.controller.margin.share,
                "clock_source": self.executor.clock_source,
                "feedback": asdict(self._timing.back_off),
                "frame": self.frame,
            }
        )
        self.lifecycle.recorder = Recorder(recording)
        self.lifecycle.cpu_waits.clear()  # a replay knows none
        return recording

    def resume(self, options: JsonObject) -> None:
        """Restores the state in which a recorded scheduler began, from the recording's ``options``.

        Raises :class:`cml_engine.InputError` if they are no options of a recording.
        """
        if not isinstance(options, dict):
            raise InputError(f"options is {options!r}; wanted the options of a recording, a dict")
        if missing := _RESUMED - options.keys():
            raise InputError(f"the options of a recording lack {', '.join(sorted(missing))}")
        self.cost_model = CostModel.from_json(options["cost_model"])
        self.controller.margin = TailMargin(options["over_share"], options["tail"])
        self._timing.back_off = BackOff(**options["feedback"])
        self.frame = options["frame"]
        self.lifecycle.pace = self._pace()

    # --- jobs

    @property
    def jobs(self) -> list[Job]:
        """The jobs that have not ended, the oldest first."""
        with self.lifecycle.lock:
            return self.lifecycle.job_list.jobs

    def submit(
        self,
        session: Session | Network,
        inputs: Mapping[str, object],
        *,
        priority: float = 1.0,
        deadline_ms: float | None = None,
        name: str | None = None,
        slot: str | None = None,
        admission: Admission = "accept",
        read: bool = False,
    ) -> Job:
        """Submits a run of the session on these inputs and returns its job.

        The budget spreads the run over frames. Raises :class:`cml_engine.InputError` if an input
        is missing, unknown, of another shape or type, or on another device.

        Parameters
        ----------
        inputs : arrays, GPU tensors, :class:`cml_engine.TextureInput`, or the :meth:`Job.output` of
            other jobs, for which the job then waits. Arrays are copied now, so later changes to
            them have no effect. Tensors are kept until the job has copied them or has ended.
            Textures are read when the job begins, within the budget. If the session retains its
            inputs, some may be left out: the job then runs only the steps that depend on the
            others, and the session's jobs run in the order in which they were submitted.
        priority : the job's share relative to other jobs, 2 is twice 1; a job of priority 0 gets
            only the time that all others leave.
        deadline_ms : milliseconds from now; see :func:`cml_engine.scheduler.least_laxity`.
        slot : a name; a waiting job of the same slot is superseded (cancelled) by this one.
        admission : the reaction to a ``deadline_ms`` that cannot be met beside the present jobs:
            accept, warn, or refuse with :class:`AdmissionError`.
        read : True to copy the outputs to the host in the frame in which the job ends, for
            :meth:`Job.read`. ``await job``, :meth:`Job.wait` and callbacks then wait for them.
        """
        now = self._steady.now_ms()
        deadline = None if deadline_ms is None else now + check_number("deadline_ms", deadline_ms)
        priority = check_number("priority", priority)
        for argument, value in (("name", name), ("slot", slot)):
            if value is not None:
                check_text(value, argument)
        check_choice(get_args(Admission), admission, "admission")
        if admission != "accept" and deadline is None:
            raise InputError(
                f"admission: '{admission}' is about a deadline that cannot be met: give "
                "deadline_ms, or leave admission out"
            )
        check_flag(read, "read")
        network_of(session)
        network, accepted_inputs, loads = accept_inputs(self.executor, session, inputs)
        job = Job(
            number=next(self._numbers),
            network=network,
            inputs=accepted_inputs,
            priority=priority,
            submitted_ms=now,
            deadline_at_ms=deadline,
            name=name or network.name,
            slot=slot,
            owner=self.lifecycle,
            last_served_ms=now,
            wants_read=read,
            given=frozenset(accepted_inputs),
            costs=tuple(loads),
            loads=len(loads),
        )
        with self.lifecycle.lock:
            if admission != "accept":  # the budget may be another one by now
                self._rate = self.rate
            self.lifecycle.pace = self._pace()
            self.lifecycle.add(job, admission)
        return job

    def submit_periodic(
        self,
        session: Session | Network,
        make_inputs: Callable[[], Mapping[str, object]],
        period_ms: float,
        *,
        priority: float = 1.0,
        name: str | None = None,
    ) -> Periodic:
        """Runs the session every ``period_ms`` on the inputs that ``make_inputs()`` then returns.

        Returns an object that has the latest done job and can stop the runs. The period is the
        deadline of each run.
        """
        network_of(session)
        check_callable(make_inputs, "make_inputs")
        if name is not None:
            check_text(name, "name")
        period_ms = check_number("period_ms", period_ms, above=True)
        periodic = Periodic(
            self, session, make_inputs, period_ms, check_number("priority", priority), name,
            f"periodic {next(self._periodics)}", self._steady.now_ms(),
        )  # fmt: skip
        with self.lifecycle.lock:
            self._periodic.append(periodic)
        return periodic

    def submit_tiled(
        self,
        session: Session,
        inputs: Mapping[str, Array],
        tile: int = 256,
        overlap: int = 16,
        *,
        align: int = 1,
        **options: object,
    ) -> TiledJob:
        """Submits a run like :func:`cml_engine.run_tiled`, as one job per tile.

        ``options`` are those of :meth:`submit` for each tile's job, without ``slot``. The inputs
        are copied now.

        Examples
        --------
        >>> job = scheduler.submit_tiled(network, {"image": picture}, tile=8, overlap=2)
        >>> while job.state != "done":
        ...     encoder = gpu.device.create_command_encoder()
        ...     report = scheduler.encode(encoder)
        ...     _ = gpu.device.queue.submit([encoder.finish()])
        ...     reports = scheduler.end_frame()
        """
        from cml_engine.runtime.session import Session
        from cml_engine.runtime.tiling import Tiles
        from cml_engine.scheduler.tiling import TiledJob

        check_instance(Session, session, "session")
        if options.get("slot") is not None:
            raise InputError(
                "slot: the tiles of a picture would supersede each other. Leave it out, and "
                "cancel() the picture that a newer one replaces"
            )
        tiles = Tiles(session, inputs, tile, overlap, align)
        return TiledJob(self.submit, self.lifecycle, tiles, options)

    def forget_periodic(self, periodic: Periodic) -> None:
        """Removes a stopped periodic job from the ones that each frame looks at."""
        with self.lifecycle.lock:
            self._periodic = [entry for entry in self._periodic if entry is not periodic]

    def describe(self) -> str:
        """Returns a text about the current state, for people.

        It has the budget, the reason why the last frame stopped, the work of the preparation
        thread, and what each job waits for.
        """
        with self.lifecycle.lock:
            jobs, report, error = self.jobs, self.last_report, self.lifecycle.last_error
            running = sum(job.running for job in jobs)
            stopped = f"; the last frame stopped at: {report.reason}" if report else ""
            lines = [
                f"frame {self.frame}: budget {self.next_budget_ms:.3g} ms, {running} jobs "
                f"running, {len(jobs) - running} queued{stopped}",
                f"preparation: {one_line(self.executor.preparing()) or 'nothing to do'}",
            ]
            if sentence := self.controller.describe(self.budget):
                lines.append(sentence)
            if error:
                lines.append(f"last error: {one_line(error)}")
            if self.ignored_values:
                lines.append(f"{self.ignored_values} times that made no sense were left out")
            lines += [f"job {job.number} '{job.name}': {job.waiting_for}" for job in jobs[:_SHOWN]]
            if len(jobs) > _SHOWN:
                lines.append(f"and {len(jobs) - _SHOWN} more jobs")
            return "\n".join(lines)

    @property
    def ignored_values(self) -> int:
        """The number of times that were ignored because they were invalid.

        A time that the host or the device gave during frames is invalid if it is NaN, infinite
        or negative, or comes from a clock that went back.
        """
        return self._ignored + self.controller.ignored + self._steady.ignored

    @property
    def rate(self) -> float:
        """The GPU milliseconds planned for networks per millisecond of wall time."""
        return self.controller.rate(self._allowed()[1])

    def _allowed(self) -> tuple[float, float]:
        """Returns the next frame's budget, and the predicted time to plan for, both in ms."""
        return self.controller.plan(self.budget, self._timing.back_off.factor)

    @property
    def next_budget_ms(self) -> float:
        """The GPU milliseconds that the next frame's networks may take, as far as known now."""
        return self._allowed()[0]

    # --- a frame

    def render_took(self, ms: float) -> None:
        """Reports the renderer's own GPU time of a recent frame, for ``budget_ms="spare"``.

        Invalid times are ignored and counted in :attr:`ignored_values`.
        """
        self.controller.render_took(ms)

    def frame_took(self, ms: float) -> None:
        """Reports the total time of the frame that was encoded last, for ``budget_ms="spare"``.

        The time runs until the frame's GPU work is done, without the wait for the display. It is
        better information than :meth:`render_took`: with it, no headroom is left unused.
        """
        self.controller.frame_took(ms)

    def encode(
        self, encoder: wgpu.GPUCommandEncoder, elapsed_ms: float | None = None
    ) -> FrameReport:
        """Encodes this frame's slices into the host's command encoder; returns the frame's report.

        Never waits. ``elapsed_ms`` says that everything else in the frame is done, on the GPU
        too, and took this long. A host that waits for its picture (it is drawn on the CPU, or
        paced by a fence) encodes and submits the networks after it. With ``budget_ms="spare"``
        the networks then get the rest of the frame; :meth:`frame_took` reports how long the whole
        frame took.

        Encodes nothing until the previous frame was ended: before that the scheduler does not
        know whether the host has submitted it, and a new upload would overtake it.
        """
        self.executor.check_encoder(encoder)
        with self.lifecycle.lock:
            self.lifecycle.frame_thread = current_thread()
            if self.lifecycle.open_frame is not None:
                self._note_unpaired("encode()", "end_frame()")
                return self._refuse_frame()
            self.controller.begin_frame(self.budget, elapsed_ms)
            return self._encode(encoder)

    def _note_unpaired(self, called: str, missing: str) -> None:
        """Counts a call without its counterpart, and warns the host once it forgets it often."""
        self._unpaired += 1
        if self._unpaired == _FORGETFUL:
            warnings.warn(
                f"{called} was called {_FORGETFUL} times without {missing}, so no job advances. In "
                "each frame, call encode() before the submit and end_frame() after it, or "
                "abandon_frame() instead of a submit",
                RuntimeWarning,
                stacklevel=3,
            )

    def _refuse_frame(self) -> FrameReport:
        now = self._steady.now_ms()
        report = FrameReport(self.frame, now, self.next_budget_ms, 0.0, "frame not ended")
        self.last_report = self.lifecycle.pace.last_report = report
        # a lost device may be why the host did not end the frame
        if fail_all_where_lost(self.lifecycle):
            report.reason = "device error"
        return report

    def _encode(self, encoder: wgpu.GPUCommandEncoder) -> FrameReport:
        start = perf_counter()
        jobs, self._unpaired = self.lifecycle, 0
        now = self._steady.now_ms()
        for periodic in list(self._periodic):
            periodic.due(now)
        budget, aim = self._allowed()
        rate, self._rate = aim / self.frame_ms, self.controller.rate(aim)
        copied_ms = jobs.copy_costs.take()
        inputs = FrameInputs(
            now, budget, max(0.0, aim - copied_ms), copied_ms,
            rests=self._timing.back_off.skip_due or self.controller.skips_frame(self.budget),
            gpu_behind=self.executor.is_behind(self.max_frames_in_flight),
        )  # fmt: skip
        jobs.begin_frame(self._pace())
        ready = networks_ready(jobs.job_list.queues) if jobs.recorder else {}
        state = collect_state(jobs, inputs, self.policy, rate, self.cost_model)
        if jobs.recorder:
            # preparing one network may have evicted another; jobs whose network is evicted as other
            # jobs begin are refused
            ready_after = networks_ready(jobs.job_list.queues)
            ready = {key: was and ready_after.get(key, True) for key, was in ready.items()}
        plan = plan_and_start(jobs, encoder, self.planner, state)
        report = FrameReport(
            self.frame, now, budget, state.aim_ms, plan.reason, planned=plan.by_budget,
            copied_ms=copied_ms,
        )  # fmt: skip
        self.last_report = jobs.pace.last_report = report
        all_settled = advance_jobs(plan, report)
        if jobs.recorder:
            jobs.recorder.encoded(inputs, report, ready, jobs.refused_jobs, jobs.back_from_cpu)
        report.timed = not all_settled or self.times_all or self.controller.times(self.frame)
        n_groups = self.executor.max_groups if report.timed else 1
        groups = group_slices(plan.slices, n_groups, self.frame)
        encoding = perf_counter()
        encode_slices(jobs, encoder, report, groups)
        report.encode_ms = 1e3 * (perf_counter() - encoding)
        if not plan.slices and self.frame % _LOOK_EVERY == 0 and len(jobs.job_list):
            fail_all_where_lost(jobs)
        timed = groups if report.timed else []
        self._timing.encoded(report, [[(part.cost, part.count) for part in g] for g in timed])
        self.controller.encoded(report, inputs.aim_ms)
        report.cpu_ms = 1e3 * (perf_counter() - start)
        return report

    def end_frame(self) -> list[FrameReport]:
        """Ends the frame after the host's submit; returns the reports that are now measured.

        Learns from the timings that have arrived. The reports are of earlier frames. Never waits.
        """
        with self.lifecycle.lock:
            if self.lifecycle.open_frame is None and not all(job.paused for job in self.jobs):
                self._note_unpaired("end_frame()", "encode()")
            measured = self._end_frame()
        self.lifecycle.settle()
        return measured

    def _end_frame(self) -> list[FrameReport]:
        self.lifecycle.end_frame()
        timings = self._timings()
        now = self._steady.now_ms()
        if self.lifecycle.recorder:
            self.lifecycle.recorder.ended_frame(timings, now)
        self.frame += 1
        measured = self._timing.ended(timings, now, self.cost_model)
        self.lifecycle.copy_costs.learn(self.executor.take_copies())
        for report in measured:
            self.controller.measured(report)
        self.controller.learn()
        self.lifecycle.pace = self._pace()
        self.lifecycle.update_work_left()
        return measured

    def _run_frame(self) -> FrameReport | None:
        """Encodes, submits and ends a frame without the host; returns its report.

        :meth:`Job.wait` needs it where no frame loop runs. If a frame is open, the result is None.
        Keeps the lock until the frame has ended, because a loop may begin on another thread.
        """
        with self.lifecycle.lock:
            if self.lifecycle.open_frame is not None:
                return None
            encoder = self.executor.new_encoder()
            self.controller.begin_frame(self.budget, None)
            report = self._encode(encoder)
            self.executor.submit(encoder)
            self._end_frame()
        self.lifecycle.settle()
        return report

    def _timings(self) -> list[Timing]:
        """Ends the frame on the device; returns the valid timings that have arrived.

        Invalid timings are counted. Jobs whose results became wrong fail.
        """
        try:
            timings = self.executor.end_frame(self.frame)
            if self.executor.take_losses():
                self.lifecycle.fail_harmed()
        except Exception as error:
            self.lifecycle.note(error)
            return []
        valid_timings = [timing for timing in timings if is_ms(timing.ms)]
        self._ignored += len(timings) - len(valid_timings)
        return valid_timings

    def abandon_frame(self) -> None:
        """Discards the encoded frame; call it instead of the submit and :meth:`end_frame`.

        A host does so if it throws the encoder away (the window changed its size, its surface
        was lost). The jobs continue from their state before the frame, or fail if the device is
        lost.
        """
        with self.lifecycle.lock:
            if self.lifecycle.open_frame is None:
                return
            self.lifecycle.abandon_frame()
            try:
                self.executor.abandon_frame(self.frame)
            except Exception as error:
                self.lifecycle.note(error)
            self._timing.abandoned()
            self.controller.abandoned()
            if self.lifecycle.recorder:
                self.lifecycle.recorder.abandoned_frame()
            self.frame += 1
            self.lifecycle.pace = self._pace()
            # a lost device may be why the host discards the frame
            fail_all_where_lost(self.lifecycle)


def _budget_of(budget_ms: object, frame_ms: float) -> FixedBudget | SpareBudget:
    """Returns the budget that the argument ``budget_ms`` selects: a number, or ``"spare"``.

    Raises :class:`InputError` for anything else.
    """
    if isinstance(budget_ms, str) and budget_ms == "spare":
        return SpareBudget(frame_ms)
    if isinstance(budget_ms, str) or budget_ms is None:
        raise InputError(
            f"budget_ms is {shortened(repr(budget_ms))}: wanted a number of milliseconds such as "
            "4.0, or 'spare' for what the renderer leaves of frame_ms"
        )
    return FixedBudget(check_number("budget_ms", budget_ms))
