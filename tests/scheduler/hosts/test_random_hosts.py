"""Tests of hosts that use the whole scheduler interface in random order.

No value read is ever wrong, all errors are the engine's own, every job ends, and all memory is
released in the end.
"""

import contextlib
import random
import time

import numpy as np
import pytest
import wgpu

import cml_engine as cml
from cml_engine.scheduler.planning.plan import operators_per_frame
from tests.fixtures.frames.host import open_device
from tests.fixtures.memory import held_bytes
from tests.scheduler.hosts.test_dropped_frames import NETWORKS, Network, Trial, halve

pytestmark = pytest.mark.gpu

assert halve  # a fixture for all tests
#: shares of frames that are dropped without notice and that are abandoned
DROPPED, ABANDONED = 0.03, 0.08


class RandomHost(Trial):
    """A host with two schedulers and a network of each type, whose frames are dropped at random."""

    def __init__(self, gpu, seed):
        super().__init__(gpu, drop=-1, timed=bool(seed % 2))
        self.rng, self.calm = random.Random(seed), False
        self.networks = [Network(self, *kind) for kind in NETWORKS.values()]
        self.schedulers = [self.scheduler() for _ in range(2)]
        for scheduler in self.schedulers:
            scheduler.planner = operators_per_frame(self.rng.choice([1, 2, 7]))

    def fate(self):
        chance = 1.0 if self.calm else self.rng.random()
        dropped = "dropped" if chance < DROPPED else "submitted"
        return "abandoned" if DROPPED <= chance < DROPPED + ABANDONED else dropped

    # --- actions

    def some_job(self):
        return self.rng.choice(self.entries[-12:]).job if self.entries else None

    def some_input(self):
        job = self.some_job()
        return job if job is not None and self.rng.random() < 0.3 else self.rng.randrange(0, 40, 2)

    def do_submit(self):
        network = self.rng.choice(self.networks)
        names = [n for n in ("x", "z") if not network.retain or self.rng.random() < 0.6]
        inputs = {name: self.some_input() for name in names}
        options = {
            "priority": self.rng.choice([0.5, 1.0, 3.0]),
            "deadline_ms": self.rng.choice([None, None, 5.0, 500.0]),
            "slot": self.rng.choice([None, None, None, "a slot"]),
        }
        self.submit(network, self.rng.randrange(2), options, **inputs)

    def do_resume(self):
        for entry in self.entries:
            entry.job.resume()

    def do_to_a_job(self, deed):
        """Pauses, cancels or releases a job."""
        if (job := self.some_job()) is not None:
            getattr(job, deed)()

    def do_read(self):
        if (job := self.some_job()) is not None:
            job.tensor("y").read()

    def do_replace(self):
        self.rng.choice(self.networks).replace()

    def do_reset(self):
        self.rng.choice(self.networks).reset()

    def do_evict(self):
        self.rng.choice(self.networks).session.program.evict()  # type: ignore[attr-defined]

    def do_run(self):
        plain = self.networks[0]
        x, z = (float(self.rng.randrange(0, 40, 2)) for _ in "xz")
        arrays = {name: np.full(4, value, np.float32) for name, value in (("x", x), ("z", z))}
        decay = plain.memory.decay
        result = plain.session.run(arrays)["y"]
        assert set(result.tolist()) == {max(x * 0.5, z - 8.0) + 2.0 * decay + z}

    def do_look(self):
        for scheduler in self.schedulers:
            assert scheduler.describe()
        for entry in self.entries[-12:]:
            job = entry.job
            assert job.waiting_for and job.eta_ms >= 0 and 0 <= job.progress <= 1 and repr(job)

    def do_frame(self):
        self.frame()

    def step(self):
        (deed,) = self.rng.choices(list(DEEDS), list(DEEDS.values()))
        try:
            if deed in ("pause", "cancel", "release"):
                self.do_to_a_job(deed)
            else:
                getattr(self, f"do_{deed}")()
        except cml.CmlError as error:
            assert str(error)

    # --- end

    def finish(self):
        """Resumes all jobs, runs frames until every one has ended, then checks all values that
        were read."""
        self.calm = True
        self.do_resume()
        self.settle()
        for event in self.events:
            event()


#: the actions and their relative frequencies
DEEDS = {
    "frame": 60, "submit": 24, "pause": 3, "resume": 3, "cancel": 3, "release": 4, "read": 2,
    "replace": 1, "reset": 3, "evict": 2, "run": 2, "look": 2,
}  # fmt: skip
STEPS = 250
#: two run in the suite
SEEDS = [pytest.param(s, marks=pytest.mark.long if s > 1 else ()) for s in range(100)]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_host_actions_never_give_wrong_results(gpu, seed):
    held, host = held_bytes(gpu), RandomHost(gpu, seed)
    for _ in range(STEPS):
        host.step()
    host.finish()
    states = [entry.job.state for entry in host.entries]
    assert states.count("done") > len(states) / 5, states
    del host
    assert held_bytes(gpu) == held


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.filterwarnings("ignore:end_frame")  # its encoders raise, so frames only end
def test_whenever_the_device_is_lost_every_job_ends_with_our_error(seed):
    gpu = cml.Gpu(device=open_device(bool(seed % 2)))
    host = RandomHost(gpu, seed)
    last = host.rng.randrange(20, STEPS)
    for _ in range(last):
        host.step()
    gpu.device.destroy()
    for _ in range(60):
        with contextlib.suppress(wgpu.GPUError):  # an error of the host's own encoder
            host.step()
        for scheduler in host.schedulers:
            scheduler.end_frame()
    host.do_resume()
    begin = time.monotonic()  # a busy machine may still compute an operator on the CPU
    while any(scheduler.jobs for scheduler in host.schedulers) and time.monotonic() - begin < 60:
        for scheduler in host.schedulers:
            scheduler.encode(gpu.device.create_command_encoder())
            scheduler.end_frame()
    assert not any(scheduler.jobs for scheduler in host.schedulers)
