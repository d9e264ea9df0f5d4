"""The steps that a job of a network with retained inputs has to run after the jobs before it."""

from __future__ import annotations

from scheduler.jobs.job import Job
from scheduler.jobs.roster import Roster


def take_work(job: Job, *, behind: bool) -> bool:
    """Sets the steps that the job has to run, and returns True if they changed.

    With ``behind`` the job follows another unfinished job; otherwise it starts from the network's
    memory as it is now.
    """
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
    """Returns the network's number of one of the job's steps; loads have numbers below 0."""
    own = step - job.loads
    return own if job.steps is None or own < 0 else job.steps[own]


def is_behind_any(job: Job, roster: Roster) -> bool:
    """Returns True if the job builds on a job that has not ended."""
    return job.network.retains and any(other.network is job.network for other in roster.jobs)


def is_held_back(job: Job, roster: Roster) -> bool:
    """Returns True if the job builds on a job that itself waits for the outputs of others."""
    if not job.network.retains:
        return False
    before = (j for j in roster.jobs if j.number < job.number and j.network is job.network)
    return any(not maker.ended for other in before for maker in other.makers)
