"""The work that a bake sends to its workers, which load the networks and compute tiles."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

import cml_engine as cml
from cml_engine.demo_game.bake.planet import models, rules, tiles_of, to_cells
from cml_engine.demo_game.chain import MODELS, Chain, load_chain
from cml_engine.demo_game.cooking import cooked_set
from cml_engine.demo_game.tile_maker import TileMaker
from cml_engine.demo_game.world.tile import TileId
from cml_engine.distributed import ANY_DEVICE, Layer, Unit, UnitClock, UnitResult


@dataclass(frozen=True)
class PlanetWork:
    """A description of one world's tiles, which is sent to the workers.

    ``wanted`` are the networks' digests and ``rules`` the game code's digest; a worker whose
    files have others refuses the work. ``cooked`` are networks as cooked files, which save a GPU
    worker the compiling of kernels.
    """

    seed: int
    models: Path | None
    backend: str
    wanted: tuple[tuple[str, str], ...]
    rules: str
    integer: bool = False
    cooked: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    @property
    def key(self) -> str:
        return repr(self)

    def open(self) -> PlanetMaker:
        return PlanetMaker(self)


class PlanetMaker:
    def __init__(self, work: PlanetWork) -> None:
        self.work = work
        chain = load_chain(work.models, integer=work.integer)
        if tuple(models(chain).items()) != work.wanted or rules() != work.rules:
            raise cml.InputError(
                "this worker's demo_game has other networks or rules than the client's: install "
                "the same"
            )
        backend = _backend(work.backend)
        self.maker = _maker(chain, backend, work.cooked)
        # only the light, which is for drawing, may differ between devices, by one step of a byte
        self.device = ANY_DEVICE if work.integer else self.maker.device

    def measure(self) -> None:
        return None

    def make(self, layer: Layer, unit: Unit, clock: UnitClock) -> UnitResult:
        extent = layer.extent(unit)
        arrays = {n: np.zeros((*extent, *c.shape), c.dtype) for n, c in layer.arrays.items()}
        for z, row in enumerate(tiles_of(layer, unit)):
            for x, tile in enumerate(row):
                tensors = self.maker.make(tile, self.work.seed, clock, self._sessions(tile))
                for name, value in to_cells(self.maker.chain, tile, tensors).items():
                    arrays[name][z, x] = value
        return UnitResult(arrays)

    def _sessions(self, tile: TileId) -> tuple[str, ...]:
        """Returns the names of a tile's sessions, always with the population network.

        Densities are baked on all levels, even where the game shows no plants.
        """
        names = self.maker.chain.sessions_for(tile)
        return names if "population" in names else (*names, "population")


def cooked_networks(chain: Chain, backend: str) -> dict[str, bytes]:
    """Returns the cooked files of the demo's own networks as bytes by name.

    Empty in a checkout, which has none that are surely current, and if the backend is the CPU.
    """
    folder = None if backend == "cpu" else cooked_set()
    if folder is None:
        return {}
    ours = [name for name, model in chain.folders.items() if model.parent == MODELS]
    return {name: (folder / f"{name}.cml").read_bytes() for name in ours}


def _maker(chain: Chain, backend: cml.Gpu | str, cooked: Mapping[str, bytes]) -> TileMaker:
    if not isinstance(backend, str):
        with suppress(cml.CmlError):  # a device that they were not cooked for
            graphs = {n: cml.load_cooked(data, trusted=True) for n, data in cooked.items()}
            return TileMaker(replace(chain, graphs={**chain.graphs, **graphs}), backend)
    return TileMaker(chain, backend)


def _backend(name: str) -> cml.Gpu | str:
    if name == "cpu":
        return "cpu"
    try:
        return cml.Gpu()
    except cml.DeviceError:
        if name == "gpu":
            raise
        return "cpu"
