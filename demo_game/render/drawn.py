"""The tiles as the renderer draws them, updated only when tiles come and go."""

from __future__ import annotations

from collections.abc import Iterable

from demo_game.render.renderer import VisibleTile
from demo_game.streaming import Streaming
from demo_game.world.quadtree import Detail
from demo_game.world.tile import TileId


class DrawnTiles:
    """Tiles as the renderer takes them."""

    def __init__(self, streaming: Streaming) -> None:
        self._streaming = streaming
        #: those that stay as they are until others come or go
        self._settled: dict[TileId, VisibleTile] = {}
        self._settled_at: tuple[int, Detail] | None = None

    def of(self, tiles: Iterable[TileId], detail: Detail, now_s: float) -> list[VisibleTile]:
        """These, without those whose slot was taken for another since."""
        at = self._streaming.changes, detail
        if self._settled_at != at:
            self._settled_at = at
            self._settled.clear()
        known = self._settled
        found = [known.get(tile) or self._look(tile, detail, now_s) for tile in tiles]
        return [visible for visible in found if visible is not None]

    def _look(self, tile: TileId, detail: Detail, now_s: float) -> VisibleTile | None:
        shown, parent = self._streaming.drawn(tile), self._streaming.drawn(tile.parent)
        if shown is None:
            return None
        near_m, far_m = detail.range_m(tile.level)
        fade = self._streaming.fade(tile, now_s) if parent else 0.0
        parent_slot = parent.slot if parent else shown.slot
        found = VisibleTile(tile, shown.slot, parent_slot, near_m, far_m, fade)
        if fade == 0.0:
            self._settled[tile] = found
        return found
