"""The steps of a frame: collects the state, starts the chosen jobs and encodes slices.

The life of a job, with the calls of the executor that move it:

1. ``submit``: ``accept`` checks the inputs. The job is queued; its network is prepared in frames
   until it is ready.
2. :func:`collect_state`: the job is a candidate once its inputs exist and its network is free.
3. :func:`plan_and_start`: the planner gives it slices. ``reserve`` takes memory, ``begin_job``
   encodes the uploads of its inputs and returns the job's run.
4. :func:`advance_jobs`: each slice moves ``step`` and ``group``.
5. :func:`encode_slices`: ``encode`` records the slices. A step on the CPU begins with a readback
   (``begin_cpu_step``) and ends in a later frame (``end_cpu_step``). After the last step
   ``finish_job`` copies the outputs into a result, and the job is done. ``end_job`` frees the
   network for the next job, also if the job fails or is cancelled.
6. The frame ends: ``end_frame`` makes all this final. If the host does not submit it,
   ``abandon_frame`` undoes it, and ``resume_job`` continues the jobs that had ended in it.
7. The frame's receipt arrives, a number that only a submit delivers. Without it the frame was lost:
   ``take_losses`` says so, and the jobs whose run has a ``harm`` fail.
8. ``Result.release`` frees the outputs when the host has released them and no job needs them.

Errors fail the jobs that they belong to; they do not leave the frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from cml_engine.compiler.plan import Slice
from cml_engine.scheduler.executor import (
    WALL_CLOCK,
    Executor,
    Handle,
    Network,
    exclusivity_key,
)
from cml_engine.scheduler.jobs.job import Job
from cml_engine.scheduler.jobs.job_list import NetworkQueue
from cml_engine.scheduler.jobs.lifecycle import Lifecycle, gathered_inputs
from cml_engine.scheduler.planning.cost_model import CostModel
from cml_engine.scheduler.planning.plan import (
    FrameInputs,
    FramePlan,
    FrameState,
    PlannedSlice,
    Planner,
)
from cml_engine.scheduler.planning.policy import Policy
from cml_engine.scheduler.reports import FrameReport, Reason, SliceReport

if TYPE_CHECKING:
    import wgpu

_NUMBER = attrgetter("number")
#: if all costs are settled, one frame in this number has slices timed one by one, because each
#: timing makes the device wait for the work before it (50 µs on a software driver)
_APART_EVERY = 16
#: more slices than any frame has
_UNLIMITED = 1 << 31


def collect_state(
    jobs: Lifecycle, inputs: FrameInputs, policy: Policy, rate: float, model: CostModel
) -> FrameState:
    """Returns the state from which the frame is planned, with the jobs that could run.

    Networks that are not ready are prepared further. Jobs whose input will never arrive fail.
    Jobs whose step on the CPU is done go on.
    """
    _fail_without_input(jobs)
    _end_cpu_steps(jobs, inputs)
    candidates, otherwise = _candidates(jobs, inputs, policy, rate)
    return FrameState(
        inputs.now_ms, inputs.budget_ms, 0.0 if inputs.rests else inputs.aim_ms, rate,
        jobs.executor.granule, _most_unsettled(jobs.executor), inputs.gpu_behind, otherwise, policy,
        candidates, model,
    )  # fmt: skip


def _most_unsettled(executor: Executor) -> int:
    """Returns the most slices of a frame whose costs are not settled: all are to be timed."""
    timed = executor.clock_source != WALL_CLOCK
    return _most_timed_alone(executor.max_groups) if timed else _UNLIMITED


def _most_timed_alone(max_groups: int) -> int:
    """Returns how many slices of a frame can be timed one by one, between groups of the others."""
    return max(1, (max_groups - 1) // 2)


def _end_cpu_steps(jobs: Lifecycle, inputs: FrameInputs) -> None:
    for job in jobs.job_list.running_on_cpu:
        try:
            while job.is_on_cpu and jobs.executor.end_cpu_step(
                job.network, job.network_step(job.step), inputs.budget_ms
            ):
                jobs.back_from_cpu.append(job.number)
                jobs.cpu_waits[job.costs[job.step].key] = inputs.now_ms - job.last_served_ms
                job.step, job.blocked_by = job.step + 1, ""
        except Exception as error:
            jobs.fail(job, error)


def _begin_cpu_steps(jobs: Lifecycle, encoder: wgpu.GPUCommandEncoder) -> None:
    """Encodes the readbacks of the jobs whose next step is on the CPU, if they have not begun."""
    for job in jobs.job_list.running_on_cpu:
        job.blocked_by = f"{job.costs[job.step].title} on the CPU"
        try:
            jobs.executor.begin_cpu_step(encoder, job.network, job.network_step(job.step))
        except Exception as error:
            jobs.fail(job, error)


def _candidates(
    jobs: Lifecycle, inputs: FrameInputs, policy: Policy, rate: float
) -> tuple[list[Job], Reason]:
    """Returns the jobs that could run now, the oldest first, and a reason why the frame may stop.

    The reason is reported if the jobs end before the budget is used. A candidate is not paused,
    has its inputs, and its network is ready and free. Of the jobs that wait for the same network
    only the few that may come first are included (``scheduler/jobs/job_list.py``). Networks that
    are not ready are prepared further.
    """
    running = list(jobs.job_list.running.values())
    waiting = jobs.job_list.has_blocked_jobs or jobs.job_list.running_on_cpu
    otherwise: Reason = "all waiting" if waiting else "nothing to do"
    busy = {exclusivity_key(job.network) for job in running}
    queues = jobs.job_list.queues
    unready = [queue for queue in queues if not _is_ready(jobs, queue)]
    if any(len(queue) for queue in unready):
        otherwise = "preparing"
    for queue in unready:
        _prepare(jobs, queue, inputs.budget_ms / len(unready))
    for network in {job.network for job in running} | {queue.network for queue in queues}:
        network.advance_successor(inputs.budget_ms)
    candidates = [job for job in running if not job.paused]
    for queue in queues:
        free = exclusivity_key(queue.network) not in busy
        # preparing one network may have taken the memory of another that is idle
        if free and queue not in unready and (not unready or _is_ready(jobs, queue)):
            next_jobs = queue.first(policy, inputs.now_ms, rate)
            if queue.network.retains:
                next_jobs = [job for job in next_jobs if not jobs.job_list.find_predecessor(job)]
                for job in next_jobs:
                    _update_steps(jobs, job)
            candidates += next_jobs
    candidates.sort(key=_NUMBER)
    return candidates, otherwise


def _is_ready(jobs: Lifecycle, queue: NetworkQueue) -> bool:
    """Returns True if the queue's network is ready; on an error, fails all jobs in the queue."""
    try:
        return bool(queue.network.ready)
    except Exception as error:
        _fail_queue(jobs, queue, error)
        return False


def _prepare(jobs: Lifecycle, queue: NetworkQueue, ms: float) -> None:
    """Prepares the network of a queue with jobs for ``ms``; on an error, fails all these jobs."""
    if len(queue):
        try:
            queue.network.prepare(ms)
        except Exception as error:
            _fail_queue(jobs, queue, error)


def _fail_queue(jobs: Lifecycle, queue: NetworkQueue, error: Exception) -> None:
    for job in queue.jobs:
        jobs.fail(job, error)


def _fail_without_input(jobs: Lifecycle) -> None:
    failed_here: set[Job] = set()
    while jobs.job_list.without_input:
        job = jobs.job_list.without_input.popleft()
        failed_producer = next(
            (m for m in job.producers if m.state in ("cancelled", "failed")), None
        )
        message = "the outputs that it takes were released before it was submitted"
        is_replayed = False
        if failed_producer is not None:
            message = f"its input's job '{failed_producer.name}' {failed_producer.state}"
            # a replay knows neither other schedulers nor lost frames; if the producer fails in it
            # before the frame, the job fails too, at this point
            is_lost = failed_producer.run is not None and bool(failed_producer.run.harm)
            is_own = failed_producer.owner is jobs and failed_producer not in failed_here
            is_replayed = is_own and not is_lost
        if not is_replayed:
            failed_here.add(job)
            jobs.record_failure_in_frame(job)
        jobs.end(job, "failed", message, is_recorded=False)


def plan_and_start(
    jobs: Lifecycle, encoder: wgpu.GPUCommandEncoder, planner: Planner, state: FrameState
) -> FramePlan:
    """Plans the frame, starts the jobs that begin in it, and returns the plan.

    If a job cannot start, the frame is planned again without it.
    """
    while True:
        plan = planner(state)
        refused = next(
            (job for job in plan.starts if not _start(jobs, encoder, job, state.now_ms)), None
        )
        if refused is None:
            return plan
        state = replace(state, jobs=_drop_job(state.jobs, refused))


def _drop_job(jobs: Sequence[Job], refused: Job) -> list[Job]:
    """Returns the jobs without ``refused``, after other jobs of the plan have started.

    The other queued jobs of its network are left out too, and those whose network is now in use.
    """
    remaining_jobs = [job for job in jobs if job is not refused]
    keys_in_use = {exclusivity_key(job.network) for job in remaining_jobs if job.running}
    keys_in_use.add(exclusivity_key(refused.network))
    return [
        job
        for job in remaining_jobs
        if job.running or exclusivity_key(job.network) not in keys_in_use
    ]


def _update_steps(jobs: Lifecycle, job: Job) -> bool:
    """Updates the steps of a job that may begin; returns True if they changed."""
    changed = job.network.retains and job.state == "queued" and job.find_steps(behind=False)
    if changed and jobs.recorder:
        jobs.recorder.has_work(job)
    return changed


def _start(jobs: Lifecycle, encoder: wgpu.GPUCommandEncoder, job: Job, now: float) -> bool:
    try:
        # first: nothing that can raise may stand between reserve and begin_job
        inputs = gathered_inputs(job.inputs)
        job.blocked_by = _missing_memory(job.network) or jobs.executor.reserve(job.network, inputs)
        if not job.blocked_by and _update_steps(jobs, job):
            jobs.executor.end_job(job.network)
            job.blocked_by = "its network's memory, which another thread used just now"
        if job.blocked_by:
            jobs.refused_jobs.append(job.number)
            return False
        job.run = jobs.executor.begin_job(encoder, job.network, inputs)
    except Exception as error:
        jobs.refused_jobs.append(job.number)
        jobs.fail(job, error, is_at_start=True)
        return False
    jobs.save_before_start(job)
    job.state, job.started_ms = "running", now
    jobs.job_list.started(job)
    return True


def _missing_memory(network: Network) -> str:
    """Returns a text that says what a network lacks that was ready before; "" if it is still ready.

    A network may lose memory when another job starts.
    """
    return "" if network.ready else network.waiting_for or "its network to be ready"


def advance_jobs(plan: FramePlan, report: FrameReport) -> bool:
    """Advances the jobs by the plan's slices, and adds the slices to the report.

    Returns True if the costs of all slices are settled.
    """
    slices, now_ms, predicted_ms, all_settled = report.slices, report.now_ms, 0.0, True
    for part in plan.slices:
        job, cost, ms = part.job, part.cost, part.predicted_ms
        end = part.first + part.count
        job.step, job.group = (part.step + 1, 0) if end == cost.groups else (part.step, end)
        job.given_ms += ms
        job.virtual_ms += ms / (job.priority or 1.0)
        job.last_served_ms = now_ms
        predicted_ms += ms
        all_settled = all_settled and part.settled
        number = None if part.step < job.loads else job.numbers[part.step] - job.loads
        slices.append(
            SliceReport(
                job.number, number, cost.op, cost.title, part.first, part.count, ms, None, job.name,
                part.step, part.settled,
            )
        )  # fmt: skip
    report.predicted_ms = predicted_ms
    return all_settled


def networks_ready(queues: Sequence[NetworkQueue]) -> dict[Network, bool]:
    """Returns for each queued network True if it is ready, for a recording."""
    ready = {}
    for queue in queues:
        try:
            ready[queue.network] = bool(queue.network.ready)
        except Exception:  # the jobs of the network fail in _is_ready
            ready[queue.network] = False
    return ready


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
    most = limit if len(slices) <= limit else _most_timed_alone(limit)
    return set(candidates[:most])


def encode_slices(
    jobs: Lifecycle,
    encoder: wgpu.GPUCommandEncoder,
    report: FrameReport,
    groups: Sequence[Sequence[PlannedSlice]],
) -> None:
    """Encodes the slices, then the ends of completed jobs, then the copies for readbacks.

    Readbacks are those of operators on the CPU, too.

    Jobs whose slices could not be encoded fail.
    """
    working = {part.job.network: part.job for group in groups for part in group}
    slices = [
        [Slice(part.job.network, part.job.numbers[part.step], part.first, part.count) for part in g]
        for g in groups
    ]
    failed: Sequence[tuple[Handle, Exception]]
    try:
        failed = jobs.executor.encode(encoder, report.frame, slices, timed=report.timed) or ()
    except Exception as error:  # the device is lost, or refuses the frame as a whole
        failed = [(network, error) for network in working]
        report.reason = "device error"
        if not working:
            jobs.note(error)
    for network, why in failed:
        if network in working:
            report.reason = "device error"
            jobs.fail(working[network], why)
    if report.reason == "device error":
        fail_all_where_lost(jobs)
    _begin_cpu_steps(jobs, encoder)
    _finish(jobs, encoder, report)
    _request_reads(jobs, encoder)


def fail_all_where_lost(jobs: Lifecycle) -> bool:
    """Fails all jobs if the device is lost; returns True if it is."""
    try:
        jobs.executor.check()
    except Exception as error:
        for job in jobs.job_list.jobs:
            jobs.fail(job, error)
        return True
    return False


def _finish(jobs: Lifecycle, encoder: wgpu.GPUCommandEncoder, report: FrameReport) -> None:
    for job in [job for job in jobs.job_list.running.values() if job.all_encoded]:
        try:
            job.outputs.result = jobs.executor.finish_job(encoder, job.network)
        except Exception as error:
            jobs.fail(job, error)
            continue
        if job.result is None:
            job.blocked_by = "memory for its outputs"
            jobs.refused_jobs.append(job.number)
            continue
        jobs.end(job, "done")
        report.finished.append(job.number)
        if job.wants_read:
            jobs.reads.append(job)


def _request_reads(jobs: Lifecycle, encoder: wgpu.GPUCommandEncoder) -> None:
    reads, jobs.reads = jobs.reads, []
    for job in reads:
        if job.result is not None:
            try:
                jobs.executor.request_read(encoder, job.result)
            except Exception as error:
                job.read_error = error
