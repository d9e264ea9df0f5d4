"""Chooses the tile of each tick as a function of seed and tick, in integers only."""

from __future__ import annotations

import hashlib

from demo_game.world.tile import MAX_LEVEL, TileId

#: distance from the origin, in tiles of level 0, of most of the tour, and of its far tiles
_NEAR, _FAR = 1 << 12, 1 << 25
#: every eighth tick is far away
_FAR_EVERY = 8


def tile_at(seed: int, tick: int) -> TileId:
    """Returns the tile of a tick: levels in turn, at pseudo-random positions.

    Every eighth tick may lie anywhere up to the ends of the world, the others within a smaller
    area.
    """
    found = hashlib.sha256(f"tour {seed} {tick}".encode()).digest()
    level = tick % (MAX_LEVEL + 1)
    reach = (_FAR if tick % _FAR_EVERY == _FAR_EVERY - 1 else _NEAR) >> level
    x, z = (int.from_bytes(found[k : k + 8], "little") % (2 * reach) - reach for k in (0, 8))
    return TileId(level, x, z)
