"""Queues that find the first of a network's waiting jobs in a policy's order without a full scan.

Of the jobs that wait for one network only the first can start in a frame. The policy decides which
job is first. The built-in policies order waiting jobs by values that do not change while a job
waits, so heaps yield the few jobs that may be first, and the policy decides between these. A
policy of the game receives all of them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Protocol

from scheduler.executor import Network
from scheduler.jobs.job import Job
from scheduler.planning.policy import (
    AnyPolicy,
    by_priority,
    fair_share,
    fair_share_key,
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
            known, job = self._here.get(number, (None, None))
            if job is not None and known == key:
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
    """A queue for :func:`least_laxity`, with up to three candidates.

    Candidates are the job with the earliest deadline that can still be met, the first by fair
    share, and the one that has waited longest. All jobs here have the same remaining work, so
    the deadline alone decides whether it can be met.
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
        found = (self._earliest(now_ms, rate), self._by_share.first(), self._by_wait.first())
        return list({job.number: job for job in found if job is not None}.values())

    def _earliest(self, now_ms: float, rate: float) -> Job | None:
        """Returns the job with the earliest deadline that can still be met, or None."""

        def can_hold(entry: _Dated) -> bool:
            return self._jobs[entry[2]].laxity_ms(now_ms, rate) >= 0

        at = bisect_left(self._dated, True, key=can_hold)
        return self._jobs[self._dated[at][2]] if at < len(self._dated) else None


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


class _InSubmissionOrder(_OneHeap):
    """A queue whose candidate is the oldest job.

    Its jobs build on the results of the job before.
    """

    def __init__(self) -> None:
        super().__init__(lambda job: (job.number,))


def _order_for(policy: AnyPolicy) -> Order:
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
        self._policy: AnyPolicy | None = None
        self._order: Order = _Unordered()

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def jobs(self) -> list[Job]:
        """All jobs in the queue, in the order in which they were added."""
        return list(self._jobs.values())

    def add(self, job: Job) -> None:
        self._jobs[job.number] = job
        self._order.add(job)

    def remove(self, job: Job) -> None:
        if self._jobs.pop(job.number, None) is not None:
            self._order.remove(job)

    def first(self, policy: AnyPolicy, now_ms: float, rate: float) -> list[Job]:
        """Returns some of the jobs; the one that the policy would run first is among them."""
        if len(self._jobs) <= _FEW and not self.network.retains:
            return self.jobs
        if policy is not self._policy:
            self._policy = policy
            self._order = _InSubmissionOrder() if self.network.retains else _order_for(policy)
            for job in self._jobs.values():
                self._order.add(job)
        return self._order.first(now_ms, rate)
