"""Tests that scheduling among 10,000 waiting jobs is right without a look at all of them."""

import random
import sys
from types import SimpleNamespace

import pytest

from cml_engine.scheduler import by_priority, fair_share, least_laxity
from cml_engine.scheduler.jobs.job_list import Heap
from cml_engine.scheduler.recording import decisions_of
from cml_engine.scheduler.tools.simulate import Noise, SimGpu
from tests.fixtures.frames import simulated
from tests.fixtures.frames.simulated import FRAME, run_random_host


def network(name, total_ms, group=None):
    return simulated.network(name, total_ms, groups=50, exclusive_group=group)


def networks():
    """Returns six networks: two share memory, and the last one is not ready at once."""
    late = simulated.network("late", 5.0, groups=50, ready=False, prepare_frames=3)
    return [network("a", 3.0), network("b", 11.0), network("c", 40.0),
            network("d", 6.0, "shared:x"), network("e", 9.0, "shared:x"), late]  # fmt: skip


def scheduler_for(nets, policy, seed=0):
    return simulated.scheduler_on(SimGpu(Noise(0.2, 0.1), seed=seed), *nets, policy=policy)


def random_host(policy, seed, **options):
    """Runs random actions of a host of :func:`networks`; returns the reports and the jobs."""
    nets = networks()
    return run_random_host(scheduler_for(nets, policy, seed), nets, seed, **options)


POLICIES = [least_laxity, fair_share, by_priority]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.__name__)
@pytest.mark.parametrize("seed", range(4))
def test_candidates_decide_like_all_jobs(policy, seed):
    """A built-in policy, which sees only candidates, decides as the same policy that sees every
    job."""
    other = POLICIES[seed % 3]

    def decisions(policy, other):
        reports, jobs = random_host(policy, seed, other=other)
        return list(map(decisions_of, reports)), [job.state for job in jobs]

    few, states = decisions(policy, other)
    assert (few, states) == decisions(lambda *a: policy(*a), lambda *a: other(*a))
    assert {"done", "cancelled", "failed"} <= set(states)


def calls(work):
    """Returns the number of Python calls in ``work``, which is the same on every machine."""
    count = 0

    def saw(frame, event, arg):
        nonlocal count
        count += event == "call"

    sys.setprofile(saw)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def work_beside(waiting, policy=least_laxity):
    """Returns the number of Python calls in one submit, and in ten frames, with ``waiting`` jobs
    queued."""
    nets = networks()
    s = scheduler_for(nets, policy)
    chance = random.Random(3)
    first = s.submit(nets[0], {})
    for number in range(waiting):
        needs = {"x": first.output("y")} if number % 50 == 0 else {}
        deadline = None if number % 3 else 1000.0 + 10 * number
        s.submit(nets[number % 5], needs, priority=chance.random(), deadline_ms=deadline)

    def frames():
        for _ in range(10):
            s.encode(None)
            s.clock.advance(FRAME)
            s.end_frame()

    frames()  # sorts the waiting jobs into their queues
    return calls(lambda: s.submit(nets[0], {}, deadline_ms=5.0)), calls(frames)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.__name__)
def test_cost_of_a_frame_is_sublinear_in_jobs(policy):
    submit, frames = work_beside(500, policy)
    more_submit, more_frames = work_beside(5000, policy)
    assert more_submit < 2 * submit and more_frames < 2 * frames


def test_cancelling_ten_thousand_jobs_leaves_nothing():
    nets = networks()
    s = scheduler_for(nets, least_laxity)
    jobs = [s.submit(nets[n % 5], {}, deadline_ms=100.0 + n) for n in range(2000)]
    for job in jobs:
        job.cancel()
    assert s.jobs == [] and s.lifecycle.job_list.queues == []
    assert s.encode(None).reason == "nothing to do"


def test_heap_drops_changed_entries():
    heap, entry = Heap(lambda entry: (0,)), SimpleNamespace(number=1)
    for _ in range(1000):
        heap.add(entry)
    assert len(heap._entries) < 200
