"""The agents without a GPU: tiles by NumPy, their times, and a map of what they made."""

from __future__ import annotations

import hashlib
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import cml_engine as cml
from cml_engine.files.atomic_write import write_atomically
from demo_game.agents import tile_input
from demo_game.chain import READS_TILE, kept_names, load_chain
from demo_game.world.scenery import find_start
from demo_game.world.tile import CELLS, TileId

Array = np.ndarray[Any, Any]
#: a square of so many tiles, of the level where a kilometre is a few tiles
_SIDE, _LEVEL = 4, 1
#: of PAINTED's 128 texels, those between the tile's edges
_INSIDE = slice(8, 8 + 2 * CELLS)


@dataclass
class CpuReport:
    """A run on the CPU; times in ms per tile."""

    seed: int
    tiles: int
    seconds: float
    tiles_per_s: float
    ms_per_tile: dict[str, float]
    world: str

    def to_json(self) -> dict[str, Any]:
        """Everything."""
        return {"device": "CPU (NumPy)", **asdict(self)}

    @property
    def text(self) -> str:
        """A table."""
        lines = [f"{self.tiles} tiles in {self.seconds:.1f} s on the CPU, world {self.world}"]
        lines += [f"  {name:12s} {ms:8.2f} ms per tile" for name, ms in self.ms_per_tile.items()]
        return "\n".join(lines)


class CpuAgents:
    """The same sessions on the CPU, and the time that each has taken."""

    def __init__(self, models: Path | None) -> None:
        self.chain = load_chain(models)
        graphs = self.chain.graphs
        self.sessions = {name: cml.Session(graph, "cpu") for name, graph in graphs.items()}
        self.seconds = dict.fromkeys(graphs, 0.0)

    def make(self, tile: TileId, seed: int) -> dict[str, Array]:
        """All tensors of a tile, by name."""
        made: dict[str, Array] = {"tile": tile_input(tile, seed)}
        for name in self.chain.sessions_for(tile):
            reads = [*self.chain.sources[name], *(["tile"] if name in READS_TILE else [])]
            start = time.perf_counter()
            made |= self.sessions[name].run({tensor: made[tensor] for tensor in reads})
            self.seconds[name] += time.perf_counter() - start
        return made


def run(seed: int, models: Path | None, picture: Path) -> CpuReport:
    """Make a square of tiles where the flight would begin; write a map of it."""
    agents = CpuAgents(models)
    span = TileId(_LEVEL, 0, 0).span_m
    west, north = (int(at // span) - _SIDE // 2 for at in find_start(seed))
    tiles = [TileId(_LEVEL, west + x, north + z) for z in range(_SIDE) for x in range(_SIDE)]
    side = 2 * CELLS
    drawn = np.zeros((_SIDE * side, _SIDE * side, 3), np.uint8)
    hasher = hashlib.sha256()
    start = time.perf_counter()
    for number, tile in enumerate(tiles):
        made = agents.make(tile, seed)
        for name in kept_names(tile):
            hasher.update(made[name].tobytes())
        y, x = number // _SIDE * side, number % _SIDE * side
        drawn[y : y + side, x : x + side] = _map(made)
    seconds = time.perf_counter() - start
    write_atomically(picture, lambda file: Image.fromarray(drawn).save(file, "PNG"))
    return CpuReport(
        seed,
        len(tiles),
        round(seconds, 2),
        round(len(tiles) / seconds, 2),
        {name: round(1e3 * spent / len(tiles), 3) for name, spent in agents.seconds.items()},
        hasher.hexdigest()[:16],
    )


def _map(made: dict[str, Array]) -> Array:
    """The tile from above: its colours in its light, the sea blue by depth."""
    colours = made["albedo"][0, :3, _INSIDE, _INSIDE].transpose(1, 2, 0)
    light = made["shading"].view(np.uint8).reshape(64, 64, 4)[..., 2:].astype(np.float32) / 255
    lit = 0.45 * light[..., 0] + 0.55 * light[..., 1]
    height = made["height"][0, 0]
    lit, height = (_twice(map64)[_INSIDE, _INSIDE, None] for map64 in (lit, height))
    depth = np.clip(-height / 60, 0, 1)
    sea = (1 - depth) * np.array([0.25, 0.47, 0.55]) + depth * np.array([0.07, 0.18, 0.32])
    seen = np.where(height < 0, sea, colours * (0.35 + 0.75 * lit))
    return (255 * np.clip(seen, 0, 1)).astype(np.uint8)


def _twice(image: Array) -> Array:
    return image.repeat(2, 0).repeat(2, 1)
