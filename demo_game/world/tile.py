"""Tiles: the squares that the world is made of, and the grids on them.

A tile of level ``L`` has ``CELLS`` x ``CELLS`` cells of ``4 * 2**L`` metres; four tiles of the
level below cover it. Positions on a tile are cell coordinates: 0 at its north-west corner,
``CELLS`` at the other. Cells of a level are numbered over the whole world, by integers, so nothing
loses precision far from the origin.

Every grid has an apron, cells beyond the tile's edge, wide enough that whatever is computed from
it is the same on both sides of an edge: that is why neighbours meet without seams.

============  ============  =======================================================================
grid          samples       position of sample ``i`` of a row, in cells
============  ============  =======================================================================
``COARSE``    36 x 36       ``4 * i - 44``
``WIDE``      96 x 96       ``i - 20``
``FINE``      64 x 64       ``i - 4``
``PAINTED``   128 x 128     ``i / 2 - 4.25``
============  ============  =======================================================================

So ``FINE`` and ``PAINTED``, as textures, both cover [-4.5, 59.5]: ``uv = (position + 4.5) / 64``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

CELLS = 56
#: metres per cell at level 0
CELL_M = 4.0
#: cells per coarse sample: the factor by which the upres agent refines heights
SCALE = 4
FINE, FINE_APRON = 64, 4
WIDE, WIDE_APRON = 96, 20
COARSE, COARSE_APRON = 36, 44
PAINTED = 128
#: the coarsest level, with the largest tiles
MAX_LEVEL = 6


class TileId(NamedTuple):
    """A tile's identity: its level and its position on that level (``x`` east, ``z`` south)."""

    level: int
    x: int
    z: int

    @property
    def cell_m(self) -> float:
        """The side of a cell in metres."""
        return CELL_M * 2.0**self.level

    @property
    def span_m(self) -> float:
        """The side of the tile in metres."""
        return CELLS * self.cell_m

    @property
    def origin(self) -> tuple[float, float]:
        """The world position (x, z) of the tile's north-west corner, in metres."""
        return self.x * self.span_m, self.z * self.span_m

    @property
    def first_cell(self) -> tuple[int, int]:
        """The number (x, z) of the tile's north-west cell among all cells of its level."""
        return self.x * CELLS, self.z * CELLS

    @property
    def parent(self) -> TileId:
        """The tile of the next coarser level that covers this tile."""
        return TileId(self.level + 1, self.x >> 1, self.z >> 1)

    @property
    def children(self) -> tuple[TileId, TileId, TileId, TileId]:
        """The four finer tiles that cover this tile, in the order NW, NE, SW, SE."""
        return _children(self)

    def __str__(self) -> str:
        return f"L{self.level} ({self.x}, {self.z})"


@lru_cache(maxsize=4096)
def _children(tile: TileId) -> tuple[TileId, TileId, TileId, TileId]:
    level, x, z = tile.level - 1, 2 * tile.x, 2 * tile.z
    return (
        TileId(level, x, z),
        TileId(level, x + 1, z),
        TileId(level, x, z + 1),
        TileId(level, x + 1, z + 1),
    )
