"""Lockstep: two players compute each tick's tile and stop at the first difference."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

import cml_engine as cml
from cml_engine.demo_game.arrays import Array
from cml_engine.demo_game.chain import DRAWN
from cml_engine.demo_game.lockstep.connection import Connection
from cml_engine.demo_game.reporting.digest import rules_of, tile_digest
from cml_engine.demo_game.tile_maker import TileMaker
from cml_engine.demo_game.world.tile import MAX_LEVEL, TileId

#: seconds between two lines about the progress
_SAY_EVERY_S = 30.0


#: distance from the origin, in tiles of level 0, of most of the tour, and of its far tiles
_NEAR, _FAR = 1 << 12, 1 << 25
#: every eighth tick is far away
_FAR_EVERY = 8


def tile_at(seed: int, tick: int) -> TileId:
    """Returns the tile of a tick: levels in turn, at pseudo-random positions.

    Every eighth tick may lie anywhere up to the ends of the world, the others within a smaller
    area.
    """
    noise = hashlib.sha256(f"tour {seed} {tick}".encode()).digest()
    level = tick % (MAX_LEVEL + 1)
    limit = (_FAR if tick % _FAR_EVERY == _FAR_EVERY - 1 else _NEAR) >> level
    x, z = (int.from_bytes(noise[k : k + 8], "little") % (2 * limit) - limit for k in (0, 8))
    return TileId(level, x, z)


@dataclass(frozen=True)
class Player:
    """One of the two players: its tile maker, its device's name and the world's seed."""

    maker: TileMaker
    device: str
    seed: int

    def hello(self) -> dict[str, object]:
        """Returns the first line to exchange: the seed, the tiles' rules, and the device."""
        rules = dict(line.rsplit(" ", 1) for line in rules_of(self.maker.chain))
        return {"seed": self.seed, **rules, "device": self.device}

    def stages(self, tile: TileId) -> tuple[str, dict[str, str]]:
        """Computes a tile.

        Returns its digest and a digest of each network's outputs, in execution order.
        """
        chain = self.maker.chain
        names = [name for name in chain.sessions_for(tile) if name not in DRAWN]
        digests: dict[str, str] = {}
        tensors: dict[str, Array] = {}
        for name in names:
            hasher = hashlib.sha256()
            tensors |= self.maker.make(tile, self.seed, names=[name], computed=tensors)
            for output in chain.graphs[name].outputs:
                hasher.update(np.ascontiguousarray(tensors[output]).tobytes())
            digests[name] = hasher.hexdigest()
        return tile_digest(chain, tile, tensors.__getitem__), digests


@dataclass
class Lockstep:
    """The result so far: equal ticks and stages, a running hash, the first difference.

    ``other`` is the other player's device.
    """

    ticks: int = 0
    stages: int = 0
    other: str = ""
    state: str = ""
    difference: str = ""


def play(
    player: Player,
    connection: Connection,
    last: Callable[[int], bool],
    first: int = 0,
    report: Callable[[str], object] = lambda text: None,
) -> Lockstep:
    """Computes the tile of each tick and compares it with the other player's.

    Ends once ``last(tick)`` is True for one of them, or a tile differs.

    Returns the result. Raises :class:`cml.InputError` if the other player has another world.
    ``report`` is called now and then with a line about the progress.
    """
    own_hello = player.hello()
    other_hello = connection.exchange(own_hello)
    _check_same(own_hello, other_hello)
    result, tick = Lockstep(other=str(other_hello.get("device"))), first
    reported_s = time.monotonic()
    while not result.difference:
        tile = tile_at(player.seed, tick)
        digest, stages = player.stages(tile)
        state = hashlib.sha256(f"{result.state} {tile} {digest}".encode()).hexdigest()
        mine: dict[str, object] = {
            "tick": tick, "digest": digest, "stages": stages, "state": state, "last": last(tick)
        }  # fmt: skip
        theirs = connection.exchange(mine)
        result.difference = _difference(player, result.other, tile, mine, theirs)
        if result.difference:
            break
        result.state = state
        result.ticks, result.stages = result.ticks + 1, result.stages + len(stages)
        if mine["last"] or theirs.get("last"):
            break
        if time.monotonic() - reported_s > _SAY_EVERY_S:
            reported_s = time.monotonic()
            report(f"tick {tick}, no difference in {result.stages} stages of {result.ticks} tiles")
        tick += 1
    return result


def _check_same(own_hello: Mapping[str, object], other_hello: Mapping[str, object]) -> None:
    for name in own_hello:
        if name != "device" and own_hello[name] != other_hello.get(name):
            subject = name if name in ("seed", "world", "integer rule") else f"network '{name}'"
            raise cml.InputError(
                f"the other player has another {subject}: {own_hello[name]} here, "
                f"{other_hello.get(name)} there. Start both with the same --seed, "
                "--models and version"
            )


def _difference(
    player: Player,
    other_device: str,
    tile: TileId,
    mine: Mapping[str, object],
    theirs: Mapping[str, object],
) -> str:
    """Describes the first difference of two ticks; "" if they are equal."""
    keys = ("tick", "digest", "stages", "state")
    if all(mine[key] == theirs.get(key) for key in keys):
        return ""
    own_stages, other_stages = _stages(mine), _stages(theirs)
    name = next((n for n in own_stages if own_stages[n] != other_stages.get(n)), "")
    own_value, other_value = mine["state"], theirs.get("state")
    if name:
        own_value, other_value = own_stages[name], other_stages.get(name)
    return (
        f"tick {mine['tick']}, tile {tile}: '{name or 'state'}' is the first that differs\n"
        f"  here  ({player.device}) {own_value}\n"
        f"  there ({other_device}) {other_value}\n"
        f"Next: that tile again on both, --seed {player.seed} --first {mine['tick']} --ticks 1; "
        f"then every tensor of '{name or 'state'}': cml validate MODEL --integer"
    )


def _stages(line: Mapping[str, object]) -> Mapping[str, object]:
    stages = line.get("stages")
    return stages if isinstance(stages, Mapping) else {}
