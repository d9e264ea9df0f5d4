"""A session for each of a tile's networks, and the jobs of one tile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

import cml_engine as cml
from cml_engine import FrameScheduler, Job
from cml_engine.runtime.live.reloader import Reloader
from demo_game.chain import (
    INSTANCES,
    KERNELS,
    OWN_OPERATORS,
    POPULATED_LEVELS,
    READ,
    READS_TILE,
    TEXELS,
    Chain,
)
from demo_game.world.tile import TileId


def tile_input(tile: TileId, seed: int) -> np.ndarray[Any, Any]:
    """Returns the input of the terrain operators: the tile's first cell, its level and the seed."""
    return np.array([[*tile.first_cell, tile.level, seed]], np.int32)


class MadeTile(Protocol):
    """A tile on its way, whoever brings it."""

    @property
    def tile(self) -> TileId: ...
    @property
    def jobs(self) -> Mapping[str, Job]: ...
    @property
    def done(self) -> bool: ...
    @property
    def failed(self) -> str: ...
    @property
    def progress(self) -> float: ...
    @property
    def digest(self) -> str: ...
    def tensor(self, name: str) -> Any: ...
    def read(self, name: str) -> Any: ...
    def cancel(self) -> None: ...
    def release(self) -> None: ...


class TileSource(Protocol):
    """Whom the game asks for tiles."""

    def submit(
        self, scheduler: FrameScheduler, tile: TileId, seed: int, priority: float, within_ms: float
    ) -> MadeTile: ...


@dataclass(slots=True)
class TileJobs:
    """One tile on its way."""

    tile: TileId
    jobs: dict[str, Job]

    @property
    def done(self) -> bool:
        """Returns True if all jobs of the tile are done."""
        return all(job.state == "done" for job in self.jobs.values())

    @property
    def failed(self) -> str:
        """Why it will not come; "" while it may."""
        return next(
            (f"{name}: {job.error}" for name, job in self.jobs.items() if job.state == "failed"), ""
        )

    @property
    def started(self) -> bool:
        """Returns True if any job of the tile has run."""
        return any(job.state in ("running", "done") for job in self.jobs.values())

    @property
    def progress(self) -> float:
        """0 to 1, every session counted alike."""
        return sum(job.progress for job in self.jobs.values()) / len(self.jobs)

    @property
    def digest(self) -> str:
        """Not known: what is made has to be read."""
        return ""

    def tensor(self, name: str) -> Any:
        """Returns one of the outputs that the renderer keeps, on the GPU."""
        return self.jobs[{**TEXELS, **INSTANCES}[name]].tensor(name)

    def read(self, name: str) -> Any:
        """Returns one of a tile's outputs as an array; None until it has arrived from the GPU."""
        return self.jobs[READ[name]].read(name)

    def cancel(self) -> None:
        """Cancels the tile's jobs and releases their outputs."""
        for job in self.jobs.values():
            job.cancel()
            job.release()

    def release(self) -> None:
        """Frees the outputs' memory."""
        for job in self.jobs.values():
            job.release()


class Agents:
    """The sessions on one device."""

    def __init__(self, gpu: cml.Gpu, chain: Chain) -> None:
        self.chain = chain
        self.sessions = {
            name: cml.Session(graph, gpu, deferred=True) for name, graph in chain.graphs.items()
        }

    def build_ahead(self) -> None:
        """Begin to build all kernels, on all cores: those of the coarse tiles, which come first,
        before those of the plants."""
        coarse = self.chain.sessions_for(TileId(POPULATED_LEVELS, 0, 0))
        for name in sorted(self.sessions, key=lambda name: name not in coarse):
            self.sessions[name].build_ahead()

    def submit(
        self, scheduler: FrameScheduler, tile: TileId, seed: int, priority: float, within_ms: float
    ) -> TileJobs:
        """Submits the jobs of a tile; each waits for the ones whose outputs it takes."""
        jobs: dict[str, Job] = {}
        for name in self.chain.sessions_for(tile):
            inputs: dict[str, Any] = {
                tensor: jobs[source.session].output(source.tensor)
                for tensor, source in self.chain.sources[name].items()
            }
            if name in READS_TILE:
                inputs["tile"] = tile_input(tile, seed)
            jobs[name] = scheduler.submit(
                self.sessions[name],
                inputs,
                priority=priority,
                deadline_ms=within_ms,
                name=name,
            )
        return TileJobs(tile, jobs)


class FileWatch:
    """The files of the agents' networks, and of the game's own kernels: when they change, the
    networks are replaced while the game goes on."""

    def __init__(self, agents: Agents) -> None:
        kernels = sorted(KERNELS.rglob("*.hlsl*"))
        self._reloaders = [
            Reloader(
                session, agents.chain.folders[name], files=kernels if name in OWN_OPERATORS else ()
            )
            for name, session in agents.sessions.items()
        ]
        self._taken = 0
        #: the last thing that happened: what was loaded, or what is wrong with it
        self.said = ""
        #: is told it too
        self.on_change: Callable[[str], object] = lambda said: None

    def poll(self) -> bool:
        """Checks the files, once a frame; returns True if a network was replaced, so all tiles are
        old."""
        for reloader in self._reloaders:
            before = reloader.said
            reloader.poll()
            if reloader.said != before:
                self.said = reloader.said
                self.on_change(self.said)
        before_taken, self._taken = self._taken, sum(each.taken for each in self._reloaders)
        return self._taken > before_taken
