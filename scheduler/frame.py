"""The steps of a frame: collects the state, starts the chosen jobs and encodes slices.

Errors fail the jobs that they belong to; they do not leave the frame.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from cml_engine.compiler.plan import Slice
from scheduler.executor import Network, exclusivity_key
from scheduler.frame_timings import Chosen
from scheduler.jobs.job import Job
from scheduler.jobs.job_list import NetworkQueue
from scheduler.jobs.lifecycle import Lifecycle, gathered_inputs
from scheduler.planning.cost_model import CostModel
from scheduler.planning.plan import FramePlan, FrameState, JobState, Planner
from scheduler.planning.policy import BUILT_IN, AnyPolicy
from scheduler.reports import FrameReport, Reason, SliceReport

if TYPE_CHECKING:
    import wgpu


def gather(
    jobs: Lifecycle, report: FrameReport, policy: AnyPolicy, rate: float, model: CostModel,
    *, gpu_behind: bool,
) -> tuple[FrameState, dict[int, Job]]:  # fmt: skip
    """Returns the state from which the frame is planned, and the jobs that could run, by number.

    Networks that are not ready are prepared further. Jobs whose input will never arrive fail.
    """
    _fail_without_input(jobs)
    candidates, otherwise = _candidates(jobs, report, policy, rate)
    numbers = _Numbers()
    exclusive = _Numbers()
    asks_remaining = policy not in BUILT_IN.values()
    states = tuple(
        JobState(
            number=job.number,
            name=job.name,
            network=numbers.of(
                (id(job.network), job.steps, *((c.key, c.groups) for c in job.costs[: job.loads]))
            ),
            exclusive=exclusive.of(exclusivity_key(job.network)),
            running=job.state == "running",
            step=job.step,
            group=job.group,
            priority=job.priority,
            deadline_at_ms=job.deadline_at_ms,
            virtual_ms=job.virtual_ms,
            last_served_ms=job.last_served_ms,
            remaining_ms=job.remaining_ms
            if asks_remaining or job.deadline_at_ms is not None
            else 0.0,
        )
        for job in candidates
    )
    networks = {state.network: job.costs for state, job in zip(states, candidates, strict=True)}
    state = FrameState(
        now_ms=report.now_ms,
        budget_ms=report.budget_ms,
        aim_ms=report.aim_ms,
        rate=rate,
        granule=jobs.executor.granule,
        gpu_behind=gpu_behind,
        otherwise=otherwise,
        policy=policy,
        jobs=states,
        networks=tuple(networks.values()),
        costs=model,
    )
    return state, {job.number: job for job in candidates}


class _Numbers:
    """Numbers keys from 0 in the order in which they are first seen."""

    def __init__(self) -> None:
        self._known: dict[Hashable, int] = {}

    def of(self, key: Hashable) -> int:
        return self._known.setdefault(key, len(self._known))


def _candidates(
    jobs: Lifecycle, report: FrameReport, policy: AnyPolicy, rate: float
) -> tuple[list[Job], Reason]:
    """Returns the jobs that could run now, the oldest first, and a reason why the frame may stop.

    The reason is reported if the jobs end before the budget is used. A candidate is not paused,
    has its inputs, and its network is ready and free. Of the jobs that wait for the same network
    only the few that may come first are included (:mod:`scheduler.jobs.job_list`). Networks that
    are not ready are prepared further.
    """
    jobs.job_list.refresh_foreign_jobs()
    otherwise: Reason = "all waiting" if jobs.job_list.held_back else "nothing to do"
    running = list(jobs.job_list.running.values())
    busy = {exclusivity_key(job.network) for job in running}
    queues = jobs.job_list.queues
    unready = [queue for queue in queues if not _is_ready(jobs, queue)]
    if any(len(queue) for queue in unready):
        otherwise = "preparing"
    for queue in unready:
        _prepare(jobs, queue, report.budget_ms / len(unready))
    for network in {job.network for job in running} | {queue.network for queue in queues}:
        network.advance_successor(report.budget_ms)
    found = [job for job in running if not job.paused]
    for queue in queues:
        free = exclusivity_key(queue.network) not in busy
        # preparing one network may have taken the memory of another that is idle
        if free and queue not in unready and (not unready or _is_ready(jobs, queue)):
            for job in queue.first(policy, report.now_ms, rate):
                if not jobs.job_list.is_blocked(job):
                    _update_steps(jobs, job)
                    found.append(job)
    return sorted(found, key=lambda job: job.number), otherwise


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
    while jobs.job_list.without_input:
        job = jobs.job_list.without_input.popleft()
        lost = next((m for m in job.producers if m.state in ("cancelled", "failed")), None)
        if lost is not None:
            jobs.end(job, "failed", f"its input's job '{lost.name}' {lost.state}")
        else:
            said = "the outputs that it takes were released before it was submitted"
            jobs.end(job, "failed", said)


def begin(
    jobs: Lifecycle,
    encoder: wgpu.GPUCommandEncoder,
    planner: Planner,
    state: FrameState,
    chosen: dict[int, Job],
) -> FramePlan:
    """Plans the frame, starts the jobs that begin in it, and returns the plan.

    If a job cannot start, the frame is planned again without it.
    """
    while True:
        plan = planner(state)
        for number in plan.starts:
            if not _start(jobs, encoder, chosen[number], state.now_ms):
                state = _without(state, chosen, number)
                break
        else:
            return plan


def _without(state: FrameState, chosen: dict[int, Job], refused: int) -> FrameState:
    """Returns the state without job ``refused``, after other jobs of the plan have started.

    If the refused job waits for memory, the other queued jobs of its network are left out too.
    Queued jobs whose network is now in use are left out in any case.
    """
    left = [
        replace(job, running=chosen[job.number].state == "running")
        for job in state.jobs
        if job.number != refused
    ]
    taken = {job.exclusive for job in left if job.running}
    if not chosen[refused].ended:
        taken |= {job.exclusive for job in state.jobs if job.number == refused}
    kept = tuple(job for job in left if job.running or job.exclusive not in taken)
    return replace(state, jobs=kept)


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
        if job.blocked_by:
            jobs.short_of_memory.append(job.number)
            return False
        if _update_steps(jobs, job):
            jobs.executor.end_job(job.network)
            job.blocked_by = "its network's memory, which another thread used just now"
            return False
        job.run = jobs.executor.begin_job(encoder, job.network, inputs)
    except Exception as error:
        jobs.fail(job, error)
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


def apply(plan: FramePlan, chosen: dict[int, Job], report: FrameReport) -> list[Chosen]:
    """Advances the jobs by the plan's slices, adds the slices to the report, and returns them.

    Each returned item is the slice to encode, its step's cost, and the predicted milliseconds.
    """
    report.reason, report.planned = plan.reason, plan.by_budget
    found: list[Chosen] = []
    for part in plan.slices:
        job = chosen[part.job]
        cost = job.costs[part.step]
        end = part.first + part.count
        job.step, job.group = (part.step + 1, 0) if end == cost.groups else (part.step, end)
        job.given_ms += part.predicted_ms
        job.virtual_ms += part.predicted_ms / (job.priority or 1.0)
        job.last_served_ms = report.now_ms
        report.predicted_ms += part.predicted_ms
        number = job.network_step(part.step)
        report.slices.append(
            SliceReport(
                job.number, number, cost.op, cost.title, part.first, part.count,
                part.predicted_ms, name=job.name, own=part.step - job.loads,
            )
        )  # fmt: skip
        one = Slice(job.network, number, part.first, part.count)
        found.append((one, cost, part.predicted_ms))
    return found


def networks_ready(queues: Sequence[NetworkQueue]) -> dict[int, bool]:
    """Returns for each queued network, by ``id(network)``, True if it is ready.

    A recording needs it.
    """
    found = {}
    for queue in queues:
        try:
            found[id(queue.network)] = bool(queue.network.ready)
        except Exception:  # the jobs of the network fail in _is_ready
            found[id(queue.network)] = False
    return found


def append(
    jobs: Lifecycle,
    encoder: wgpu.GPUCommandEncoder,
    report: FrameReport,
    groups: Sequence[Sequence[Slice]],
) -> None:
    """Encodes the slices, then the ends of completed jobs, then the copies for readbacks.

    Jobs whose slices could not be encoded fail.
    """
    numbers = {part.job for part in report.slices}
    working = [job for job in jobs.job_list.running.values() if job.number in numbers]
    failed: list[tuple[Job, Exception]] = []
    try:
        refused = jobs.executor.encode(encoder, report.frame, groups, timed=report.timed) or ()
        failed = [(j, e) for network, e in refused for j in working if j.network is network]
    except Exception as error:  # the device is lost, or refuses the frame as a whole
        failed = [(job, error) for job in working]
        report.reason = "device error"
        if not working:
            jobs.note(error)
    for job, why in failed:
        report.reason = "device error"
        jobs.fail(job, why)
    if report.reason == "device error":
        fail_all_where_lost(jobs, report)
    _finish(jobs, encoder, report)
    _request_reads(jobs, encoder)


def fail_all_where_lost(jobs: Lifecycle, report: FrameReport) -> None:
    """Fails all jobs if the device is lost, and sets the report's reason to "device error"."""
    try:
        jobs.executor.check()
    except Exception as error:
        report.reason = "device error"
        for job in jobs.job_list.jobs:
            jobs.fail(job, error)


def _finish(jobs: Lifecycle, encoder: wgpu.GPUCommandEncoder, report: FrameReport) -> None:
    for job in [job for job in jobs.job_list.running.values() if job.all_encoded]:
        try:
            job.outputs.result = jobs.executor.finish_job(encoder, job.network)
        except Exception as error:
            jobs.fail(job, error)
            continue
        if job.result is None:
            job.blocked_by = "memory for its outputs"
            jobs.short_of_memory.append(job.number)
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
