"""Computes tiles one at a time, outside frames: on the CPU, or on an otherwise idle GPU.

It runs the same sessions as the game, so the tiles are bit-identical to the game's on that device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any

import cml_engine as cml
from cml_engine.demo_game.agents import tile_input
from cml_engine.demo_game.arrays import Array
from cml_engine.demo_game.chain import READS_TILE, Chain
from cml_engine.demo_game.world.tile import TileId

#: called with each node of a network and its results
Watch = Callable[[Any, Any], None]
Clock = Callable[[str], AbstractContextManager[Watch | None]]


def measure_nothing(activity: str) -> AbstractContextManager[None]:
    """Returns a context manager that does nothing; the default clock of a :class:`TileMaker`."""
    return nullcontext()


class TileMaker:
    """The sessions of a chain, in which each network reads the outputs of earlier ones.

    ``backend`` is ``"cpu"`` or a :class:`cml.Gpu`; ``device`` is its name.
    """

    def __init__(self, chain: Chain, backend: cml.Gpu | str) -> None:
        self.chain = chain
        self.device = "CPU (NumPy)" if isinstance(backend, str) else backend.name
        self.sessions = {name: cml.Session(graph, backend) for name, graph in chain.graphs.items()}

    def make(
        self,
        tile: TileId,
        seed: int,
        clock: Clock = measure_nothing,
        names: Sequence[str] | None = None,
        computed: Mapping[str, Array] = MappingProxyType({}),
    ) -> dict[str, Array]:
        """Computes a tile; returns all its tensors by name, with ``tile`` and ``computed``.

        ``clock`` times each session, and on the CPU its operators. ``names`` are the sessions to
        run; the default are those of the tile's level. ``computed`` are tensors that other sessions
        have computed.
        """
        tensors: dict[str, Array] = {**computed, "tile": tile_input(tile, seed)}
        for name in self.chain.sessions_for(tile) if names is None else names:
            reads = [*self.chain.sources[name], *(["tile"] if name in READS_TILE else [])]
            session = self.sessions[name]
            with clock(name) as watch:
                inputs = {tensor: tensors[tensor] for tensor in reads}
                tensors |= session.run(inputs, watch=None if session.gpu else watch)
        return tensors
