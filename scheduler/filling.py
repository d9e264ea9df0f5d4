"""Fills one frame: which jobs may run, and how many of their workgroups fit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from scheduler.executor import Slice
from scheduler.feedback import Chosen
from scheduler.job import Job, JobOutput
from scheduler.queues import NetworkQueue
from scheduler.reports import FrameReport, SliceReport

if TYPE_CHECKING:
    from scheduler.frame_scheduler import FrameScheduler

#: a slice shorter than this share of the budget is not worth its launch at the end of a frame
_MIN_SHARE = 0.02


def fill(
    s: FrameScheduler, encoder: Any, report: FrameReport, now: float, waiting: bool
) -> list[Chosen]:
    """Take slices in the policy's order until the aim is reached."""
    chosen: list[Chosen] = []
    runnable = _runnable(s, report)
    if report.budget_ms <= 0:
        report.reason = "budget"
        return chosen
    if waiting:
        report.reason = "waiting for GPU"
        return chosen
    left = report.aim_ms
    if s.operators_per_frame is not None:
        return _fill_operators(s, encoder, report, now, runnable)
    for job in _in_turn(s, encoder, runnable, now):
        while not job.all_encoded and job.state == "running":
            smallest = _MIN_SHARE * report.aim_ms if chosen else 0.0
            if left <= smallest:
                break
            probing = s.cost_model.samples(job.costs[job.step].key) == 0
            part = job.take(s.cost_model, left, s.executor.granule, not chosen)
            if part is None:
                break
            spent = _account(s, job, part, report, now)
            left -= spent
            chosen.append((part, job.costs[part.step], spent))
            if probing:  # what it takes must be known before more of it is added
                break
        if not job.all_encoded and job.state == "running":
            report.reason = "budget"
            break
    return chosen


def _fill_operators(
    s: FrameScheduler, encoder: Any, report: FrameReport, now: float, runnable: list[Job]
) -> list[Chosen]:
    """The usual way, for comparison: so many whole operators, whatever they take."""
    chosen: list[Chosen] = []
    report.planned = False
    left = s.operators_per_frame or 0
    for job in _in_turn(s, encoder, runnable, now):
        while left and not job.all_encoded and job.state == "running":
            cost = job.costs[job.step]
            part = Slice(job.network, job.step, job.group, cost.groups - job.group)
            job.step, job.group = job.step + 1, 0
            chosen.append((part, cost, _account(s, job, part, report, now)))
            left -= 1
    if not left:
        report.reason = "budget"
    return chosen


def _in_turn(s: FrameScheduler, encoder: Any, runnable: list[Job], now: float) -> Iterator[Job]:
    """Jobs in the policy's order, started where they are new and their seat is free."""
    taken = {seat(job) for job in s.roster.running.values()}
    for job in s.policy(runnable, now, s.rate) if runnable else ():
        if job.state == "queued" and seat(job) not in taken and job.network.ready:
            _start(s, encoder, job, now)
            taken.add(seat(job))
        yield job


def _runnable(s: FrameScheduler, report: FrameReport) -> list[Job]:
    """Jobs that could run now: not paused, inputs there, network ready and not taken. Of those that
    wait for the same network only the few that may come first (:mod:`scheduler.queues`)."""
    _fail_doomed(s)
    s.roster.look_abroad()
    if s.roster.held_back:
        report.reason = "all waiting"
    running = list(s.roster.running.values())
    busy = {seat(job) for job in running}
    ready: list[NetworkQueue] = []
    for queue in s.roster.queues:
        if not _is_prepared(s, queue, report):
            continue
        if _seat(queue.network) not in busy:
            ready.append(queue)
    found = [job for job in running if not job.paused]
    now, rate = report.now_ms, s.rate
    for queue in ready:
        # preparing one network may have taken the memory of another that is idle
        if queue.network.ready:
            found += queue.first(s.policy, now, rate)
    return sorted(found, key=lambda job: job.number)


def _is_prepared(s: FrameScheduler, queue: NetworkQueue, report: FrameReport) -> bool:
    """Whether the network is ready; else get on with what it lacks. All who wait for it fail where
    that cannot be done."""
    try:
        if queue.network.ready:
            return True
        report.reason = "preparing"
        queue.network.prepare(report.budget_ms)
    except Exception as error:
        for job in queue.jobs:
            s.fail(job, error)
    return False


def _fail_doomed(s: FrameScheduler) -> None:
    while s.roster.doomed:
        job = s.roster.doomed.popleft()
        makers = [v.job for v in job.inputs.values() if isinstance(v, JobOutput)]
        lost = next((m for m in makers if m.state in ("cancelled", "failed")), None)
        if lost is not None:
            s.end(job, "failed", f"its input's job '{lost.name}' {lost.state}")
        else:
            s.end(job, "failed", "the outputs that it takes were released before it was submitted")


def _start(s: FrameScheduler, encoder: Any, job: Job, now: float) -> None:
    try:
        inputs = {
            name: value.job.for_taker(value.name) if isinstance(value, JobOutput) else value
            for name, value in job.inputs.items()
        }
        job.held_up = s.executor.reserve(job.network)
        if job.held_up:
            s.held_up.append(job.number)
            return
        s.will_start(job)
        s.executor.begin_job(encoder, job.network, inputs)
    except Exception as error:
        s.fail(job, error)
        return
    job.state, job.started_ms = "running", now
    s.roster.started(job)


def _account(s: FrameScheduler, job: Job, part: Slice, report: FrameReport, now: float) -> float:
    cost = job.costs[part.step]
    spent = s.cost_model.predict_ms(cost, part.count)
    job.given_ms += spent
    job.virtual_ms += spent / (job.priority or 1.0)
    job.last_served_ms = now
    report.predicted_ms += spent
    report.slices.append(
        SliceReport(job.number, part.step, cost.op, cost.title, part.first, part.count, spent)
    )
    return spent


def seat(job: Job) -> str | int:
    """What only one running job has at a time: its network, or the memory that several share."""
    return _seat(job.network)


def _seat(network: Any) -> str | int:
    return getattr(network, "exclusive_group", None) or id(network)
