"""Draws a tile from above, as a part of a map."""

from __future__ import annotations

import numpy as np

from cml_engine.demo_game.arrays import Array
from cml_engine.demo_game.world.tile import CELLS

#: pixels along a side of a tile
SIDE = 2 * CELLS
#: the texels (of 128 with the apron) that lie between the tile's edges
_INSIDE = slice(8, 8 + SIDE)
_SHALLOW, _DEEP = (0.25, 0.47, 0.55), (0.07, 0.18, 0.32)


def overhead(height: Array, shading: Array, colours: Array) -> Array:
    """Returns a map of a tile, uint8 (112, 112, 3): lit colours, and the sea blue by depth.

    ``height`` is (64, 64) in metres, ``shading`` (64, 64, 4) and ``colours`` (128, 128, 4) are
    bytes.
    """
    light = shading[..., 2:].astype(np.float32) / 255
    lit = _enlarge_twice(0.45 * light[..., 0] + 0.55 * light[..., 1])[..., None]
    metres = _enlarge_twice(height)[..., None]
    depth = np.clip(-metres / 60, 0, 1)
    sea = (1 - depth) * np.array(_SHALLOW) + depth * np.array(_DEEP)
    land = colours[_INSIDE, _INSIDE, :3].astype(np.float32) / 255 * (0.35 + 0.75 * lit)
    return (255 * np.clip(np.where(metres < 0, sea, land), 0, 1)).astype(np.uint8)


def _enlarge_twice(image: Array) -> Array:
    return image.repeat(2, 0).repeat(2, 1)[_INSIDE, _INSIDE]
