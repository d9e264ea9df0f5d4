"""Frames whose commands never ran: taken back where the host says so, noticed where it does not."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable, Sequence

from scheduler.executor import Executor
from scheduler.jobs.job import Job, State
from scheduler.jobs.roster import Roster

#: frames whose jobs are remembered until the device has shown that it ran them
_REMEMBERED = 64


class FrameSnapshot:
    """The jobs that a frame works on as they were before it was encoded."""

    def __init__(self, running: Iterable[Job]) -> None:
        self._was: list[tuple[Job, State, int, int, float, float]] = []
        for job in running:
            self.add(job)

    def add(self, job: Job) -> None:
        """The frame is about to start it."""
        now = (job, job.state, job.step, job.group, job.given_ms, job.virtual_ms)
        self._was.append(now)

    def restore(self, executor: Executor, roster: Roster) -> None:
        """Let the jobs go on from there; one that the frame started, starts again."""
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


class FrameJournal:
    """Which jobs had work in which of the recent frames."""

    def __init__(self) -> None:
        self._frames: deque[tuple[int, list[weakref.ref[Job]]]] = deque(maxlen=_REMEMBERED)

    def encoded(self, frame: int, jobs: Iterable[Job]) -> None:
        """These jobs had work in the frame."""
        if refs := [weakref.ref(job) for job in jobs]:
            self._frames.append((frame, refs))

    def harmed(self, frames: Sequence[int], waiting: Sequence[Job]) -> list[Job]:
        """The jobs whose results are wrong if those frames never ran: who was in them, and who
        took their outputs."""
        if not frames:
            return []
        known = [ref() for _, refs in self._frames for ref in refs]
        everyone = {job.number: job for job in (*known, *waiting) if job is not None}
        lost = {
            job.number
            for frame, refs in self._frames
            for job in (ref() for ref in refs)
            if frame in frames and job is not None
        }
        for number in sorted(everyone):  # a job takes outputs of older ones only
            if any(need in lost for need in everyone[number].needs):
                lost.add(number)
        return [job for number, job in sorted(everyone.items()) if number in lost]
