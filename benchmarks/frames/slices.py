"""Measures the GPU overhead of running a network in slices, by cause.

``python -m benchmarks.frames.slices MODEL --budget-ms 8``: the same work runs in interleaved
rounds in four ways, each of which changes one thing: in one submit; in as many submits as the
budget requires frames, cut between operators; the same, cut inside operators where the budget
ends; and with a pause before each submit, as between frames. Times are GPU timestamps.
"""

from __future__ import annotations

import argparse
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import median
from typing import Any

import cml_engine as cml
from cml_engine.compiler.plan import Slice
from cml_engine.gpu.program.program import GpuProgram
from cml_engine.gpu.timing.timers import PassTimer
from cml_engine.runtime.session import random_inputs

#: frames until the last times have arrived
_DRAIN = 4
#: seconds of other host work between two frames
_PAUSE_S = 0.005

#: ranges of workgroups, as the network's executor takes them
Part = list[Slice]


class Runner:
    """Submits parts of a network one by one, waits for each, and measures their GPU time."""

    def __init__(self, gpu: cml.Gpu) -> None:
        self.gpu, self.executor = gpu, gpu.executor()
        self._frame = 0

    def run(self, parts: Sequence[Part], pause_s: float = 0.0) -> float:
        """Runs the parts, one submit each, and returns the sum of their GPU milliseconds.

        It sleeps ``pause_s`` before each part.
        """
        took = 0.0
        for part in [*parts, *[None] * _DRAIN]:
            if part and pause_s:
                time.sleep(pause_s)
            encoder = self.gpu.device.create_command_encoder()
            self.executor.encode(encoder, self._frame, [part] if part else [])
            self.gpu.queue.submit([encoder.finish()])
            self.gpu.wait()
            took += sum(timing.ms for timing in self.executor.end_frame(self._frame))
            self._frame += 1
        return took


def step_times(gpu: cml.Gpu, program: GpuProgram) -> list[float]:
    """Returns the GPU milliseconds of each step, run alone; the median of five runs."""
    timer = PassTimer(gpu)
    steps = range(len(program.step_costs()))
    times = [timer.time(steps, program.encode_all) for _ in range(5)]
    return [median(step) for step in zip(*times, strict=True)]


def cut(
    network: GpuProgram, times: Sequence[float], parts: int, granule: int, *, inside: bool
) -> list[Part]:
    """Cuts the network into ``parts`` parts of about equal time, inside operators or between them.

    ``times`` are the ms of the steps. Cuts ``inside`` operators are at multiples of ``granule``
    workgroups. There are fewer parts if two cuts coincide.
    """
    costs, ends = network.step_costs(), list(accumulate(times))
    places = {(0, 0), (len(costs), 0)}
    for at in (ends[-1] * part / parts for part in range(1, parts)):
        step = bisect_left(ends, at)
        share = 1 - (ends[step] - at) / times[step]
        group = int(share * costs[step].groups) // granule * granule
        places.add((step, group) if inside else (step + round(share), 0))
    return [_between(network, costs, *ends) for ends in pairwise(sorted(places))]


def _between(
    network: GpuProgram, costs: Sequence[Any], start: tuple[int, int], end: tuple[int, int]
) -> Part:
    found = []
    for step in range(start[0], min(end[0] + 1, len(costs))):
        first = start[1] if step == start[0] else 0
        last = end[1] if step == end[0] else costs[step].groups
        if last > first:
            found.append(Slice(network, step, first, last - first))
    return found


@dataclass(frozen=True)
class Way:
    """One way to run the work: its number of frames, and its GPU milliseconds in each round."""

    name: str
    frames: int
    took: list[float]

    def ratio(self, other: Way) -> float:
        """Returns the time relative to another way: the median of the ratios of each round.

        A slow round slows both ways and cancels out.
        """
        return median(a / b for a, b in zip(self.took, other.took, strict=True))

    def best(self, other: Way) -> float:
        """Returns the ratio of both ways' fastest rounds, which are the least disturbed."""
        return min(self.took) / min(other.took)


def measure(gpu: cml.Gpu, graph: cml.Graph, budget_ms: float, rounds: int) -> list[Way]:
    """Runs the network in four ways in interleaved rounds and returns the timed ways.

    The first way runs the network in one submit.
    """
    session, runner = cml.Session(graph, gpu), Runner(gpu)
    network = session.program
    assert isinstance(network, GpuProgram)
    session.run(random_inputs(session.inputs))
    times = step_times(gpu, network)
    whole = cut(network, times, 1, 1, inside=False)
    frames = max(2, round(median(runner.run(whole) for _ in range(5)) / budget_ms))
    granule = runner.executor.granule
    between = cut(network, times, frames, granule, inside=False)
    inside = cut(network, times, frames, granule, inside=True)
    ways: dict[str, tuple[list[Part], float]] = {
        "at once": (whole, 0.0),
        "in submits, between operators": (between, 0.0),
        "in submits, cut in operators": (inside, 0.0),
        "the same, with pauses": (inside, _PAUSE_S),
    }
    found = [Way(name, len(parts), []) for name, (parts, _) in ways.items()]
    for turn in range(rounds + 1):
        for way in found:
            ms = runner.run(*ways[way.name])
            if turn:  # the first run is slower
                way.took.append(ms)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("model")
    options.add_argument("--budget-ms", type=float, default=8.0, help="of a frame")
    options.add_argument("--rounds", type=int, default=15)
    asked = options.parse_args(argv)
    if asked.budget_ms <= 0 or asked.rounds < 1:
        options.error("--budget-ms and --rounds: wanted more than 0")
    gpu = cml.Gpu()
    if not gpu.has_timestamps:
        options.error(f"{gpu.name} has no timestamp queries: nothing can be timed")
    ways = measure(gpu, cml.load(asked.model), asked.budget_ms, asked.rounds)
    once = ways[0]
    print(f"{gpu.name}\n{'':30s} {'frames':>6s} {'GPU ms':>8s} {'of at once':>10s} {'at best':>8s}")
    for way in ways:
        ratios = f"{way.ratio(once):10.3f} {way.best(once):8.3f}"
        print(f"{way.name:30s} {way.frames:6d} {median(way.took):8.2f} {ratios}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
