"""The tiles of a bake: a rectangle of the finest level, and the coarser tiles that cover it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import cml_engine as cml
from cml_engine.demo_game.world.tile import MAX_LEVEL, TileId

#: the farthest tile of level 0 from the origin: cells are numbered by 32-bit integers
_FURTHEST = 1 << 24


@dataclass(frozen=True)
class Region:
    """The tiles of a bake: a rectangle on the finest level and the coarser tiles above it.

    On level ``finest`` it has the tiles from ``x0`` to ``x1`` and ``z0`` to ``z1``, ends
    excluded. On each level up to ``coarsest`` it has the tiles that cover this rectangle.
    """

    x0: int
    x1: int
    z0: int
    z1: int
    finest: int
    coarsest: int

    @property
    def levels(self) -> range:
        """The levels from the finest to the coarsest, both included."""
        return range(self.finest, self.coarsest + 1)

    def rows(self, level: int) -> tuple[range, range]:
        """Returns the tiles' coordinates on a level: the range along z, then the range along x."""
        size = 1 << (level - self.finest)

        def covered(first: int, end: int) -> range:
            return range(first // size, -(-end // size))

        return covered(self.z0, self.z1), covered(self.x0, self.x1)

    def has(self, tile: TileId) -> bool:
        """Returns True if the tile belongs to the region."""
        if tile.level not in self.levels:
            return False
        z, x = self.rows(tile.level)
        return tile.z in z and tile.x in x

    def tiles(self) -> Iterator[TileId]:
        """Yields all tiles of the region: coarsest level first, and each level row by row."""
        for level in reversed(self.levels):
            zs, xs = self.rows(level)
            yield from (TileId(level, x, z) for z in zs for x in xs)

    @property
    def text(self) -> str:
        """The rectangle as the text ``X0:X1,Z0:Z1`` that ``--region`` takes."""
        return f"{self.x0}:{self.x1},{self.z0}:{self.z1}"


def region_of(region: str, levels: str) -> Region:
    """Parses ``X0:X1,Z0:Z1`` and ``A:B`` (or ``A``) into a region.

    Raises :class:`cml.InputError` if a text is not valid.
    """
    number = r"([+-]?\d{1,9})"
    corners = re.fullmatch(rf"{number}:{number},{number}:{number}", region.strip())
    if corners is None:
        raise cml.InputError(
            f"--region '{region}': wanted X0:X1,Z0:Z1 in tiles of the finest level, such as "
            "0:8,-4:4"
        )
    x0, x1, z0, z1 = map(int, corners.groups())
    level_range = re.fullmatch(r"(\d{1,3})(?::(\d{1,3}))?", levels.strip())
    if level_range is None:
        raise cml.InputError(f"--levels '{levels}': wanted A:B, both included, such as 0:5")
    finest = int(level_range[1])
    coarsest = finest if level_range[2] is None else int(level_range[2])
    if not finest <= coarsest <= MAX_LEVEL:
        raise cml.InputError(
            f"--levels '{levels}': wanted the finest first, and none beyond {MAX_LEVEL}"
        )
    for low, high, axis in ((x0, x1, "X"), (z0, z1, "Z")):
        if low >= high:
            raise cml.InputError(
                f"--region '{region}': {axis}0 must be less than {axis}1, which is not included"
            )
        limit = _FURTHEST >> finest
        if not -limit <= low < high <= limit:
            raise cml.InputError(
                f"--region '{region}': the world ends at {limit:,} tiles of level {finest}"
            )
    return Region(x0, x1, z0, z1, finest, coarsest)
