"""One tile after the other, without a frame: on the CPU, or on a GPU that has nothing else to do.

The same sessions as in the game, each with what it takes from the others, so the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any

import numpy as np

import cml_engine as cml
from demo_game.agents import tile_input
from demo_game.chain import READS_TILE, Chain
from demo_game.world.tile import TileId

Array = np.ndarray[Any, Any]
#: called with each node of a network and its results
Watch = Callable[[Any, Any], None]
Clock = Callable[[str], AbstractContextManager[Watch | None]]


def measure_nothing(activity: str) -> AbstractContextManager[None]:
    """Returns a context manager that measures nothing."""
    return nullcontext()


class TileMaker:
    """A session for each of the chain's networks; ``backend`` is ``"cpu"`` or a device."""

    def __init__(self, chain: Chain, backend: cml.Gpu | str) -> None:
        self.chain = chain
        self.sessions = {name: cml.Session(graph, backend) for name, graph in chain.graphs.items()}

    def make(
        self,
        tile: TileId,
        seed: int,
        clock: Clock = measure_nothing,
        names: Sequence[str] | None = None,
        given: Mapping[str, Array] = MappingProxyType({}),
    ) -> dict[str, Array]:
        """All tensors of a tile, by name. ``clock`` times each session, and on the CPU its
        operators; ``names`` are the sessions, where they are not those that a tile of its level
        has, and ``given`` what others have made of it."""
        made: dict[str, Array] = {**given, "tile": tile_input(tile, seed)}
        for name in self.chain.sessions_for(tile) if names is None else names:
            reads = [*self.chain.sources[name], *(["tile"] if name in READS_TILE else [])]
            session = self.sessions[name]
            with clock(name) as watch:
                taken = {tensor: made[tensor] for tensor in reads}
                made |= session.run(taken, watch=None if session.gpu else watch)
        return made
