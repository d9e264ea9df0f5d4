"""Moves jobs from submission to their end, and undoes frames that were never submitted."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from threading import Event, RLock, Thread, current_thread
from typing import TYPE_CHECKING, Any, Literal, cast
from weakref import WeakKeyDictionary, WeakMethod, WeakSet

from cml_engine.compiler.plan import StepCost
from cml_engine.errors import CmlError, InputError
from cml_engine.errors.arguments import check_input_mapping, shortened
from cml_engine.ir.textures import on_device
from cml_engine.runtime.session import Session
from cml_engine.scheduler.clock import SteadyClock, check_number
from cml_engine.scheduler.executor import Executor, Network, exclusivity_key
from cml_engine.scheduler.frame_timings import CopyCosts
from cml_engine.scheduler.jobs.job import ENDED, Awaitable, EndedNetwork, Job, JobOutput, State
from cml_engine.scheduler.jobs.job_list import JobList
from cml_engine.scheduler.planning.cost_model import CostModel
from cml_engine.scheduler.planning.policy import Policy
from cml_engine.scheduler.recording import Recorder
from cml_engine.scheduler.reports import FrameReport

if TYPE_CHECKING:
    import wgpu

    from cml_engine.gpu.memory.tensors import GpuTensor
    from cml_engine.ir.graph import Array


#: the reaction to a deadline that cannot be met
Admission = Literal["accept", "warn", "refuse"]


class AdmissionError(CmlError):
    """Raised for a job submitted with ``admission="refuse"`` whose deadline cannot be met.

    Examples
    --------
    >>> try:
    ...     scheduler.submit(network, {"image": image}, deadline_ms=0.001, admission="refuse")
    ... except cml.scheduler.AdmissionError:
    ...     pass  # draw the frame without it
    """


def admit(job: Job, admission: Admission, n_others: int, rate: float) -> None:
    """Warns or raises :class:`AdmissionError` if the job is predicted to miss its deadline.

    ``admission`` selects the reaction; ``n_others`` is the number of other jobs and ``rate`` that
    of :class:`FramePace`, for the message.
    """
    if job.deadline_at_ms is None or admission == "accept":
        return
    late_ms = job.submitted_ms + job.eta_ms - job.deadline_at_ms
    if late_ms <= 0:
        return
    end = (
        f"would end {late_ms:.0f} ms after it" if rate > 0 else "get no time from a budget of 0 ms"
    )
    message = (
        f"job '{job.name}' cannot hold its deadline: {job.remaining_ms:.1f} ms of GPU time "
        f"beside {n_others} jobs {end}. "
        "Give it more time, a larger budget, or a smaller network."
    )
    if admission == "refuse":
        raise AdmissionError(message)
    warnings.warn(message, RuntimeWarning, stacklevel=5)


def network_of(session: Session | Network) -> Network:
    """Returns the network of a GPU session, or the argument itself if it is a network.

    Raises :class:`InputError` for anything else.
    """
    current = getattr(session, "current_program", None)
    network = cast(Network, session if current is None else current())
    if not hasattr(network, "step_costs"):
        backend = getattr(session, "backend", None)
        description = shortened(repr(session))
        if isinstance(backend, str):
            description = f"a session on the {backend.upper()}"
        raise InputError(
            f"session: wanted one on a GPU, got {description}; cml.Session(graph, gpu) makes one"
        )
    return network


def accept_inputs(
    executor: Executor, session: Session | Network, inputs: Mapping[str, object]
) -> tuple[Network, dict[str, object], Sequence[StepCost]]:
    """Returns a new job's network, its inputs as the device keeps them, and its loads' costs.

    The session checks host arrays, and may change its network for them; the executor checks
    tensors on the device.
    """
    check_input_mapping(inputs)
    if isinstance(session, Session):
        inputs = session.check_inputs(inputs, skip=_on_gpu(inputs))
    network = network_of(session)
    return network, *executor.accept(network, dict(inputs))


def _on_gpu(inputs: Mapping[str, object]) -> frozenset[str]:
    """Returns the names of the inputs on the device: other jobs' outputs, tensors, textures."""
    return frozenset(name for name, v in inputs.items() if isinstance(v, JobOutput) or on_device(v))


#: the most characters of an error in a text
_LENGTH = 200


def one_line(text: str) -> str:
    """Returns the text in one line, cut off after ``_LENGTH`` characters."""
    joined = " ".join(text.split())
    return joined if len(joined) <= _LENGTH else joined[: _LENGTH - 1] + "…"


#: for each choice of a network's steps (None: all) the predicted ms of each step and all later ones
_Work = dict[tuple[int, ...] | None, list[float]]


@dataclass(slots=True)
class FramePace:
    """The scheduler's values at its last update, from which jobs predict when they end.

    It is a value without a reference to the scheduler, so a scheduler that a host drops is freed at
    once, with its memory on the device.
    """

    frame: int
    frame_ms: float
    #: GPU milliseconds for networks per millisecond of wall time
    rate: float
    policy: Policy
    cost_model: CostModel
    last_report: FrameReport | None


_log = logging.getLogger(__name__)
#: seconds between frames of :meth:`Lifecycle.wait` that run nothing, and between looks at a job
#: whose frames another thread runs
_IDLE_S, _LOOK_S = 0.001, 0.05


class FrameSnapshot:
    """The states of the jobs that a frame works on, saved before the frame was encoded."""

    def __init__(self, running: Iterable[Job]) -> None:
        self._was = [_state_of(job) for job in running]

    def add(self, job: Job) -> None:
        """Saves the state of a job that the frame is about to start."""
        self._was.append(_state_of(job))

    def restore(self, executor: Executor, job_list: JobList) -> None:
        """Restores the saved states of jobs that were not cancelled and have not failed.

        A job that the frame ended is running again; a job that the frame started is queued again.
        """
        for job, state, step, group, given_ms, virtual_ms in self._was:
            if job.state in ("cancelled", "failed"):
                continue
            was_done = job.state == "done"
            if was_done:
                job.undo_end()
                executor.resume_job(job.network)
            if state == "queued" and job.state != "queued":
                executor.end_job(job.network)
                job.started_ms = None
            job.state, job.step, job.group = state, step, group
            job.given_ms, job.virtual_ms = given_ms, virtual_ms
            if was_done:
                job_list.resume_ended(job)
            if state == "queued":
                job_list.queued(job)


def _state_of(job: Job) -> tuple[Job, State, int, int, float, float]:
    return job, job.state, job.step, job.group, job.given_ms, job.virtual_ms


#: every scheduler's jobs, and the lock of those who add jobs of a network that retains its inputs
_LIFECYCLES: WeakSet[Lifecycle] = WeakSet()
_RETAINING = RLock()


class Lifecycle:
    """The jobs of one scheduler; implements :class:`cml_engine.scheduler.jobs.job.JobOwner`."""

    def __init__(self, executor: Executor, clock: SteadyClock, pace: FramePace) -> None:
        self.pace = pace
        self.lock = RLock()
        #: the unfinished jobs, indexed by what they wait for
        self.job_list = JobList()
        self.recorder: Recorder | None = None
        #: numbers of the jobs that could not begin, or lacked memory at their end, in this frame
        self.refused_jobs: list[int] = []
        #: numbers of the jobs that went on in this frame after a step on the CPU
        self.back_from_cpu: list[int] = []
        #: the milliseconds for which a job last waited for each step on the CPU, by its cost key
        self.cpu_waits: dict[str, float] = {}
        #: the jobs whose readback the next frame requests
        self.reads: list[Job] = []
        #: the last error that belonged to no job
        self.last_error = ""
        #: set while a frame is encoded and not ended
        self.open_frame: FrameSnapshot | None = None
        #: the cost of copies of outputs in the next frame
        self.copy_costs = CopyCosts(pace.cost_model.guess)
        self.executor, self._clock = executor, clock
        #: done jobs that the host still references
        self._done: WeakSet[Job] = WeakSet()
        self._work_left: WeakKeyDictionary[Network, _Work] = WeakKeyDictionary()
        self._lessons = -1
        self._begun: list[Job] = []
        self._ended: list[Job] = []
        #: jobs that have ended and whose callbacks were not called
        self._unsettled: list[Job] = []
        #: the thread of the frame loop
        self.frame_thread: Thread | None = None
        #: runs one frame; weak, so that a scheduler that a host drops is freed at once
        self.run_frame: WeakMethod[Callable[[], FrameReport | None]] | None = None
        with _RETAINING:  # another thread may look through them
            _LIFECYCLES.add(self)

    # --- a job

    def add(self, job: Job, admission: Admission) -> None:
        """Adds a new job to the job list.

        Finds the steps that it runs, warns about its deadline or refuses it, and cancels waiting
        jobs of the same slot.
        """
        are_kept = [producer.outputs.add_consumer(job) for producer in job.producers]
        retains = job.network.retains
        with self.lock, _RETAINING if retains else nullcontext():
            lessons = self.pace.cost_model.lessons
            try:
                if retains:
                    self._refuse_second_scheduler(job)
                calibrate(self.pace.cost_model, job.network)
                job.find_steps(behind=self.job_list.has_predecessor(job))
                admit(job, admission, len(self.job_list), self.pace.rate)
            except Exception:
                if self.recorder and self.pace.cost_model.lessons != lessons:
                    self.recorder.refused(job)
                self._release_inputs(job)
                raise
            if job.slot is not None:
                for old in self.job_list.pending_in_slot(job.slot):
                    self.end(old, "cancelled")
                self.job_list.forget_ended()
            self.job_list.add(job)
            if not all(are_kept):
                self.job_list.fail_without_input(job)
            if self.recorder:
                self.recorder.submitted(job)
                self._record_hold(job)

    def _refuse_second_scheduler(self, job: Job) -> None:
        """Raises :class:`InputError` if the job's network has unfinished jobs of another scheduler.

        Each job builds on the one that was submitted before, whose frames that scheduler runs.
        """
        others = [other for other in _LIFECYCLES if other is not self]
        if any(other.job_list.has_jobs_of(job.network) for other in others):
            raise InputError(
                f"job '{job.name}': the session retains its inputs, and jobs of it that were "
                "submitted to another scheduler have not ended. Submit all jobs of the session to "
                "one scheduler, wait until the others have ended, or use a session for each"
            )

    def end(self, job: Job, state: State, error: str = "", is_recorded: bool = True) -> None:
        """Ends a job in the given state with an error message; an ended job stays as it is.

        Its callbacks run later, in :meth:`settle`.
        """
        with self.lock:
            if job.ended:
                return
            now = self._clock.now_ms()
            if self.recorder and state != "done" and is_recorded:
                self.recorder.changed(job, state, now)
            began = job.state == "running"
            # the state last: other schedulers look at it without this lock
            job.ended_ms, job.ended_frame = now, self.pace.frame
            job.state, job.error = state, error
            self.job_list.ended(job)
            if began:
                try:
                    self.executor.end_job(job.network)
                except Exception as failed:
                    self.note(failed)
            if state != "done":  # the end of one that is done may be taken back with its frame
                self._release_inputs(job)
            else:
                self._done.add(job)
            self._ended.append(job)
            self._unsettled.append(job)
            if self.open_frame is None:
                self._drop_networks()

    def _release_inputs(self, job: Job) -> None:
        """Drops a job's inputs and frees them on the device: they were copied, or it has ended.

        An error is noted and not raised.
        """
        inputs, job.inputs = job.inputs, {}
        for value in inputs.values():
            try:
                if isinstance(value, JobOutput):
                    value.job.outputs.remove_consumer(job)
                else:
                    self.executor.release_input(value)
            except Exception as error:  # in the middle of a frame, and no fault of the caller
                self.note(error)

    def fail(self, job: Job, error: Exception, *, is_at_start: bool = False) -> None:
        """Ends the job as failed, with ``error`` as its exception, and logs a warning.

        With ``is_at_start`` the frame has tried to begin the job: a replay of the frame refuses the
        job and fails it afterwards.
        """
        _log.warning("job '%s' failed: %s", job.name, str(error) or type(error).__name__)
        if not job.ended:
            job.exception = error
            if self.recorder and is_at_start:
                self.recorder.failed_in_frame(job, self._clock.now_ms())
        self.end(job, "failed", str(error) or type(error).__name__, is_recorded=not is_at_start)

    def record_failure_in_frame(self, job: Job) -> None:
        """Records that the frame under way fails the job before it is planned.

        A replay leaves the job out of the frame and fails it afterwards. A retaining network's next
        job would wait for it meanwhile, so there the job fails before the frame.
        """
        if self.recorder is None:
            return
        now = self._clock.now_ms()
        if job.network.retains:
            self.recorder.changed(job, "failed", now)
        else:
            self.recorder.held(job, True, now)
            self.recorder.failed_in_frame(job, now)

    def note(self, error: Exception) -> None:
        """Sets :attr:`last_error` to an error that belongs to no job, and does not raise it."""
        self.last_error = f"{type(error).__name__}: {error}"

    def pause(self, job: Job, paused: bool) -> None:
        """Implements :meth:`Job.pause` and :meth:`Job.resume`."""
        with self.lock:
            job.paused = paused
            self.job_list.reindex(job)
            self._record_hold(job)

    def _record_hold(self, job: Job) -> None:
        """Records whether the job must wait: it is paused, or waits for another scheduler's job.

        A replay knows no other scheduler.
        """
        if self.recorder:
            waits = job.paused or self.job_list.waits_elsewhere(job)
            self.recorder.held(job, waits, self._clock.now_ms())

    def read(self, job: Job, name: str) -> Array | None:
        """Implements :meth:`Job.read`."""
        with self.lock:  # the job must not end between the check of its state and its use
            job.check_output(name)
            if not job.ended:
                job.wants_read = True
                return None
            result = job.require_result(name)
            if not job.wants_read:
                job.wants_read = True
                self.reads.append(job)
            if job.read_error is not None:
                raise job.read_error
            return result.read(name)

    def copy_to_texture(
        self, job: Job, encoder: wgpu.GPUCommandEncoder, name: str, options: Mapping[str, object]
    ) -> None:
        """Implements :meth:`Job.copy_to_texture`."""
        with self.lock:
            result = job.require_result(name)
            self.copy_costs.add(self.executor.copy_to_texture(encoder, result, name, options))

    def add_done_callback(self, job: Job, callback: Callable[[Job], object]) -> None:
        """Implements :meth:`Job.add_done_callback`."""
        with self.lock:
            if job.callbacks is not None:
                job.callbacks.append(callback)
                return
        self.call(callback, job)

    def call(self, callback: Callable[[Any], object], job: Awaitable) -> None:
        """Calls a host's callback; its exceptions are logged and noted."""
        try:
            callback(job)
        except Exception as error:  # the host's own code, in the middle of its frame loop
            _log.exception("a callback of job '%s' failed", job.name)
            self.note(error)

    def settle(self) -> None:
        """Calls the callbacks of jobs that ended for good and whose arrays have arrived.

        The caller must not hold the lock.
        """
        if not self._unsettled:
            return
        with self.lock:
            ended_jobs = [job for job in self._unsettled if job.ended]
            self._unsettled = [job for job in ended_jobs if self._is_reading(job)]
            calls = []
            for job in ended_jobs:
                if job not in self._unsettled:
                    calls += [(callback, job) for callback in job.callbacks or ()]
                    job.callbacks = None
        for callback, job in calls:
            self.call(callback, job)

    def _is_reading(self, job: Job) -> bool:
        """Returns True if a requested readback of the job's outputs will still arrive."""
        if job.state != "done" or job.result is None or job.read_error is not None:
            return False
        return job.wants_read and not job.result.has_arrived

    def wait(self, job: Job, timeout: float | None) -> None:
        """Waits until the job has ended for good and its arrays have arrived; see :meth:`Job.wait`.

        Runs frames itself unless another thread runs the frame loop.
        """
        end = None if timeout is None else time.monotonic() + check_number("timeout", timeout)
        settled = Event()

        def notify(_: Job) -> None:
            settled.set()

        self.add_done_callback(job, notify)
        try:
            while not settled.is_set():
                if end is not None and time.monotonic() >= end:
                    raise TimeoutError(
                        f"job '{job.name}' has not ended within {timeout:g} s: {job.waiting_for}"
                    )
                if paused := self._find_paused(job):
                    raise InputError(
                        f"job '{paused.name}' is paused and will not end: resume() it first"
                    )
                if self._has_other_loop:
                    settled.wait(_LOOK_S)
                else:
                    self._drive(job)
        finally:
            with self.lock:  # a host may wait again and again
                if job.callbacks is not None:
                    job.callbacks.remove(notify)

    def _find_paused(self, job: Job) -> Job | None:
        """Returns the paused job that keeps ``job`` from ending, or None.

        It is the job itself, or one that it waits for: for its output, because it was submitted
        before to a network that retains its inputs, or for the memory that it has.
        """
        with self.lock:
            waiting, seen = [job], {job}
            while waiting:
                current = waiting.pop()
                if current.ended:
                    continue
                if current.paused:
                    return current
                needed: list[Job | None] = [*current.producers]
                if current.owner is self and not current.running:
                    needed.append(self.job_list.find_predecessor(current))
                    needed.append(self._find_memory_user(current))
                new = [other for other in needed if other is not None and other not in seen]
                waiting += new
                seen.update(new)
            return None

    @property
    def _has_other_loop(self) -> bool:
        """True if another thread runs the frame loop."""
        loop = self.frame_thread
        return loop is not None and loop is not current_thread() and loop.is_alive()

    def _drive(self, job: Job) -> None:
        """Runs one frame for a thread that waits for the job; sleeps if the frame was empty.

        Raises :class:`InputError` inside an open frame, or if the scheduler no longer exists.
        """
        with self.lock:  # a loop may begin on another thread
            if self.open_frame is not None and not self._has_other_loop:
                raise InputError(
                    f"job '{job.name}': wait() was called between encode() and end_frame(), where "
                    "the job cannot go on. Call it between frames, or use add_done_callback() or "
                    "await"
                )
        run_frame = self.run_frame() if self.run_frame is not None else None
        if run_frame is None:
            raise InputError(f"job '{job.name}' will not end: its FrameScheduler no longer exists")
        report = run_frame()
        if report is None or not report.slices:
            time.sleep(_IDLE_S)

    def waiting_for(self, job: Job) -> str:
        """Implements :attr:`Job.waiting_for`."""
        if job.ended:
            if job.state != "done":
                return one_line(f"{job.state}: {job.error}" if job.error else job.state)
            if job.read_error is not None:
                return one_line(f"done: its readback failed: {job.read_error}")
            return "done: waits for its readback" if self._is_reading(job) else "done"
        report = self.pace.last_report
        next_frame = "room in a frame" + (
            f"; the last frame stopped at: {report.reason}" if report else ""
        )
        if job.running:
            progress_text = f"running: {100 * job.progress:.0f} % encoded"
            if job.paused:
                return f"{progress_text}, paused until resume()"
            return f"{progress_text}, waits for {job.blocked_by or next_frame}"
        return f"queued: waits for {self._start_condition(job) or f'its turn, {next_frame}'}"

    def _start_condition(self, job: Job) -> str:
        """Returns a text that says what a queued job needs before it can begin; "" if nothing."""
        producers = job.pending_producers
        if producers:
            names = ", ".join(f"'{m.name}' (job {m.number}, {m.state})" for m in producers[:3])
            more = f" and {len(producers) - 3} more" if len(producers) > 3 else ""
            return f"the outputs of {names}{more}"
        if job.paused:
            return "resume(): it is paused"
        with self.lock:
            earlier = self.job_list.find_predecessor(job)
        if earlier is not None:
            return f"job {earlier.number} '{earlier.name}', which was submitted before"
        if not job.network.ready:
            reason = job.network.waiting_for
            return one_line("its network to be ready" + (f": {reason}" if reason else ""))
        user = self._find_memory_user(job)
        if user is not None:
            return f"job {user.number} '{user.name}' to end, which has its network's memory"
        return one_line(job.blocked_by)

    def _find_memory_user(self, job: Job) -> Job | None:
        """Returns another running job of the same network or the same shared memory, or None."""
        with self.lock:
            key = exclusivity_key(job.network)
            running = (j for j in self.job_list.running.values() if j is not job)
            return next((j for j in running if exclusivity_key(j.network) == key), None)

    # --- estimates

    def eta_ms(self, job: Job) -> float:
        """Returns the predicted wall milliseconds to the end of the job; 0 if it has ended.

        The jobs that the policy puts before it run first.
        """
        if job.ended:
            return 0.0
        with self.lock:
            pace = self.pace
            candidates = [*(j for j in self.job_list.jobs if not j.paused and j is not job), job]
            ahead_ms = 0.0
            for earlier_job in pace.policy(candidates, self._clock.now_ms(), pace.rate):
                if earlier_job is job:
                    break
                ahead_ms += earlier_job.remaining_ms
            work_ms = (ahead_ms + job.remaining_ms) / max(pace.rate, 1e-9)
            return work_ms + self.cpu_wait_ms(job) + pace.frame_ms

    def cpu_wait_ms(self, job: Job) -> float:
        """Returns the milliseconds for which the job is predicted to wait for the CPU."""
        if not job.cpu_steps:
            return 0.0
        keys = (job.costs[step].key for step in job.cpu_steps if step >= job.step)
        return sum(self.cpu_waits.get(key, 0.0) for key in keys)

    def remaining_ms(self, job: Job) -> float:
        """Returns the predicted GPU milliseconds of the job's work that is not encoded yet."""
        if job.state in ENDED or job.step >= len(job.costs):
            return 0.0
        if not job.group and job.step >= job.loads:
            return self._work_after(job)[job.step - job.loads]
        model, step = self.pace.cost_model, job.step + 1
        current = job.costs[job.step]
        if step < job.loads:
            loads = job.costs[step : job.loads]
            later_ms = model.remaining_ms(loads)[0] + self._work_after(job)[0]
        else:
            later_ms = self._work_after(job)[step - job.loads]
        return model.predict_ms(current, current.groups - job.group) + later_ms

    def _work_after(self, job: Job) -> list[float]:
        """Returns for each of the job's steps the predicted GPU ms of it and all later ones.

        Texture loads are not among these steps.
        """
        by_steps = self._work_left.setdefault(job.network, {})
        sums = by_steps.get(job.steps)
        if sums is None:
            sums = self.pace.cost_model.remaining_ms(job.costs[job.loads :])
            by_steps[job.steps] = sums
        return sums

    def update_work_left(self) -> None:
        """Predicts the work of the next jobs again if the cost model has learned since.

        Done after a submit, it costs the next frame nothing.
        """
        lessons = self.pace.cost_model.lessons
        if lessons != self._lessons:
            self._lessons = lessons
            self._work_left.clear()
            for job in self.job_list.next_jobs:
                self._work_after(job)

    # --- a frame

    def is_final(self, job: Job) -> bool:
        """Returns True if no abandoned frame can undo the end of the job, which has ended."""
        return self.open_frame is None or job.ended_frame != self.pace.frame

    def begin_frame(self, pace: FramePace) -> None:
        """Opens a frame: saves the running jobs' states and resets the last frame's values."""
        self.pace = pace
        for job in self.job_list.refresh_foreign_jobs():
            self._record_hold(job)
        self.update_work_left()
        self.job_list.forget_ended()
        self.refused_jobs, self.back_from_cpu = [], []
        self.open_frame = FrameSnapshot(self.job_list.running.values())

    def save_before_start(self, job: Job) -> None:
        """Saves the state of a job before the frame starts it, in case the frame is abandoned."""
        if self.open_frame is not None:
            self.open_frame.add(job)
        self._begun.append(job)

    def end_frame(self) -> None:
        """Makes the frame's changes final, because the host has submitted it.

        The inputs of jobs that began in it are released.
        """
        self.open_frame = None
        for job in self._begun:
            self._release_inputs(job)
        self._begun.clear()
        self._drop_networks()
        self.job_list.finalize_ends()

    def abandon_frame(self) -> None:
        """Restores the jobs to their state before the frame, which will never run."""
        if self.open_frame is not None:
            self.open_frame.restore(self.executor, self.job_list)
            self.open_frame = None
            self._begun.clear()
            self._drop_networks()

    def fail_harmed(self) -> None:
        """Fails the running and done jobs whose results are wrong because a frame never ran.

        Jobs that wait for their outputs fail too.
        """
        for job in [*self.job_list.running.values(), *self._done]:
            if job.state in ("running", "done") and job.run is not None and job.run.harm:
                message = f"job '{job.name}': {job.run.harm}"
                job.release()
                self.end(job, "failed", message)
                job.state, job.error = "failed", message
        for job in self.job_list.jobs:
            if any(producer.state == "failed" for producer in job.producers):
                self.job_list.reindex(job)

    def _drop_networks(self) -> None:
        """Replaces the networks of ended jobs by stand-ins, so that the jobs keep no session alive.

        No abandoned frame can restore these jobs any more.
        """
        ended_jobs, self._ended = self._ended, []
        for job in ended_jobs:
            if job.ended:
                job.network = EndedNetwork(job.network.output_names)


def calibrate(model: CostModel, network: Network) -> None:
    """Teaches the model the step times that the network measured when it was loaded.

    Only devices that cannot time their work in a frame have such times. Steps that the model has
    already measured are left out.
    """
    for cost, ms in zip(network.step_costs(), network.load_times_ms, strict=False):
        if not model.is_measured(cost):
            model.learn([(cost, cost.groups)], ms)


def gathered_inputs(inputs: Mapping[str, object]) -> dict[str, object]:
    """Returns a job's inputs by name; outputs of other jobs are replaced by their GPU tensors.

    Raises :class:`InputError` if another job's output is gone.
    """
    return {
        name: _tensor(value) if isinstance(value, JobOutput) else value
        for name, value in inputs.items()
    }


def _tensor(value: JobOutput) -> GpuTensor:
    if value.job.state == "failed":  # a job of another scheduler, after it was done
        raise InputError(f"its input's job failed: {value.job.error}")
    if value.job.result is None:
        raise InputError(f"job '{value.job.name}' has no output '{value.name}' any more")
    return value.job.result.tensor(value.name)
