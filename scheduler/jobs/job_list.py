"""The job list of a scheduler: unfinished jobs, indexed by what they wait for.

The index spares a frame from scanning all jobs.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Protocol

from cml_engine.scheduler.executor import Network
from cml_engine.scheduler.jobs.job import Job
from cml_engine.scheduler.planning.policy import (
    CATCH_UP_MS,
    Policy,
    by_priority,
    fair_share,
    fair_share_key,
    is_overdue,
    least_laxity,
)

#: queues of at most this many jobs are not ordered: all jobs are candidates
_FEW = 3
#: outdated entries after which a heap is rebuilt
_STALE = 64
#: a sort key of jobs
Key = tuple[float, ...]
_Dated = tuple[float, float, int]


class Heap:
    """A heap of jobs, ordered by ``key``; the key must not change while a job is in the heap."""

    def __init__(self, key: Callable[[Job], Key]) -> None:
        self._key = key
        self._entries: list[tuple[Key, int]] = []
        self._here: dict[int, tuple[Key, Job]] = {}

    def add(self, job: Job) -> None:
        key = self._key(job)
        self._here[job.number] = key, job
        heappush(self._entries, (key, job.number))
        if len(self._entries) > 2 * len(self._here) + _STALE:
            self._entries = [(key, number) for number, (key, _) in self._here.items()]
            heapify(self._entries)

    def remove(self, job: Job) -> None:
        """Removes the job if it is in the heap."""
        self._here.pop(job.number, None)

    def first(self) -> Job | None:
        while self._entries:
            key, number = self._entries[0]
            current_key, job = self._here.get(number, (None, None))
            if job is not None and current_key == key:
                return job
            heappop(self._entries)
        return None


class Order(Protocol):
    """The interface of a queue of one network's waiting jobs under one policy."""

    def add(self, job: Job) -> None: ...
    def remove(self, job: Job) -> None: ...
    def first(self, now_ms: float, rate: float) -> list[Job]:
        """Returns some of the jobs; the one that the policy would run first is among them.

        ``rate`` is GPU milliseconds per millisecond of wall time.
        """
        ...


class _OneHeap:
    """A queue with a single candidate: the job with the smallest ``key``.

    The key of a job must not change while the job waits.
    """

    def __init__(self, key: Callable[[Job], Key]) -> None:
        self._heap = Heap(key)
        self.add, self.remove = self._heap.add, self._heap.remove

    def first(self, now_ms: float, rate: float) -> list[Job]:
        first = self._heap.first()
        return [] if first is None else [first]


class _ByLaxity:
    """A queue for :func:`least_laxity`, with up to four candidates.

    Candidates are the job with the earliest deadline that can still be met, the one with the
    earliest deadline that was missed by little, the first by fair share, and the one that has
    waited longest. All jobs here have the same remaining work, so the deadline alone decides
    whether it can be met.
    """

    def __init__(self) -> None:
        self._jobs: dict[int, Job] = {}
        self._entries: dict[int, _Dated] = {}
        self._dated: list[_Dated] = []
        self._by_share = Heap(fair_share_key)
        self._by_wait = Heap(lambda job: (job.last_served_ms, job.number))

    def add(self, job: Job) -> None:
        self._jobs[job.number] = job
        self._by_share.add(job)
        if not job.idle:
            self._by_wait.add(job)
        entry = _dated(job)
        if entry is not None:
            self._entries[job.number] = entry
            insort(self._dated, entry)

    def remove(self, job: Job) -> None:
        if self._jobs.pop(job.number, None) is None:
            return
        self._by_share.remove(job)
        self._by_wait.remove(job)
        entry = self._entries.pop(job.number, None)
        if entry is not None:
            del self._dated[bisect_left(self._dated, entry)]

    def first(self, now_ms: float, rate: float) -> list[Job]:
        earliest, overdue = self._earliest(now_ms, rate), self._overdue(now_ms)
        candidates = (earliest, overdue, self._by_share.first(), self._by_wait.first())
        return list({job.number: job for job in candidates if job is not None}.values())

    def _earliest(self, now_ms: float, rate: float) -> Job | None:
        """Returns the job with the earliest deadline that can still be met, or None."""

        def can_hold(entry: _Dated) -> bool:
            return self._jobs[entry[2]].laxity_ms(now_ms, rate) >= 0

        at = bisect_left(self._dated, True, key=can_hold)
        return self._jobs[self._dated[at][2]] if at < len(self._dated) else None

    def _overdue(self, now_ms: float) -> Job | None:
        """Returns the job with the earliest deadline of those that are caught up, or None."""
        at = bisect_left(self._dated, now_ms - CATCH_UP_MS, key=lambda entry: entry[0])
        if at == len(self._dated) or not is_overdue(self._dated[at][0], now_ms):
            return None
        return self._jobs[self._dated[at][2]]


def _dated(job: Job) -> _Dated | None:
    """Returns the job's sort key by deadline; None without a deadline or at priority 0."""
    if job.deadline_at_ms is None or job.idle:
        return None
    return job.deadline_at_ms, -job.priority, job.number


class _Unordered:
    """A queue for a policy of the game: all jobs are candidates."""

    def __init__(self) -> None:
        self._jobs: dict[int, Job] = {}

    def add(self, job: Job) -> None:
        self._jobs[job.number] = job

    def remove(self, job: Job) -> None:
        self._jobs.pop(job.number, None)

    def first(self, now_ms: float, rate: float) -> list[Job]:
        return list(self._jobs.values())


def _order_for(policy: Policy, retains: bool) -> Order:
    if retains:  # each job builds on the results of the job before
        return _OneHeap(lambda job: (job.number,))
    if policy is least_laxity:
        return _ByLaxity()
    if policy is fair_share:
        return _OneHeap(fair_share_key)
    if policy is by_priority:
        return _OneHeap(lambda job: (-job.priority, job.number))
    return _Unordered()


class NetworkQueue:
    """The queue of one network: the jobs that have their inputs and wait only for the network."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._jobs: dict[int, Job] = {}
        self._policy: Policy | None = None
        self._order: Order = _Unordered()

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def jobs(self) -> list[Job]:
        """All jobs in the queue, in the order in which they were added."""
        return list(self._jobs.values())

    @property
    def oldest(self) -> Job:
        """The job that was added first; the queue must not be empty."""
        return next(iter(self._jobs.values()))

    def add(self, job: Job) -> None:
        self._jobs[job.number] = job
        self._order.add(job)

    def remove(self, job: Job) -> None:
        if self._jobs.pop(job.number, None) is not None:
            self._order.remove(job)

    def first(self, policy: Policy, now_ms: float, rate: float) -> list[Job]:
        """Returns some of the jobs; the one that the policy would run first is among them."""
        if len(self._jobs) <= _FEW and not self.network.retains:
            return self.jobs
        if policy is not self._policy:
            self._policy = policy
            self._order = _order_for(policy, self.network.retains)
            for job in self._jobs.values():
                self._order.add(job)
        return self._order.first(now_ms, rate)


class JobList:
    """The unfinished jobs of one scheduler."""

    def __init__(self) -> None:
        self._jobs: dict[int, Job] = {}
        #: the jobs that have begun, by number
        self.running: dict[int, Job] = {}
        #: jobs whose input will never arrive; they fail in the next frame
        self.without_input: deque[Job] = deque()
        self._queues: dict[Network, NetworkQueue] = {}
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
    def next_jobs(self) -> list[Job]:
        """The running jobs, and the oldest job of each queue."""
        return [*self.running.values(), *(queue.oldest for queue in self._queues.values())]

    @property
    def running_on_cpu(self) -> list[Job]:
        """The running jobs whose next step is on the CPU."""
        return [job for job in self.running.values() if job.cpu_steps and job.is_on_cpu]

    @property
    def has_blocked_jobs(self) -> bool:
        """True if jobs are paused, wait for other jobs' outputs, or are about to fail."""
        return bool(self._paused or self._blocked or self.without_input)

    # --- changes

    def add(self, job: Job) -> None:
        """Adds a new job and sets its fair-share level to the lowest level of the others.

        A new job must not catch up on GPU time from before its submission.
        """
        first = self._levels[job.idle].first()
        levels = [
            running_job.virtual_ms
            for running_job in self.running.values()
            if running_job.idle == job.idle
        ]
        levels += [level for was_idle, level in self._ended_shares if was_idle == job.idle]
        if first is not None:
            levels.append(first.virtual_ms)
        job.virtual_ms = min(levels, default=0.0)
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
        if self.running.pop(job.number, None) is None:
            self._no_longer_queued(job)
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

    def pending_in_slot(self, slot: str) -> list[Job]:
        """Returns the jobs of slot ``slot`` that have not begun."""
        return list(self._slots.get(slot, {}).values())

    def has_predecessor(self, job: Job) -> bool:
        """Returns True if the job's network retains its inputs and has another unfinished job."""
        return job.network.retains and self.has_jobs_of(job.network)

    def has_jobs_of(self, network: Network) -> bool:
        """Returns True if the network has unfinished jobs; any thread may ask."""
        return any(job.network is network for job in list(self._jobs.values()))

    def find_predecessor(self, job: Job) -> Job | None:
        """Returns an earlier job of the same retaining network that cannot start now, or None.

        It is paused, or waits for inputs. The job builds on its results, so it must not start
        first.
        """
        if not job.network.retains:
            return None
        earlier_jobs = (j for j in self.jobs if j.number < job.number and j.network is job.network)
        for earlier in earlier_jobs:
            if earlier.paused or earlier.number in self._blocked:
                return earlier
        return None

    def refresh_foreign_jobs(self) -> list[Job]:
        """Checks again the jobs that wait for jobs of other schedulers, which may have ended.

        Returns the jobs that were checked.
        """
        foreign_jobs = list(self._foreign.values())
        for job in foreign_jobs:
            self._unindex(job)
            self._index(job)
        return foreign_jobs

    def waits_elsewhere(self, job: Job) -> bool:
        """Returns True if the job waits for a job of another scheduler."""
        return job.number in self._foreign

    # --- the index

    def _index(self, job: Job) -> None:
        producers = job.producers
        if any(producer.state in ("cancelled", "failed") for producer in producers):
            self.fail_without_input(job)
            return
        for producer in producers:
            self._remember_consumer(producer, job)
        pending = job.pending_producers
        if pending:
            self._blocked[job.number] = {producer.number for producer in pending}
            if any(producer.owner is not job.owner for producer in pending):
                self._foreign[job.number] = job
        elif job.paused:
            self._paused[job.number] = job
        else:
            if job.network not in self._queues:
                self._queues[job.network] = NetworkQueue(job.network)
            self._queues[job.network].add(job)

    def _remember_consumer(self, producer: Job, consumer: Job) -> None:
        """Records that ``consumer`` depends on ``producer``.

        The consumer must change when the producer ends, or when its end is undone.
        """
        changeable = self._just_ended if producer.ended else self._jobs
        if producer.owner is consumer.owner and producer.number in changeable:
            self._consumers.setdefault(producer.number, {})[consumer.number] = consumer

    def _unindex(self, job: Job) -> None:
        self._blocked.pop(job.number, None)
        self._foreign.pop(job.number, None)
        self._paused.pop(job.number, None)
        queue = self._queues.get(job.network)
        if queue is not None:
            queue.remove(job)
            if not len(queue):
                del self._queues[job.network]

    def _no_longer_queued(self, job: Job) -> None:
        self._unindex(job)
        for level in self._levels.values():
            level.remove(job)
        if job.slot is not None:
            slot_jobs = self._slots.get(job.slot, {})
            slot_jobs.pop(job.number, None)
            if not slot_jobs:
                self._slots.pop(job.slot, None)
