"""Connects to the cluster of a bake, checks its versions, and monitors its workers."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import time
import warnings
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar

from cml_engine.distributed.report import Report
from cml_engine.errors import DeviceError, InputError
from cml_engine.errors.arguments import WORKERS, check_choice

if TYPE_CHECKING:
    from distributed import Client, LocalCluster

C = TypeVar("C", "Client", "LocalCluster")
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
        raise InputError(f'{" and ".join(missing)} not installed: pip install "cml-engine[bake]"')


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
        with _client_at(scheduler) as connected:
            yield connected, False
        return
    with _own_cluster(default_workers() if workers is None else workers, dashboard) as connected:
        yield connected, True


def default_workers(backend: str = "cpu") -> int:
    """Returns the default number of workers on this machine.

    This is one per core available to the process on the CPU, and one in total if the backend
    runs on a GPU.

    Examples
    --------
    >>> default_workers("cpu") >= 1
    True
    """
    check_choice(("auto", "gpu", "cpu"), backend, "backend")
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
            reason = str(error) or type(error).__name__
            raise InputError(
                f"no scheduler answers at '{address}' ({reason}): start one with 'dask scheduler', "
                "and give its address as tcp://HOST:8786"
            ) from None
        with _closing(client, 5):
            yield client


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
        with _closing(cluster, 10), _closing(Client(cluster, set_as_default=False), 5) as client:
            yield client


@contextlib.contextmanager
def _closing(opened: C, timeout_s: float) -> Iterator[C]:
    """A context manager that yields a client or cluster and closes it; it may be gone by then."""
    try:
        yield opened
    finally:
        with contextlib.suppress(Exception):
            opened.close(timeout=timeout_s)


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
    for address, (device, refusal) in sorted(states.items()):
        if refusal:
            raise DeviceError(f"worker {address}: {refusal}")
        devices.setdefault(device, address)
    if len(devices) > 1:
        (first_device, first), (second_device, second) = list(devices.items())[:2]
        raise DeviceError(
            f"worker {first} runs on {first_device}, worker {second} on {second_device}: floats "
            "would not be equal bit by bit. Start workers of one kind, or put all on the "
            "CPU (--backend cpu)"
        )
    return next(iter(devices))


# -- versions -------------------------------------------------------------------------------------

PACKAGES = ("cml_engine", "distributed", "dask", "zarr", "numpy")


def package_versions() -> dict[str, str]:
    """Returns the versions of Python (without the patch level) and of ``PACKAGES`` by name."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"python": python, **{name: import_module(name).__version__ for name in PACKAGES}}


def check_versions(client: Client) -> dict[str, str]:
    """Returns the client's versions by package; raises :class:`InputError` if a worker's differ."""
    client_versions = package_versions()
    for address, worker_versions in sorted(client.run(package_versions, on_error="return").items()):
        if isinstance(worker_versions, BaseException):
            raise InputError(
                f"worker {address} cannot load this version of cml_engine, "
                f"{client_versions['cml_engine']} ({type(worker_versions).__name__}: "
                f"{worker_versions}): install the same there, with the extra 'bake'"
            )
        check_same_versions(client_versions, worker_versions, f"worker {address}")
    return client_versions


def check_same_versions(
    client_versions: Mapping[str, str],
    worker_versions: Mapping[str, str],
    worker: str = "this worker",
) -> None:
    """Raises :class:`InputError` that names the first package whose version differs.

    ``client_versions`` has the client's versions, ``worker_versions`` the worker's, by package.
    """
    for package, version in client_versions.items():
        if worker_versions[package] != version:
            raise InputError(
                f"{worker} has {package} {worker_versions[package]}, the client {version}: "
                "install the same version on both"
            )


# -- monitor --------------------------------------------------------------------------------------

#: sent tasks per worker thread: one runs, the others wait at the worker
_AHEAD = 3
_LEAST_AHEAD = 4
#: seconds between two checks of the cluster
LOOK_S = 2.0
#: units between two calls of ``forget_names``; Dask would retain the last hundred thousand names
FORGET_AFTER = 1000
#: seconds without a worker or a scheduler after which a run ends
PATIENCE_S = 60.0


def forget_names() -> None:
    """Empties Dask's cache of task names in this process, which grows during a run."""
    from dask.utils import key_split

    key_split.cache_clear()


class ClusterMonitor:
    """Checks the cluster every few seconds and sets ``window``, the number of tasks to have sent.

    ``embedded`` says that the cluster was started here; its lost workers are then restarted.
    """

    def __init__(self, client: Client, embedded: bool, report: Report) -> None:
        self.client, self.embedded, self.report = client, embedded, report
        self.window = _LEAST_AHEAD
        self._n_workers = 0
        self._last_check = 0.0
        self._last_alive = time.monotonic()
        self._done_at_forget = 0
        self._addresses: set[str] = set()

    def check(self) -> None:
        """Updates :attr:`window` and restarts lost workers, if the last check is old enough.

        A check is repeated after ``LOOK_S`` seconds. Raises :class:`InputError` if the scheduler
        is gone, or if there has been no worker for ``PATIENCE_S`` seconds.
        """
        now = time.monotonic()
        if now - self._last_check < LOOK_S:
            return
        self.count_time()
        if self.client.status == "running":
            threads = self.count_workers()
            self.window = max(_LEAST_AHEAD, _AHEAD * sum(threads.values()))
            cluster = self.client.cluster if self.embedded else None
            if cluster is not None and len(threads) < len(cluster.worker_spec):
                cluster.scale(len(cluster.worker_spec))  # restarts lost workers
            if threads:
                self._last_alive = now
            if self.report.done - self._done_at_forget >= FORGET_AFTER:
                self._done_at_forget = self.report.done
                with contextlib.suppress(Exception):  # a scheduler may refuse to run functions
                    self.client.run_on_scheduler(forget_names)
        if self.client.status == "closed":
            raise self.vanished_error()
        if now - self._last_alive > PATIENCE_S:
            if self.client.status != "running":
                raise self.vanished_error()
            raise InputError(f"no worker for {PATIENCE_S:g} s. {self.describe_progress()}")

    def count_workers(self) -> dict[str, int]:
        """Returns the threads of each worker by address, and reports the workers that are lost.

        Workers of a cluster that was not started here may leave it at any time.
        """
        threads: dict[str, int] = self.client.nthreads()
        self._n_workers = len(threads)
        if self.embedded:
            for address in self._addresses - threads.keys() - self.report.refused.keys():
                self.report.lose_worker(address)
        self._addresses = set(threads)
        return threads

    def count_time(self) -> None:
        """Adds the workers' time since the last call (elapsed seconds × workers) to the report."""
        now = time.monotonic()
        self.report.worker_s += (
            self._n_workers * (now - self._last_check) if self._last_check else 0.0
        )
        self._last_check = now

    def vanished_error(self) -> InputError:
        """Returns the error for a scheduler that is gone; its message says how much is stored."""
        return InputError(
            "the cluster is gone: its scheduler does not answer any more. "
            + self.describe_progress()
        )

    def describe_progress(self) -> str:
        """Returns a sentence that says how many cells are in the store."""
        report = self.report
        if not report.total:
            return "Nothing was made yet"
        stored = f"{report.done:,} of {report.total:,} {report.what} are in '{report.store}'"
        return f"{stored}; the same command goes on from there"
