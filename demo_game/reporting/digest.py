"""A hash of the world that was made: the same for any budget, policy and frame rate."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from demo_game.agents import MadeTile
from demo_game.chain import kept_names
from demo_game.world.tile import TileId


def digest_of(tensors: Iterable[np.ndarray[Any, Any]]) -> str:
    """A tile's: of the tensors that are shown of it, in their order (``kept_names``)."""
    hasher = hashlib.sha256()
    for tensor in tensors:
        hasher.update(tensor.tobytes())
    return hasher.hexdigest()


class Digests:
    """Reads finished tiles back, over the frames that it takes, and hashes them."""

    def __init__(self) -> None:
        self.of: dict[TileId, str] = {}
        self._reading: list[MadeTile] = []

    def take(self, made: MadeTile) -> None:
        """A tile that is done; its jobs are released when they have been read."""
        self._reading.append(made)

    def poll(self) -> None:
        """Hash what has arrived; call once a frame."""
        for made in list(self._reading):
            if self._read(made):
                made.release()
                self._reading.remove(made)

    def _read(self, made: MadeTile) -> bool:
        # ask for all of them, then look whether all are there
        arrays = [made.read(name) for name in kept_names(made.tile)]
        if any(array is None for array in arrays):
            return False
        self.of[made.tile] = digest_of(arrays)
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
