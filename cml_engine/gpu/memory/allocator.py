"""One allocator for everything on a device: networks, frame schedulers and the host's renderer.

>>> tiles = gpu.memory.allocate(1 << 20, usage, owner="terrain", category="render") # doctest: +SKIP
>>> encoder.set_vertex_buffer(0, tiles.buffer, tiles.offset, tiles.nbytes)          # doctest: +SKIP
>>> tiles.free()                                                                    # doctest: +SKIP

Memory comes from a source: our own heaps (``heaps.py``) or the host's allocator.
This class counts who holds what, keeps the budget, and takes memory from models that are idle.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from threading import RLock
from types import SimpleNamespace
from typing import Any, Protocol

import wgpu

from cml_engine.errors import DeviceError, InputError, OutOfGpuMemory
from cml_engine.gpu.memory.allocation import Allocation
from cml_engine.gpu.memory.heaps import Heaps, guarded
from cml_engine.gpu.memory.textures import TextureAccount, close_when_destroyed
from cml_engine.memory import (
    Ledger,
    MemoryRange,
    MemorySource,
    MemoryStats,
    checked_budget,
    checked_category,
    exhausted_message,
    leak_report,
    texture_bytes,
)

_Usage = wgpu.BufferUsage
HEAP_BYTES = 64 << 20
#: what jobs and models may give back
_PASSING, _MODELS = frozenset({"output"}), frozenset({"weights", "activations"})
_LIMITS = (
    "max-buffer-size",
    "min-storage-buffer-offset-alignment",
    "min-uniform-buffer-offset-alignment",
)


class Tenant(Protocol):
    """A model whose memory can be taken away while it is idle and brought back later."""

    @property
    def name(self) -> str: ...
    @property
    def last_used(self) -> int: ...
    @property
    def resident(self) -> Collection[Allocation]:
        """What it holds that it can lose; other models may hold some of it too."""
        ...

    @property
    def evictable(self) -> bool:
        """Whether it holds memory and may lose it now."""
        ...

    @property
    def passing(self) -> bool:
        """Whether it holds memory that it cannot lose now but can later."""
        ...

    def evict(self) -> None:
        """Give the memory back at once."""
        ...


class Allocator:
    """The memory of one device, as :attr:`cml_engine.Gpu.memory`.

    Parameters
    ----------
    budget_bytes : never ask the driver for more than that in all (None: as much as it gives).
        It may be changed at any time.
    heap_bytes : the largest heap; what is larger gets a buffer of its own.
    source : the host's allocator; without one, our own heaps.

    When there is no room, in this order: empty heaps go back to the driver, the callbacks of
    :meth:`on_pressure` are asked, the models that are idle for the longest are evicted, and
    :class:`OutOfGpuMemory` says who holds what.

    Memory freed between a frame scheduler's ``encode`` and ``end_frame`` can be had again after
    ``end_frame``: commands that use it may be encoded and not yet submitted. What the host itself
    has encoded it frees after its submit.
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
        #: how often a model lost its memory
        self.evictions = 0
        #: frames that schedulers on this device have ended
        self.frame = 0
        self._limits = {name: int(device.limits[name]) for name in _LIMITS}
        self._heaps: Heaps | None = None
        if source is None:
            largest = min(heap_bytes, self._limits["max-buffer-size"] & ~255)
            source = self._heaps = Heaps(device, largest, self._may_reserve, lambda: self._budget)
        self._source = source
        self._ledger = Ledger()
        self._texture_bytes = 0
        self._callbacks: list[Callable[[int], int]] = []
        self._tenants: weakref.WeakSet[Tenant] = weakref.WeakSet()
        self._encoding: weakref.WeakSet[Any] = weakref.WeakSet()
        # finalizers may run in the middle of anything: they only leave their work here
        self._later: deque[Callable[[], None]] = deque()
        #: whoever holds it takes no lock of a program's, unless that is free
        self.lock = RLock()
        self._clock = 0
        self._foreign: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()

    @property
    def budget_bytes(self) -> int | None:
        """The most that the driver is asked for. Where it is set below :attr:`reserved_bytes`, what
        can go goes at once, as where there is no room, and the rest as soon as it is given back;
        :attr:`over_budget_bytes` says how much that is, and ``str()`` who holds it."""
        return self._budget

    @budget_bytes.setter
    def budget_bytes(self, nbytes: int | None) -> None:
        self._budget = checked_budget(nbytes)
        self._shrink()

    @property
    def over_budget_bytes(self) -> int:
        """How much more is reserved than the budget allows: what holders have not given back since
        it was lowered."""
        return 0 if self._budget is None else max(0, self.reserved_bytes - self._budget)

    def _shrink(self) -> None:
        """Give back what can go, until the budget is kept."""
        if not self.over_budget_bytes:
            return
        with self.lock:
            self.settle()
            self._trim()
            for callback in list(self._callbacks):
                if self.over_budget_bytes and callback(self.over_budget_bytes) > 0:
                    self.settle()
                    self._trim()
            for tenant in sorted(self._tenants, key=lambda t: t.last_used):
                if self.over_budget_bytes and tenant.evictable:
                    self._evict(tenant)

    # --- buffers

    def allocate(
        self, nbytes: int, usage: int, *, owner: str, category: str, alignment: int | None = None
    ) -> Allocation:
        """A range of at least ``nbytes`` of a buffer with this ``wgpu.BufferUsage``.

        ``alignment`` is what the usage needs, or a multiple of it. Its content is whatever was
        there before.
        """
        checked_category(category)
        if nbytes < 0:
            raise InputError(f"'{owner}' wants {nbytes} bytes for {category}")
        least = self._alignment(usage)
        step = least if alignment is None else alignment
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
        """A host's allocator that breaks its contract would show as a wrong result, later."""
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
        """For :class:`Allocation`."""
        with self.lock:
            self._ledger.remove(allocation.owner, allocation.category, allocation.nbytes)
            found.free()

    # --- textures

    def create_texture(
        self, *, owner: str, category: str = "render", **descriptor: Any
    ) -> wgpu.GPUTexture:
        """``device.create_texture(**descriptor)``, counted until it is destroyed or collected."""
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
        """For :class:`TextureAccount`."""
        with self.lock:
            self._ledger.remove(account.owner, account.category, account.nbytes)
            self._texture_bytes -= account.nbytes

    # --- when there is no room

    def on_pressure(self, callback: Callable[[int], int]) -> Callable[[], None]:
        """Ask ``callback(needed_bytes)`` before models are evicted: it frees what it can spare
        and returns how many bytes that was. Returns a function that takes it off again."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def add_tenant(self, tenant: Tenant) -> None:
        """A model that may be evicted (it is forgotten when it is collected)."""
        with self.lock:
            self._tenants.add(tenant)

    def tick(self) -> int:
        """A number larger than any before: what :attr:`Tenant.last_used` is set to."""
        self._clock += 1
        return self._clock

    def may_come_free(self, but: Tenant | None = None) -> bool:
        """Whether a model, another one than ``but``, holds memory that it can lose later."""
        with self.lock:
            return any(t.passing for t in list(self._tenants) if t is not but)

    def may_ever_fit(self, nbytes: int, but: Tenant | None = None) -> bool:
        """Whether so much more would fit if others gave back what they may: other models than
        ``but`` their memory, jobs their outputs and readbacks."""
        if self.may_come_free(but):
            return True
        if self._budget is None or not self._ledger.of(_PASSING):
            return False
        if self._heaps is None:
            lasting = self._ledger.held - self._ledger.of(_PASSING | _MODELS)
        else:
            lasting = self._heaps.lasting_bytes(_PASSING | _MODELS) + self._texture_bytes
        stays = [t for t in list(self._tenants) if t is but or not (t.evictable or t.passing)]
        return lasting + _bytes_of(stays) + nbytes <= self._budget

    def _may_reserve(self, nbytes: int) -> bool:
        return self._budget is None or self.reserved_bytes + nbytes <= self._budget

    def _obtain(self, nbytes: int, owner: str, category: str, make: Callable[[], Any]) -> Any:
        reason = ""
        for _ in self._attempts(nbytes):
            try:
                return make()
            except MemoryError as error:
                reason = str(error)
        raise OutOfGpuMemory(
            exhausted_message(nbytes, owner, category, self.stats(), reason=reason)
        )

    def _attempts(self, nbytes: int) -> Iterator[None]:
        """Yields whenever there may be more room than before."""
        yield
        self._trim()
        yield
        for callback in list(self._callbacks):
            if callback(nbytes) > 0:
                self.settle()
                self._trim()
                yield
        idle = [t for t in list(self._tenants) if t.evictable]
        if self._budget is not None:
            others = [t for t in list(self._tenants) if t not in idle]
            least = self._ledger.held - (_bytes_of([*idle, *others]) - _bytes_of(others))
            if least + nbytes > self._budget:
                return  # it would be in vain
        for tenant in sorted(idle, key=lambda t: t.last_used):
            if tenant.evictable:
                self._evict(tenant)
                yield

    def _evict(self, tenant: Tenant) -> None:
        with suppress(InputError):  # another thread began to run it just now
            tenant.evict()
            self.evictions += 1
        self._trim()

    def _trim(self) -> None:
        if self._heaps is not None:
            self._heaps.trim()

    # --- what is freed while a frame is encoded

    def later(self, free: Callable[[], None]) -> None:
        """Call this when no frame is being encoded. May be called at any moment by anyone."""
        self._later.append(free)

    def settle(self) -> None:
        """Do what was put off, unless a frame is being encoded. What fails there is not the
        caller's: it is told as what fails in a finalizer is (``sys.unraisablehook``)."""
        if self._later and not self._encoding:
            with self.lock:
                while self._later:
                    work = self._later.popleft()
                    try:
                        work()
                    except Exception as error:
                        _tell(error, work)

    def open_frame(self, executor: Any) -> None:
        """The executor is about to encode; what it encoded before has been submitted."""
        self._encoding.discard(executor)
        self.settle()
        self._encoding.add(executor)

    def close_frame(self, executor: Any) -> None:
        """The host has submitted what the executor encoded."""
        self.frame += 1
        self._encoding.discard(executor)
        self.settle()
        self._shrink()  # what was in use when the budget was lowered may be free by now

    # --- looking at it

    @property
    def held_bytes(self) -> int:
        """Bytes in use."""
        self.settle()
        return self._ledger.held

    @property
    def reserved_bytes(self) -> int:
        """Bytes that the driver was asked for: heaps whole, and textures."""
        if self._heaps is None:
            return self._ledger.held
        return self._heaps.reserved_bytes + self._texture_bytes

    @property
    def peak_bytes(self) -> int:
        """The most that was ever in use."""
        return self._ledger.peak

    def stats(self) -> MemoryStats:
        """Everything, as data; ``str()`` of it is a map."""
        self.settle()
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
        """What is held, a line for each owner and category: at the end of a program, the leaks."""
        return leak_report(self.stats().holdings)

    def __str__(self) -> str:
        return str(self.stats())


def _bytes_of(tenants: Iterable[Tenant]) -> int:
    """What these hold together."""
    return sum(held.nbytes for held in {held for tenant in tenants for held in tenant.resident})


def _tell(error: Exception, work: Callable[[], None]) -> None:
    """Say that work which was put off has failed."""
    message = "giving GPU memory back has failed"
    told = SimpleNamespace(
        exc_type=type(error),
        exc_value=error,
        exc_traceback=error.__traceback__,
        err_msg=message,
        object=work,
    )
    sys.unraisablehook(told)
