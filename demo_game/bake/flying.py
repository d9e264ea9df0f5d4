"""The game's tile source over a baked planet: it reads baked tiles and has all others computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import wgpu

import cml_engine as cml
from cml_engine import FrameScheduler
from cml_engine.demo_game.agents import TileJobs, TileSource
from cml_engine.demo_game.arrays import Array
from cml_engine.demo_game.bake.planet import Planet
from cml_engine.demo_game.render.binding import BufferPart, GpuMemory
from cml_engine.demo_game.world.tile import TileId

OWNER = "planet"
#: number of reading threads: Zarr decompresses without the GIL
_READERS = 2


class PlanetTiles:
    """Tiles read from a baked planet; tiles that the planet lacks come from ``fallback``."""

    def __init__(self, gpu: cml.Gpu, planet: Planet, fallback: TileSource) -> None:
        self.gpu, self.planet, self.fallback = gpu, planet, fallback
        #: numbers of tiles that were read, and of tiles in the region that the store did not have
        self.read = self.missing = 0
        self._readers = ThreadPoolExecutor(_READERS, "planet")

    def submit(
        self, scheduler: FrameScheduler, tile: TileId, seed: int, priority: float, within_ms: float
    ) -> TileJobs:
        """Returns a tile that threads read, or one of ``fallback`` outside the baked region."""

        def make() -> TileJobs:
            return self.fallback.submit(scheduler, tile, seed, priority, within_ms)

        if not self.planet.has(tile):
            return make()
        return BakedTile(tile, self, self._readers.submit(self.planet.tensors, tile), make)

    def close(self) -> None:
        """Cancels reads that have not begun, and waits until the reading threads end."""
        self._readers.shutdown(wait=True, cancel_futures=True)


class BakedTile(TileJobs):
    """A tile that a thread reads from the store. It has jobs only if the store does not have it."""

    def __init__(
        self,
        tile: TileId,
        source: PlanetTiles,
        reading: Future[Mapping[str, Array] | None],
        make: Callable[[], TileJobs],
    ) -> None:
        super().__init__(tile, {})
        self._source, self._reading, self._make = source, reading, make
        self._arrays: Mapping[str, Array] | None = None
        self._memory: dict[str, GpuMemory] = {}

    def _is_read(self) -> bool:
        """Takes the result of a finished read; returns True if the store has the tile.

        If the store lacks it, this submits its jobs.
        """
        if not self.jobs and self._arrays is None and self._reading.done():
            self._arrays = None if self._reading.cancelled() else self._reading.result()
            if self._arrays is None:
                self._source.missing += 1
                self.jobs = self._make().jobs
            else:
                self._source.read += 1
        return self._arrays is not None

    @property
    def done(self) -> bool:
        """Returns True if the whole tile has been read or computed."""
        return self._is_read() or (bool(self.jobs) and super().done)

    @property
    def progress(self) -> float:
        """0 until the tile has been read, then 1; the jobs' progress if the tile is computed."""
        return float(self._is_read()) if not self.jobs else super().progress

    @property
    def digest(self) -> str:
        """The stored digest of a tile of the integer world, as hexadecimal text.

        It covers integers that the renderer does not get. Empty for other worlds, whose digest
        is computed from the arrays that were read, and for a tile that was not read.
        """
        if self._arrays is None or not self._source.planet.exact:
            return ""
        return bytes(self._arrays["digest"]).hex()

    def tensor(self, name: str) -> BufferPart:
        """Returns one of the tensors that the renderer keeps as a GPU buffer.

        The first call uploads it.
        """
        if self._arrays is None:
            return super().tensor(name)
        if name not in self._memory:
            data = self._arrays[name]
            usage = wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
            self._memory[name] = self._source.gpu.memory.allocate(
                data.nbytes, usage, owner=OWNER, category="staging"
            )
            self._memory[name].write(data)
        return self._memory[name]

    def read(self, name: str) -> Array | None:
        """Returns one of the tile's tensors as a NumPy array.

        None until it has been read or computed.
        """
        self._is_read()
        if self.jobs:
            return super().read(name)
        return self._arrays[name] if self._arrays is not None else None

    def cancel(self) -> None:
        """Cancels the reading and the jobs of the tile, and frees its memory."""
        self._reading.cancel()
        super().cancel()

    def release(self) -> None:
        """Frees the tile's memory on the GPU."""
        super().release()
        for allocation in self._memory.values():
            allocation.free()
        self._memory.clear()
