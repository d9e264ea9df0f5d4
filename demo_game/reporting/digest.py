"""A hash of the world that was made: the same for any budget, policy and frame rate."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from demo_game.agents import TileJobs
from demo_game.chain import INSTANCES, TEXELS, kept_names
from demo_game.world.tile import TileId


class Digests:
    """Reads finished tiles back, over the frames that it takes, and hashes them."""

    def __init__(self) -> None:
        self.of: dict[TileId, str] = {}
        self._reading: list[TileJobs] = []

    def take(self, made: TileJobs) -> None:
        """A tile that is done; its jobs are released when they have been read."""
        self._reading.append(made)

    def poll(self) -> None:
        """Hash what has arrived; call once a frame."""
        for made in list(self._reading):
            if self._read(made):
                made.release()
                self._reading.remove(made)

    def _read(self, made: TileJobs) -> bool:
        sources = {**TEXELS, **INSTANCES}
        names = kept_names(made.tile)
        # ask for all of them, then look whether all are there
        arrays = [made.jobs[sources[name]].read(name) for name in names]
        if any(array is None for array in arrays):
            return False
        hasher = hashlib.sha256()
        for array in arrays:
            hasher.update(array.tobytes())
        self.of[made.tile] = hasher.hexdigest()
        return True

    @property
    def pending(self) -> bool:
        """Whether something is still on its way."""
        return bool(self._reading)

    def world(self, tiles: Iterable[TileId]) -> str:
        """One hash of these tiles. :class:`KeyError` where one was never made."""
        hasher = hashlib.sha256()
        for tile in sorted(tiles):
            hasher.update(f"{tile} {self.of[tile]}".encode())
        return hasher.hexdigest()[:16]
