"""Compares the integer worlds that runs and backends made of the same tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from demo_game.chain import DRAWN, Chain
from demo_game.flight import Pose
from demo_game.maker import TileMaker
from demo_game.reporting.digest import tile_digest, world_hash
from demo_game.world.quadtree import Detail, fit_detail, select
from demo_game.world.tile import TileId


def tiles_of_picture(pose: Pose, seed: int, detail: Detail, most: int) -> list[TileId]:
    """Returns the tiles that are drawn from a pose when all tiles are generated.

    The detail is reduced until drawing needs at most ``most`` tiles.
    """
    detail = fit_detail(pose.position, seed, detail, most)
    return select(pose.position, seed, detail, lambda tile: True).draw


def world_on_cpu(
    chain: Chain,
    seed: int,
    tiles: Iterable[TileId],
    said: Callable[[str], object] = lambda text: None,
) -> str:
    """Computes the tiles with NumPy and returns the hash of their world.

    ``said`` is called with the progress after every 32 tiles.
    """
    maker, wanted, found = TileMaker(chain, "cpu"), list(tiles), {}
    for tile in wanted:
        made = maker.make(tile, seed, names=[n for n in chain.sessions_for(tile) if n not in DRAWN])
        found[tile] = tile_digest(chain, tile, made.__getitem__)
        if len(found) % 32 == 0:
            said(f"on the CPU: {len(found)} of {len(wanted)} tiles")
    return world_hash(chain, seed, found)


def compare_worlds(worlds: Mapping[str, str]) -> tuple[str, bool]:
    """Returns a text about the worlds' hashes (by run), and True if all hashes are equal."""
    if len(set(worlds.values())) == 1:
        return f"world {next(iter(worlds.values()))} ({', '.join(worlds)})", True
    lines = [f"  {name:20s} {world}" for name, world in worlds.items()]
    return "\n".join(["WORLDS DIFFER:", *lines]), False
