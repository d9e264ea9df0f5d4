"""Whether the cluster is still there, and how many work on it."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from cml_engine.distributed.cluster import replace_lost
from cml_engine.distributed.report import Report
from cml_engine.errors import InputError

#: tasks under way for each thread of a worker: one is run, the others are on their way
_AHEAD = 3
_LEAST_AHEAD = 4
#: seconds between two looks at the cluster
LOOK_S = 2.0
#: units after which Dask forgets their names: else it remembers the last hundred thousand
FORGET_AFTER = 1000
#: seconds without any worker, and without a scheduler, after which a run ends
PATIENCE_S = 60.0


def forget_names() -> None:
    """Empty Dask's cache of tasks' names in this process, which are not asked for again."""
    from dask.utils import key_split

    key_split.cache_clear()


class Watch:
    """Looks at the cluster every few seconds. ``window`` is how many tasks may be under way."""

    def __init__(self, client: Any, embedded: bool, report: Report) -> None:
        self.client, self.embedded, self.report = client, embedded, report
        self.window = _LEAST_AHEAD
        self._workers = 0
        self._looked = 0.0
        self._alive = time.monotonic()
        self._remembered = 0

    def look(self) -> None:
        """:class:`InputError` where nobody has worked for long."""
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
                with contextlib.suppress(Exception):  # a scheduler may allow no such calls
                    self.client.run_on_scheduler(forget_names)
        if self.client.status == "closed":
            raise self.vanished()
        if now - self._alive > PATIENCE_S:
            if self.client.status != "running":
                raise self.vanished()
            raise InputError(f"no worker for {PATIENCE_S:g} s. {self.so_far()}")

    def count_time(self) -> None:
        """Add the workers' time since the last look."""
        now = time.monotonic()
        self.report.worker_s += self._workers * (now - self._looked) if self._looked else 0.0
        self._looked = now

    def vanished(self) -> InputError:
        """What is raised where the scheduler is gone."""
        return InputError(
            f"the cluster is gone: its scheduler does not answer any more. {self.so_far()}"
        )

    def so_far(self) -> str:
        """What is there, in words."""
        report = self.report
        if not report.total:
            return "Nothing was made yet"
        done = f"{report.done:,} of {report.total:,} {report.what} are in '{report.store}'"
        return f"{done}; the same command goes on from there"
