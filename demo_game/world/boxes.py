"""Keeps the boxes of a selection's tiles as arrays, to test in every frame which are in view."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from demo_game.world.bounds import box
from demo_game.world.quadtree import Selection
from demo_game.world.tile import TileId

Array = np.ndarray[Any, Any]


class Viewer(Protocol):
    """The interface of a camera that can test boxes."""

    def sees_boxes(self, centre: Array, half: Array) -> Array:
        """Returns a bool array: True for each box (centre, half sides) that may be in view."""


class Boxes:
    """Tiles and their boxes, as centres and half sides in metres ``[n, 3]``."""

    def __init__(self, tiles: Iterable[TileId], seed: int) -> None:
        self.tiles = list(tiles)
        corners = np.array([box(tile, seed) for tile in self.tiles]).reshape(-1, 2, 3)
        self._centre = corners.mean(1)
        self._half = corners[:, 1] - self._centre

    def in_view(self, camera: Viewer, mirrored: bool = False) -> list[TileId]:
        """Returns the tiles that may be in view.

        With ``mirrored`` also those in the sea's reflection.
        """
        seen = camera.sees_boxes(self._centre, self._half)
        if mirrored:
            seen |= camera.sees_boxes(self._centre * (1, -1, 1), self._half)
        return [tile for tile, visible in zip(self.tiles, seen, strict=True) if visible]


class Surroundings:
    """The boxes of the tiles that a selection draws and wants."""

    def __init__(self, selection: Selection, seed: int) -> None:
        self._selection, self._seed = selection, seed
        self._draw = Boxes(selection.draw, seed)

    def drawn_in_view(self, camera: Viewer, mirrored: bool = False) -> list[TileId]:
        """Returns the tiles to draw that may be in view.

        With ``mirrored`` also the reflected ones.
        """
        return self._draw.in_view(camera, mirrored)

    def tiles_in_view(self, camera: Viewer) -> frozenset[TileId]:
        """Returns the tiles to generate that may be in view."""
        return frozenset(self._target_boxes.in_view(camera))

    @cached_property
    def _target_boxes(self) -> Boxes:
        return Boxes(self._selection.wanted, self._seed)
