"""Tests that networks with shared activation memory never have two jobs in progress at a time."""

import pytest

from cml_engine.scheduler import fair_share
from tests.fixtures.frames import simulated
from tests.scheduler.test_queues import POLICIES


class Device(simulated.RecordingGpu):
    """A device that records the networks with a job in progress and the order of executed slices.

    It refuses the networks in ``refused``; those in ``short`` must wait for memory.
    """

    def __init__(self):
        super().__init__()
        self.holding, self.most, self.refused, self.short = [], 0, set(), set()

    def reserve(self, network, inputs):
        return "memory" if network.name in self.short else ""

    def begin_job(self, encoder, network, inputs):
        if network.name in self.refused:
            raise RuntimeError("no memory")
        self.holding.append(network)
        self._count()

    def end_job(self, network):
        self.holding.remove(network)

    def resume_job(self, network):
        self.holding.append(network)
        self._count()

    def _count(self):
        grouped = [net for net in self.holding if net.exclusive_group]
        self.most = max(self.most, len(grouped))


def network(name, total_ms=10.0, group="shared:agents"):
    return simulated.network(name, total_ms, groups=50, exclusive_group=group)


class Loop(simulated.Loop):
    def __init__(self, *networks, **options):
        super().__init__(*networks, device=Device(), exact=False, **options)

    def runs(self):
        """Returns the names of the networks in execution order, without consecutive repeats."""
        ran = [part.network.name for part in self.gpu.ran]
        return [name for i, name in enumerate(ran) if i == 0 or ran[i - 1] != name]


@pytest.mark.parametrize("policy", POLICIES)
def test_jobs_of_a_group_run_one_after_the_other(policy):
    nets = [network(name) for name in "abc"]
    loop = Loop(*nets, policy=policy)
    jobs = [loop.submit(net, {}, deadline_ms=500 - i) for i, net in enumerate(nets)]
    loop.frames(20)
    assert [job.state for job in jobs] == ["done"] * 3
    assert sorted(loop.runs()) == ["a", "b", "c"], "each in one piece"
    assert loop.gpu.most == 1 and loop.gpu.holding == []


@pytest.mark.parametrize("groups", [(None, None), ("shared:1", "shared:2")])
def test_jobs_of_different_groups_interleave(groups):
    nets = [network(name, group=group) for name, group in zip("ab", groups, strict=True)]
    loop = Loop(*nets, policy=fair_share)
    for net in nets:
        loop.submit(net, {})
    loop.frames(20)
    assert len(loop.runs()) > 2


def test_a_more_urgent_job_of_the_group_waits_for_the_one_under_way():
    slow, urgent, free = network("slow", 40.0), network("urgent", 2.0), network("free", 2.0, None)
    loop = Loop(slow, urgent, free)
    first = loop.submit(slow, {})
    loop.frames(2)
    late = loop.submit(urgent, {}, deadline_ms=60, priority=9.0)
    other = loop.submit(free, {}, deadline_ms=60)
    loop.frames(3)
    assert (first.state, late.state, other.state) == ("running", "queued", "done")
    loop.frames(30)
    assert late.state == "done" and late.started_ms >= first.ended_ms


def test_paused_job_blocks_its_group_and_cancelled_job_releases_it():
    nets = [network(name, 40.0) for name in "ab"]
    loop = Loop(*nets)
    first = loop.submit(nets[0], {})
    loop.frames(2)
    first.pause()
    second = loop.submit(nets[1], {})
    loop.frames(5)
    assert (first.state, second.state) == ("running", "queued")
    first.cancel()
    loop.frames(1)
    assert second.state == "running" and loop.gpu.most == 1


def test_job_that_cannot_start_releases_its_group():
    nets = [network(name) for name in "ab"]
    loop = Loop(*nets)
    loop.gpu.refused.add("a")
    failing, fine = (loop.submit(net, {}) for net in nets)
    loop.frames(10)
    assert failing.error == "no memory"
    assert fine.state == "done" and loop.gpu.holding == []


def test_network_starts_one_job_per_frame_even_if_replanned():
    """A network starts only one job in a frame that is planned again because a job waits for
    memory."""
    small, short = network("small", 0.1, group=None), network("short", group=None)
    loop = Loop(small, short)
    loop.gpu.short.add("short")
    undated = loop.submit(small, {})
    dated = loop.submit(small, {}, deadline_ms=500.0)
    waits = loop.submit(short, {})
    loop.scheduler.encode(None)
    assert (dated.state, undated.state, waits.state) == ("done", "queued", "queued")
    assert len(loop.gpu.ran + loop.gpu.pending) == 4


@pytest.mark.parametrize("seed", range(5))
def test_only_one_job_of_a_group_holds_the_memory_in_random_runs(seed):
    """At most one job is in progress under random host actions, and in the end every job has
    ended."""
    nets = [network(name, total_ms) for name, total_ms in zip("abcd", (1, 4, 9, 20), strict=True)]
    loop = Loop(*nets, policy=POLICIES[seed % 3])
    _, jobs = simulated.run_random_host(loop.scheduler, nets, seed)
    for job in jobs:
        job.resume()
    loop.frames(600)
    assert all(job.ended for job in jobs) and sum(job.state == "done" for job in jobs) > 20
    assert loop.gpu.most == 1 and loop.gpu.holding == []
