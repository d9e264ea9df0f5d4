"""Measures what networks cost the host of a frame beside their own time on the GPU.

``python -m benchmarks.frames.cost`` computes tiles of the demo game behind a renderer, for which
one network runs unsliced in each frame. ``--against FOLDER`` runs another checkout in turns.
The cost of a frame is what this thread computes for the networks, and how much longer than
predicted it waits for them: for the second submit, threads that wake, and timestamps.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import mean, median

import numpy as np

import cml_engine as cml
from cml_engine import FrameScheduler, SpareBudget
from cml_engine.demo_game.agents import Agents, TileJobs
from cml_engine.demo_game.chain import load_chain
from cml_engine.demo_game.world.tile import TileId
from cml_engine.gpu.program.program import GpuProgram

_FRAME_MS = 1000 / 60
#: milliseconds of a frame that the scheduler is told have passed, and the most that it plans
_ELAPSED_MS, _CEILING_MS = 8.0, 2.0
#: tiles under way at once
_TILES = 4
#: tiles and frames until kernels are compiled and costs are learned
_WARM_UP_TILES, _WARM_UP = 16, 100
Row = dict[str, float]


class Host:
    """A game whose picture is one run of a network, and whose world is made of tiles."""

    def __init__(self) -> None:
        self.gpu = cml.Gpu()
        chain = load_chain()
        self.scheduler = FrameScheduler(self.gpu, _FRAME_MS)
        self.agents = Agents(self.gpu, chain)
        picture = cml.Session(chain.graphs["upres"], self.gpu).program
        assert isinstance(picture, GpuProgram)
        self.picture = picture
        self.memory = np.zeros(1 << 21, np.float32)
        self.tiles: list[TileJobs] = []
        self.requested = 0

    def restart(self) -> None:
        """Keeps the learned costs and forgets the frames in which kernels were compiled."""
        for tile in self.tiles:
            tile.cancel()
        self.tiles.clear()
        self.scheduler.end_frame()
        costs = self.scheduler.cost_model
        self.scheduler = FrameScheduler(self.gpu, _FRAME_MS, over_share=0.005, cost_model=costs)
        self.scheduler.budget = SpareBudget(_FRAME_MS, ceiling_ms=_CEILING_MS)

    def request(self) -> None:
        """Submits tiles in place of those that are done."""
        for tile in [tile for tile in self.tiles if tile.done]:
            tile.release()
            self.tiles.remove(tile)
        while len(self.tiles) < _TILES:
            self.requested += 1
            name = TileId(1, self.requested % 97, self.requested // 97)
            self.tiles.append(self.agents.submit(self.scheduler, name, 7, 1.0, 900.0))

    def frame(self) -> Row:
        """Runs a frame; returns the ms that it takes beside its networks, and its slices.

        Encoding, submit and end are times of this thread on the processor, which other programs
        disturb less than those of a clock. The wait is a clock's, less the networks' predicted ms.
        """
        self.request()
        self.memory.sum()  # a game's own data takes the place of the scheduler's in the caches
        encoder = self.gpu.device.create_command_encoder()
        compute = encoder.begin_compute_pass()
        for step in range(len(self.picture.plan.steps)):
            self.picture.encode_all(compute, step)
        compute.end()
        self.gpu.queue.submit([encoder.finish()])
        self.gpu.wait()
        start, times = time.perf_counter(), [time.thread_time()]
        encoder = self.gpu.device.create_command_encoder()
        report = self.scheduler.encode(encoder, _ELAPSED_MS)
        times.append(time.thread_time())
        self.gpu.queue.submit([encoder.finish()])
        times.append(time.thread_time())
        waiting = time.perf_counter()
        self.gpu.wait()
        end = time.perf_counter()
        took_ms, wait_ms = 1e3 * (end - start), 1e3 * (end - waiting) - report.predicted_ms
        times.append(time.thread_time())
        self.scheduler.end_frame()
        self.scheduler.frame_took(_ELAPSED_MS + took_ms)
        times.append(time.thread_time())
        encode, submit, _, end_frame = (1e3 * (after - before) for before, after in pairwise(times))
        computed_ms = encode + submit + end_frame
        return {
            "encode": encode, "submit": submit, "end_frame": end_frame, "computed": computed_ms,
            "wait beyond prediction": wait_ms, "frame cost": computed_ms + wait_ms,
            "predicted": report.predicted_ms, "slices": len(report.slices),
        }  # fmt: skip

    def turn(self, frames: int) -> Row:
        """Runs frames and returns the means of their parts."""
        rows = [self.frame() for _ in range(frames)]
        return {part: _mean([row[part] for row in rows]) for part in rows[0]}


def _mean(values: Sequence[float]) -> float:
    """Returns the mean of the smaller four fifths; the others are hitches of the machine."""
    return mean(sorted(values)[: max(1, len(values) * 4 // 5)])


def work() -> None:
    """Runs a turn for each line of stdin, a number of frames; prints its means as JSON."""
    host = Host()
    while host.requested < _WARM_UP_TILES:
        host.frame()
    host.restart()
    for _ in range(_WARM_UP):
        host.frame()
    gc.freeze()
    print(host.gpu.name, flush=True)
    for line in sys.stdin:
        print(json.dumps(host.turn(json.loads(line))), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.frames.cost", description=__doc__)
    parser.add_argument("--turns", type=int, default=20, help="turns of each checkout")
    parser.add_argument("--frames", type=int, default=60, help="frames in each turn")
    parser.add_argument("--against", type=Path, help="another checkout to compare with")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work()
        return
    from benchmarks.checkouts import HERE, Worker  # which the other checkout may not have

    workers = [
        Worker(folder, Path(__file__), "--work") for folder in (options.against, HERE) if folder
    ]
    turns = [[worker.ask(options.frames) for worker in workers] for _ in range(options.turns)]
    print(f"{workers[0].device}: ms of a frame, medians of {options.turns} turns")
    for part in turns[0][0]:
        columns = [median(row[part] for row in rows) for rows in zip(*turns, strict=True)]
        line = f"{part:20s} " + " ".join(f"{ms:8.3f}" for ms in columns)
        if len(workers) > 1:
            ratio = median(new[part] / old[part] for old, new in turns)
            line += f"   {ratio:.3f} of the other's"
        print(line)


if __name__ == "__main__":
    main()
