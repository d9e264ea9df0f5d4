"""Connects to the cluster of a bake: the caller's, one at an address, or a new local one."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from cml_engine.errors import DeviceError, InputError
from cml_engine.errors.arguments import IntegerRange

if TYPE_CHECKING:
    from distributed import Client

WORKERS = IntegerRange(1, 100_000)
#: Dask settings for runs of days: short logs, which bound its memory, and rare self-monitoring,
#: which interrupts the computation
LEAN = {
    "distributed.worker.profile.enabled": False,
    "distributed.worker.memory.monitor-interval": "1s",
    "distributed.admin.low-level-log-length": 100,
    "distributed.admin.system-monitor.log-length": 120,
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.admin.tick.interval": "200ms",
}
#: a worker that dies is replaced soon, and its tasks fail at once instead of being retried by Dask
_OWN = {
    **LEAN,
    "distributed.scheduler.allowed-failures": 1,
    "distributed.deploy.lost-worker-timeout": "2s",
}
#: threads per worker; a second one would slow the computation by writing beside it
THREADS = 1
#: Dask has no authentication: anyone who reaches its ports can run code
_LOOPBACK = "127.0.0.1"
#: timeout in seconds for the scheduler's answer
_ANSWER_S = 10


def need_extra() -> None:
    """Raises :class:`InputError` if Dask or Zarr is not installed.

    Examples
    --------
    >>> need_extra()  # InputError says what to install
    """
    missing = []
    for package in ("distributed", "zarr"):
        try:
            __import__(package)
        except ImportError:
            missing.append(package)
    if missing:
        raise InputError(f"{' and '.join(missing)} not installed: pip install 'cml-engine[bake]'")


@contextlib.contextmanager
def connect(
    client: Client | None = None,
    scheduler: str | None = None,
    workers: int | None = None,
    dashboard: bool = False,
) -> Iterator[tuple[Client, bool]]:
    """A context manager that yields a Dask client, and True if its cluster was started here.

    The client is ``client`` itself, or one for the ``scheduler`` at that address, or one for a new
    cluster of ``workers`` processes on this machine. The new cluster stops at the end of the block.
    """
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
    with _own_cluster(default_workers() if workers is None else workers, dashboard) as found:
        yield found, True


def replace_lost(client: Client, alive: int) -> None:
    """Restarts lost workers of a local cluster if fewer than its initial number are ``alive``."""
    cluster = client.cluster
    if cluster is not None and alive < len(cluster.worker_spec):
        cluster.scale(len(cluster.worker_spec))


def default_workers(backend: str = "cpu") -> int:
    """Returns the default number of workers on this machine.

    This is one per core available to the process on the CPU, and one in total if the backend
    runs on a GPU.

    Examples
    --------
    >>> default_workers("cpu") >= 1
    True
    """
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
def _client_at(address: str) -> Iterator[Client]:
    from distributed import Client

    with _silence_logs():
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
def _own_cluster(workers: int, dashboard: bool) -> Iterator[Client]:
    import dask
    from distributed import Client, LocalCluster

    WORKERS.check(workers, "workers")
    with _silence_logs(), dask.config.set(_OWN):
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
def _silence_logs() -> Iterator[None]:
    """Silences warnings and the logs of Dask within a ``with`` block, then restores the log levels.

    The engine reports failures in a single message of its own.
    """
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
    """Returns the name of the one device that all workers run on.

    ``states`` maps each worker's address to its device and the reason why it was refused ("" if it
    was not). Raises :class:`DeviceError` if a worker was refused or if the devices differ.
    """
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
