"""Records which runs read from which, to find all runs that an unsubmitted frame makes wrong."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from threading import Lock

#: runs of a device that are remembered: far more than the frames with pending receipts contain
_REMEMBERED = 1024


class JobRun:
    """The work of one job on the device.

    It records which runs it reads from, and why its results are wrong, if they are.
    """

    __slots__ = ("harm", "sources")

    def __init__(self, sources: tuple[JobRun, ...], harm: str = "") -> None:
        #: the runs whose results it reads: outputs, variables, retained tensors
        self.sources = sources
        #: why its results are wrong; "" if no error is known
        self.harm = harm


class JobRuns:
    """The latest runs of a device's frame schedulers, each after the runs that it reads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._latest: deque[JobRun] = deque()
        #: how often runs were found to be wrong
        self.losses = 0

    def begin(self, sources: Iterable[JobRun]) -> JobRun:
        """Registers and returns a new run, which reads the results of ``sources``."""
        run = JobRun(tuple(sources))
        with self._lock:
            self._latest.append(run)
            while len(self._latest) > _REMEMBERED:
                self._latest.popleft().sources = ()
        return run

    def mark_wrong(self, wrong_runs: Iterable[JobRun], reason: str) -> None:
        """Marks runs, and all runs that read their results, as wrong.

        Each run stores the ``reason``.
        """
        with self._lock:
            self.losses += 1
            for run in wrong_runs:
                run.harm = run.harm or reason
            for run in self._latest:
                run.harm = run.harm or next((s.harm for s in run.sources if s.harm), "")
