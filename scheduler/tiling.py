"""Runs a large picture through a network as one job per tile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cml_engine.errors import InputError
from cml_engine.errors.arguments import check_instance
from cml_engine.ir.graph import Array
from cml_engine.runtime.session import Session
from cml_engine.runtime.tiling import Tile, Tiles
from scheduler.frame_scheduler import FrameScheduler
from scheduler.jobs.job import ENDED, Job, State

#: tiles that are queued at a time; each keeps its inputs in memory
_AHEAD = 4


class TiledJob:
    """A run of a network on a large picture, as one job per tile, a few at a time.

    Call :meth:`advance` or :meth:`read` once in every frame.

    Examples
    --------
    >>> job = cml.submit_tiled(scheduler, network, {"image": picture}, tile=8, overlap=2)
    >>> job.progress
    0.0
    >>> job.cancel()
    """

    def __init__(self, scheduler: FrameScheduler, tiles: Tiles, options: Mapping[str, Any]) -> None:
        self._scheduler, self._tiles, self._options = scheduler, tiles, options
        self._left = list(tiles)
        self._jobs: list[tuple[Tile, Job]] = []
        self._pasted = 0
        self.error = ""
        self._state: State = "queued"
        self.advance()

    @property
    def state(self) -> State:
        """The state of the whole picture, one of a job's states."""
        return self._state

    @property
    def progress(self) -> float:
        """The share of the picture's work that is done, 0 to 1; tiles under way count in part."""
        under_way = sum(job.progress for _, job in self._jobs)
        return min(1.0, (self._pasted + under_way) / len(self._tiles))

    @property
    def ended(self) -> bool:
        return self._state in ENDED

    def advance(self) -> None:
        """Copies the arrived tiles into the outputs, and submits jobs for the next tiles."""
        if not self.ended:
            self._take()
        if not self.ended:
            self._submit()

    def _submit(self) -> None:
        while self._left and len(self._jobs) < _AHEAD:
            tile = self._left.pop(0)
            inputs = self._tiles.inputs(tile)
            job = self._scheduler.submit(self._tiles.session, inputs, **self._options)
            self._jobs.append((tile, job))
        if not self._jobs:
            self._state = "done"

    def _take(self) -> None:
        waiting = []
        for tile, job in self._jobs:
            if job.state in ("failed", "cancelled"):
                self.error, self._state = job.error, job.state
                continue
            if job.state != "queued":
                self._state = "running"
            read = {name: job.read(name) for name in self._tiles.outputs}
            found = {name: value for name, value in read.items() if value is not None}
            if len(found) < len(read):
                waiting.append((tile, job))
                continue
            self._tiles.paste(tile, found)
            job.release()
            self._pasted += 1
        self._jobs = waiting
        if self.ended:
            self._let_go()

    def read(self, name: str) -> Array | None:
        """Returns output ``name`` of the whole picture, or None until all tiles have arrived.

        Also does the work of :meth:`advance`. Raises :class:`InputError` if the run failed or was
        cancelled.
        """
        self.advance()
        if self._state in ("failed", "cancelled"):
            said = f": {self.error}" if self.error else ""
            raise InputError(f"the tiles have no output '{name}', they are {self._state}{said}")
        return self._tiles.outputs[name] if self._state == "done" else None

    def cancel(self) -> None:
        """Cancels the run with the tiles that are under way; no more tiles are submitted."""
        if not self.ended:
            self._state = "cancelled"
            self._let_go()

    def _let_go(self) -> None:
        self._left.clear()
        for _, job in self._jobs:
            job.cancel()
            job.release()
        self._jobs.clear()


def submit_tiled(
    scheduler: FrameScheduler,
    session: Session,
    inputs: Mapping[str, Array],
    tile: int = 256,
    overlap: int = 16,
    *,
    align: int = 1,
    **options: object,
) -> TiledJob:
    """Submits a run like :func:`cml_engine.run_tiled` to the scheduler and returns its state.

    ``options`` are those of :meth:`FrameScheduler.submit` for each tile's job.

    Examples
    --------
    >>> job = cml.submit_tiled(scheduler, network, {"image": picture}, tile=8, overlap=2)
    >>> while job.state != "done":
    ...     encoder = gpu.device.create_command_encoder()
    ...     report = scheduler.encode(encoder)
    ...     _ = gpu.device.queue.submit([encoder.finish()])
    ...     reports = scheduler.end_frame()
    ...     job.advance()
    """
    check_instance(FrameScheduler, scheduler, "scheduler")
    check_instance(Session, session, "session")
    return TiledJob(scheduler, Tiles(session, inputs, tile, overlap, align), options)
