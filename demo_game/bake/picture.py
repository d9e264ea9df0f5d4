"""Draws a map of a baked region."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from cml_engine.demo_game.arrays import Array
from cml_engine.demo_game.bake.planet import Planet
from cml_engine.demo_game.world.overhead import SIDE, overhead
from cml_engine.demo_game.world.tile import TileId
from cml_engine.io import write_atomically

#: the largest side of a map in pixels
_MOST = 2048


def write_picture(planet: Planet, path: Path) -> tuple[int, int]:
    """Writes a map of the planet's region as a PNG; returns its width and height in pixels."""
    pixels = picture(planet)
    write_atomically(path, lambda file: Image.fromarray(pixels).save(file, "PNG"))
    return pixels.shape[1], pixels.shape[0]


def picture(planet: Planet, max_side: int = _MOST) -> Array:
    """Returns a map of the region, uint8 (height, width, 3); missing tiles are black.

    It shows the finest level whose map has sides of at most ``max_side`` pixels. If even the
    coarsest level is larger, its tiles are scaled down.
    """
    region = planet.region
    level = next(
        (n for n in region.levels if SIDE * max(map(len, region.rows(n))) <= max_side),
        region.coarsest,
    )
    rows, columns = region.rows(level)
    tile_side = max(1, min(SIDE, max_side // max(len(rows), len(columns))))
    pixels = np.zeros((tile_side * len(rows), tile_side * len(columns), 3), np.uint8)
    samples = np.linspace(0, SIDE - 1, tile_side).round().astype(int)
    for down, z in enumerate(rows):
        for right, x in enumerate(columns):
            arrays = planet.seen(TileId(level, x, z))
            tile = overhead(arrays["height"], arrays["shading"], arrays["albedo"])
            area = np.s_[
                down * tile_side : (down + 1) * tile_side,
                right * tile_side : (right + 1) * tile_side,
            ]
            pixels[area] = tile[samples][:, samples]
    return pixels
