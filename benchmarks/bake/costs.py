"""What a task and a tile take, measured here: the inputs of the schedule on paper."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bake.cluster import of_each, processor_s, scheduler_bytes, separate_cluster
from benchmarks.bake.overhead import plain_loop
from benchmarks.bake.small import Small, small_layer
from cml_engine.distributed import Layer, StorePlan, bake, batch

_DISK_BYTES = 1 << 28
#: units in a task, where what a unit more takes is measured
_BATCHED = 256


@dataclass(frozen=True)
class Costs:
    """Microseconds of a processor for a task, in the client, the scheduler and its worker; for a
    unit more in it, in the client; and for a worker's heartbeat. Bytes that the scheduler sends and
    receives for a task; of a tile of the demo, milliseconds to make and to write it, its bytes and
    files in the store; what the disk takes, in bytes per second."""

    client_us: float
    scheduler_us: float
    worker_us: float
    unit_us: float
    heartbeat_us: float
    task_bytes: float
    make_ms: float
    write_ms: float
    tile_bytes: float
    tile_files: float
    disk_per_s: float

    def __str__(self) -> str:
        return (
            f"A task: {self.client_us:.0f} µs of a processor in the client, "
            f"{self.scheduler_us:.0f} in the scheduler, {self.worker_us:.0f} in the worker; "
            f"{self.task_bytes / 1e3:.1f} kB through the scheduler. A tile more in it: "
            f"{self.unit_us:.0f} µs in the client. A worker's heartbeat: "
            f"{self.heartbeat_us:.0f} µs. A tile: {self.make_ms:.1f} ms to make, "
            f"{self.write_ms:.1f} to write, {self.tile_bytes / 1e3:.0f} kB in "
            f"{self.tile_files:.0f} files. The disk: {self.disk_per_s / 1e6:.0f} MB/s."
        )


def measured(folder: Path, tasks: int, tiles: int) -> Costs:
    """So many tasks that do nothing, and so many tiles of the demo."""
    make_ms, write_ms, processor = plain_loop(folder / "loop.zarr", tiles)
    free = processor / (make_ms + write_ms)  # of a processor that nobody else wants
    files = list((folder / "loop.zarr").rglob("c.*"))
    per_tile = sum(path.stat().st_size for path in files) / tiles
    disk = _disk(folder / "disk")
    with separate_cluster(2) as client:
        heartbeat = _heartbeat_us(client)
        layer = small_layer(tasks)
        bake(Small("first"), str(folder / "first.zarr"), StorePlan([layer], {}), client=client)
        us, through = _spent(client, folder / "single.zarr", layer, most=1)
        batched, _ = _spent(client, folder / "batched.zarr", layer, most=_BATCHED)
    worker = sum(spent for name, spent in us.items() if name.startswith("worker"))
    return Costs(us["client"], us["scheduler"], worker, batched["client"], heartbeat, through,
                 free * make_ms, free * write_ms, per_tile, len(files) / tiles, disk)  # fmt: skip


def _spent(client: Any, folder: Path, layer: Layer, most: int) -> tuple[dict[str, float], float]:
    """Microseconds of each process for a unit, and bytes through the scheduler, where so many are a
    task at most."""
    usual, batch.MOST = batch.MOST, most
    before, sent = of_each(client, processor_s), client.run_on_scheduler(scheduler_bytes)
    bake(Small(folder.name), str(folder), StorePlan([layer], {}), client=client)
    after, through = of_each(client, processor_s), client.run_on_scheduler(scheduler_bytes)
    batch.MOST = usual
    us = {name: 1e6 * (after[name] - spent) / layer.count for name, spent in before.items()}
    return us, (through - sent) / layer.count


def _heartbeat_us(client: Any, times: int = 200) -> float:
    """Of the scheduler's processor."""

    async def beat(dask_worker: Any) -> None:
        for _ in range(times):
            await dask_worker.heartbeat()

    before = client.run_on_scheduler(processor_s)
    client.run(beat, workers=sorted(client.nthreads())[:1])
    return 1e6 * float(client.run_on_scheduler(processor_s) - before) / times


def _disk(path: Path) -> float:
    """Bytes per second of one large file, until they are on the disk."""
    block = os.urandom(1 << 22)
    start = time.perf_counter()
    with path.open("wb") as file:
        for _ in range(_DISK_BYTES // len(block)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    return _DISK_BYTES / (time.perf_counter() - start)
