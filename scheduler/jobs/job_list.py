"""The job list of a scheduler: unfinished jobs, indexed by what they wait for.

The index spares a frame from scanning all jobs.
"""

from __future__ import annotations

from collections import deque

from scheduler.jobs.job import Job
from scheduler.jobs.queues import Heap, NetworkQueue


class JobList:
    """The unfinished jobs of one scheduler."""

    def __init__(self) -> None:
        self._jobs: dict[int, Job] = {}
        #: the jobs that have begun, by number
        self.running: dict[int, Job] = {}
        #: jobs whose input will never arrive; they fail in the next frame
        self.without_input: deque[Job] = deque()
        self._queues: dict[int, NetworkQueue] = {}
        self._paused: dict[int, Job] = {}
        self._blocked: dict[int, set[int]] = {}  # numbers of the jobs that each one waits for
        self._consumers: dict[int, dict[int, Job]] = {}
        self._just_ended: set[int] = set()
        self._foreign: dict[int, Job] = {}  # jobs that wait for jobs of another scheduler
        self._slots: dict[str, dict[int, Job]] = {}
        self._levels = {idle: Heap(lambda job: (job.virtual_ms, job.number)) for idle in (0, 1)}
        self._ended_shares: list[tuple[bool, float]] = []

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def jobs(self) -> list[Job]:
        """All jobs, the oldest first."""
        return [job for _, job in sorted(self._jobs.items())]

    @property
    def queues(self) -> list[NetworkQueue]:
        """The queues of jobs that could start, one for each network."""
        return list(self._queues.values())

    @property
    def held_back(self) -> bool:
        """True if jobs are paused, wait for other jobs' outputs, or are about to fail."""
        return bool(self._paused or self._blocked or self.without_input)

    # --- changes

    def add(self, job: Job) -> None:
        """Adds a new job and sets its fair-share level to the lowest level of the others.

        A new job must not catch up on GPU time from before its submission.
        """
        first = self._levels[job.idle].first()
        known = [other.virtual_ms for other in self.running.values() if other.idle == job.idle]
        known += [level for was_idle, level in self._ended_shares if was_idle == job.idle]
        if first is not None:
            known.append(first.virtual_ms)
        job.virtual_ms = min(known, default=0.0)
        self.queued(job)

    def queued(self, job: Job) -> None:
        """Puts a job among the waiting ones: a new job, or one whose start was undone."""
        self.running.pop(job.number, None)
        self._levels[job.idle].add(job)
        self._jobs[job.number] = job
        if job.slot is not None:
            self._slots.setdefault(job.slot, {})[job.number] = job
        self._index(job)

    def started(self, job: Job) -> None:
        self._no_longer_queued(job)
        self.running[job.number] = job

    def resume_ended(self, job: Job) -> None:
        """Puts a job back among the running ones because the frame in which it ended is abandoned.

        Queued jobs that take its outputs wait for it again.
        """
        self._jobs[job.number] = job
        self.running[job.number] = job
        self._just_ended.discard(job.number)
        for consumer in list(self._consumers.get(job.number, {}).values()):
            if consumer.state == "queued" and consumer.number in self._jobs:
                self._unindex(consumer)
                self._index(consumer)

    def ended(self, job: Job) -> None:
        if self._jobs.pop(job.number, None) is None:
            return
        self._no_longer_queued(job)
        self.running.pop(job.number, None)
        self._ended_shares.append((job.idle, job.virtual_ms))
        self._just_ended.add(job.number)
        for consumer in list(self._consumers.get(job.number, {}).values()):
            needs = self._blocked.get(consumer.number)
            if needs is None:
                continue
            needs.discard(job.number)
            if job.state != "done":
                self.fail_without_input(consumer)
            elif not needs:
                self._unindex(consumer)
                self._index(consumer)

    def finalize_ends(self) -> None:
        """Makes the ends of jobs final: no abandoned frame can undo them any more."""
        for number in self._just_ended:
            self._consumers.pop(number, None)
        self._just_ended.clear()

    def fail_without_input(self, job: Job) -> None:
        """Marks a job to fail in the next frame because one of its inputs will never arrive."""
        self._unindex(job)
        self.without_input.append(job)

    def reindex(self, job: Job) -> None:
        """Updates a queued job's place in the index, such as after a pause."""
        if job.state == "queued" and job.number in self._jobs:
            self._unindex(job)
            self._index(job)

    def forget_ended(self) -> None:
        """Drops finished jobs from the fairness baseline used for newly submitted ones."""
        self._ended_shares.clear()

    # --- queries

    def waiting_in(self, slot: str) -> list[Job]:
        """Returns the jobs of slot ``slot`` that have not begun."""
        return list(self._slots.get(slot, {}).values())

    def has_predecessor(self, job: Job) -> bool:
        """Returns True if the job's network retains its inputs and has another unfinished job."""
        return job.network.retains and any(j.network is job.network for j in self._jobs.values())

    def is_blocked(self, job: Job) -> bool:
        """Returns True if an earlier job of the same retaining network still waits for inputs.

        The job builds on the earlier one's results, so it must not start first.
        """
        if not job.network.retains:
            return False
        before = (j for j in self.jobs if j.number < job.number and j.network is job.network)
        return any(not producer.ended for other in before for producer in other.producers)

    def refresh_foreign_jobs(self) -> None:
        """Checks again the jobs that wait for jobs of other schedulers, which may have ended."""
        for job in list(self._foreign.values()):
            self._unindex(job)
            self._index(job)

    # --- the index

    def _index(self, job: Job) -> None:
        producers = job.producers
        if any(producer.state in ("cancelled", "failed") for producer in producers):
            self.fail_without_input(job)
            return
        for producer in producers:
            self._remember_consumer(producer, job)
        needs = {producer.number for producer in producers if not producer.ended}
        if needs:
            self._blocked[job.number] = needs
            if any(producer.owner is not job.owner for producer in producers):
                self._foreign[job.number] = job
        elif job.paused:
            self._paused[job.number] = job
        else:
            key = id(job.network)
            if key not in self._queues:
                self._queues[key] = NetworkQueue(job.network)
            self._queues[key].add(job)

    def _remember_consumer(self, producer: Job, consumer: Job) -> None:
        """Records that ``consumer`` depends on ``producer``.

        The consumer must change when the producer ends, or when its end is undone.
        """
        here = self._just_ended if producer.ended else self._jobs
        if producer.owner is consumer.owner and producer.number in here:
            self._consumers.setdefault(producer.number, {})[consumer.number] = consumer

    def _unindex(self, job: Job) -> None:
        self._blocked.pop(job.number, None)
        self._foreign.pop(job.number, None)
        self._paused.pop(job.number, None)
        queue = self._queues.get(id(job.network))
        if queue is not None:
            queue.remove(job)
            if not len(queue):
                del self._queues[id(job.network)]

    def _no_longer_queued(self, job: Job) -> None:
        self._unindex(job)
        for level in self._levels.values():
            level.remove(job)
        mates = self._slots.get(job.slot or "", {})
        mates.pop(job.number, None)
        if job.slot is not None and not mates:
            self._slots.pop(job.slot, None)
