"""Keeps tiles in the renderer's form, and updates them only when tiles come or go."""

from __future__ import annotations

from collections.abc import Iterable

from cml_engine.demo_game.render.renderer import EDGE_STEPS, NEIGHBOURS, VisibleTile
from cml_engine.demo_game.streaming import Streaming
from cml_engine.demo_game.world.quadtree import Detail, Selection
from cml_engine.demo_game.world.tile import TileId


class DrawnTiles:
    """Makes a :class:`VisibleTile` of each tile to draw, and caches those that do not change."""

    def __init__(self, streaming: Streaming) -> None:
        self._streaming = streaming
        #: cached tiles that do not change until others come or go
        self._settled: dict[TileId, VisibleTile] = {}
        self._settled_at: tuple[int, int, Detail] | None = None
        #: all tiles that are drawn, those of them that are coarser than they should be, and the
        #: highest level of the latter
        self._drawn: set[TileId] = set()
        self._coarse: set[TileId] = set()
        self._highest = -1

    def list_visible(
        self, tiles: Iterable[TileId], selection: Selection, detail: Detail, now_s: float
    ) -> list[VisibleTile]:
        """Returns the tiles as the renderer draws them.

        Leaves out tiles whose slot another tile has taken.
        """
        settled_at = self._streaming.changes, id(selection), detail
        if self._settled_at != settled_at:
            self._settled_at = settled_at
            self._settled.clear()
            self._drawn, self._coarse = set(selection.draw), selection.coarse
            self._highest = max((tile.level for tile in selection.coarse), default=-1)
        settled = self._settled
        drawn = [settled.get(tile) or self._make_visible(tile, detail, now_s) for tile in tiles]
        return [visible for visible in drawn if visible is not None]

    def _make_visible(self, tile: TileId, detail: Detail, now_s: float) -> VisibleTile | None:
        tile_slot, parent = self._streaming.drawn(tile), self._streaming.drawn(tile.parent)
        if tile_slot is None:
            return None
        near_m, far_m = detail.range_m(tile.level)
        fade, edges, fading = 0.0, 0, False
        if parent:
            fade = self._streaming.fade(tile, now_s)
            edges, fading = self._edges(tile, now_s)
        parent_slot = parent.slot if parent else tile_slot.slot
        visible = VisibleTile(tile, tile_slot.slot, parent_slot, near_m, far_m, fade, edges)
        if fade == 0.0 and not fading:
            self._settled[tile] = visible
        return visible

    def _edges(self, tile: TileId, now_s: float) -> tuple[int, bool]:
        """Returns four-bit weights of the edges and corners, and True while a neighbour fades in.

        A weight says how far the edge or corner takes the parent's shape, so that it meets a
        neighbour that is coarser or fading in.
        """
        edges, fading = 0, False
        for index, (dx, dz) in enumerate(NEIGHBOURS):
            neighbour = TileId(tile.level, tile.x + dx, tile.z + dz)
            if neighbour in self._drawn:
                weight = self._streaming.fade(neighbour, now_s)
                fading = fading or weight > 0.0
            else:
                weight = float(self._is_coarse(neighbour))
            edges |= round(EDGE_STEPS * weight) << 4 * index
        return edges, fading

    def _is_coarse(self, tile: TileId) -> bool:
        """Returns True if an ancestor that is coarser than it should be is drawn in its place."""
        level, x, z = tile
        above = range(level + 1, self._highest + 1)
        return any((up, x >> up - level, z >> up - level) in self._coarse for up in above)
