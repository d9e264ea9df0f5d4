"""``scatter(density, height, tile)``: places plants and rocks by the population network's output.

Candidates are ``CANDIDATES`` x ``CANDIDATES`` points of a jittered grid over the tile without its
apron, so two tiles never place the same plant. Each is hashed by its number in the world. Results:
``instances`` [1, 1, 1024, 4] has the placed ones first and zeros behind them, each as x and z in
cells, y in metres, and an integer below 2^24 (kind in bits 0-1, size in 2-7, turn in 8-15, tint in
16-23). ``draw`` has the arguments of an indirect draw.

``exact_scatter`` is the same for the integer world, in integers. Its ``plants`` are the instances
in integers: x and z in 4096ths of a cell, y in 1024ths of a metre, and the word of kind, size, turn
and tint."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cml_engine import ops
from cml_engine.demo_game.arrays import Array
from cml_engine.demo_game.operators.declaring import TILE, declare
from cml_engine.demo_game.operators.exact import GROUND, TILES, make_steep_heights
from cml_engine.demo_game.world.exact_noise import HEIGHT_BITS, multiply_shift
from cml_engine.demo_game.world.noise import hash_lattice, mix
from cml_engine.demo_game.world.tile import CELLS, FINE, FINE_APRON, WIDE, WIDE_APRON

CANDIDATES = 32
#: vertices of one instance
VERTICES = 36
#: the lowest ground with plants, in metres
_SHORE = 1.0
_GROUP = 256
_DENSITY = ops.Fact("scalar", (1, 3, FINE, FINE))
_INSTANCES = ops.Fact("scalar", (1, 1, CANDIDATES * CANDIDATES, 4))
_DRAW = ops.Fact("integer", (1, 4))


def choose_candidates(tile: Array) -> tuple[Array, Array, Array]:
    """Returns the candidates' places, (n, 2) x and z in 1024ths of the grid, and two hashes (n)."""
    first_x, first_z, level, seed = (int(value) for value in tile[0])
    z, x = np.divmod(np.arange(CANDIDATES * CANDIDATES, dtype=np.int32), np.int32(CANDIDATES))
    h = hash_lattice(
        x + np.int32(first_x // CELLS * CANDIDATES),
        z + np.int32(first_z // CELLS * CANDIDATES),
        300 + level,
        seed,
    )
    with np.errstate(over="ignore"):
        more = mix(h ^ np.uint32(0x68E31DA4))
    jitter = np.stack([h & 1023, (h >> 10) & 1023], -1)
    return np.stack([x, z], -1).astype(np.int64) * 1024 + jitter, h, more.astype(np.int64)


def _pack_kept(
    positions: Array,
    y: Array,
    shares: Sequence[Array],
    chance: Array,
    random_bits: Array,
    shore: float,
    dtype: type,
) -> tuple[Array, Array]:
    """Returns the instances of the candidates that are kept, and the arguments of their draw.

    A candidate is kept if its ``chance`` is below the sum of its densities, ``shares``, and its
    height ``y`` is above the ``shore``. The kept ones come first, with zeros behind them.
    """
    trees, bushes, rocks = np.cumsum(shares, 0)
    species = np.where(chance < trees, 0, np.where(chance < bushes, 1, 2))
    packed = (
        species
        | (random_bits & 63) << 2
        | (random_bits >> 6 & 255) << 8
        | (random_bits >> 14 & 255) << 16
    )
    rows = np.column_stack([positions, y, packed])[(chance < rocks) & (y > shore)]
    instances: Array = np.zeros(_INSTANCES.shape, dtype)
    instances[0, 0, : len(rows)] = rows
    return instances, np.array([[VERTICES, len(rows), 0, 0]], np.int32)


def _scatter(attrs: ops.Attrs, density: Array, height: Array, tile: Array) -> list[Array]:
    candidates, h, random_bits = choose_candidates(tile)
    positions = candidates.astype(np.float32) / np.float32(1024) * np.float32(CELLS / CANDIDATES)
    sample = positions + np.float32(FINE_APRON)
    chance = (h >> 20).astype(np.float32) / np.float32(4096)
    shares = [_bilinear(share, sample) for share in density[0]]
    y = _bilinear(height[0, 0], sample)
    return [*_pack_kept(positions, y, shares, chance, random_bits, _SHORE, np.float32)]


def _bilinear(grid: Array, at: Array) -> Array:
    low = np.clip(np.floor(at).astype(int), 0, FINE - 2)
    f = at - low.astype(np.float32)
    x, z = low.T
    north = grid[z, x] + f[:, 0] * (grid[z, x + 1] - grid[z, x])
    south = grid[z + 1, x] + f[:, 0] * (grid[z + 1, x + 1] - grid[z + 1, x])
    mixed: Array = north + f[:, 1] * (south - north)
    return mixed


def _case(seed: int, tile: Sequence[int], low: float, high: float, note: str) -> ops.Case:
    rng = np.random.default_rng(seed)
    density = rng.uniform(0, high, (1, 3, FINE, FINE)).astype(np.float32)
    height = rng.uniform(low, low + 50, (1, 1, FINE, FINE)).astype(np.float32)
    return ops.Case((density, height, np.array([tile], np.int32)), {}, note)


declare(
    "scatter",
    "(density: tensor<scalar>, height: tensor<scalar>, "
    f"tile: tensor<integer>, cells: integer = {CELLS}, apron: integer = {FINE_APRON}, "
    f"shore: scalar = {_SHORE}, vertices: integer = {VERTICES})"
    " -> (instances: tensor<scalar>, draw: tensor<integer>)",
    {"density": _DENSITY, "height": ops.Fact("scalar", (1, 1, FINE, FINE)), "tile": TILE},
    [_INSTANCES, _DRAW],
    _scatter,
    60,
    [
        _case(1, (0, 0, 0, 7), -20, 0.3, "a shore"),
        _case(2, (-56, 560, 1, 3), 10, 0.1, "sparse"),
        _case(3, (112, -5600, 0, 1), 10, 1.0, "everything stands"),
        _case(4, (0, 0, 0, 7), -90, 1.0, "the sea"),
    ],
    ops.Tolerance(1e-6, 1e-4, "heights between samples"),
    threads=_GROUP,
    group=_GROUP,
)


# -- the integer world

#: the lowest ground with plants: one metre
_EXACT_SHORE = 1 << HEIGHT_BITS
#: samples of the ground before the first sample of the densities
_CROP = WIDE_APRON - FINE_APRON
_STEP = CELLS // 8


def _exact_scatter(attrs: ops.Attrs, density: Array, ground: Array, tile: Array) -> list[Array]:
    candidates, h, random_bits = choose_candidates(tile)
    positions = candidates * _STEP
    parts = (density[0] * np.float32(256)).astype(np.int64) * 4096
    shares = [_interpolate(share, positions) for share in parts]
    chance = (h >> 20).astype(np.int64) << 8
    y = _interpolate(
        ground[0, 0, _CROP : _CROP + FINE, _CROP : _CROP + FINE].astype(np.int64), positions
    )
    plants, draw = _pack_kept(positions, y, shares, chance, random_bits, _EXACT_SHORE, np.int32)
    return [plants.astype(np.float32) / np.array([4096, 4096, 1024, 1], np.float32), draw, plants]


def _interpolate(grid: Array, at: Array) -> Array:
    """Returns the grid's values at points, by linear interpolation between four samples.

    ``at`` (n, 2) has x and z in 4096ths of a cell.
    """
    (x, z), (fx, fz) = ((at >> 12) + FINE_APRON).T, (at & 4095).T
    north = grid[z, x] + multiply_shift(grid[z, x + 1] - grid[z, x], fx, 12)
    south = grid[z + 1, x] + multiply_shift(grid[z + 1, x + 1] - grid[z + 1, x], fx, 12)
    mixed: Array = north + multiply_shift(south - north, fz, 12)
    return mixed


def _exact_case(seed: int, tile: Array, high: int, note: str) -> ops.Case:
    rng = np.random.default_rng(seed)
    density = (rng.integers(0, high, _DENSITY.shape) / 256).astype(np.float32)
    return ops.Case((density, make_steep_heights(WIDE, seed), tile), {}, note)


declare(
    "exact_scatter",
    "(density: tensor<scalar>, ground: tensor<integer>, tile: tensor<integer>, "
    f"cells: integer = {CELLS}, apron: integer = {FINE_APRON}, crop: integer = {_CROP}, "
    f"shore: integer = {_EXACT_SHORE}, vertices: integer = {VERTICES})"
    " -> (instances: tensor<scalar>, draw: tensor<integer>, plants: tensor<integer>)",
    {"density": _DENSITY, "ground": GROUND, "tile": TILE},
    [_INSTANCES, _DRAW, ops.Fact("integer", _INSTANCES.shape)],
    _exact_scatter,
    60,
    [
        _exact_case(1, TILES[0], 80, "a shore"),
        _exact_case(2, TILES[1], 256, "everything stands"),
        _exact_case(3, TILES[4], 20, "the end of the world"),
    ],
    threads=_GROUP,
    group=_GROUP,
)
