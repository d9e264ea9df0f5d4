"""Keeps the boxes of tiles as arrays, to test in every frame which are in view."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from demo_game.arrays import Array
from demo_game.world.bounds import box
from demo_game.world.tile import TileId


class Boxes:
    """Tiles and their boxes, as centres and half sides in metres ``[n, 3]``."""

    def __init__(self, tiles: Iterable[TileId], seed: int) -> None:
        self.tiles = list(tiles)
        corners = np.array([box(tile, seed) for tile in self.tiles]).reshape(-1, 2, 3)
        self._centre = corners.mean(1)
        self._half = corners[:, 1] - self._centre

    def in_view(
        self, sees_boxes: Callable[[Array, Array], Array], mirrored: bool = False
    ) -> list[TileId]:
        """Returns the tiles that may be in view of a camera with this method ``sees_boxes``.

        With ``mirrored`` also those in the sea's reflection.
        """
        seen = sees_boxes(self._centre, self._half)
        if mirrored:
            seen |= sees_boxes(self._centre * (1, -1, 1), self._half)
        return [tile for tile, visible in zip(self.tiles, seen, strict=True) if visible]
