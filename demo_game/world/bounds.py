"""Bounds of a tile, computed from its noise alone before any network has run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

import numpy as np

from cml_engine.demo_game.arrays import Array
from cml_engine.demo_game.world import noise
from cml_engine.demo_game.world.noise import Cells
from cml_engine.demo_game.world.tile import CELLS, TileId

#: sample intervals along a side of a tile
_SAMPLES = 8
#: tiles along a side of the block that is computed at once: one call costs as much as sixteen
_BLOCK = 4
#: number of blocks that are kept
_MOST_BLOCKS = 1024
#: margin for land between the samples and for changes by the networks, in cells of the tile
_MARGIN_CELLS = 4.0


def bounds(tile: TileId, seed: int) -> tuple[float, float]:
    """Returns the lowest and highest land of the tile in metres, about.

    Never below the sea's surface at 0.
    """
    key = _key(tile, seed)
    if key not in _blocks:
        while len(_blocks) >= _MOST_BLOCKS:
            del _blocks[next(iter(_blocks))]
        _blocks[key] = _block(*key)
    block = _blocks[key]
    x, z = tile.x % _BLOCK * _SAMPLES, tile.z % _BLOCK * _SAMPLES
    heights = block[z : z + _SAMPLES + 1, x : x + _SAMPLES + 1]
    margin = _MARGIN_CELLS * tile.cell_m
    return max(0.0, float(heights.min()) - margin), max(0.0, float(heights.max()) + margin)


def is_known(tile: TileId, seed: int) -> bool:
    """Returns True if the tile's box takes no time, because it was computed lately."""
    return _key(tile, seed) in _blocks


@lru_cache(maxsize=4096)
def box(tile: TileId, seed: int) -> tuple[float, float, float, float, float, float]:
    """Returns the tile's box in metres: the least ``x, y, z``, then the greatest."""
    (x, z), span = tile.origin, tile.span_m
    low, high = bounds(tile, seed)
    return x, low, z, x + span, high, z + span


#: the blocks that were computed last, by level, place and seed
_blocks: dict[tuple[int, int, int, int], Array] = {}


def _key(tile: TileId, seed: int) -> tuple[int, int, int, int]:
    """Returns the key of the block that has the tile."""
    return tile.level, tile.x // _BLOCK, tile.z // _BLOCK, seed


def _block(level: int, x: int, z: int, seed: int) -> Array:
    """Returns the noise's heights on ``_BLOCK`` x ``_BLOCK`` tiles, ``_SAMPLES`` per tile side."""
    steps = np.arange(_BLOCK * _SAMPLES + 1, dtype=np.int32) * np.int32(CELLS // _SAMPLES)
    side = CELLS * _BLOCK
    cells_z, cells_x = np.meshgrid(
        steps + np.int32(z * side), steps + np.int32(x * side), indexing="ij"
    )
    return noise.height(Cells(cells_x, cells_z, level, seed))


def ground(x: Array, z: Array, seed: int) -> Array:
    """Returns the land's height in metres at points (metres), from the noise of level 0.

    At least 0, the sea's surface.
    """
    size = TileId(0, 0, 0).cell_m
    cells_x, cells_z = (np.floor(coordinate / size).astype(np.int32) for coordinate in (x, z))
    heights: Array = np.maximum(noise.height(Cells(cells_x, cells_z, 0, seed)), 0)
    return heights


class Boxes:
    """Tiles with their boxes as arrays, to test in every frame which are in view.

    Boxes are centres and half sides in metres ``[n, 3]``.
    """

    def __init__(self, tiles: Iterable[TileId], seed: int) -> None:
        self.tiles = list(tiles)
        corners = np.array([box(tile, seed) for tile in self.tiles]).reshape(-1, 2, 3)
        self._centre = corners.mean(1)
        self._half = corners[:, 1] - self._centre

    def in_view(
        self, sees_boxes: Callable[[Array, Array], Array], mirrored: bool = False
    ) -> list[TileId]:
        """Returns the tiles that may be in view of a camera with this method ``sees_boxes``.

        With ``mirrored`` also those in the sea's reflection.
        """
        are_seen = sees_boxes(self._centre, self._half)
        if mirrored:
            are_seen |= sees_boxes(self._centre * (1, -1, 1), self._half)
        return [tile for tile, visible in zip(self.tiles, are_seen, strict=True) if visible]
