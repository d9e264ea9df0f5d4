"""The scheduling policies: functions that order the jobs that could run in a frame.

The scheduler takes jobs in that order until the frame's budget is spent. Orders are pure functions
of the jobs and the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from cml_engine.scheduler.jobs.job import Job

#: a job that was not served for this long gets the first slice of a frame, whatever the order
STARVED_MS = 500.0
#: a job that is overdue by no more than this is caught up before jobs without a deadline
CATCH_UP_MS = 500.0
#: a running job keeps its place against a job of about the same laxity: a change gains nothing
STICKINESS_MS = 20.0


#: ``policy(jobs, now_ms, rate) -> jobs in the order in which they should run``; ``rate`` is GPU
#: milliseconds per millisecond of wall time
Policy: TypeAlias = "Callable[[Sequence[Job], float, float], list[Job]]"


def least_laxity(jobs: Sequence[Job], now_ms: float, rate: float) -> list[Job]:
    """Returns the jobs ordered by the time to spare before their deadlines, then all other jobs.

    First come the jobs that can still meet their deadlines, then those that missed them by up to
    half a second: after a stall, a load that can be met is steady again soon. The others have no
    deadline, or one that cannot be met, and are in the order of the fair share. Such a job
    neither starves others nor is starved. Jobs of priority 0 come last.

    Examples
    --------
    >>> scheduler = cml.FrameScheduler(gpu, policy=cml.scheduler.least_laxity)  # the default
    """
    if len(jobs) == 1:
        return [*jobs]
    dated_jobs: list[tuple[bool, float, float, int, Job]] = []
    shared_jobs: list[Job] = []
    for job in jobs:
        has_deadline = job.deadline_at_ms is not None and not job.idle
        laxity = job.laxity_ms(now_ms, rate) if has_deadline else -1.0
        is_late = laxity < 0
        if is_late and not (has_deadline and is_overdue(job.deadline_at_ms or 0.0, now_ms)):
            shared_jobs.append(job)
            continue
        if job.group or job.step:
            laxity -= STICKINESS_MS
        dated_jobs.append((is_late, laxity, -job.priority, job.number, job))
    dated_jobs.sort()
    urgent = [job for *_, job in dated_jobs]
    return _starved_first(urgent + fair_share(shared_jobs, now_ms, rate), now_ms)


def is_overdue(deadline_at_ms: float, now_ms: float) -> bool:
    """Returns True if a deadline passed so recently that the job keeps its urgency."""
    return 0.0 <= now_ms - deadline_at_ms <= CATCH_UP_MS


def fair_share(jobs: Sequence[Job], now_ms: float, rate: float) -> list[Job]:
    """Returns the jobs ordered by GPU time over priority, the least first; ignores deadlines.

    Jobs of priority 0 come last.

    Examples
    --------
    >>> scheduler = cml.FrameScheduler(gpu, policy=cml.scheduler.fair_share)
    """
    return sorted(jobs, key=fair_share_key)


def fair_share_key(job: Job) -> tuple[bool, float, float, int]:
    """Returns the sort key of :func:`fair_share`."""
    return job.idle, job.virtual_ms, -job.priority, job.number


def by_priority(jobs: Sequence[Job], now_ms: float, rate: float) -> list[Job]:
    """Returns the jobs by priority, the highest first, then by age; low priorities may starve.

    Examples
    --------
    >>> scheduler = cml.FrameScheduler(gpu, policy=cml.scheduler.by_priority)
    """
    return sorted(jobs, key=lambda j: (-j.priority, j.number))


#: the policies that come with the scheduler, by name
BUILT_IN: dict[str, Policy] = {
    "least_laxity": least_laxity,
    "fair_share": fair_share,
    "by_priority": by_priority,
}


def _starved_first(ordered: list[Job], now_ms: float) -> list[Job]:
    starved = [j for j in ordered if now_ms - j.last_served_ms > STARVED_MS and not j.idle]
    if not starved:
        return ordered
    first = min(starved, key=lambda j: (j.last_served_ms, j.number))
    return [first, *(j for j in ordered if j is not first)]
