"""A session for each of a tile's networks, and the jobs of one tile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

import cml_engine as cml
from demo_game.chain import INSTANCES, POPULATED_LEVELS, READS_TILE, TEXELS, Chain
from demo_game.world.tile import TileId
from scheduler import FrameScheduler, Job

#: jobs whose names are kept: their times arrive some frames after they are done
_NAMES = 1024


def tile_input(tile: TileId, seed: int) -> np.ndarray[Any, Any]:
    """What the terrain operators are told."""
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
        """Whether all of it is there."""
        return all(job.state == "done" for job in self.jobs.values())

    @property
    def failed(self) -> str:
        """Why it will not come; "" while it may."""
        return next(
            (f"{name}: {job.error}" for name, job in self.jobs.items() if job.state == "failed"), ""
        )

    @property
    def started(self) -> bool:
        """Whether any of it has run."""
        return any(job.state in ("running", "done") for job in self.jobs.values())

    @property
    def progress(self) -> float:
        """0 to 1, every session counted alike."""
        return sum(job.progress for job in self.jobs.values()) / len(self.jobs)

    def tensor(self, name: str) -> Any:
        """One of the outputs that the renderer keeps, on the GPU."""
        return self.jobs[{**TEXELS, **INSTANCES}[name]].tensor(name)

    def read(self, name: str) -> Any:
        """One of these outputs as an array; None while it is on its way from the GPU."""
        return self.jobs[{**TEXELS, **INSTANCES}[name]].read(name)

    def cancel(self) -> None:
        """Nothing more of it runs; what it has is given back."""
        for job in self.jobs.values():
            job.cancel()
            job.release()

    def release(self) -> None:
        """Give the outputs' memory back."""
        for job in self.jobs.values():
            job.release()


class Agents:
    """The sessions on one device."""

    def __init__(self, gpu: cml.Gpu, chain: Chain) -> None:
        self.chain = chain
        self.sessions = {
            name: cml.Session(graph, gpu, deferred=True) for name, graph in chain.graphs.items()
        }
        #: the session's name by job number, of the last jobs
        self.names: dict[int, str] = {}

    def build_ahead(self) -> None:
        """Begin to build all kernels, on all cores: those of the coarse tiles, which come first,
        before those of the plants."""
        coarse = self.chain.sessions_for(TileId(POPULATED_LEVELS, 0, 0))
        for name in sorted(self.sessions, key=lambda name: name not in coarse):
            self.sessions[name].build_ahead()

    def submit(
        self, scheduler: FrameScheduler, tile: TileId, seed: int, priority: float, within_ms: float
    ) -> TileJobs:
        """The jobs of a tile; each waits for the ones whose outputs it takes."""
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
            self.names[jobs[name].number] = name
        while len(self.names) > _NAMES:
            del self.names[next(iter(self.names))]
        return TileJobs(tile, jobs)
