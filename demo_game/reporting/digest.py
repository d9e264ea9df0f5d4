"""Hashes the world that a game computed.

The hash is the same for any budget, policy and frame rate. For the integer world it is the same on
every machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

import numpy as np

from cml_engine.demo_game.agents import TileJobs
from cml_engine.demo_game.arrays import Array
from cml_engine.demo_game.chain import DRAWN, Chain
from cml_engine.demo_game.flight import Pose
from cml_engine.demo_game.tile_maker import TileMaker
from cml_engine.demo_game.world.exact_noise import WORLD_VERSION
from cml_engine.demo_game.world.quadtree import Detail, fit_detail, select
from cml_engine.demo_game.world.tile import TileId
from cml_engine.integer import RULE_VERSION, model_digest

#: factor that makes a network's floats integers: they are integers times powers of two
_WORDS = 256


def digest_of(tensors: Iterable[Array]) -> str:
    """Returns the SHA-256 of the tensors' bytes, in their order, as hexadecimal text."""
    hasher = hashlib.sha256()
    for tensor in tensors:
        hasher.update(tensor.tobytes())
    return hasher.hexdigest()


def words_of(tensor: Array) -> Array:
    """Returns a tensor of an integer world's tile as int32.

    Floats are scaled to the integers they hold.
    """
    if tensor.dtype.kind != "f":
        return tensor.astype("<i4")
    return (tensor * np.float32(_WORDS)).astype("<i4")


def tile_digest(chain: Chain, tile: TileId, read: Callable[[str], Array]) -> str:
    """Returns the digest of a whole tile; ``read`` returns a tensor of the tile by name."""
    tensors = [read(name) for name in chain.list_digest_tensors(tile)]
    return digest_of(map(words_of, tensors) if chain.exact else tensors)


@lru_cache(maxsize=4)
def rules_of(chain: Chain) -> tuple[str, ...]:
    """Returns lines that determine the integer world besides its seed.

    They have versions and the networks' digests.
    """
    names = (name for name in chain.graphs if name not in DRAWN)
    models = (f"{name} {model_digest(chain.graphs[name]).hex()}" for name in sorted(names))
    return (f"integer rule {RULE_VERSION}", f"world {WORLD_VERSION}", *models)


def world_hash(chain: Chain, seed: int, digests: Mapping[TileId, str]) -> str:
    """Returns one hash of the tiles' digests, which does not depend on their order.

    For the integer world it is the whole SHA-256, which covers the rules and the seed too.
    """
    hasher = hashlib.sha256()
    if chain.exact:
        hasher.update("\n".join((*rules_of(chain), f"seed {seed}\n")).encode())
    for tile in sorted(digests):
        hasher.update(f"{tile} {digests[tile]}".encode())
    return f"sha256:{hasher.hexdigest()}" if chain.exact else hasher.hexdigest()[:16]


class Digests:
    """Reads finished tiles back from the GPU over several frames, and hashes them."""

    def __init__(self, chain: Chain, seed: int) -> None:
        self.of: dict[TileId, str] = {}
        self._chain, self._seed = chain, seed
        self._reading: list[TileJobs] = []

    def take(self, tile_jobs: TileJobs) -> None:
        """Queues a finished tile to be hashed; its jobs are released when they have been read."""
        self._reading.append(tile_jobs)

    def poll(self) -> None:
        """Hashes the tiles whose tensors have arrived, and releases them; call it once a frame."""
        for tile_jobs in list(self._reading):
            if self._read(tile_jobs):
                tile_jobs.release()
                self._reading.remove(tile_jobs)

    def _read(self, tile_jobs: TileJobs) -> bool:
        if tile_jobs.digest:
            self.of[tile_jobs.tile] = tile_jobs.digest
            return True
        names = self._chain.list_digest_tensors(tile_jobs.tile)
        # every read starts a readback, so all must be called before the check
        reads = [(name, tile_jobs.read(name)) for name in names]
        arrays = {name: array for name, array in reads if array is not None}
        if len(arrays) < len(names):
            return False
        self.of[tile_jobs.tile] = tile_digest(self._chain, tile_jobs.tile, arrays.__getitem__)
        return True

    @property
    def pending(self) -> bool:
        """True if a queued tile has not been hashed yet."""
        return bool(self._reading)

    def world(self, tiles: Iterable[TileId]) -> str:
        """Returns one hash of these tiles; raises :class:`KeyError` if one was never hashed."""
        return world_hash(self._chain, self._seed, {tile: self.of[tile] for tile in tiles})


# -- the same world from different runs and backends


def tiles_of_picture(pose: Pose, seed: int, detail: Detail, max_tiles: int) -> list[TileId]:
    """Returns the tiles that are drawn from a pose when all tiles are generated.

    The detail is reduced until drawing needs at most ``max_tiles`` tiles.
    """
    detail = fit_detail(pose.position, seed, detail, max_tiles)
    return select(pose.position, seed, detail, lambda tile: True).draw


def world_on_cpu(
    chain: Chain,
    seed: int,
    tiles: Iterable[TileId],
    report: Callable[[str], object] = lambda text: None,
) -> str:
    """Computes the tiles with NumPy and returns the hash of their world.

    ``report`` is called with the progress after every 32 tiles.
    """
    maker, all_tiles, digests = TileMaker(chain, "cpu"), list(tiles), {}
    for tile in all_tiles:
        tensors = maker.make(
            tile, seed, names=[n for n in chain.sessions_for(tile) if n not in DRAWN]
        )
        digests[tile] = tile_digest(chain, tile, tensors.__getitem__)
        if len(digests) % 32 == 0:
            report(f"on the CPU: {len(digests)} of {len(all_tiles)} tiles")
    return world_hash(chain, seed, digests)


def compare_worlds(worlds: Mapping[str, str]) -> tuple[str, bool]:
    """Returns a text about the worlds' hashes (by run), and True if all hashes are equal."""
    if len(set(worlds.values())) == 1:
        return f"world {next(iter(worlds.values()))} ({', '.join(worlds)})", True
    lines = [f"  {name:20s} {world}" for name, world in worlds.items()]
    return "\n".join(["WORLDS DIFFER:", *lines]), False
