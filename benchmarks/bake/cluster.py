"""A cluster whose scheduler and workers are processes of their own, and what each of them takes."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from typing import Any

import psutil

from cml_engine.distributed.cluster import LEAN, THREADS


@contextlib.contextmanager
def separate_cluster(workers: int) -> Iterator[Any]:
    """A client of it. Its processes have Dask's settings that a bake's own cluster has."""
    import dask
    from distributed import Client
    from distributed.deploy.subprocess import SubprocessCluster

    for name, value in LEAN.items():
        os.environ["DASK_" + name.upper().replace(".", "__").replace("-", "_")] = repr(value)
    dask.config.refresh()
    cluster = SubprocessCluster(
        n_workers=workers,
        threads_per_worker=THREADS,
        dashboard_address=None,
        worker_class="distributed.Worker",
    )
    with cluster, Client(cluster, set_as_default=False) as client:
        client.wait_for_workers(workers)
        yield client


def of_each(client: Any, ask: Any) -> dict[str, Any]:
    """What a function gives in each process of the cluster."""
    workers = client.run(ask)
    numbered = {f"worker {i}": workers[name] for i, name in enumerate(sorted(workers), 1)}
    return {"client": ask(), "scheduler": client.run_on_scheduler(ask), **numbered}


def resident_mb() -> float:
    """Of this process."""
    return float(psutil.Process().memory_info().rss) / 1e6


def processor_s() -> float:
    """What this process has taken of the processor."""
    times = psutil.Process().cpu_times()
    return float(times.user + times.system)


def scheduler_bytes(dask_scheduler: Any) -> int:
    """What the scheduler has sent and received on its open connections (Linux)."""
    found = 0
    comms = [*dask_scheduler.stream_comms.values(), *dask_scheduler.client_comms.values()]
    for batched in comms:
        opened = batched.comm.stream.socket
        info = opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)
        found += sum(struct.unpack_from("=QQ", info, 120))  # tcpi_bytes_acked, _received
    return found
