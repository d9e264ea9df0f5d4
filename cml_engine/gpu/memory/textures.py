"""The accounting of textures, from creation until they are destroyed or garbage-collected."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Protocol

import wgpu


class TextureHome(Protocol):
    """The interface of the allocator that counts textures: ``allocator.Allocator``."""

    def texture_gone(self, account: TextureAccount) -> None: ...

    def free_later(self, free: Callable[[], None]) -> None: ...


class TextureAccount:
    """The accounting entry of one texture, closed exactly once."""

    def __init__(self, memory: TextureHome, owner: str, category: str, nbytes: int) -> None:
        self._memory, self.owner, self.category, self.nbytes = memory, owner, category, nbytes
        self._open = True

    def close(self) -> None:
        """Removes the entry because the texture was destroyed."""
        if self._open:
            self._open = False
            self._memory.texture_gone(self)

    def close_later(self) -> None:
        """Schedules :meth:`close` after a garbage collection, which may happen at any time."""
        self._memory.free_later(self.close)


def close_when_destroyed(texture: wgpu.GPUTexture, account: TextureAccount) -> None:
    """Makes the account close when the texture is destroyed or garbage-collected.

    It replaces the texture's ``destroy`` method.
    """
    weakref.finalize(texture, account.close_later).atexit = False
    weak = weakref.ref(texture)  # the texture refers to this function: avoid a reference cycle

    def destroy() -> None:
        found = weak()
        if found is not None:
            type(found).destroy(found)
        account.close()

    texture.destroy = destroy
