"""``python -m benchmarks.bake overhead``: a plain loop beside 1, 2 and 4 workers, per tile.
``memory``: resident bytes of every process at 1 000 and at 20 000 small tiles. ``schedule``: on
paper, how many workers one scheduler feeds, by the cost of a task that does nothing."""

from __future__ import annotations

import argparse
import heapq
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from benchmarks.bake.small import Small, small_layer
from cml_engine.distributed import Plan, Store, bake
from cml_engine.distributed.store import prepare
from demo_game.bake.planet import layers_of, manifest, models, rules
from demo_game.bake.region import Region
from demo_game.bake.work import PlanetWork
from demo_game.chain import load_chain


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bake", description=__doc__)
    parser.add_argument("what", choices=("overhead", "loop", "memory", "schedule"))
    parser.add_argument("--tiles", type=int, default=0, help="of the overhead (a multiple of 8), "
                        "or of the memory's end")  # fmt: skip
    parser.add_argument("--workers", default="1,2,4")
    parser.add_argument("--task-ms", type=float, default=1.5, help="of a task that does nothing")
    parser.add_argument("--tile-ms", type=float, default=50.0)
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        if options.what == "overhead":
            counts = [int(n) for n in options.workers.split(",")]
            found = overhead(Path(folder), options.tiles or 128, counts)
        elif options.what == "loop":
            found = plain_loop(Path(folder), options.tiles or 128)
        elif options.what == "memory":
            found = memory(Path(folder), options.tiles or 20_000)
        else:
            found = schedule(options.task_ms, options.tile_ms)
    print(json.dumps(found, indent=2))
    return 0


def overhead(folder: Path, tiles: int, counts: Sequence[int]) -> dict[str, Any]:
    """ms per tile: of a plain loop that makes and writes the same tiles, and of bakes."""
    region, chain = Region(0, 8, 0, tiles // 8, 0, 0), load_chain()
    layers = layers_of(region, chain)
    work = PlanetWork(7, None, "cpu", tuple(models(chain).items()), rules())
    plan = Plan(layers, manifest(region, chain, 7))
    found: dict[str, Any] = {"tiles": tiles}
    for count in counts:
        place = str(folder / f"{count}.zarr")
        report = bake(work, place, plan, workers=count)
        busy = sum(share.busy_s for share in report.workers.values())
        found[f"{count} workers, ms per tile"] = round(1e3 * report.seconds / tiles, 2)
        found[f"{count} workers, ms of work in each"] = round(1e3 * busy / tiles, 2)
    # with as many threads of NumPy's as a worker has
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "benchmarks.bake", "loop", "--tiles", str(tiles)]
    done = subprocess.run(words, env=env, check=True, capture_output=True, text=True)
    return {**found, **json.loads(done.stdout)}


def plain_loop(folder: Path, tiles: int) -> dict[str, Any]:
    """The same tiles, into a store of the same kind, one after the other."""
    region, chain = Region(0, 8, 0, tiles // 8, 0, 0), load_chain()
    layers = layers_of(region, chain)
    prepare(str(folder / "loop.zarr"), layers, {})
    store = Store(str(folder / "loop.zarr"), layers)
    maker = PlanetWork(7, None, "cpu", tuple(models(chain).items()), rules()).open()
    start = time.perf_counter()
    units = [(layer, unit) for layer in store.layers.values() for unit in layer.units()]
    for layer, unit in units:
        store.write(unit, maker.make(layer, unit, nullcontext).arrays)
    spent = round(1e3 * (time.perf_counter() - start) / len(units), 2)
    return {"plain loop, ms per tile": spent}


def memory(folder: Path, last: int) -> dict[str, Any]:
    """MB resident after 1 000 tiles and at the end, by process."""
    import psutil
    from distributed import Client, LocalCluster

    at: dict[str, dict[int, float]] = {}

    def resident() -> float:
        return float(psutil.Process().memory_info().rss) / 1e6

    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        client = Client(cluster)
        due = [1000, last // 4, last // 2, last]

        def look(report: Any) -> None:
            if due and report.done >= due[0]:
                number = due.pop(0)
                at.setdefault("client and scheduler", {})[number] = resident()
                for address, mb in sorted(client.run(resident).items()):
                    at.setdefault(f"worker {address}", {})[number] = mb

        layer = small_layer(last)
        report = bake(Small(), str(folder / "m.zarr"), Plan([layer], {}), client=client,
                      progress=look)  # fmt: skip
        client.close()
    return {
        "seconds": round(report.seconds, 1),
        "ms per task": round(1e3 * report.seconds / last, 3),
        **{name: {n: round(mb, 1) for n, mb in found.items()} for name, found in at.items()},
    }


def schedule(task_ms: float, tile_ms: float) -> dict[str, Any]:
    """On paper: one scheduler that takes ``task_ms`` for each task, workers that take ``tile_ms``
    for each tile. Of a million tiles, for the first tiles of more are as the last."""
    found: dict[str, Any] = {"task_ms": task_ms, "tile_ms": tile_ms}
    for workers in (10, 100, 1000):
        for block in (1, 16, 64, 256):
            tasks = max(workers * 20, 200_000 // block)
            seconds = simulate(tasks, workers, task_ms / 1e3, block * tile_ms / 1e3)
            busy = tasks * block * tile_ms / 1e3 / (workers * seconds)
            hours = 1e7 / (tasks * block) * seconds / 3600
            found[f"{workers} workers, {block} tiles a task"] = (
                f"busy {100 * busy:.0f} %, 10^7 tiles in {hours:.2f} h"
            )
    return found


def simulate(tasks: int, workers: int, task_s: float, work_s: float, ahead: int = 3) -> float:
    """Seconds: a server hands out tasks, at most ``ahead`` to a worker, and hears of their ends."""
    clock = sent = done = 0.0
    free = [0.0] * workers
    ends: list[tuple[float, int]] = []
    waiting = [0] * workers
    ready = [worker for _ in range(ahead) for worker in range(workers)][::-1]
    while done < tasks:
        if ready and sent < tasks:
            worker = ready.pop()
            clock += task_s / 2
            sent += 1
            waiting[worker] += 1
            free[worker] = max(free[worker], clock) + work_s
            heapq.heappush(ends, (free[worker], worker))
            continue
        end, worker = heapq.heappop(ends)
        clock = max(clock, end) + task_s / 2
        done += 1
        waiting[worker] -= 1
        ready.append(worker)
    return clock


if __name__ == "__main__":
    sys.exit(main())
