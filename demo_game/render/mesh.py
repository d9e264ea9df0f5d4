"""The grid that every tile is drawn with."""

from __future__ import annotations

from typing import Any

import numpy as np

from demo_game.world.tile import CELLS

Array = np.ndarray[Any, Any]

#: bytes of a tile in the buffer of the tiles in view
TILE_BYTES = 48


def find_coarser_step(step: int) -> int:
    """The next step of which a mesh can be made; the coarsest is its own."""
    return next((more for more in range(step + 1, 8) if (CELLS // 2) % more == 0), step)


def grid(step: int) -> tuple[Array, Array]:
    """Vertices (n, 8) of bytes and triangles (m, 3) of 16-bit indices.

    A vertex is its cell ``x, z``, how many cells it hangs down where it is the lower end of a skirt
    (else 0), 0, and the two cells of
    the coarser level, counted from the tile's quadrant, whose mean height it moves to: that level
    has every other vertex, and what lies between is on the edges or diagonals of its triangles.
    """
    if (CELLS // 2) % step:
        raise ValueError(f"mesh step: wanted a divisor of {CELLS // 2}, got {step}")
    count = CELLS // step + 1
    k = np.arange(count)
    kz, kx = np.meshgrid(k, k, indexing="ij")
    ring = _edge_vertices(count)
    places = np.concatenate([np.stack([kx.ravel(), kz.ravel()], 1), ring])
    skirt = np.arange(len(places)) >= count * count
    vertices = np.zeros((len(places), 8), np.uint8)
    vertices[:, :2] = places * step
    vertices[:, 2] = step * skirt
    vertices[:, 4:6] = places // 2 * step
    vertices[:, 6:8] = (places + 1) // 2 * step
    return vertices, np.concatenate([_squares(count), _skirts(ring, count)]).astype(np.uint16)


def _edge_vertices(count: int) -> Array:
    """The edge's vertices (x, z), once around, closed."""
    k, last = np.arange(count - 1), np.full(count - 1, count - 1)
    zero = np.zeros_like(k)
    sides = [(k, zero), (last, k), (last - k, last), (zero, last - k)]
    around = np.concatenate([np.stack(side, 1) for side in sides])
    return np.concatenate([around, around[:1]])


def _squares(count: int) -> Array:
    """Two triangles for each square, all divided along the same diagonal, (0, 0) to (1, 1)."""
    k = np.arange(count - 1)
    a = (k[:, None] * count + k).ravel()
    b, c, d = a + 1, a + count, a + count + 1
    return np.stack([np.stack([a, c, d], 1), np.stack([a, d, b], 1)], 1).reshape(-1, 3)


def _skirts(ring: Array, count: int) -> Array:
    """A strip that hangs down from the edge and hides what a neighbour leaves open."""
    upper = ring[:, 1] * count + ring[:, 0]
    lower = count * count + np.arange(len(ring))
    first = np.stack([upper[:-1], upper[1:], lower[1:]], 1)
    second = np.stack([upper[:-1], lower[1:], lower[:-1]], 1)
    return np.concatenate([first, second])
