"""Jobs that could start, in the order of a policy, without looking at all of them.

Of the jobs that wait for one network only the first can start in a frame. Who that is depends on
the policy; the built-in ones order waiting jobs by things that do not change while they wait, so
heaps know the few that may be first, and the policy itself then decides between these. A policy of
a game's own gets them all.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any, Protocol

from scheduler.executor import Network
from scheduler.jobs.job import Job
from scheduler.planning.policy import Policy, by_priority, fair_share, fair_share_key, least_laxity

#: so many jobs are not looked through: they may all come first
_FEW = 3
#: entries of a heap that may be out of date before it is made anew
_STALE = 64
_Dated = tuple[float, float, int]


class Heap:
    """Jobs, the least by ``key`` first. A key must not change while its job is here."""

    def __init__(self, key: Callable[[Job], Any]) -> None:
        self._key = key
        self._entries: list[tuple[Any, int]] = []
        self._here: dict[int, tuple[Any, Job]] = {}

    def add(self, job: Job) -> None:
        key = self._key(job)
        self._here[job.number] = key, job
        heappush(self._entries, (key, job.number))
        if len(self._entries) > 2 * len(self._here) + _STALE:
            self._entries = [(key, number) for number, (key, _) in self._here.items()]
            heapify(self._entries)

    def remove(self, job: Job) -> None:
        """Take it out, if it is here."""
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
    """The waiting jobs of one network."""

    def add(self, job: Job) -> None: ...
    def remove(self, job: Job) -> None: ...
    def first(self, now_ms: float, rate: float) -> list[Job]:
        """Some of the jobs, among them whoever the policy would take first of all."""
        ...


class _OneHeap:
    """Where a key alone decides."""

    def __init__(self, key: Callable[[Job], Any]) -> None:
        self._heap = Heap(key)
        self.add, self.remove = self._heap.add, self._heap.remove

    def first(self, now_ms: float, rate: float) -> list[Job]:
        first = self._heap.first()
        return [] if first is None else [first]


class _ByLaxity:
    """For :func:`least_laxity`: the earliest deadline that can be held, whoever comes first where
    none can, and the one that waits for the longest.

    All jobs here have the same work before them, so a deadline alone says whether it can be held.
    """

    def __init__(self) -> None:
        self._jobs: dict[int, Job] = {}
        self._entries: dict[int, _Dated] = {}
        self._dated: list[_Dated] = []
        self._in_turn = Heap(fair_share_key)
        self._longest = Heap(lambda job: (job.last_served_ms, job.number))

    def add(self, job: Job) -> None:
        self._jobs[job.number] = job
        self._in_turn.add(job)
        if not job.idle:
            self._longest.add(job)
        entry = _dated(job)
        if entry is not None:
            self._entries[job.number] = entry
            insort(self._dated, entry)

    def remove(self, job: Job) -> None:
        if self._jobs.pop(job.number, None) is None:
            return
        self._in_turn.remove(job)
        self._longest.remove(job)
        entry = self._entries.pop(job.number, None)
        if entry is not None:
            del self._dated[bisect_left(self._dated, entry)]

    def first(self, now_ms: float, rate: float) -> list[Job]:
        found = (self._earliest(now_ms, rate), self._in_turn.first(), self._longest.first())
        return list({job.number: job for job in found if job is not None}.values())

    def _earliest(self, now_ms: float, rate: float) -> Job | None:
        """The first whose deadline can still be held."""

        def can_hold(entry: _Dated) -> bool:
            return self._jobs[entry[2]].laxity_ms(now_ms, rate) >= 0

        at = bisect_left(self._dated, True, key=can_hold)
        return self._jobs[self._dated[at][2]] if at < len(self._dated) else None


def _dated(job: Job) -> _Dated | None:
    """Where the job stands among the deadlines; None without one that counts."""
    if job.deadline_at_ms is None or job.idle:
        return None
    return job.deadline_at_ms, -job.priority, job.number


class _Everyone:
    """For a policy of a game's own."""

    def __init__(self) -> None:
        self._jobs: dict[int, Job] = {}

    def add(self, job: Job) -> None:
        self._jobs[job.number] = job

    def remove(self, job: Job) -> None:
        self._jobs.pop(job.number, None)

    def first(self, now_ms: float, rate: float) -> list[Job]:
        return list(self._jobs.values())


class _InTurn(_OneHeap):
    """Where a job builds on what the one before has left."""

    def __init__(self) -> None:
        super().__init__(lambda job: job.number)


def _order_for(policy: Policy[Any]) -> Order:
    if policy is least_laxity:
        return _ByLaxity()
    if policy is fair_share:
        return _OneHeap(fair_share_key)
    if policy is by_priority:
        return _OneHeap(lambda job: (-job.priority, job.number))
    return _Everyone()


class NetworkQueue:
    """The jobs that wait for one network and for nothing else."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._jobs: dict[int, Job] = {}
        self._policy: Policy[Any] | None = None
        self._order: Order = _Everyone()

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def jobs(self) -> list[Job]:
        """All of them, the oldest first."""
        return list(self._jobs.values())

    def add(self, job: Job) -> None:
        self._jobs[job.number] = job
        self._order.add(job)

    def remove(self, job: Job) -> None:
        if self._jobs.pop(job.number, None) is not None:
            self._order.remove(job)

    def first(self, policy: Policy[Any], now_ms: float, rate: float) -> list[Job]:
        """Who may be the first of these in the policy's order."""
        if len(self._jobs) <= _FEW and not self.network.retains:
            return self.jobs
        if policy is not self._policy:
            self._policy = policy
            self._order = _InTurn() if self.network.retains else _order_for(policy)
            for job in self._jobs.values():
                self._order.add(job)
        return self._order.first(now_ms, rate)
