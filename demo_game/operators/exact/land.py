"""The noise that a tile of the integer world starts from, and the upres agent's inputs.

``exact_height`` gives heights in 1024ths of a metre. ``exact_relief`` computes the agent's inputs
from them: slopes to the eight neighbours, the height above the sea (in 16 cells), and the
logarithm of a cell's metres. ``exact_detail`` is the noise that is too short for coarse samples,
in cells.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import cml_engine as cml
from demo_game.operators.exact.declaring import TILE, declare
from demo_game.world import exact_noise, noise
from demo_game.world.exact_noise import shift_and_round
from demo_game.world.grids import fold, grid
from demo_game.world.tile import COARSE, COARSE_APRON, SCALE

Array = np.ndarray[Any, Any]
HEIGHTS = cml.Fact("integer", (1, 1, COARSE, COARSE))
_LAND = (
    f"amplitudes: integer[] = {exact_noise.AMPLITUDES}, continents: integer[] = "
    f"{list(noise.CONTINENT_OCTAVES)}, ridge: integer[] = {exact_noise.RIDGE}, "
    f"shelf: integer = {exact_noise.SHELF}, apron: integer = {COARSE_APRON}, "
    f"scale: integer = {SCALE}"
)
#: operations per octave and sample
OCTAVE = 150
_FAR = 2**31 // 56 * 56
#: tiles of all levels, some of them at the ends of the world
TILES = [
    np.array([tile], np.int32)
    for tile in (
        (0, 0, 0, 7), (56, -5600, 1, 1), (-2800, -2856, 2, 0), (-112, 56, 6, 2**31 - 1),
        (_FAR - 56, -_FAR, 0, 5), (-_FAR, _FAR - 56, 4, 12),
    )
]  # fmt: skip
#: the eight neighbours (z, x), row by row
AROUND = [(dz, dx) for dz in (-1, 0, 1) for dx in (-1, 0, 1) if (dz, dx) != (0, 0)]


def _height(attrs: cml.Attrs, tile: Array) -> Array:
    found = exact_noise.height(*grid(tile, COARSE, COARSE_APRON, SCALE))
    return found[None, None].astype(np.int32)


def _detail(attrs: cml.Attrs, tile: Array) -> Array:
    found = exact_noise.detail(*grid(tile, SCALE * COARSE, COARSE_APRON))
    return fold(found / np.float32(256), SCALE).astype(np.float32)


def subtract_height(heights: Array, ways: list[tuple[int, int]]) -> Array:
    """Returns the differences of neighbours to each inner height, int64 (n, h - 2, w - 2).

    ``ways`` are the neighbours' offsets (z, x) in the grid of heights (h, w).
    """
    inner = [slice(1 + dz, heights.shape[0] - 1 + dz) for dz in (-1, 0, 1)]
    here = heights[inner[1], inner[1]].astype(np.int64)
    return np.stack([heights[inner[1 + dz], inner[1 + dx]] - here for dz, dx in ways])


def _relief(attrs: cml.Attrs, coarse: Array, tile: Array) -> list[Array]:
    level, heights = int(tile[0, 2]), coarse[0, 0].astype(np.int64)
    around = shift_and_round(subtract_height(heights, AROUND), level + 8) / np.float32(64)
    above = shift_and_round(heights, level + 9).clip(-127, 127) / np.float32(128)
    size = np.full((1, 1, 1, 1), level + 2, np.float32)
    return [around[None].astype(np.float32), above[None, None].astype(np.float32), size]


_INNER = COARSE - 2
declare(
    "exact_height",
    f"(tile: tensor<integer>, {_LAND}, lift: integer[] = "
    f"{[exact_noise.CONTINENT, exact_noise.LIFT]}, end: integer = {exact_noise.HEIGHT_END})"
    " -> (coarse: tensor<integer>)",
    {"tile": TILE},
    [HEIGHTS],
    _height,
    11 * OCTAVE,
    [cml.Case((tile,)) for tile in TILES],
)
declare(
    "exact_detail",
    f"(tile: tensor<integer>, {_LAND}) -> (detail: tensor<scalar>)",
    {"tile": TILE},
    [cml.Fact("scalar", (1, SCALE * SCALE, COARSE, COARSE))],
    _detail,
    4 * OCTAVE,
    [cml.Case((tile,)) for tile in TILES],
)


def make_steep_heights(count: int, seed: int) -> Array:
    """Returns random heights steeper than any land, int32 (1, 1, count, count), for a test case."""
    end, rng = exact_noise.HEIGHT_END, np.random.default_rng(seed)
    found = rng.integers(-end, end, (1, 1, count, count), endpoint=True, dtype=np.int32)
    found[..., :2, :] = [[-end], [end]]
    return found


declare(
    "exact_relief",
    "(coarse: tensor<integer>, tile: tensor<integer>)"
    " -> (around: tensor<scalar>, above: tensor<scalar>, size: tensor<scalar>)",
    {"coarse": HEIGHTS, "tile": TILE},
    [
        cml.Fact("scalar", (1, len(AROUND), _INNER, _INNER)),
        cml.Fact("scalar", HEIGHTS.shape),
        cml.Fact("scalar", (1, 1, 1, 1)),
    ],
    _relief,
    10,
    [cml.Case((make_steep_heights(COARSE, i), TILES[i])) for i in (0, 2, 3)],
    threads=COARSE * COARSE,
)
