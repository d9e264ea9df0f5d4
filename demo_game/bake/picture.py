"""Draws a map of a baked region."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from cml_engine.io.atomic_write import write_atomically
from demo_game.arrays import Array
from demo_game.bake.planet import Planet
from demo_game.world.overhead import SIDE, overhead
from demo_game.world.tile import TileId

#: the largest side of a map in pixels
_MOST = 2048


def write_picture(planet: Planet, path: Path) -> tuple[int, int]:
    """Writes a map of the planet's region as a PNG; returns its width and height in pixels."""
    drawn = picture(planet)
    write_atomically(path, lambda file: Image.fromarray(drawn).save(file, "PNG"))
    return drawn.shape[1], drawn.shape[0]


def picture(planet: Planet, most: int = _MOST) -> Array:
    """Returns a map of the region, uint8 (height, width, 3); missing tiles are black.

    It shows the finest level whose map has sides of at most ``most`` pixels. If even the
    coarsest level is larger, its tiles are scaled down.
    """
    region = planet.region
    level = next(
        (n for n in region.levels if SIDE * max(map(len, region.rows(n))) <= most), region.coarsest
    )
    rows, columns = region.rows(level)
    side = max(1, min(SIDE, most // max(len(rows), len(columns))))
    drawn = np.zeros((side * len(rows), side * len(columns), 3), np.uint8)
    every = np.linspace(0, SIDE - 1, side).round().astype(int)
    for down, z in enumerate(rows):
        for right, x in enumerate(columns):
            seen = planet.seen(TileId(level, x, z))
            tile = overhead(seen["height"], seen["shading"], seen["albedo"])
            place = np.s_[down * side : (down + 1) * side, right * side : (right + 1) * side]
            drawn[place] = tile[every][:, every]
    return drawn
