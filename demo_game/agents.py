"""The networks that make a tile: a session for each, and the jobs of one tile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import cml_engine as cml
import demo_game.operators  # noqa: F401 - registers the game's own operators
from demo_game.world.tile import TileId
from scheduler import FrameScheduler, Job

MODELS = Path(__file__).with_name("models")
#: trained networks, which ``--models`` swaps
TRAINED = ("upres", "texture", "population")
#: where each session's inputs come from: its own name in the producer's outputs
CHAIN: Mapping[str, Mapping[str, str]] = {
    "terrain": {},
    "upres": {"coarse": "terrain", "detail": "terrain", "cell": "terrain"},
    "surface": {"heights": "upres", "cell": "terrain"},
    "texture": {
        "heights": "upres",
        "moisture": "terrain",
        "grain": "terrain",
        "cell": "terrain",
    },
    "paint": {"albedo": "texture"},
    "population": {
        "heights": "upres",
        "moisture": "terrain",
        "grain": "terrain",
        "cell": "terrain",
    },
    "scatter": {"density": "population", "height": "surface"},
}
#: the sessions that read the tile's number
READS_TILE = ("terrain", "scatter")
#: nothing grows on the coarser levels: its instances would be smaller than a pixel
POPULATED_LEVELS = 2
#: jobs whose names are kept: their times arrive some frames after they are done
_NAMES = 1024
#: what of a tile the renderer keeps
TEXELS = {"height": "surface", "shading": "surface", "texels": "paint"}
INSTANCES = {"instances": "scatter", "draw": "scatter"}


def load_graphs(models: Path | None = None) -> dict[str, cml.Graph]:
    """The graph of every session; the trained ones from ``models`` where that folder has them.
    :class:`cml.CmlError` says what is missing or does not fit together."""
    if models is not None and not any((models / f"{name}.nnef").exists() for name in TRAINED):
        wanted = " or ".join(f"{name}.nnef" for name in TRAINED)
        raise cml.InputError(f"--models '{models}': wanted {wanted} in that folder, found none")
    graphs = {}
    for name in CHAIN:
        own = models / f"{name}.nnef" if models and name in TRAINED else None
        graphs[name] = cml.load(own if own and own.exists() else MODELS / f"{name}.nnef")
    check_chain(graphs)
    return graphs


def check_chain(graphs: Mapping[str, cml.Graph]) -> None:
    """Every input has a producer whose output is of the same type and shape."""
    for name, sources in CHAIN.items():
        graph = graphs[name]
        wanted = {*sources, *(["tile"] if name in READS_TILE else [])}
        if set(graph.inputs) != wanted:
            raise cml.ModelError(
                f"{name}.nnef: wanted the inputs {', '.join(sorted(wanted))}, "
                f"got {', '.join(sorted(graph.inputs))} (docs/demo_game.md has the table)"
            )
        for tensor, producer in sources.items():
            source = graphs[producer]
            if tensor not in source.outputs:
                raise cml.ModelError(
                    f"{producer}.nnef: wanted an output '{tensor}' for {name}.nnef, "
                    f"got {', '.join(source.outputs)}"
                )
            given, taken = source.facts[tensor], graph.facts[tensor]
            if given != taken:
                raise cml.ModelError(
                    f"{name}.nnef: wanted '{tensor}' as {taken}, but {producer}.nnef gives {given}"
                )


def tile_input(tile: TileId, seed: int) -> np.ndarray[Any, Any]:
    """What the terrain operators are told."""
    return np.array([[*tile.first_cell, tile.level, seed]], np.int32)


def sessions_for(tile: TileId) -> tuple[str, ...]:
    """The sessions that a tile of this level takes, each after those it depends on."""
    bare = ("population", "scatter") if tile.level >= POPULATED_LEVELS else ()
    return tuple(name for name in CHAIN if name not in bare)


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

    def __init__(self, gpu: cml.Gpu, graphs: Mapping[str, cml.Graph]) -> None:
        self.sessions = {
            name: cml.Session(graph, gpu, deferred=True) for name, graph in graphs.items()
        }
        #: the session's name by job number, of the last jobs
        self.names: dict[int, str] = {}

    def submit(
        self, scheduler: FrameScheduler, tile: TileId, seed: int, priority: float, within_ms: float
    ) -> TileJobs:
        """The jobs of a tile; each waits for the ones whose outputs it takes."""
        jobs: dict[str, Job] = {}
        for name in sessions_for(tile):
            inputs: dict[str, Any] = {
                tensor: jobs[producer].output(tensor) for tensor, producer in CHAIN[name].items()
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
