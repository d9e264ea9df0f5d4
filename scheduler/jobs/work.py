"""What a job of a network that retains its inputs has to do: some of the steps, behind the jobs
before it."""

from __future__ import annotations

from scheduler.jobs.job import Job
from scheduler.jobs.roster import Roster


def take_work(job: Job, *, behind: bool) -> bool:
    """Let the job look what it has to do, ``behind`` another or on the network's memory as it is
    now; whether that has changed."""
    found = job.network.steps_for(job.given, behind=behind)
    steps = None if found is None else tuple(found)
    if job.has_looked and steps == job.steps:
        return False
    every = job.network.step_costs()
    mine = every if steps is None else [every[number] for number in steps]
    job.has_looked, job.steps = True, steps
    job.costs = (*job.costs[: job.loads], *mine)
    return True


def number_of(job: Job, step: int) -> int:
    """The network's number of one of the job's steps; loads have those below 0."""
    own = step - job.loads
    return own if job.steps is None or own < 0 else job.steps[own]


def is_behind_any(job: Job, roster: Roster) -> bool:
    """Whether it builds on a job that has not ended."""
    return job.network.retains and any(other.network is job.network for other in roster.jobs)


def is_held_back(job: Job, roster: Roster) -> bool:
    """Whether it builds on a job that itself waits for others' outputs."""
    if not job.network.retains:
        return False
    before = (j for j in roster.jobs if j.number < job.number and j.network is job.network)
    return any(not maker.ended for other in before for maker in other.makers)
