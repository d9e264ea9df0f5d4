"""The vertices of tiles, plants and grass."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from cml_engine.demo_game.arrays import Array
from cml_engine.demo_game.render.binding import BufferPart
from cml_engine.demo_game.world.tile import CELLS, TileId

if TYPE_CHECKING:  # needs a GPU
    import wgpu

#: bytes per tile in the buffer of visible tiles
TILE_BYTES = 48


def find_coarser_step(step: int) -> int:
    """Returns the next larger step of which a mesh can be made; the same step if there is none."""
    return next((more for more in range(step + 1, 8) if (CELLS // 2) % more == 0), step)


def grid(step: int) -> tuple[Array, Array]:
    """Returns a tile's vertices, uint8 (n, 8), and triangles, 16-bit indices (m, 3).

    ``step``, the cells of a square, divides half a tile.
    The bytes of a vertex are: its cell ``x, z``; the cells that it hangs down if it is the lower
    end of a skirt (else 0); 0; and two cells ``x, z`` of the coarser level, counted from the
    tile's quadrant. The vertex moves to the mean height of these two cells. The coarser level
    has every other vertex, and those between lie on edges or diagonals of its triangles.
    """
    count = CELLS // step + 1
    k = np.arange(count)
    kz, kx = np.meshgrid(k, k, indexing="ij")
    ring = _edge_vertices(count)
    positions = np.concatenate([np.stack([kx.ravel(), kz.ravel()], 1), ring])
    skirt = np.arange(len(positions)) >= count * count
    vertices = np.zeros((len(positions), 8), np.uint8)
    vertices[:, :2] = positions * step
    vertices[:, 2] = step * skirt
    vertices[:, 4:6] = positions // 2 * step
    vertices[:, 6:8] = (positions + 1) // 2 * step
    return vertices, np.concatenate([_squares(count), _skirts(ring, count)]).astype(np.uint16)


def _edge_vertices(count: int) -> Array:
    """Returns the grid coordinates (x, z) of the vertices on the edge, once around.

    The last is the first.
    """
    k, last = np.arange(count - 1), np.full(count - 1, count - 1)
    zero = np.zeros_like(k)
    sides = [(k, zero), (last, k), (last - k, last), (zero, last - k)]
    ring = np.concatenate([np.stack(side, 1) for side in sides])
    return np.concatenate([ring, ring[:1]])


def _squares(count: int) -> Array:
    """Returns two triangles for each square, all divided along the diagonal (0, 0) to (1, 1)."""
    k = np.arange(count - 1)
    a = (k[:, None] * count + k).ravel()
    b, c, d = a + 1, a + count, a + count + 1
    return np.stack([np.stack([a, c, d], 1), np.stack([a, d, b], 1)], 1).reshape(-1, 3)


def _skirts(ring: Array, count: int) -> Array:
    """Returns the triangles of a strip that hangs down from the edge and hides gaps."""
    upper = ring[:, 1] * count + ring[:, 0]
    lower = count * count + np.arange(len(ring))
    first = np.stack([upper[:-1], upper[1:], lower[1:]], 1)
    second = np.stack([upper[:-1], lower[1:], lower[:-1]], 1)
    return np.concatenate([first, second])


# -- plants


def shapes(vertices: int) -> Array:
    """Returns the vertices, float32 (vertices, 6): x, y, z in a tree, then in a bush or rock.

    Radius and height are 1, the ground is at y = 0. ``vertices`` is 12 or 36.
    """
    tree = _fir(layers=vertices // 12, sides=4)
    clump = _double_pyramid(sides=vertices // 6) if vertices >= 18 else _fir(layers=1, sides=4)
    return np.concatenate([tree, clump], 1).astype(np.float32)


def _fir(layers: int, sides: int) -> Array:
    """Returns the triangle corners (n, 3) of stacked pyramids, the lowest the widest."""
    corners = []
    for layer in range(layers):
        share = layer / layers
        top = 1.0 if layer == layers - 1 else share + 0.75 * (1 - share)
        for side in range(sides):
            corners.append((0.0, top, 0.0))
            for end in (side, side + 1):
                angle = math.tau * (end / sides + 0.13 * layer)
                radius = 1 - 0.8 * share
                corners.append(
                    (radius * math.cos(angle), 0.1 + 0.82 * share, radius * math.sin(angle))
                )
    return np.array(corners)


def _double_pyramid(sides: int) -> Array:
    """Returns the triangle corners (n, 3) of two pyramids, one upside down, on an uneven ring."""
    corners = []
    for side in range(sides):
        for tip in (0.0, 1.0):
            corners.append((0.0, tip, 0.0))
            for end in (side, side + 1):
                angle = math.tau * end / sides
                corners.append((math.cos(angle), 0.42 + 0.1 * math.sin(3 * angle), math.sin(angle)))
    return np.array(corners)


# -- grass: a square of tufts that moves with the camera, drawn once for each tile below

#: metres to the furthest tuft, tufts along a metre, vertices of a tuft
GRASS_M, _DENSITY, _VERTICES = 40, 3.2, 12
GRASS_DEFINES: dict[str, int | str] = {"GRASS_M": GRASS_M, "GRASS_DENSITY": str(_DENSITY)}


def has_grass(tile: TileId, away: float) -> bool:
    """Returns True if grass of a tile ``away`` metres from the camera may be visible."""
    return tile.level == 0 and away < GRASS_M


def draw_grass(render: wgpu.GPURenderPassEncoder, tiles: BufferPart, rows: Iterable[int]) -> None:
    """Draws the grass of the tiles in these rows of the tile buffer, into a render pass."""
    across = int(2 * GRASS_M * _DENSITY)
    for row in rows:
        at = tiles.offset + row * TILE_BYTES
        render.set_vertex_buffer(0, tiles.buffer, at, TILE_BYTES)
        render.draw(_VERTICES, across * across)
