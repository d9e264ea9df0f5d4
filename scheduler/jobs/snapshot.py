"""The state of jobs before a frame, to undo a frame that the host abandons."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.executor import Executor
from scheduler.jobs.job import Job, State
from scheduler.jobs.roster import Roster


class FrameSnapshot:
    """The jobs that a frame works on, as they were before it was encoded."""

    def __init__(self, running: Iterable[Job]) -> None:
        self._was: list[tuple[Job, State, int, int, float, float]] = []
        for job in running:
            self.add(job)

    def add(self, job: Job) -> None:
        """Saves the state of a job that the frame is about to start."""
        now = (job, job.state, job.step, job.group, job.given_ms, job.virtual_ms)
        self._was.append(now)

    def restore(self, executor: Executor, roster: Roster) -> None:
        """Restores the saved states; jobs that the frame started are queued again."""
        for job, state, step, group, given_ms, virtual_ms in self._was:
            if job.state in ("cancelled", "failed"):
                continue
            was_done = job.state == "done"
            if was_done:
                job.take_back_end()
                executor.resume_job(job.network)
            if state == "queued" and job.state != "queued":
                executor.end_job(job.network)
                job.started_ms = None
            job.state, job.step, job.group = state, step, group
            job.given_ms, job.virtual_ms = given_ms, virtual_ms
            if was_done:
                roster.going_on(job)
            if state == "queued":
                roster.queued(job)
