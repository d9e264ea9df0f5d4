"""Grids of cells on a tile, and fine samples as the channels of coarse ones.

A tile is an array ``[[x, z, level, seed]]``: the numbers of its first cell, its level, and the
world's seed.
"""

from __future__ import annotations

import numpy as np

from cml_engine.demo_game.arrays import Array
from cml_engine.demo_game.world.noise import Cells


def grid(tile: Array, count: int, apron: int, step: int = 1) -> Cells:
    """Returns the cells of a square grid on a tile, ``count`` along a side.

    The grid begins ``apron`` cells before the tile.
    """
    first_x, first_z, level, seed = (int(value) for value in tile[0])
    steps = np.arange(count, dtype=np.int32) * np.int32(step) - np.int32(apron)
    z, x = np.meshgrid(steps + np.int32(first_z), steps + np.int32(first_x), indexing="ij")
    return Cells(x, z, level, seed)


def half_cells(tile: Array, count: int, apron: int) -> Cells:
    """Returns the half cells in a square grid of cells."""
    cells = grid(tile, 2 * count, 2 * apron)
    first_x, first_z = tile[0, :2].astype(np.int32)
    return cells._replace(x=cells.x + first_x, z=cells.z + first_z)


def fold(samples: Array, scale: int) -> Array:
    """Returns a square grid as channels (1, scale * scale, n, n).

    The ``scale`` x ``scale`` samples of each block become its channels.
    """
    count = samples.shape[0] // scale
    blocks = samples.reshape(count, scale, count, scale).transpose(1, 3, 0, 2)
    return np.ascontiguousarray(blocks.reshape(1, scale * scale, count, count))


def unfold(channels: Array, scale: int) -> Array:
    """Returns channels (N, scale**2 * C, h, w) as samples (N, C, scale * h, scale * w)."""
    n, c, h, w = channels.shape
    blocks = channels.reshape(n, c // scale**2, scale, scale, h, w).transpose(0, 1, 4, 2, 5, 3)
    samples: Array = blocks.reshape(n, c // scale**2, scale * h, scale * w)
    return samples
