"""Makes drafts of tiles without any network: heights from the noise alone, colours from a rule.

A game shows them while its networks' kernels are compiled, once per machine. The networks' tiles
replace them one by one; nothing of a draft is part of the world.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from cml_engine.demo_game.arrays import Array
from cml_engine.demo_game.world import noise
from cml_engine.demo_game.world.noise import Cells
from cml_engine.demo_game.world.tile import FINE, FINE_APRON, TileId

#: number of levels with drafts, counted from the coarsest
LEVELS = 3
#: tiles per NumPy call: the overhead of a call costs as much as several tiles
_TOGETHER = 16
#: sRGB: sand, grass, dry grass, rock, snow, the sea's floor
_SAND, _GRASS, _DRY = (0.74, 0.68, 0.52), (0.30, 0.37, 0.17), (0.52, 0.48, 0.29)
_ROCK, _SNOW, _DEEP = (0.46, 0.43, 0.40), (0.91, 0.93, 0.96), (0.20, 0.25, 0.24)
#: share of the sky's light on open land, and the roughness of land
_OPEN = 0.9


@dataclass(frozen=True, slots=True)
class TileDraft:
    """The textures of a tile's draft.

    ``height`` is (64, 64) in metres, ``shading`` (64, 64, 4) bytes as the shader reads them,
    ``colours`` (64, 64, 4) bytes.
    """

    tile: TileId
    height: Array
    shading: Array
    colours: Array


def drafts(tiles: Iterable[TileId], seed: int) -> Iterator[TileDraft]:
    """Yields a draft of each tile, the coarsest level first.

    Computes a group of tiles at a time.
    """
    for level, group in groupby(sorted(tiles, reverse=True), key=lambda tile: tile.level):
        same = list(group)
        for start in range(0, len(same), _TOGETHER):
            yield from _make_level(same[start : start + _TOGETHER], level, seed)


def _make_level(tiles: list[TileId], level: int, seed: int) -> Iterator[TileDraft]:
    k = np.arange(-1 - FINE_APRON, FINE - FINE_APRON + 1, dtype=np.int32)
    first = np.array([tile.first_cell for tile in tiles], np.int32)
    x, z = np.broadcast_arrays(first[:, :1, None] + k, first[:, 1:, None] + k[:, None])
    heights = noise.height(Cells(x, z, level, seed))
    size = tiles[0].cell_m
    south, east = (np.gradient(np.maximum(heights, 0), size, axis=a) for a in (1, 2))
    inside = np.s_[:, 1:-1, 1:-1]
    heights, south, east = heights[inside], south[inside], east[inside]
    upright = 1 / np.sqrt(1 + south * south + east * east)
    light = [0.5 - 0.5 * east * upright, 0.5 - 0.5 * south * upright]
    shading = np.stack([*light, np.full_like(upright, _OPEN), np.ones_like(upright)], -1)
    wet = noise.moisture(Cells(x[inside], z[inside], level, seed))
    colours = _colours(heights, 1 - upright, wet)
    for i, tile in enumerate(tiles):
        yield TileDraft(tile, heights[i].astype(np.float32), _bytes(shading[i]), _bytes(colours[i]))


def _colours(heights: Array, steep: Array, wet: Array) -> Array:
    """Returns red, green, blue, roughness (..., 4) by height, steepness (0 to 1) and moisture."""
    land = np.broadcast_to(np.array(_DRY), (*heights.shape, 3))
    for share, colour in (
        (_step(wet, 0.24, 0.45), _GRASS),
        (_step(steep, 0.12, 0.28), _ROCK),
        (_step(heights, 750, 950) * _step(steep, 0.35, 0.2), _SNOW),
        (_step(heights, 14, 5), _SAND),
        (_step(heights, -1, -10), _DEEP),
    ):
        land = land + share[..., None] * (np.array(colour) - land)
    rough = np.full_like(land[..., :1], _OPEN)
    return np.concatenate([land, rough], -1)


def _step(x: Array, low: float, high: float) -> Array:
    """Returns 0 at ``low``, 1 at ``high``, linear between them."""
    fraction: Array = np.clip((x - low) / (high - low), 0, 1)
    return fraction


def _bytes(values: Array) -> Array:
    return np.round(np.clip(values, 0, 1) * 255).astype(np.uint8)
