"""The cluster that a bake runs on: the user's own, one at an address, or one of this machine's."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from cml_engine.errors import DeviceError, InputError
from cml_engine.errors.arguments import Whole

WORKERS = Whole(1, 100_000)
#: for runs of days: what Dask remembers, which grows for an hour, is short; and it looks
#: at itself less often, as each look holds up what is made
LEAN = {
    "distributed.worker.profile.enabled": False,
    "distributed.worker.memory.monitor-interval": "1s",
    "distributed.admin.low-level-log-length": 100,
    "distributed.admin.system-monitor.log-length": 120,
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.admin.tick.interval": "200ms",
}
#: a worker that dies is replaced soon, and what it was making is suspected at once
_OWN = {
    **LEAN,
    "distributed.scheduler.allowed-failures": 1,
    "distributed.deploy.lost-worker-timeout": "2s",
}
#: of a worker: a second one, that writes while the first makes a unit, only gets in its way
THREADS = 1
#: Dask has no authentication: whoever reaches its ports runs code
_LOOPBACK = "127.0.0.1"
#: seconds for a scheduler to answer
_ANSWER_S = 10


def need_extra() -> None:
    """:class:`InputError` where Dask or Zarr is not installed."""
    missing = []
    for package in ("distributed", "zarr"):
        try:
            __import__(package)
        except ImportError:
            missing.append(package)
    if missing:
        raise InputError(f"{' and '.join(missing)} not installed: pip install 'cml-engine[bake]'")


@contextlib.contextmanager
def connected(
    client: Any = None,
    scheduler: str | None = None,
    workers: int | None = None,
    dashboard: bool = False,
) -> Iterator[tuple[Any, bool]]:
    """A client, and whether its cluster is one of our own, which ends with the block."""
    need_extra()
    from distributed import Client

    if client is not None:
        if not isinstance(client, Client):
            raise InputError(f"client: wanted a distributed.Client, got {type(client).__name__}")
        yield client, False
        return
    if scheduler is not None:
        if workers is not None:
            raise InputError("--workers is for a cluster of this machine: leave it out with "
                             "--scheduler")  # fmt: skip
        with _client_at(scheduler) as found:
            yield found, False
        return
    with _own_cluster(usual_workers() if workers is None else workers, dashboard) as found:
        yield found, True


def replace_lost(client: Any, alive: int) -> None:
    """A cluster of our own has as many workers as it began with, whatever became of them."""
    cluster = client.cluster
    if cluster is not None and alive < len(cluster.worker_spec):
        cluster.scale(len(cluster.worker_spec))


def usual_workers(backend: str = "cpu") -> int:
    """A worker for each core that this process may use; for a GPU one, which has all of it."""
    if backend != "cpu" and _has_gpu():
        return 1
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def _has_gpu() -> bool:
    try:
        from cml_engine.gpu.gpu import Gpu

        Gpu()
    except (DeviceError, ImportError):
        return False
    return True


@contextlib.contextmanager
def _client_at(address: str) -> Iterator[Any]:
    from distributed import Client

    with _quiet():
        try:
            client = Client(address, timeout=_ANSWER_S, set_as_default=False)
        except (OSError, ValueError, ImportError) as error:
            said = str(error) or type(error).__name__
            raise InputError(
                f"no scheduler answers at '{address}' ({said}): start one with 'dask scheduler', "
                "and give its address as tcp://HOST:8786"
            ) from None
        try:
            yield client
        finally:
            with contextlib.suppress(Exception):  # the scheduler may be gone
                client.close(timeout=5)


@contextlib.contextmanager
def _own_cluster(workers: int, dashboard: bool) -> Iterator[Any]:
    import dask
    from distributed import Client, LocalCluster

    WORKERS.check(workers, "workers")
    with _quiet(), dask.config.set(_OWN):
        cluster = LocalCluster(
            n_workers=workers,
            threads_per_worker=THREADS,
            processes=True,
            host=_LOOPBACK,
            dashboard_address=f"{_LOOPBACK}:8787" if dashboard else None,
            silence_logs=logging.CRITICAL,
        )
        try:
            client = Client(cluster, set_as_default=False)
            try:
                yield client
            finally:
                with contextlib.suppress(Exception):
                    client.close(timeout=5)
        finally:
            with contextlib.suppress(Exception):
                cluster.close(timeout=10)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Dask's own words are for those who run a cluster: here one message says what is wrong."""
    names = ("distributed", "distributed.client", "distributed.core", "distributed.nanny",
             "distributed.scheduler", "distributed.batched", "distributed.comm.tcp",
             "tornado.application", "asyncio")  # fmt: skip
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def check_devices(states: Mapping[str, tuple[str, str]]) -> str:
    """The one device that all workers have; :class:`DeviceError` where one was refused, or where
    they have several."""
    devices: dict[str, str] = {}
    for address, (device, refused) in sorted(states.items()):
        if refused:
            raise DeviceError(f"worker {address}: {refused}")
        devices.setdefault(device, address)
    if len(devices) > 1:
        (one, first), (other, second) = list(devices.items())[:2]
        raise DeviceError(
            f"worker {first} runs on {one}, worker {second} on {other}: floats would not be equal "
            "bit by bit. Start workers of one kind, or put all on the CPU (--backend cpu)"
        )
    return next(iter(devices))
