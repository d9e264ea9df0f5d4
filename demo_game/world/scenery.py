"""Finds the place where a flight begins: mountains by the sea."""

from __future__ import annotations

import numpy as np

from demo_game.world import noise
from demo_game.world.noise import Cells
from demo_game.world.tile import TileId

_LEVEL = 6
_CELLS = 256
#: samples along a side of a neighbourhood, about 4 km
_AROUND = 17


def find_start(seed: int) -> tuple[float, float]:
    """Returns world x and z in metres of a coast under mountains, at most 32 km from the origin."""
    cells = np.arange(-_CELLS // 2, _CELLS // 2, dtype=np.int32)
    z, x = np.meshgrid(cells, cells, indexing="ij")
    heights = noise.height(Cells(x, z, _LEVEL, seed))
    windows = np.lib.stride_tricks.sliding_window_view(heights, (_AROUND, _AROUND))
    sea = (windows < 0).mean((2, 3))
    wanted = (sea > 0.15) & (sea < 0.45) & (windows[..., _AROUND // 2, _AROUND // 2] > 0)
    relief = np.where(wanted, windows.max((2, 3)), -np.inf)
    best_z, best_x = np.unravel_index(int(relief.argmax()), relief.shape)
    size = TileId(_LEVEL, 0, 0).cell_m
    return (
        float(cells[best_x + _AROUND // 2]) * size,
        float(cells[best_z + _AROUND // 2]) * size,
    )
