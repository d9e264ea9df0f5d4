"""Places trees, bushes and rocks by the integer population network's densities, in integers.

It is ``../scatter.py`` for the integer world. ``plants`` are the instances in integers: x and z in
4096ths of a cell, y in 1024ths of a metre, and the word of kind, size, turn and tint. ``instances``
and ``draw`` are what the renderer draws.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import cml_engine as cml
from demo_game.operators.exact.declaring import TILE, declare
from demo_game.operators.exact.ground import GROUND
from demo_game.operators.exact.land import TILES, make_steep_heights
from demo_game.operators.scatter import CANDIDATES, VERTICES, choose_candidates
from demo_game.world.exact_noise import HEIGHT_BITS, multiply_shift
from demo_game.world.tile import CELLS, FINE, FINE_APRON, WIDE, WIDE_APRON

Array = np.ndarray[Any, Any]
#: the lowest ground with plants: one metre
_SHORE = 1 << HEIGHT_BITS
_GROUP = 256
#: samples of the ground before the first sample of the densities
_CROP = WIDE_APRON - FINE_APRON
_DENSITY = cml.Fact("scalar", (1, 3, FINE, FINE))
_STEP = CELLS // 8


def _cpu(attrs: cml.Attrs, density: Array, ground: Array, tile: Array) -> list[Array]:
    place, h, more = choose_candidates(tile)
    jitter = np.stack([h & 1023, (h >> 10) & 1023], -1).astype(np.int64)
    at = (place.astype(np.int64) * 1024 + jitter) * _STEP
    shares = (density[0] * np.float32(256)).astype(np.int64) * 4096
    trees, bushes, rocks = np.cumsum([_interpolate(share, at) for share in shares], 0)
    chance = (h >> 20).astype(np.int64) << 8
    kind = np.where(chance < trees, 0, np.where(chance < bushes, 1, 2)).astype(np.int64)
    more = more.astype(np.int64)
    word = kind | (more & 63) << 2 | (more >> 6 & 255) << 8 | (more >> 14 & 255) << 16
    y = _interpolate(ground[0, 0, _CROP : _CROP + FINE, _CROP : _CROP + FINE].astype(np.int64), at)
    keep = (chance < rocks) & (y > _SHORE)
    plants = np.zeros((1, 1, CANDIDATES * CANDIDATES, 4), np.int32)
    kept = np.concatenate([at, y[:, None], word[:, None]], -1)[keep]
    plants[0, 0, : len(kept)] = kept
    instances = plants.astype(np.float32) / np.array([4096, 4096, 1024, 1], np.float32)
    return [instances, np.array([[VERTICES, len(kept), 0, 0]], np.int32), plants]


def _interpolate(grid: Array, at: Array) -> Array:
    """Returns the grid's values at points, by linear interpolation between four samples.

    ``at`` (n, 2) has x and z in 4096ths of a cell.
    """
    (x, z), (fx, fz) = ((at >> 12) + FINE_APRON).T, (at & 4095).T
    north = grid[z, x] + multiply_shift(grid[z, x + 1] - grid[z, x], fx, 12)
    south = grid[z + 1, x] + multiply_shift(grid[z + 1, x + 1] - grid[z + 1, x], fx, 12)
    mixed: Array = north + multiply_shift(south - north, fz, 12)
    return mixed


def _case(seed: int, tile: Array, high: int, note: str) -> cml.Case:
    rng = np.random.default_rng(seed)
    density = (rng.integers(0, high, _DENSITY.shape) / 256).astype(np.float32)
    return cml.Case((density, make_steep_heights(WIDE, seed), tile), {}, note)


declare(
    "exact_scatter",
    "(density: tensor<scalar>, ground: tensor<integer>, tile: tensor<integer>, "
    f"cells: integer = {CELLS}, apron: integer = {FINE_APRON}, crop: integer = {_CROP}, "
    f"shore: integer = {_SHORE}, vertices: integer = {VERTICES})"
    " -> (instances: tensor<scalar>, draw: tensor<integer>, plants: tensor<integer>)",
    {"density": _DENSITY, "ground": GROUND, "tile": TILE},
    [
        cml.Fact("scalar", (1, 1, CANDIDATES * CANDIDATES, 4)),
        cml.Fact("integer", (1, 4)),
        cml.Fact("integer", (1, 1, CANDIDATES * CANDIDATES, 4)),
    ],
    _cpu,
    60,
    [
        _case(1, TILES[0], 80, "a shore"),
        _case(2, TILES[1], 256, "everything stands"),
        _case(3, TILES[4], 20, "the end of the world"),
    ],
    threads=_GROUP,
    group=_GROUP,
)
