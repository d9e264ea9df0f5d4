"""Runs a large picture through a network as one job per tile."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from typing import Any

from cml_engine.errors import InputError
from cml_engine.errors.arguments import check_callable
from cml_engine.ir.graph import Array
from cml_engine.runtime.tiling import Tile, Tiles
from cml_engine.scheduler.clock import check_number
from cml_engine.scheduler.jobs.job import Awaitable, Job, State, check_output_name
from cml_engine.scheduler.jobs.lifecycle import Lifecycle, network_of

#: tiles that are queued at a time; each keeps its inputs in memory
_AHEAD = 4


class TiledJob(Awaitable):
    """A run of a network on a large picture, as one job per tile, a few at a time.

    The host's frame loop runs it like any job: when a tile has arrived, it is copied into the
    outputs, and the next one is submitted. All tiles run on the network that the session has at the
    submission.

    Examples
    --------
    >>> job = scheduler.submit_tiled(network, {"image": picture}, tile=8, overlap=2)
    >>> job.progress
    0.0
    >>> job.cancel()
    """

    def __init__(
        self,
        submit: Callable[..., Job],
        lifecycle: Lifecycle,
        tiles: Tiles,
        options: Mapping[str, Any],
    ) -> None:
        self._submit, self._lifecycle = submit, lifecycle
        self._options = {**options, "read": True}
        self._tiles, self._left = tiles, list(tiles)
        self._network = network_of(tiles.session)
        tiles.copy_inputs()
        self._jobs: dict[Job, Tile] = {}
        self._pasted = 0
        self._callbacks: list[Callable[[TiledJob], object]] = []
        self.name = options.get("name") or tiles.session.source_graph.name
        #: the state of the whole picture, one of a job's states
        self.state: State = "queued"
        self.error, self.exception = "", None
        try:
            self._fill()
        except Exception:  # no job of a refused picture stays
            self._end("cancelled")
            raise

    @property
    def progress(self) -> float:
        """The share of the picture's work that is done, 0 to 1; tiles under way count in part."""
        under_way = sum(job.progress for job in list(self._jobs))
        return min(1.0, (self._pasted + under_way) / len(self._tiles))

    def _fill(self) -> None:
        """Submits jobs for the next tiles; ends the run if there is none."""
        while self._left and len(self._jobs) < _AHEAD:
            tile = self._left.pop(0)
            inputs = self._tiles.session.check_inputs(self._tiles.inputs(tile))
            job = self._submit(self._network, inputs, **self._options)
            self._jobs[job] = tile
            job.add_done_callback(self._take)
        if not self._jobs:
            self._end("done")

    def _take(self, job: Job) -> None:
        """Copies the arrived results of a tile's job into the outputs, and goes on."""
        with self._lifecycle.lock:  # another thread may cancel the run
            tile = self._jobs.pop(job, None)
            if tile is None:  # the run has ended
                return
            try:
                job.raise_unless_done()
                results = {name: job.read(name) for name in self._tiles.outputs}
                arrived = {n: value for n, value in results.items() if value is not None}
                self._tiles.paste(tile, arrived)
                job.release()
                self._pasted, self.state = self._pasted + 1, "running"
                self._fill()
            except CancelledError:
                self._end("cancelled")
            except Exception as error:  # the error of a job, or of the next one's submission
                self.error, self.exception = str(error), error
                self._end("failed")
        self._settle()

    def _end(self, state: State) -> None:
        self.state = state
        self._left.clear()
        jobs, self._jobs = self._jobs, {}
        for job in jobs:
            job.cancel()
            job.release()

    def _settle(self) -> None:
        """Calls the callbacks if the run has ended. The caller must not hold the lock."""
        with self._lifecycle.lock:
            if not self.ended:
                return
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            self._lifecycle.call(callback, self)

    def read(self, name: str) -> Array | None:
        """Returns output ``name`` of the whole picture, or None until all tiles have arrived.

        Raises :class:`InputError` if the run failed or was cancelled, or the network has no such
        output.
        """
        check_output_name(self.name, name, self._tiles.outputs)
        if self.state in ("failed", "cancelled"):
            reason = f": {self.error}" if self.error else ""
            raise InputError(
                f"output '{name}' of '{self.name}' does not exist: its state is "
                f"'{self.state}'{reason}"
            )
        return self._tiles.outputs[name] if self.state == "done" else None

    def add_done_callback(self, callback: Callable[[TiledJob], object]) -> None:
        """Calls ``callback(job)`` when the whole picture has ended, as :class:`Job` does."""
        with self._lifecycle.lock:
            self._callbacks.append(check_callable(callback, "callback"))
        self._settle()

    def wait(self, timeout: float | None = None) -> TiledJob:
        """Waits until the whole picture has ended and returns it; see :meth:`Job.wait`."""
        end = None if timeout is None else time.monotonic() + check_number("timeout", timeout)
        while (job := self._next_job()) is not None:
            self._lifecycle.wait(job, None if end is None else max(0.0, end - time.monotonic()))
        self.raise_unless_done()
        return self

    def _next_job(self) -> Job | None:
        """Returns a tile's job that is under way; None once the run has ended."""
        with self._lifecycle.lock:  # between two tiles there may be none
            return next(iter(self._jobs), None)

    def cancel(self) -> None:
        """Cancels the run with the tiles that are under way; no more tiles are submitted."""
        with self._lifecycle.lock:
            if not self.ended:
                self._end("cancelled")
        self._settle()
