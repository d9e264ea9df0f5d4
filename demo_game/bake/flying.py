"""The game's tile source over a baked planet: it reads baked tiles and has all others computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import wgpu

import cml_engine as cml
from cml_engine import FrameScheduler, Job
from demo_game.agents import MadeTile, TileSource
from demo_game.bake.planet import Planet
from demo_game.world.tile import TileId

Array = np.ndarray[Any, Any]
OWNER = "planet"
#: number of reading threads: Zarr decompresses without the GIL
_READERS = 2


class PlanetTiles:
    """Tiles read from a baked planet; tiles that the planet lacks come from ``others``."""

    def __init__(self, gpu: cml.Gpu, planet: Planet, others: TileSource) -> None:
        self.gpu, self.planet, self.others = gpu, planet, others
        #: numbers of tiles that were read, and of tiles in the region that the store did not have
        self.read = self.missing = 0
        self._readers = ThreadPoolExecutor(_READERS, "planet")

    def submit(
        self, scheduler: FrameScheduler, tile: TileId, seed: int, priority: float, within_ms: float
    ) -> MadeTile:
        """Returns a tile that threads read, or one of ``others`` outside the baked region."""

        def make() -> MadeTile:
            return self.others.submit(scheduler, tile, seed, priority, within_ms)

        if not self.planet.has(tile):
            return make()
        return BakedTile(tile, self, self._readers.submit(self.planet.tensors, tile), make)

    def close(self) -> None:
        """Cancels reads that have not begun, and waits until the reading threads end."""
        self._readers.shutdown(wait=True, cancel_futures=True)


class BakedTile:
    """A tile that a thread reads from the store.

    If the store does not have it, it is computed after all.
    """

    def __init__(
        self,
        tile: TileId,
        source: PlanetTiles,
        reading: Future[Mapping[str, Array] | None],
        make: Callable[[], MadeTile],
    ) -> None:
        self.tile = tile
        self._source, self._reading, self._make = source, reading, make
        self._arrays: Mapping[str, Array] | None = None
        self._made: MadeTile | None = None
        self._memory: dict[str, Any] = {}

    def _look(self) -> MadeTile | None:
        """Takes the result of a finished read; returns the computed tile, or None if there is none.

        If the store lacks the tile, this submits its jobs.
        """
        if self._made is None and self._arrays is None and self._reading.done():
            found = None if self._reading.cancelled() else self._reading.result()
            if found is None:
                self._source.missing += 1
                self._made = self._make()
            else:
                self._source.read += 1
                self._arrays = found
        return self._made

    @property
    def jobs(self) -> Mapping[str, Job]:
        """The networks' jobs for this tile by name; empty unless the tile must be computed."""
        return self._made.jobs if self._made else {}

    @property
    def done(self) -> bool:
        """Returns True if the whole tile has been read or made."""
        made = self._look()
        return made.done if made else self._arrays is not None

    @property
    def failed(self) -> str:
        """The error of the jobs if the tile is computed; "" if there is none."""
        made = self._look()
        return made.failed if made else ""

    @property
    def progress(self) -> float:
        """0 until the tile has been read, then 1; the jobs' progress if the tile is computed."""
        made = self._look()
        return made.progress if made else float(self._arrays is not None)

    @property
    def digest(self) -> str:
        """The stored digest of a tile of the integer world, as hexadecimal text.

        It covers integers that the renderer does not get. Empty for other worlds, whose digest
        is computed from the arrays that were read, and for a tile that was not read.
        """
        if self._arrays is None or not self._source.planet.exact:
            return ""
        return bytes(self._arrays["digest"]).hex()

    def tensor(self, name: str) -> Any:
        """Returns one of the tensors that the renderer keeps as a GPU buffer.

        The first call uploads it.
        """
        if self._made is not None:
            return self._made.tensor(name)
        assert self._arrays is not None
        if name not in self._memory:
            data = self._arrays[name]
            usage = wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
            self._memory[name] = self._source.gpu.memory.allocate(
                data.nbytes, usage, owner=OWNER, category="staging"
            )
            self._memory[name].write(data)
        return self._memory[name]

    def read(self, name: str) -> Any:
        """Returns one of the tile's tensors as a NumPy array.

        None until it has been read or computed.
        """
        made = self._look()
        return made.read(name) if made else self._arrays and self._arrays[name]

    def cancel(self) -> None:
        """Cancels the reading and the jobs of the tile, and frees its memory."""
        self._reading.cancel()
        if self._made is not None:
            self._made.cancel()
        self._free()

    def release(self) -> None:
        """Frees the tile's memory on the GPU."""
        if self._made is not None:
            self._made.release()
        self._free()

    def _free(self) -> None:
        for held in self._memory.values():
            held.free()
        self._memory.clear()
