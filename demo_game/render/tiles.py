"""The GPU memory of drawable tiles: a slot in three texture arrays each, and the plants."""

from __future__ import annotations

from concurrent.futures import Executor

import numpy as np
import wgpu

import cml_engine as cml
from cml_engine.demo_game.arrays import Array
from cml_engine.demo_game.render.binding import BufferPart
from cml_engine.demo_game.render.plants import Plants
from cml_engine.demo_game.render.quality import Quality
from cml_engine.demo_game.world.tile import FINE

OWNER = "terrain"
_Textures = wgpu.TextureUsage
_ARRAYS = {
    "height": ("r32float", FINE),
    "shading": ("rgba8unorm", FINE),
    "texels": ("rgba8unorm", 0),  # as fine as the preset says
}


class TilePool:
    """A pool of ``slots`` slots, each with the textures and plants of one tile.

    :meth:`acquire` returns a slot, :meth:`fill` copies a tile's tensors into it within the
    frame, and :meth:`release` frees it. The caller decides which tile has to go.
    """

    def __init__(self, gpu: cml.Gpu, quality: Quality, builders: Executor) -> None:
        slots = self.slots = quality.slots
        self._sides = {name: side or quality.texels for name, (_, side) in _ARRAYS.items()}
        self.textures = {
            name: gpu.memory.create_texture(
                size=(side, side, slots),
                format=texture_format,
                usage=_Textures.TEXTURE_BINDING | _Textures.COPY_DST,
                owner=OWNER,
            )
            for name, (texture_format, _) in _ARRAYS.items()
            for side in [self._sides[name]]
        }
        height, shading = self.textures["height"], self.textures["shading"]
        self.plants = Plants(gpu, quality, height, shading, builders)
        self._queue = gpu.queue
        self._free = list(range(slots))[::-1]
        self._planted: set[int] = set()

    def acquire(self) -> int | None:
        """Takes a free slot and returns its number; None if all are used."""
        return self._free.pop() if self._free else None

    def release(self, slot: int) -> None:
        """Frees the slot."""
        self._planted.discard(slot)
        self._free.append(slot)

    def has_plants(self, slot: int) -> bool:
        """Returns True if the slot was last filled with instances."""
        return slot in self._planted

    def fill(
        self,
        encoder: wgpu.GPUCommandEncoder,
        slot: int,
        *,
        height: BufferPart,
        shading: BufferPart,
        texels: BufferPart,
        instances: BufferPart | None = None,
        draw: BufferPart | None = None,
    ) -> None:
        """Encodes copies of a tile's tensors, as ``job.tensor(name)`` returns them, into a slot.

        ``height`` is (1, 1, 64, 64) in metres, ``shading`` (1, 1, 64, 64) and ``texels`` (1, 1,
        n, n) are packed bytes. A tile with plants has ``instances`` (1, 1, 1024, 4) and ``draw``
        (1, 4).
        """
        for name, tensor in (("height", height), ("shading", shading), ("texels", texels)):
            side = self._sides[name]
            encoder.copy_buffer_to_texture(
                {
                    "buffer": tensor.buffer,
                    "offset": tensor.offset,
                    "bytes_per_row": 4 * side,
                    "rows_per_image": side,
                },
                {"texture": self.textures[name], "origin": (0, 0, slot)},
                (side, side, 1),
            )
        self._planted.discard(slot)
        if instances is not None and draw is not None:
            self.plants.fill(encoder, slot, instances, draw)
            self._planted.add(slot)

    def write(self, slot: int, height: Array, shading: Array, colours: Array) -> None:
        """Uploads a tile that was made in NumPy into a slot; it has no plants.

        ``height`` is (64, 64) in metres, ``shading`` and ``colours`` are (64, 64, 4) bytes.
        """
        factor = self._sides["texels"] // len(colours)
        texels = colours.repeat(factor, 0).repeat(factor, 1)
        for name, data in (("height", height), ("shading", shading), ("texels", texels)):
            side = self._sides[name]
            self._queue.write_texture(
                {"texture": self.textures[name], "origin": (0, 0, slot)},
                np.ascontiguousarray(data),
                {"bytes_per_row": 4 * side, "rows_per_image": side},
                (side, side, 1),
            )
        self._planted.discard(slot)

    def close(self) -> None:
        """Frees the memory."""
        self.plants.close()
        for texture in self.textures.values():
            texture.destroy()
