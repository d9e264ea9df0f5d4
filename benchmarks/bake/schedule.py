"""A thousand workers and ten million tiles, on paper: what a cluster of that size would do, worked
out of what a task and a tile take here."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.bake.costs import Costs

TILES = 10**7
WORKERS = (10, 100, 1000)
#: tiles in a task, and units: one; half a second of them, as usual; one again, with ``--block`` 8
#: and 16
TASKS = {1: 1, 30: 30, 64: 1, 256: 1}
#: bytes per second of the scheduler's network (1 Gbit/s)
_NETWORK = 125e6
#: tasks that are simulated; the rest of ten million tiles is as these
_TASKS = 200_000
#: tasks that a worker has ahead
_AHEAD = 3


@dataclass(frozen=True)
class Limit:
    """Something that all workers share, and how many workers it feeds."""

    name: str
    workers: float


def limits(costs: Costs, block: int) -> list[Limit]:
    """What workers share, that which breaks first at the head."""
    task_s = block * tile_s(costs)
    found = [
        Limit("the scheduler's processor", task_s * 1e6 / costs.scheduler_us),
        Limit("the client's processor", task_s * 1e6 / client_us(costs, block)),
        Limit("the scheduler's network, 1 Gbit/s", task_s * _NETWORK / costs.task_bytes),
        Limit("one disk of this speed", tile_s(costs) * costs.disk_per_s / costs.tile_bytes),
    ]
    return sorted(found, key=lambda limit: limit.workers)


def tile_s(costs: Costs) -> float:
    """Seconds of a worker for a tile."""
    return (costs.make_ms + costs.write_ms) / 1e3


def client_us(costs: Costs, block: int) -> float:
    """Of a task of so many tiles."""
    return costs.client_us + (TASKS[block] - 1) * costs.unit_us


def paper(costs: Costs) -> str:
    """The costs, a table of the simulated schedule, and what breaks first."""
    return "\n".join([str(costs), "", *_table(costs), "", *_breaks(costs)])


def _table(costs: Costs) -> Iterator[str]:
    yield "| workers | tiles in a task | workers busy | 10^7 tiles in | GB/s into the store |"
    yield "|--:|--:|--:|--:|--:|"
    for workers in WORKERS:
        for block in TASKS:
            seconds, busy = simulate(costs, workers, block)
            stored = costs.tile_bytes * TILES / seconds / 1e9
            hours = seconds / 3600
            yield (f"| {workers:,} | {block} | {100 * busy:.0f} % | {hours:.2f} h | "
                   f"{stored:.2f} |")  # fmt: skip


def _breaks(costs: Costs) -> Iterator[str]:
    yield "| tiles in a task | breaks first | then | then |"
    yield "|--:|---|---|---|"
    for block in TASKS:
        said = [f"{limit.name}: {limit.workers:,.0f} workers" for limit in limits(costs, block)]
        yield f"| {block} | " + " | ".join(said[:3]) + " |"


def simulate(costs: Costs, workers: int, block: int) -> tuple[float, float]:
    """Seconds for all tiles, and the share of them that workers have something to do. The
    scheduler hands out tasks and hears of their ends one after the other, beside the workers'
    heartbeats; the client and it work at the same time, so the slower counts. The store takes
    whatever comes."""
    tasks = max(20 * workers, _TASKS // block)
    heartbeats = workers / _heartbeat_s(workers) * costs.heartbeat_us / 1e6
    scheduler_us = costs.scheduler_us / (1 - min(heartbeats, 0.9))
    server_s = max(scheduler_us, client_us(costs, block)) / 1e6
    work_s = block * tile_s(costs) + costs.worker_us / 1e6
    seconds = _serve(tasks, workers, server_s, work_s)
    return seconds * TILES / (tasks * block), tasks * work_s / (workers * seconds)


def _heartbeat_s(workers: int) -> float:
    """Between two of a worker's, as Dask has it."""
    if workers < 50:
        return 0.5 if workers <= 10 else 1.0
    return 2.0 if workers < 200 else workers / 200 + 1


def _serve(tasks: int, workers: int, server_s: float, work_s: float) -> float:
    """Seconds until so many tasks are done, of which each takes the one server, and then a
    worker."""
    clock = sent = done = 0.0
    free = [0.0] * workers
    ends: list[tuple[float, int]] = []
    ready = [worker for _ in range(_AHEAD) for worker in range(workers)][::-1]
    while done < tasks:
        if ready and sent < tasks:
            worker = ready.pop()
            clock += server_s / 2
            sent += 1
            free[worker] = max(free[worker], clock) + work_s
            heapq.heappush(ends, (free[worker], worker))
            continue
        end, worker = heapq.heappop(ends)
        clock = max(clock, end) + server_s / 2
        done += 1
        ready.append(worker)
    return clock
