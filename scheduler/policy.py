"""Whose turn it is.

A policy orders the jobs that could run; the scheduler takes them in that order until the frame's
budget is spent. Orders are pure functions of the jobs and the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scheduler.job import Job

#: ``policy(jobs, now_ms, rate) -> jobs in the order in which they should run``
Policy = Callable[[Sequence[Job], float, float], list[Job]]

#: a job that was not served for this long gets the first slice of a frame, whatever the order
STARVED_MS = 500.0
#: of two jobs with about the same laxity the one that runs goes on: a change gains nothing
STICKINESS_MS = 20.0


def least_laxity(jobs: Sequence[Job], now_ms: float, rate: float) -> list[Job]:
    """Jobs whose deadline can still be held, the one with the least time to spare first; then all
    others by fair share.

    A job that cannot hold its deadline any more has no claim before others because of it: it joins
    the fair share, where the one that had the least GPU time for its priority goes first. So an
    overdue job neither starves others nor is starved. Jobs of priority 0 come after all.
    """

    def laxity(job: Job) -> float:
        sticky = STICKINESS_MS if job.group or job.step else 0.0
        return job.laxity_ms(now_ms, rate) - sticky

    dated = [j for j in jobs if j.deadline_at_ms is not None and not j.idle]
    feasible = [j for j in dated if j.laxity_ms(now_ms, rate) >= 0]
    feasible.sort(key=lambda j: (laxity(j), -j.priority, j.number))
    urgent = {j.number for j in feasible}
    others = fair_share([j for j in jobs if j.number not in urgent], now_ms, rate)
    return _starved_first(feasible + others, now_ms)


def fair_share(jobs: Sequence[Job], now_ms: float, rate: float) -> list[Job]:
    """The job with the least GPU time over priority first; deadlines do not count."""
    return sorted(jobs, key=fair_share_key)


def fair_share_key(job: Job) -> tuple[bool, float, float, int]:
    """What :func:`fair_share` sorts by."""
    return job.idle, job.virtual_ms, -job.priority, job.number


def by_priority(jobs: Sequence[Job], now_ms: float, rate: float) -> list[Job]:
    """The highest priority first, then the oldest; the low ones may starve."""
    return sorted(jobs, key=lambda j: (-j.priority, j.number))


def _starved_first(ordered: list[Job], now_ms: float) -> list[Job]:
    starved = [j for j in ordered if now_ms - j.last_served_ms > STARVED_MS and not j.idle]
    if not starved:
        return ordered
    first = min(starved, key=lambda j: (j.last_served_ms, j.number))
    return [first, *(j for j in ordered if j is not first)]
