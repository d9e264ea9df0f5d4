"""Monitors the scheduler and the workers of a run."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from cml_engine.distributed.cluster import replace_lost
from cml_engine.distributed.report import Report
from cml_engine.errors import InputError

if TYPE_CHECKING:
    from distributed import Client

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
        self._workers = 0
        self._looked = 0.0
        self._alive = time.monotonic()
        self._remembered = 0

    def check(self) -> None:
        """Updates :attr:`window` and restarts lost workers, if the last check is old enough.

        A check is repeated after ``LOOK_S`` seconds. Raises :class:`InputError` if the scheduler
        is gone, or if there has been no worker for ``PATIENCE_S`` seconds.
        """
        now = time.monotonic()
        if now - self._looked < LOOK_S:
            return
        self.count_time()
        if self.client.status == "running":
            threads = self.client.nthreads()
            self._workers = len(threads)
            self.window = max(_LEAST_AHEAD, _AHEAD * sum(threads.values()))
            if self.embedded:
                replace_lost(self.client, len(threads))
            if threads:
                self._alive = now
            if self.report.done - self._remembered >= FORGET_AFTER:
                self._remembered = self.report.done
                with contextlib.suppress(Exception):  # a scheduler may refuse to run functions
                    self.client.run_on_scheduler(forget_names)
        if self.client.status == "closed":
            raise self.vanished_error()
        if now - self._alive > PATIENCE_S:
            if self.client.status != "running":
                raise self.vanished_error()
            raise InputError(f"no worker for {PATIENCE_S:g} s. {self.describe_progress()}")

    def count_time(self) -> None:
        """Adds the workers' time since the last call (elapsed seconds × workers) to the report."""
        now = time.monotonic()
        self.report.worker_s += self._workers * (now - self._looked) if self._looked else 0.0
        self._looked = now

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
        done = f"{report.done:,} of {report.total:,} {report.what} are in '{report.store}'"
        return f"{done}; the same command goes on from there"
