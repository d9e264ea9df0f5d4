"""Grass near the camera: a square of tufts that moves with it, drawn once for each tile below."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from demo_game.render.mesh import TILE_BYTES
from demo_game.world.tile import TileId

#: metres to the furthest tuft, tufts along a metre, vertices of a tuft
GRASS_M, _DENSITY, _VERTICES = 40, 3.2, 12
#: macros of the shader
DEFINES: dict[str, int | str] = {"GRASS_M": GRASS_M, "GRASS_DENSITY": str(_DENSITY)}


def has_grass(tile: TileId, away: float) -> bool:
    """Returns True if grass of a tile ``away`` metres from the camera may be visible."""
    return tile.level == 0 and away < GRASS_M


def draw_grass(render: Any, tiles: Any, rows: Iterable[int]) -> None:
    """Draws the grass of the tiles in these rows of the tile buffer, into a render pass."""
    across = int(2 * GRASS_M * _DENSITY)
    for row in rows:
        at = tiles.offset + row * TILE_BYTES
        render.set_vertex_buffer(0, tiles.buffer, at, TILE_BYTES)
        render.draw(_VERTICES, across * across)
