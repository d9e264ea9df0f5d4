"""The operators of the integer world around its networks, in integers from the seed to the tile.

``exact_height`` gives heights in 1024ths of a metre (``demo_game/world/exact_noise.py`` on the
GPU). ``exact_relief`` computes the upres agent's inputs from them: slopes to the eight neighbours,
the height above the sea (in 16 cells), and the logarithm of a cell's metres. ``exact_detail`` is
the noise that is too short for coarse samples, in cells. ``exact_ground`` interpolates the coarse
heights by a cubic through four samples in each direction and adds the upres network's residual.
``exact_features`` computes the slopes and sixteen features of each sample, which the float networks
compute themselves (``near`` in ``demo_game/training/networks.py``).

A network's inputs and outputs are float32 tensors that hold integers times a power of two, which is
exact.
"""

from __future__ import annotations

import numpy as np

from cml_engine import ops
from cml_engine.demo_game.arrays import Array
from cml_engine.demo_game.operators.declaring import TILE, declare
from cml_engine.demo_game.world import exact_noise, noise
from cml_engine.demo_game.world.exact_noise import multiply_shift, shift_and_round
from cml_engine.demo_game.world.grids import fold, grid, half_cells
from cml_engine.demo_game.world.tile import COARSE, COARSE_APRON, SCALE, WIDE, WIDE_APRON

HEIGHTS = ops.Fact("integer", (1, 1, COARSE, COARSE))
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


def _height(attrs: ops.Attrs, tile: Array) -> Array:
    heights = exact_noise.height(grid(tile, COARSE, COARSE_APRON, SCALE))
    return heights[None, None].astype(np.int32)


def _detail(attrs: ops.Attrs, tile: Array) -> Array:
    noise = exact_noise.detail(grid(tile, SCALE * COARSE, COARSE_APRON))
    return fold(noise / np.float32(256), SCALE).astype(np.float32)


def subtract_height(heights: Array, offsets: list[tuple[int, int]]) -> Array:
    """Returns the differences of neighbours to each inner height, int64 (n, h - 2, w - 2).

    ``offsets`` are the neighbours' offsets (z, x) in the grid of heights (h, w).
    """
    inner = [slice(1 + dz, heights.shape[0] - 1 + dz) for dz in (-1, 0, 1)]
    centre = heights[inner[1], inner[1]].astype(np.int64)
    return np.stack([heights[inner[1 + dz], inner[1 + dx]] - centre for dz, dx in offsets])


def _relief(attrs: ops.Attrs, coarse: Array, tile: Array) -> list[Array]:
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
    [ops.Case((tile,)) for tile in TILES],
)
declare(
    "exact_detail",
    f"(tile: tensor<integer>, {_LAND}) -> (detail: tensor<scalar>)",
    {"tile": TILE},
    [ops.Fact("scalar", (1, SCALE * SCALE, COARSE, COARSE))],
    _detail,
    4 * OCTAVE,
    [ops.Case((tile,)) for tile in TILES],
)


def make_steep_heights(count: int, seed: int) -> Array:
    """Returns random heights steeper than any land, int32 (1, 1, count, count), for a test case."""
    end, rng = exact_noise.HEIGHT_END, np.random.default_rng(seed)
    heights = rng.integers(-end, end, (1, 1, count, count), endpoint=True, dtype=np.int32)
    heights[..., :2, :] = [[-end], [end]]
    return heights


declare(
    "exact_relief",
    "(coarse: tensor<integer>, tile: tensor<integer>)"
    " -> (around: tensor<scalar>, above: tensor<scalar>, size: tensor<scalar>)",
    {"coarse": HEIGHTS, "tile": TILE},
    [
        ops.Fact("scalar", (1, len(AROUND), _INNER, _INNER)),
        ops.Fact("scalar", HEIGHTS.shape),
        ops.Fact("scalar", (1, 1, 1, 1)),
    ],
    _relief,
    10,
    [ops.Case((make_steep_heights(COARSE, i), TILES[i])) for i in (0, 2, 3)],
    threads=COARSE * COARSE,
)


#: index of the first of the four coarse samples around the first fine sample
_FIRST = 5
#: weights of four coarse samples in 128ths: at 0, 1/4, 1/2 and 3/4 between the inner two (Catmull
#: and Rom, 1974)
CUBIC = [0, 128, 0, 0, -9, 111, 29, -3, -8, 72, 72, -8, -3, 29, 111, -9]
#: fractional bits of the upres agent's residual in cells
RESIDUAL_BITS = 12
GROUND = ops.Fact("integer", (1, 1, WIDE, WIDE))
_METRES = ops.Fact("scalar", GROUND.shape)
#: samples before the first sample with features
_CROP = 14
_INSIDE, _SLOPES = WIDE - 2 * _CROP, WIDE - 2
_CROSS = [(-1, 0), (0, -1), (0, 1), (1, 0)]
#: factors (for ``multiply_shift``) and offsets (in 128ths) of beaches, foothills and mountains
ALTITUDES = [(20972, 0), (4194, 0), (3146, -192)]
#: factors per cell of height, in units of 2^-14, of two periodic layers of rock
STRATA = [5079, 1917]


def _ground(attrs: ops.Attrs, coarse: Array, residual: Array, tile: Array) -> list[Array]:
    upsampled, weights = coarse[0, 0].astype(np.int64), np.array(CUBIC).reshape(SCALE, 4)
    for _ in range(2):  # the second axis first, and then the other
        windows = np.lib.stride_tricks.sliding_window_view(upsampled, 4, 1)[:, _FIRST:]
        interpolated = (windows[:, : WIDE // SCALE] @ weights.T).reshape(len(upsampled), WIDE)
        upsampled = ((interpolated + 64) >> 7).T
    correction = (residual[0, 0] * np.float32(1 << RESIDUAL_BITS)).astype(np.int64) << int(
        tile[0, 2]
    )
    heights = (upsampled + correction).clip(-exact_noise.HEIGHT_END, exact_noise.HEIGHT_END)
    metres = heights.astype(np.float32) / np.float32(1 << exact_noise.HEIGHT_BITS)
    return [heights[None, None].astype(np.int32), metres[None, None]]


def _words(values: Array) -> Array:
    """Returns values clipped to -127 to 127 and divided by 128, as the networks read them."""
    return np.asarray(values.clip(-127, 127) / np.float32(128), np.float32)


def _wave(at: Array, factor: int) -> Array:
    phase = multiply_shift(at, factor, 14) & 4095
    waved: Array = (np.abs(phase - 2048) + 16) >> 5
    return waved


def _features(attrs: ops.Attrs, ground: Array, tile: Array) -> list[Array]:
    level, inside = int(tile[0, 2]), np.s_[_CROP : WIDE - _CROP]
    slopes = _words(shift_and_round(subtract_height(ground[0, 0], _CROSS), level + 5))
    heights = ground[0, 0, inside, inside].astype(np.int64)
    grain = fold(exact_noise.grain(half_cells(tile, WIDE, WIDE_APRON)), 2)[0]
    wet = exact_noise.moisture(grid(tile, WIDE, WIDE_APRON))
    features = [
        *grain[:, inside, inside],
        wet[inside, inside],
        *(
            shift_and_round(multiply_shift(heights, factor, 14), 10) + offset
            for factor, offset in ALTITUDES
        ),
        shift_and_round(heights, level + 6),
        shift_and_round(heights, level + 9),
        *(_wave(heights >> level, factor) for factor in STRATA),
    ]
    around = slopes[:, _CROP - 1 : -_CROP + 1, _CROP - 1 : -_CROP + 1]
    return [slopes[None], np.concatenate([around, _words(np.stack(features))])[None]]


def _residual(seed: int) -> Array:
    rng = np.random.default_rng(seed)
    values = rng.integers(-32767, 32767, GROUND.shape, endpoint=True)
    return (values / np.float32(1 << RESIDUAL_BITS)).astype(np.float32)


declare(
    "exact_ground",
    "(coarse: tensor<integer>, residual: tensor<scalar>, tile: tensor<integer>, "
    f"cubic: integer[] = {CUBIC}, apron: integer = {_FIRST}, "
    f"end: integer = {exact_noise.HEIGHT_END})"
    " -> (ground: tensor<integer>, heights: tensor<scalar>)",
    {"coarse": HEIGHTS, "residual": _METRES, "tile": TILE},
    [GROUND, _METRES],
    _ground,
    50,
    [ops.Case((make_steep_heights(COARSE, i), _residual(i), TILES[i])) for i in (0, 3)],
)
declare(
    "exact_features",
    f"(ground: tensor<integer>, tile: tensor<integer>, altitudes: integer[] = "
    f"{[n for pair in ALTITUDES for n in pair]}, strata: integer[] = {STRATA}, "
    f"octaves: integer[] = {list(noise.MOISTURE_OCTAVES)}, weights: integer[] = "
    f"{exact_noise.MOISTURE}, apron: integer = {WIDE_APRON}, crop: integer = {_CROP})"
    " -> (slopes: tensor<scalar>, features: tensor<scalar>)",
    {"ground": GROUND, "tile": TILE},
    [
        ops.Fact("scalar", (1, len(_CROSS), _SLOPES, _SLOPES)),
        ops.Fact("scalar", (1, 16, _INSIDE, _INSIDE)),
    ],
    _features,
    2 * OCTAVE,
    [ops.Case((make_steep_heights(WIDE, i), tile)) for i, tile in enumerate(TILES)],
    threads=_SLOPES * _SLOPES,
)
