"""One allocator for all memory of a device: networks, frame schedulers and the host's renderer.

>>> tiles = gpu.memory.allocate(1 << 20, usage, owner="terrain", category="render") # doctest: +SKIP
>>> encoder.set_vertex_buffer(0, tiles.buffer, tiles.offset, tiles.nbytes)          # doctest: +SKIP
>>> tiles.free()                                                                    # doctest: +SKIP

Memory comes from a source: the engine's heaps (``heaps.py``) or the host's allocator. ``books.py``
counts the memory of each owner; ``pressure.py`` enforces the budget and evicts idle models.
"""

from __future__ import annotations

import weakref
from typing import Any

import wgpu

from cml_engine.errors import DeviceError, InputError
from cml_engine.errors.arguments import IntegerRange, check_text
from cml_engine.gpu.memory.allocation import Allocation
from cml_engine.gpu.memory.heaps import guarded
from cml_engine.gpu.memory.pressure import Pressure
from cml_engine.gpu.memory.textures import TextureAccount, close_when_destroyed
from cml_engine.ir.memory import MemoryRange, MemorySource, checked_category, texture_bytes

_Usage = wgpu.BufferUsage
HEAP_BYTES = 64 << 20
_BYTES, _STEP = IntegerRange(0, 2**63 - 1), IntegerRange(1, 2**31)
#: flags of wgpu.BufferUsage
_USAGE = IntegerRange(1, 2**31 - 1)


class Allocator(Pressure):
    """The memory of one device, as :attr:`cml_engine.Gpu.memory`.

    Parameters
    ----------
    budget_bytes : the limit of the memory reserved from the driver (None: no limit). It may be
        changed at any time.
    heap_bytes : the largest heap; a larger allocation gets a buffer of its own.
    source : the host's allocator; by default the engine's heaps.

    If there is no room, these steps follow in this order: empty heaps are destroyed, the
    callbacks of :meth:`on_pressure` are called, the models that have been idle the longest are
    evicted, and :class:`OutOfGpuMemory` lists the owners of the memory.

    Memory freed between a frame scheduler's ``encode`` and ``end_frame`` is reused only after
    ``end_frame``, because encoded commands that use it may not be submitted yet. The host frees
    memory that its own commands use after its submit.
    """

    def __init__(
        self,
        device: wgpu.GPUDevice,
        budget_bytes: int | None = None,
        heap_bytes: int = HEAP_BYTES,
        source: MemorySource | None = None,
    ) -> None:
        super().__init__(device, budget_bytes, heap_bytes, source)
        # the category that each host buffer was first used for
        self._foreign: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()

    # --- buffers

    def allocate(
        self, nbytes: int, usage: int, *, owner: str, category: str, alignment: int | None = None
    ) -> Allocation:
        """Allocates a range of at least ``nbytes`` in a buffer with this ``wgpu.BufferUsage``.

        ``alignment`` must be a multiple of the alignment that the usage needs, which is the
        default. The content of the range is undefined.
        """
        check_text(owner, "the owner of an allocation")
        checked_category(category)
        _BYTES.check(nbytes, f"'{owner}', bytes for {category}")
        least = self._alignment(_USAGE.check(usage, f"'{owner}', usage"))
        step = least if alignment is None else _STEP.check(alignment, f"'{owner}', alignment")
        if step % least:
            raise InputError(f"alignment {step} for '{owner}': this usage needs {least}")
        size = -(-max(nbytes, 1) // 16) * 16
        if size > self._limits["max-buffer-size"]:
            raise DeviceError(
                f"'{owner}' wants {size} bytes for {category}; the largest buffer of this device "
                f"has {self._limits['max-buffer-size']}"
            )
        with self.lock:
            self.settle()
            found = self._obtain(
                size, owner, category, lambda: self._from_source(size, usage, step, owner, category)
            )
            self._ledger.add(owner, category, size)
            return Allocation(self, found, size, owner, category)

    def _alignment(self, usage: int) -> int:
        if usage & _Usage.QUERY_RESOLVE:
            return 256
        align = 16
        if usage & _Usage.STORAGE:
            align = max(align, self._limits["min-storage-buffer-offset-alignment"])
        if usage & _Usage.UNIFORM:
            align = max(align, self._limits["min-uniform-buffer-offset-alignment"])
        return align

    def _from_source(
        self, nbytes: int, usage: int, alignment: int, owner: str, category: str
    ) -> MemoryRange:
        if self._heaps is None and not self._may_reserve(nbytes):
            raise MemoryError("the budget is used up")
        found = self._source.allocate(nbytes, usage, alignment, owner, category)
        if self._heaps is None:
            self._check_foreign(found, nbytes, alignment, category)
        return found

    def _check_foreign(
        self, found: MemoryRange, nbytes: int, alignment: int, category: str
    ) -> None:
        """Raises :class:`DeviceError` if a range breaks the contract of the host's allocator.

        Without this check a bad range would appear later as a wrong result.
        """
        other = self._foreign.setdefault(found.buffer, category)
        problem = ""
        if found.offset % alignment or found.nbytes < nbytes:
            problem = f"[{found.offset}, +{found.nbytes}) for {nbytes} bytes aligned to {alignment}"
        elif other != category:
            problem = f"one buffer for {other} and for {category}; copies need two"
        if problem:
            found.free()
            raise DeviceError(f"the host's allocator gave {problem}")

    def give_back(self, allocation: Allocation, found: MemoryRange) -> None:
        """Returns the range of a freed :class:`Allocation` to its source."""
        with self.lock:
            self._ledger.remove(allocation.owner, allocation.category, allocation.nbytes)
            found.free()

    # --- textures

    def create_texture(
        self, *, owner: str, category: str = "render", **descriptor: Any
    ) -> wgpu.GPUTexture:
        """Calls ``device.create_texture(**descriptor)`` and counts the texture's memory.

        The memory counts until the texture is destroyed or garbage-collected.
        """
        checked_category(category)
        nbytes = texture_bytes(
            descriptor["size"],
            str(descriptor["format"]),
            mips=descriptor.get("mip_level_count", 1),
            samples=descriptor.get("sample_count", 1),
            dimension=str(descriptor.get("dimension", "2d")),
        )
        with self.lock:
            self.settle()
            texture = self._obtain(
                nbytes, owner, category, lambda: self._new_texture(nbytes, descriptor)
            )
            self._ledger.add(owner, category, nbytes)
            self._texture_bytes += nbytes
        account = TextureAccount(self, owner, category, nbytes)
        close_when_destroyed(texture, account)
        return texture

    def _new_texture(self, nbytes: int, descriptor: dict[str, Any]) -> wgpu.GPUTexture:
        if not self._may_reserve(nbytes):
            raise MemoryError("the budget is used up")
        return guarded(
            lambda: self.device.create_texture(**descriptor), f"a texture of {nbytes} bytes"
        )

    def texture_gone(self, account: TextureAccount) -> None:
        """Subtracts a destroyed texture from the statistics; called by :class:`TextureAccount`."""
        with self.lock:
            self._ledger.remove(account.owner, account.category, account.nbytes)
            self._texture_bytes -= account.nbytes
