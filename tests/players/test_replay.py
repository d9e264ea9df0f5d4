"""Tests that Python and the C player, also as WebAssembly, replay recordings of the Python
scheduler with the same slices."""

import random
from itertools import zip_longest

import pytest

from cml_engine import FrameScheduler
from cml_engine.scheduler import VirtualClock
from cml_engine.scheduler.planning.policy import by_priority, fair_share, least_laxity
from cml_engine.scheduler.tools.replay import replay
from cml_engine.scheduler.tools.simulate import Noise, SimGpu, SimNetwork, SimStep
from players.build import compile_wasm, find_compiler
from tests.fixtures.frames.simulated import run_random_host
from tests.players.building import SANITIZED, build
from tests.players.deno import ROOT, deno_command, find_deno
from tests.players.replay_lines import replayed
from tests.scheduler.test_record import (
    recorded_run,
    run_beside_another,
    run_by_wall_clock,
    run_with_margin,
)


def differences_in_c(recording, folder):
    """Returns the number of frames in which the C player, with sanitizers, has other slices."""
    found = replayed(build("replay.c", "-O1", *SANITIZED), recording)
    return sum(a != b for a, b in zip_longest(found, recording.decisions))


def differences_in_python(recording, folder):
    return sum(a != b for a, b in zip(replay(recording), recording.decisions, strict=True))


RUNS = [recorded_run, run_by_wall_clock, run_with_margin, run_beside_another]
in_players = pytest.mark.parametrize("differences", [differences_in_python, differences_in_c])


@in_players
@pytest.mark.parametrize("run", [*RUNS, *range(4, 16)])
def test_recordings_replay_to_equal_slices(run, differences, tmp_path):
    """A number is the seed of a random run."""
    recording = random_run(run) if isinstance(run, int) else run()
    assert sum(len(frame) for frame in recording.decisions) > 50
    assert differences(recording, tmp_path) == 0


@pytest.fixture(scope="module")
def replay_in_page(tmp_path_factory):
    """The command that replays in WebAssembly."""
    if find_deno() is None or not find_compiler():
        pytest.skip("deno or ziglang is not installed (the extra `players`)")
    player, here = ROOT / "players/c/src", ROOT / "tests/players/web"
    sources = [here.parent / "replay.c", here / "replay.c", *sorted(player.glob("*.c"))]
    module = tmp_path_factory.mktemp("replay") / "replay.wasm"
    module.write_bytes(compile_wasm(sources, "-mexec-model=command"))
    return deno_command("run", "-A", "--no-check", here / "replay.js", module)["args"]


@pytest.mark.parametrize("run", [recorded_run, run_by_wall_clock, 4])
def test_recordings_replay_in_webassembly(run, replay_in_page):
    """Decisions are the same with JavaScript's mathematics, which may round differently."""
    recording = random_run(run) if isinstance(run, int) else run()
    assert replayed(replay_in_page, recording) == recording.decisions


@in_players
def test_changed_timings_replay_to_other_slices(differences, tmp_path):
    """A recording with changed timings replays to other slices, so the comparison can fail."""
    recording = recorded_run(120)
    for event in recording.events:
        if event["kind"] == "end":
            event["timings"] = [[f, g, 3 * ms] for f, g, ms in event["timings"]]
    assert differences(recording, tmp_path) > 20


class _ShortOfMemory(SimGpu):
    """A device that sometimes has no memory for a job's outputs, at the job's start or end."""

    def __init__(self, chance, **options):
        super().__init__(**options)
        self._chance = chance
        self._begun = set()

    def reserve(self, network, inputs):
        return "memory" if self._chance.random() < 0.1 else ""

    def begin_job(self, encoder, network, inputs):
        self._begun.add(network)  # its reserved memory is still there
        return super().begin_job(encoder, network, inputs)

    def finish_job(self, encoder, network):
        is_short = network not in self._begun and self._chance.random() < 0.1
        return None if is_short else super().finish_job(encoder, network)

    def end_frame(self, frame):
        self._begun.clear()
        return super().end_frame(frame)


def random_run(seed, frames=300):
    """Returns the recording of a random run of the scheduler.

    It has networks of all sizes, some with shared memory, and a device that lacks memory at times.
    """
    chance = random.Random(seed)
    clock = VirtualClock(chance.uniform(0, 1e6))
    gpu = _ShortOfMemory(
        chance, noise=Noise.of_tail(chance.uniform(1.1, 3), chance.random()), seed=seed,
        granule=chance.choice([1, 2, 8]), max_groups=chance.choice([3, 12]),
        latency=chance.choice([2, 3]),
    )  # fmt: skip
    policy = chance.choice([least_laxity, least_laxity, fair_share, by_priority])
    budget = chance.choice(["spare", 0.5, 4.0, 4.0])
    scheduler = FrameScheduler(gpu, 1000 / 60, budget, policy=policy, clock=clock)
    recording = scheduler.record()
    nets = [_network(chance, f"n{i}", chance.choice([None, None, "shared"])) for i in range(5)]
    run_random_host(scheduler, nets, seed, frames)
    return recording


def _network(chance, name, group):
    steps = [
        SimStep(
            chance.choice(["conv", "pool"]) + f" k-{i % 7:08x} {name if i % 3 else ''}",
            chance.choice([1, 3, 40, 700, 20_000]), chance.uniform(1e-5, 1e-2),
            flops=chance.uniform(1e3, 1e6), nbytes=chance.uniform(1e2, 1e5),
        )
        for i in range(chance.choice([1, 5, 30]))
    ]  # fmt: skip
    return SimNetwork(name, steps, exclusive_group=group)
