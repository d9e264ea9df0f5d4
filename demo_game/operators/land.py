"""The operators for the noise that a tile starts from, at the grids of ``demo_game/world/tile.py``.

Every operator takes ``tile``, integers ``[1, 4]``: the number of the tile's first cell (x and z),
its level, and the world's seed. The operators are ``demo_game/world/noise.py`` on the GPU; its
constants are the defaults of their attributes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cml_engine import ops
from cml_engine.demo_game.arrays import Array
from cml_engine.demo_game.operators.declaring import EXACT, TILE, declare
from cml_engine.demo_game.world import noise
from cml_engine.demo_game.world.grids import fold, grid, half_cells
from cml_engine.demo_game.world.tile import CELL_M, COARSE, COARSE_APRON, SCALE, WIDE, WIDE_APRON

_AMPLITUDES = [noise.amplitude(octave) for octave in range(noise.TOP_OCTAVE + 1)]
#: attributes of the operators that compute the land's octaves
_LAND = (
    f"amplitudes: scalar[] = {_AMPLITUDES}, continents: integer[] = "
    f"{list(noise.CONTINENT_OCTAVES)}, ridge: scalar[] = {[noise.RIDGE_MEAN, noise.RIDGE]}, "
    f"hill: scalar = {noise.HILL}"
)
#: operations per octave and sample: some twenty for each of four corners, and the interpolation
_OCTAVE = 110


def _height(attrs: ops.Attrs, tile: Array) -> Array:
    return noise.height(grid(tile, COARSE, COARSE_APRON, SCALE))[None, None]


def _detail(attrs: ops.Attrs, tile: Array) -> Array:
    return fold(noise.detail(grid(tile, SCALE * COARSE, COARSE_APRON)), SCALE)


def _moisture(attrs: ops.Attrs, tile: Array) -> Array:
    return noise.moisture(grid(tile, WIDE, WIDE_APRON))[None, None]


def _grain(attrs: ops.Attrs, tile: Array) -> Array:
    return fold(noise.grain(half_cells(tile, WIDE, WIDE_APRON)), 2)


def _cell(attrs: ops.Attrs, tile: Array) -> Array:
    return np.full((1, 1, 1, 1), CELL_M * 2 ** int(tile[0, 2]), np.float32)


def _tiles(*tiles: tuple[int, int, int, int]) -> list[ops.Case]:
    return [ops.Case((np.array([tile], np.int32),)) for tile in tiles]


_CASES = _tiles(
    (0, 0, 0, 7), (-56, 112, 0, 7), (56, -5600, 1, 1), (-2800, -2856, 2, 0),
    (112, 168, 3, 2**31 - 1), (0, -56, 4, 12), (-56, 0, 5, 3), (-112, 56, 6, -1),
)  # fmt: skip
_SUM = "octaves are summed in 32 bits, products may be fused"


def _declare_land(
    result: str,
    attributes: str,
    shape: tuple[int, ...],
    cpu: Callable[..., Array],
    octaves: int,
    tolerance: ops.Tolerance = EXACT,
    threads: int = 0,
) -> None:
    declare(
        f"land_{result}",
        f"(tile: tensor<integer>, {attributes}) -> ({result}: tensor<scalar>)",
        {"tile": TILE},
        [ops.Fact("scalar", shape)],
        cpu,
        octaves * _OCTAVE,
        _CASES,
        tolerance,
        threads,
    )


_declare_land(
    "height",
    f"{_LAND}, lift: scalar[] = {[noise.CONTINENT_M, noise.LIFT_M]}, apron: integer = "
    f"{COARSE_APRON}, scale: integer = {SCALE}",
    (1, 1, COARSE, COARSE),
    _height,
    11,
    ops.Tolerance(1e-6, 4e-3, _SUM),
)
_declare_land(
    "detail",
    f"{_LAND}, cell_m: scalar = {CELL_M}, apron: integer = {COARSE_APRON}, "
    f"scale: integer = {SCALE}",
    (1, SCALE * SCALE, COARSE, COARSE),
    _detail,
    4,
    ops.Tolerance(1e-6, 1e-6, _SUM),
)
_declare_land(
    "moisture",
    f"octaves: integer[] = {list(noise.MOISTURE_OCTAVES)}, weights: scalar[] = "
    f"{noise.moisture_weights()}, apron: integer = {WIDE_APRON}",
    (1, 1, WIDE, WIDE),
    _moisture,
    4,
    ops.Tolerance(1e-6, 1e-6, _SUM),
)
_declare_land(
    "grain", f"apron: integer = {WIDE_APRON}", (1, 4, WIDE, WIDE), _grain, 1, threads=WIDE * WIDE
)
_declare_land("cell", f"cell_m: scalar = {CELL_M}", (1, 1, 1, 1), _cell, 0)
