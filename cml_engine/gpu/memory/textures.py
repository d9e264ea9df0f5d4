"""Textures in the books of an allocator: from their making to their end, however that comes."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Protocol

import wgpu


class TextureHome(Protocol):
    """Who counts textures: ``allocator.Allocator``."""

    def texture_gone(self, account: TextureAccount) -> None: ...

    def later(self, free: Callable[[], None]) -> None: ...


class TextureAccount:
    """A texture's entry, closed once."""

    def __init__(self, memory: TextureHome, owner: str, category: str, nbytes: int) -> None:
        self._memory, self.owner, self.category, self.nbytes = memory, owner, category, nbytes
        self._open = True

    def close(self) -> None:
        """The texture is gone."""
        if self._open:
            self._open = False
            self._memory.texture_gone(self)

    def close_later(self) -> None:
        """The texture was collected: that may happen in the middle of anything."""
        self._memory.later(self.close)


def close_when_destroyed(texture: wgpu.GPUTexture, account: TextureAccount) -> None:
    """Let the texture's own ``destroy`` close the account, and its collection too."""
    weakref.finalize(texture, account.close_later).atexit = False
    weak = weakref.ref(texture)  # the texture holds this function: it must not hold the texture

    def destroy() -> None:
        found = weak()
        if found is not None:
            type(found).destroy(found)
        account.close()

    texture.destroy = destroy
