"""One allocator for all memory of a device: networks, frame schedulers and the host's renderer.

>>> tiles = gpu.memory.allocate(1 << 20, usage, owner="terrain", category="render") # doctest: +SKIP
>>> encoder.set_vertex_buffer(0, tiles.buffer, tiles.offset, tiles.nbytes)          # doctest: +SKIP
>>> tiles.free()                                                                    # doctest: +SKIP

Memory comes from a source: the engine's heaps (``heaps.py``) or the host's allocator. A ledger
counts the memory of each owner. Idle models are evicted when there is no room.
"""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from threading import RLock
from types import TracebackType
from typing import Any, Protocol, TypeAlias, TypedDict, TypeVar

import numpy as np
import wgpu

from cml_engine.errors import DeviceError, InputError, OutOfGpuMemory
from cml_engine.errors.arguments import IntegerRange, check_text
from cml_engine.gpu.memory.heaps import Heaps, guarded
from cml_engine.gpu.native import device_errors
from cml_engine.ir.graph import Array
from cml_engine.ir.memory import (
    Ledger,
    MemoryRange,
    MemorySource,
    MemoryStats,
    checked_budget,
    checked_category,
    exhausted_message,
    leak_report,
    mib,
    texture_bytes,
)

_log = logging.getLogger(__name__)


#: what a buffer's bytes are written from
Data: TypeAlias = bytes | bytearray | memoryview | Array


class BufferRange(TypedDict):
    """A range of a buffer as the resource of a bind group entry."""

    buffer: wgpu.GPUBuffer
    offset: int
    size: int


class Allocation:
    """A range of a buffer that belongs to one owner until :meth:`free`."""

    __slots__ = ("_memory", "_range", "buffer", "category", "freed", "nbytes", "offset", "owner")

    def __init__(
        self, memory: Allocator, memory_range: MemoryRange, nbytes: int, owner: str, category: str
    ) -> None:
        self._memory, self._range = memory, memory_range
        self.buffer: wgpu.GPUBuffer = memory_range.buffer
        self.offset: int = memory_range.offset
        self.nbytes, self.owner, self.category = nbytes, owner, category
        self.freed = False

    @property
    def allocator(self) -> Allocator:
        """The allocator that made this allocation."""
        return self._memory

    def free(self, *, now: bool = False) -> None:
        """Frees the range; work that was submitted before may still use it.

        With ``now`` it is freed even while a frame is being encoded; the caller guarantees that
        nothing in the frame uses it. Raises :class:`InputError` if it was freed before.
        """
        if self.freed:
            raise InputError(
                f"{self.nbytes} bytes for {self.category} of '{self.owner}' are freed twice"
            )
        self.freed = True
        if now:
            self._give_back()
        else:
            self._memory.free_later(self._give_back)
            self._memory.free_deferred()

    def free_with_owner(self, user: object) -> weakref.finalize[..., object]:
        """Frees the range when ``user`` is garbage-collected; returns the finalizer."""
        return self._memory.free_with(user, self.free)

    def _give_back(self) -> None:
        self._memory.give_back(self, self._range)

    def write(self, data: Data, offset: int = 0) -> None:
        """Queues a write of ``data`` at a byte offset of the range, done before the next submit."""
        with device_errors():
            self._memory.device.queue.write_buffer(self.buffer, self.offset + offset, data)

    @property
    def buffers(self) -> tuple[wgpu.GPUBuffer, ...]:
        """The buffers that contain the allocation."""
        return (self.buffer,)

    def at(self, offset: int) -> tuple[wgpu.GPUBuffer, int]:
        """Returns the buffer of the byte at ``offset``, and the byte's offset in that buffer."""
        return self.buffer, self.offset + offset

    def binding(self, offset: int = 0, nbytes: int | None = None) -> BufferRange:
        """Returns the range, or a part of it, as the ``resource`` of a bind group entry."""
        size = self.nbytes - offset if nbytes is None else nbytes
        return {"buffer": self.buffer, "offset": self.offset + offset, "size": size}

    def __enter__(self) -> Allocation:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self.freed:
            self.free()

    def __repr__(self) -> str:
        state = ", freed" if self.freed else ""
        return f"Allocation({self.owner}, {self.category}, {self.nbytes} bytes{state})"


class Segments:
    """An :class:`Allocation`-like object that consists of segments of equal size.

    The last segment may be smaller. No tensor crosses the border of a segment.
    """

    def __init__(self, parts: Sequence[Allocation], segment_bytes: int) -> None:
        self._parts, self._segment_bytes = tuple(parts), segment_bytes
        self.nbytes = sum(part.nbytes for part in parts)

    @classmethod
    def allocated(
        cls,
        memory: Allocator,
        nbytes: int,
        segment_bytes: int,
        usage: int,
        *,
        owner: str,
        category: str,
    ) -> Segments:
        """Returns segments of ``segment_bytes`` bytes, allocated for ``nbytes`` together.

        If one allocation fails, the others are freed and its :class:`OutOfGpuMemory` is raised.
        """
        parts: list[Allocation] = []
        try:
            for start in range(0, nbytes, segment_bytes):
                size = min(segment_bytes, nbytes - start)
                parts.append(memory.allocate(size, usage, owner=owner, category=category))
        except OutOfGpuMemory:
            for part in parts:
                part.free(now=True)
            raise
        return cls(parts, segment_bytes)

    @property
    def buffers(self) -> tuple[wgpu.GPUBuffer, ...]:
        """The buffers that contain the segments."""
        return tuple(part.buffer for part in self._parts)

    def at(self, offset: int) -> tuple[wgpu.GPUBuffer, int]:
        """Returns the buffer of the byte at ``offset``, and the byte's offset in that buffer."""
        part, start = divmod(offset, self._segment_bytes)
        return self._parts[part].at(start)

    def write(self, data: Data, offset: int = 0) -> None:
        """Queues a write of ``data`` at a byte offset, done before the next submit.

        The data may cross borders of segments.
        """
        remaining = np.frombuffer(data, np.uint8)
        while remaining.size:
            part, start = divmod(offset, self._segment_bytes)
            size = min(remaining.size, self._segment_bytes - start)
            self._parts[part].write(remaining[:size], start)
            remaining, offset = remaining[size:], offset + size

    def free(self, *, now: bool = False) -> None:
        """Frees all segments; see :meth:`Allocation.free`."""
        for part in self._parts:
            part.free(now=now)


class Tenant(Protocol):
    """A model whose memory can be evicted while it is idle and restored later."""

    @property
    def name(self) -> str: ...
    @property
    def last_used(self) -> int: ...
    @property
    def resident(self) -> Collection[Allocation | Segments]:
        """The evictable allocations of this model; other models may share some of them."""
        ...

    @property
    def evictable(self) -> bool:
        """True if the model has memory on the device that can be evicted now."""
        ...

    @property
    def evictable_later(self) -> bool:
        """True if the model has memory on the device that cannot be evicted now but can later."""
        ...

    def evict(self, *, wait: bool = True) -> None:
        """Frees the memory at once. Without ``wait`` it never waits for another thread."""
        ...


def _bytes_of(tenants: Iterable[Tenant]) -> int:
    """Returns the bytes that these tenants use together, counting shared memory once."""
    return sum(part.nbytes for part in {part for tenant in tenants for part in tenant.resident})


T = TypeVar("T")
_Usage = wgpu.BufferUsage
_LIMITS = (
    "max-buffer-size",
    "min-storage-buffer-offset-alignment",
    "min-uniform-buffer-offset-alignment",
)
#: categories of memory that jobs and models may free
_OUTPUTS, _MODELS = frozenset({"output"}), frozenset({"weights", "activations"})
HEAP_BYTES = 64 << 20
_BYTES, _STEP = IntegerRange(0, 2**63 - 1), IntegerRange(1, 2**31)
#: flags of wgpu.BufferUsage
_USAGE = IntegerRange(1, 2**31 - 1)


class Allocator:
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
        self.device = device
        self._budget = checked_budget(budget_bytes)
        limits = {name: int(device.limits[name]) for name in _LIMITS}
        #: flags of a buffer's usage, and the alignment in bytes that each needs
        self._alignments = (
            (int(_Usage.QUERY_RESOLVE), 256),
            (int(_Usage.STORAGE), limits["min-storage-buffer-offset-alignment"]),
            (int(_Usage.UNIFORM), limits["min-uniform-buffer-offset-alignment"]),
        )
        self._largest_buffer = limits["max-buffer-size"]
        self._heaps: Heaps | None = None
        if source is None:
            largest = min(heap_bytes, self._largest_buffer & ~255)
            source = self._heaps = Heaps(device, largest, self._may_reserve, lambda: self._budget)
        self._source = source
        self._ledger = Ledger()
        self._texture_bytes = 0
        #: lock order: its owner acquires a program's lock only without blocking
        self.lock = RLock()
        #: the executors that are encoding a frame: frees wait for its submit
        self._encoding: weakref.WeakSet[object] = weakref.WeakSet()
        # finalizers may run at any time, so they only queue their work here
        self._frees: deque[Callable[[], None]] = deque()
        self._is_freeing = False
        self._callbacks: list[Callable[[int], int]] = []
        self._tenants: weakref.WeakSet[Tenant] = weakref.WeakSet()
        #: the number of times that a model was evicted
        self.evictions = 0
        #: frames that schedulers on this device have ended
        self.frame = 0
        self._uses = 0
        # the category that each host buffer was first used for
        self._foreign: weakref.WeakKeyDictionary[wgpu.GPUBuffer, str] = weakref.WeakKeyDictionary()

    def _may_reserve(self, nbytes: int) -> bool:
        return self._budget is None or self.reserved_bytes + nbytes <= self._budget

    def _free_unused(self) -> None:
        self.free_deferred()
        if self._heaps is not None:
            self._heaps.trim()

    # --- the budget

    @property
    def budget_bytes(self) -> int | None:
        """The limit of the memory reserved from the driver, in bytes; None for no limit.

        If the limit is set below :attr:`reserved_bytes`, memory that can be freed is freed at
        once, and the rest as soon as its owners free it. :attr:`over_budget_bytes` is the
        remaining excess, and ``str()`` lists the owners.
        """
        return self._budget

    @budget_bytes.setter
    def budget_bytes(self, nbytes: int | None) -> None:
        self._budget = checked_budget(nbytes)
        self._shrink()

    def _shrink(self) -> None:
        """Frees memory until the budget is met or no more can be freed."""
        if self.over_budget_bytes:
            with self.lock:
                for _ in self._free_step_by_step(lambda: self.over_budget_bytes):
                    if not self.over_budget_bytes:
                        return

    def on_pressure(self, callback: Callable[[int], int]) -> Callable[[], None]:
        """Registers a callback that is called before models are evicted.

        ``callback(needed_bytes)`` frees the memory that it can spare and returns the number of
        freed bytes. Returns a function that removes the callback.
        """
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def add_tenant(self, tenant: Tenant) -> None:
        """Registers a model that may be evicted; garbage collection unregisters it."""
        with self.lock:
            self._tenants.add(tenant)

    def tick(self) -> int:
        """Returns a number larger than any before, for :attr:`Tenant.last_used`."""
        self._uses += 1
        return self._uses

    def may_ever_fit(self, nbytes: int, but: Tenant | None = None) -> bool:
        """Returns True if ``nbytes`` would fit once others freed all the memory they can.

        The others are the models except ``but``, and the jobs with their outputs and readbacks.
        """
        with self.lock:
            tenants = list(self._tenants)
            if any(t.evictable_later for t in tenants if t is not but):
                return True
            if self._budget is None or not self._ledger.of(_OUTPUTS):
                return False
            if self._heaps is None:
                lasting = self._ledger.held - self._ledger.of(_OUTPUTS | _MODELS)
            else:
                lasting = self._heaps.permanent_bytes(_OUTPUTS | _MODELS) + self._texture_bytes
            models = (t for t in tenants if t is but or not (t.evictable or t.evictable_later))
            return lasting + _bytes_of(models) + nbytes <= self._budget

    def _obtain(self, nbytes: int, owner: str, category: str, make: Callable[[], T]) -> T:
        """Calls ``make`` until it succeeds, and frees memory in between."""

        def may_suffice() -> bool:
            if self._budget is None:
                return True
            tenants = list(self._tenants)
            evictable = _bytes_of(tenants) - _bytes_of(t for t in tenants if not t.evictable)
            return self._ledger.held - evictable + nbytes <= self._budget

        try:
            return make()
        except MemoryError as error:
            reason = str(error)
        for _ in self._free_step_by_step(lambda: nbytes, may_suffice):
            try:
                return make()
            except MemoryError as error:
                reason = str(error)
        raise OutOfGpuMemory(
            exhausted_message(nbytes, owner, category, self.stats(), reason=reason)
        )

    def _free_step_by_step(
        self, required_bytes: Callable[[], int], may_suffice: Callable[[], bool] = lambda: True
    ) -> Iterator[None]:
        """Frees memory and yields whenever there may be more room than before.

        Empty heaps come first, then the memory that callbacks can spare, then the models that
        have been idle the longest. No model is evicted unless ``may_suffice()``.
        """
        self._free_unused()
        yield
        for callback in list(self._callbacks):
            if callback(required_bytes()) > 0:
                self._free_unused()
                yield
        if not may_suffice():
            return
        for tenant in sorted(self._tenants, key=lambda t: t.last_used):
            if tenant.evictable:
                self._evict(tenant)
                yield

    def _evict(self, tenant: Tenant) -> None:
        """Evicts a model and frees unused heaps.

        The model stays if another thread has just started to run it.
        """
        with suppress(InputError):
            freed = mib(_bytes_of([tenant]))
            tenant.evict(wait=False)  # a thread that holds the model's lock may wait for this one's
            self.evictions += 1
            _log.info("'%s' is evicted: %s MiB", tenant.name, freed)
        self._free_unused()

    # --- frames: frees are deferred while one is encoded

    def free_later(self, free: Callable[[], None]) -> None:
        """Queues ``free``, which is called as soon as no frame is being encoded.

        Safe to call from any thread or finalizer.
        """
        self._frees.append(free)

    def free_with(self, owner: object, free: Callable[[], None]) -> weakref.finalize[..., object]:
        """Queues ``free`` when ``owner`` is garbage-collected; returns the finalizer."""
        finalizer = weakref.finalize(owner, self.free_later, free)
        finalizer.atexit = False
        return finalizer

    def free_deferred(self) -> None:
        """Runs the deferred frees, unless a frame is being encoded.

        Errors are logged and not raised, because they are not the caller's. A nested call
        returns at once; the outer loop also runs the work that was queued meanwhile, so the
        call stack stays flat.
        """
        if not self._frees or self._encoding:
            return
        with self.lock:
            if self._is_freeing:
                return
            self._is_freeing = True
            try:
                while self._frees:
                    free = self._frees.popleft()
                    try:
                        free()
                    except Exception:
                        _log.exception("giving GPU memory back has failed: %r", free)
            finally:
                self._is_freeing = False

    def open_frame(self, executor: object) -> None:
        """Marks the executor as encoding; its previous frame has been submitted."""
        self._encoding.discard(executor)
        self.free_deferred()
        self._encoding.add(executor)

    def close_frame(self, executor: object) -> None:
        """Marks the executor's frame as submitted, runs deferred frees and enforces the budget."""
        self.frame += 1
        self._encoding.discard(executor)
        self.free_deferred()
        self._shrink()  # memory that was in use when the budget was lowered may be free now

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
        required = self._alignment(_USAGE.check(usage, f"'{owner}', usage"))
        multiple = (
            required if alignment is None else _STEP.check(alignment, f"'{owner}', alignment")
        )
        if multiple % required:
            raise InputError(f"alignment {multiple} for '{owner}': this usage needs {required}")
        size = -(-max(nbytes, 1) // 16) * 16
        if size > self._largest_buffer:
            raise DeviceError(
                f"'{owner}' wants {size} bytes for {category}; the largest buffer of this device "
                f"has {self._largest_buffer}"
            )
        with self.lock:
            self.free_deferred()
            memory_range = self._obtain(
                size,
                owner,
                category,
                lambda: self._from_source(size, usage, multiple, owner, category),
            )
            self._ledger.add(owner, category, size)
            return Allocation(self, memory_range, size, owner, category)

    def _alignment(self, usage: int) -> int:
        return max([16, *(least for flag, least in self._alignments if usage & flag)])

    def _from_source(
        self, nbytes: int, usage: int, alignment: int, owner: str, category: str
    ) -> MemoryRange:
        if self._heaps is None and not self._may_reserve(nbytes):
            raise MemoryError("the budget is used up")
        memory_range = self._source.allocate(nbytes, usage, alignment, owner, category)
        if self._heaps is None:
            self._check_foreign(memory_range, nbytes, alignment, category)
        return memory_range

    def _check_foreign(
        self, memory_range: MemoryRange, nbytes: int, alignment: int, category: str
    ) -> None:
        """Raises :class:`DeviceError` if a range breaks the contract of the host's allocator.

        Without this check a bad range would appear later as a wrong result.
        """
        first_category = self._foreign.setdefault(memory_range.buffer, category)
        problem = ""
        if memory_range.offset % alignment or memory_range.nbytes < nbytes:
            extent = f"[{memory_range.offset}, +{memory_range.nbytes})"
            problem = f"{extent} for {nbytes} bytes aligned to {alignment}"
        elif first_category != category:
            problem = f"one buffer for {first_category} and for {category}; copies need two"
        if problem:
            memory_range.free()
            raise DeviceError(f"the host's allocator gave {problem}")

    def give_back(self, allocation: Allocation, memory_range: MemoryRange) -> None:
        """Returns the range of a freed :class:`Allocation` to its source."""
        with self.lock:
            self._ledger.remove(allocation.owner, allocation.category, allocation.nbytes)
            memory_range.free()

    # --- textures

    def create_texture(
        self, *, owner: str, category: str = "render", **descriptor: Any
    ) -> wgpu.GPUTexture:
        """Returns a texture of ``device.create_texture(**descriptor)`` and counts its memory.

        Memory is freed for it like for buffers. The texture counts until it is destroyed or
        garbage-collected.
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
            self.free_deferred()
            texture = self._obtain(
                nbytes, owner, category, lambda: self._new_texture(nbytes, descriptor)
            )
            self._ledger.add(owner, category, nbytes)
            self._texture_bytes += nbytes
        forget = partial(self._texture_gone, owner, category, nbytes)
        finalizer = self.free_with(texture, forget)
        weak = weakref.ref(texture)  # the texture refers to the function below: avoid a cycle

        def destroy() -> None:
            target = weak()
            if target is not None:
                type(target).destroy(target)
            if finalizer.detach():
                forget()

        texture.destroy = destroy
        return texture

    def _new_texture(self, nbytes: int, descriptor: dict[str, object]) -> wgpu.GPUTexture:
        if not self._may_reserve(nbytes):
            raise MemoryError("the budget is used up")
        return guarded(
            lambda: self.device.create_texture(**descriptor), f"a texture of {nbytes} bytes"
        )

    def _texture_gone(self, owner: str, category: str, nbytes: int) -> None:
        with self.lock:
            self._ledger.remove(owner, category, nbytes)
            self._texture_bytes -= nbytes

    # --- statistics

    @property
    def held_bytes(self) -> int:
        """The bytes of all allocations and textures now, without free parts of heaps."""
        self.free_deferred()
        return self._ledger.held

    @property
    def reserved_bytes(self) -> int:
        """Bytes reserved from the driver: whole heaps, and textures."""
        if self._heaps is None:
            return self._ledger.held
        return self._heaps.reserved_bytes + self._texture_bytes

    @property
    def over_budget_bytes(self) -> int:
        """Bytes reserved beyond the budget.

        They are positive after the budget was lowered, until the owners free enough memory.
        """
        return 0 if self._budget is None else max(0, self.reserved_bytes - self._budget)

    @property
    def peak_bytes(self) -> int:
        """The largest number of bytes that were in use at a time."""
        return self._ledger.peak

    def stats(self) -> MemoryStats:
        """Returns all statistics as data; ``str()`` of them prints a memory map."""
        self.free_deferred()
        with self.lock:
            return MemoryStats(
                self._ledger.held,
                self.reserved_bytes,
                self._ledger.peak,
                self._budget,
                self._ledger.holdings(),
                self._heaps.heaps() if self._heaps else (),
                self.evictions,
            )

    def report(self) -> str:
        """Returns a text with the bytes in use, one line per owner and category.

        At the end of a program the lines are the leaks.
        """
        return leak_report(self.stats().holdings)

    def __str__(self) -> str:
        return str(self.stats())
