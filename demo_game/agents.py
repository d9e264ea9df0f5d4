"""The game's networks on one device, and the scheduler jobs that compute a tile with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

import cml_engine as cml
from cml_engine import FrameScheduler, Job, Reloader
from cml_engine.demo_game.arrays import Array
from cml_engine.demo_game.chain import (
    INSTANCES,
    KERNELS,
    OWN_OPERATORS,
    READ,
    READS_TILE,
    TEXELS,
    Chain,
)
from cml_engine.demo_game.world.tile import MAX_LEVEL, TileId

if TYPE_CHECKING:  # needs a GPU
    from cml_engine.demo_game.render.binding import BufferPart
    from cml_engine.scheduler import CostModel, StepCost


def tile_input(tile: TileId, seed: int) -> Array:
    """Returns the networks' input ``tile``, int32 (1, 4).

    It has x and z of the tile's first cell, its level, and the world's seed.
    """
    return np.array([[*tile.first_cell, tile.level, seed]], np.int32)


class TileSource(Protocol):
    """The interface of an object that the game requests tiles from."""

    def submit(
        self, scheduler: FrameScheduler, tile: TileId, seed: int, priority: float, within_ms: float
    ) -> TileJobs: ...


@dataclass(slots=True)
class TileJobs:
    """A requested tile and the jobs that compute it, by the networks' names."""

    tile: TileId
    jobs: dict[str, Job]

    @property
    def done(self) -> bool:
        """Returns True if all jobs of the tile are done."""
        return all(job.state == "done" for job in self.jobs.values())

    @property
    def failed(self) -> str:
        """The error of the first failed job, with its network's name; "" if no job has failed."""
        return next(
            (f"{name}: {job.error}" for name, job in self.jobs.items() if job.state == "failed"), ""
        )

    @property
    def progress(self) -> float:
        """The mean progress of the tile's jobs, 0 to 1; every job has the same weight."""
        return sum(job.progress for job in self.jobs.values()) / len(self.jobs)

    @property
    def digest(self) -> str:
        """Always "": computed tiles have no stored digest, their tensors must be hashed."""
        return ""

    def tensor(self, name: str) -> BufferPart:
        """Returns the GPU tensor of an output that the renderer keeps, such as ``"height"``."""
        return self.jobs[{**TEXELS, **INSTANCES}[name]].tensor(name)

    def read(self, name: str) -> Array | None:
        """Returns one of the tile's outputs as a NumPy array.

        None until it has arrived from the GPU.
        """
        return self.jobs[READ[name]].read(name)

    def cancel(self) -> None:
        """Cancels the tile's jobs and releases their outputs."""
        for job in self.jobs.values():
            job.cancel()
        self.release()

    def release(self) -> None:
        """Frees the outputs' memory."""
        for job in self.jobs.values():
            job.release()


class Agents:
    """A deferred session on one device for each network of a chain."""

    def __init__(self, gpu: cml.Gpu, chain: Chain) -> None:
        self.chain = chain
        self.sessions = {
            name: cml.Session(graph, gpu, deferred=True) for name, graph in chain.graphs.items()
        }

    def _costs(self, level: int) -> list[StepCost]:
        names = self.chain.sessions_for(TileId(level, 0, 0))
        plans = [self.sessions[name].plan for name in names]
        return [cost for plan in plans if plan for cost in plan.step_costs()]

    def costs_by_level(self, model: CostModel) -> dict[int, float]:
        """Returns estimated milliseconds of a tile of each level.

        The networks of a coarsest tile must have run: the costs that ``model`` has learned of them
        say how fast the device is.
        """
        coarsest = self._costs(MAX_LEVEL)
        coarsest_ms = sum(model.predict_ms(cost, cost.groups) for cost in coarsest)
        ms_per_flop = coarsest_ms / sum(cost.flops for cost in coarsest)
        return {
            level: ms_per_flop * sum(cost.flops for cost in self._costs(level))
            for level in range(MAX_LEVEL + 1)
        }

    def build_ahead(self, level: int) -> None:
        """Starts to build the kernels of the networks that a tile of this level needs.

        They are built on all cores.
        """
        for name in self.chain.sessions_for(TileId(level, 0, 0)):
            self.sessions[name].build_ahead()

    def submit(
        self, scheduler: FrameScheduler, tile: TileId, seed: int, priority: float, within_ms: float
    ) -> TileJobs:
        """Submits the jobs of a tile, one per network, and returns them as a :class:`TileJobs`.

        A job waits for the jobs whose outputs it takes. ``within_ms`` is the deadline of each job.
        """
        jobs: dict[str, Job] = {}
        for name in self.chain.sessions_for(tile):
            inputs: dict[str, cml.scheduler.JobOutput | Array] = {
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
    """Reloads networks while the game runs, when their files or the game's kernels change."""

    def __init__(self, agents: Agents) -> None:
        kernels = sorted(KERNELS.rglob("*.hlsl*"))
        self._reloaders = [
            Reloader(
                session, agents.chain.folders[name], files=kernels if name in OWN_OPERATORS else ()
            )
            for name, session in agents.sessions.items()
        ]
        self._taken = 0
        #: the last message: a network that was loaded, or an error in its files
        self.message = ""
        #: called with each new message
        self.on_change: Callable[[str], object] = lambda message: None

    def poll(self) -> bool:
        """Checks the networks' files, and reloads changed ones; returns True if one was replaced.

        A replaced network makes all present tiles obsolete. Call it once a frame. ``on_change``
        is called with each new message about a reload or an error.
        """
        for reloader in self._reloaders:
            before = reloader.said
            reloader.poll()
            if reloader.said != before:
                self.message = reloader.said
                self.on_change(self.message)
        before_taken, self._taken = self._taken, sum(reloader.taken for reloader in self._reloaders)
        return self._taken > before_taken
