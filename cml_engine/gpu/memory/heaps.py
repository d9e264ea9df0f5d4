"""The engine's own heaps: large buffers whose ranges are used if the host brings no allocator."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeVar

import wgpu

from cml_engine.errors import DeviceError
from cml_engine.gpu.native import raise_if_lost
from cml_engine.ir.memory import FreeList, HeapStats

_Usage = wgpu.BufferUsage
#: mapping covers a whole buffer, so mappable buffers are never shared
_MAPPABLE = _Usage.MAP_READ | _Usage.MAP_WRITE
#: empty whole buffers of a class that are kept for requests of a similar size
_SPARE_WHOLE = 16
#: the first heap of a class is smaller than the largest by this factor
_GROWTH = 64
#: no heap is larger than the budget divided by this number
_BUDGET_PART = 8

T = TypeVar("T")


class HeapRange:
    """A range of a heap's buffer; implements ``cml_engine.ir.memory.MemoryRange``."""

    __slots__ = ("_heap", "_heaps", "buffer", "nbytes", "offset")

    def __init__(self, heap: _Heap, heaps: Heaps, offset: int, nbytes: int) -> None:
        self._heap, self._heaps = heap, heaps
        self.buffer: wgpu.GPUBuffer = heap.buffer
        self.offset, self.nbytes = offset, nbytes

    def free(self) -> None:
        """Returns the range to its heap."""
        self._heap.ranges.free(self.offset)
        self._heaps.freed(self._heap)


class _Heap:
    """A buffer for one usage and category, with the list of its free ranges.

    A ``whole`` heap contains a single range: the host maps the buffer, or the range is larger
    than any shared heap.
    """

    def __init__(
        self, buffer: wgpu.GPUBuffer, key: tuple[int, str], nbytes: int, whole: bool
    ) -> None:
        self.buffer, self.key, self.whole = buffer, key, whole
        self.ranges = FreeList(nbytes)

    def allocate(self, nbytes: int, alignment: int) -> int | None:
        if not self.whole:
            return self.ranges.allocate(nbytes, alignment)
        fits = self.ranges.empty and nbytes <= self.ranges.nbytes <= 2 * nbytes
        return self.ranges.allocate(self.ranges.nbytes) if fits else None


class Heaps:
    """The engine's own memory source: it cuts ranges from large buffers.

    It implements :class:`cml_engine.ir.memory.MemorySource`. There are separate heaps for each
    usage and category, because WebGPU rejects a buffer that is used in two ways at once and
    copies within one buffer. The first heap of a class is small; each further one is twice as
    large, up to ``heap_bytes``. Empty heaps are destroyed, except for one spare (more for
    mappable buffers).

    ``may_reserve(nbytes)`` returns True if the budget has room for ``nbytes`` more.
    """

    def __init__(
        self,
        device: wgpu.GPUDevice,
        heap_bytes: int,
        may_reserve: Callable[[int], bool],
        budget: Callable[[], int | None],
    ) -> None:
        self._device = device
        self._heap_bytes = heap_bytes
        self._may_reserve, self._budget = may_reserve, budget
        self._classes: dict[tuple[int, str], list[_Heap]] = {}
        #: bytes of all buffers together
        self.reserved_bytes = 0

    def allocate(
        self, nbytes: int, usage: int, alignment: int, owner: str, category: str
    ) -> HeapRange:
        """Returns a free range of an existing heap, or of a new one.

        Raises ``MemoryError`` if the budget or the GPU has no room. See
        :class:`cml_engine.ir.memory.MemorySource`.
        """
        key = (usage, category)
        whole = bool(usage & _MAPPABLE) or nbytes > self._heap_bytes
        heaps = self._classes.setdefault(key, [])
        for heap in heaps:
            if heap.whole == whole and (at := heap.allocate(nbytes, alignment)) is not None:
                return HeapRange(heap, self, at, nbytes)
        heap = self._make(key, nbytes, whole)
        heaps.append(heap)
        offset = heap.allocate(nbytes, alignment)
        assert offset == 0
        return HeapRange(heap, self, offset, nbytes)

    def _make(self, key: tuple[int, str], nbytes: int, whole: bool) -> _Heap:
        preferred = nbytes if whole else self._heap_size(key, nbytes)
        for size in dict.fromkeys((preferred, nbytes)):  # a smaller heap is better than none
            if self._may_reserve(size):
                try:
                    return self._create(key, size, whole)
                except MemoryError:
                    if size == nbytes:
                        raise
        raise MemoryError("the budget is used up")

    def _heap_size(self, key: tuple[int, str], nbytes: int) -> int:
        last = [heap.ranges.nbytes for heap in self._classes[key] if not heap.whole]
        size = min(self._heap_bytes, 2 * max(last) if last else self._heap_bytes // _GROWTH)
        budget = self._budget()
        if budget is not None:
            size = min(size, budget // _BUDGET_PART)
        return max(nbytes, size & ~255)

    def _create(self, key: tuple[int, str], nbytes: int, whole: bool) -> _Heap:
        usage, category = key
        buffer = guarded(
            lambda: self._device.create_buffer(label=f"cml.{category}", size=nbytes, usage=usage),
            f"a buffer of {nbytes} bytes for {category}",
        )
        self.reserved_bytes += nbytes
        return _Heap(buffer, key, nbytes, whole)

    def freed(self, heap: _Heap) -> None:
        """Destroys an empty heap of this class if more are empty than are kept as spares.

        Called after a range of ``heap`` was freed. Of shared heaps the smallest is destroyed, of
        whole ones the least recently used: else a frame would create its buffer each time beside
        larger ones that are no longer used.
        """
        if not heap.ranges.empty:
            return
        alike = self._classes[heap.key]
        if heap.whole:
            alike.append(alike.pop(alike.index(heap)))
        spare = [h for h in alike if h.whole == heap.whole and h.ranges.empty]
        keeps_many = heap.whole and heap.key[0] & _MAPPABLE
        n_spares = 0 if not self._may_reserve(0) else _SPARE_WHOLE if keeps_many else 1
        if len(spare) > n_spares:
            self._destroy(spare[0] if heap.whole else min(spare, key=lambda h: h.ranges.nbytes))

    def trim(self) -> None:
        """Destroys every empty heap, including the spare ones."""
        for heaps in list(self._classes.values()):
            for heap in [h for h in heaps if h.ranges.empty]:
                self._destroy(heap)

    def permanent_bytes(self, passing: Collection[str]) -> int:
        """Returns the bytes of the heaps that hold other categories than the ``passing`` ones.

        Mappable buffers count as passing too, because readbacks free them.
        """
        return sum(
            heap.ranges.nbytes
            for (usage, category), heaps in self._classes.items()
            if category not in passing and not usage & _MAPPABLE
            for heap in heaps
        )

    def _destroy(self, heap: _Heap) -> None:
        self._classes[heap.key].remove(heap)
        self.reserved_bytes -= heap.ranges.nbytes
        heap.buffer.destroy()

    def heaps(self) -> tuple[HeapStats, ...]:
        """Returns the current statistics of every heap, grouped by usage and category."""
        return tuple(
            HeapStats(
                key[1],
                heap.ranges.nbytes,
                heap.ranges.nbytes - heap.ranges.free_bytes,
                heap.ranges.largest_free,
                tuple(heap.ranges.taken),
                heap.whole,
            )
            for key, heaps in self._classes.items()
            for heap in heaps
        )


def guarded(make: Callable[[], T], description: str) -> T:
    """Calls ``make`` and returns its result.

    Raises ``MemoryError`` if the GPU is out of memory, and :class:`DeviceError` if the driver
    refuses for another reason. ``description`` names the object in the message.
    """
    try:
        return make()
    except (wgpu.GPUError, RuntimeError) as error:
        if isinstance(error, wgpu.GPUOutOfMemoryError) or "memory" in str(error).lower():
            raise MemoryError(f"the GPU has no memory for {description}") from error
        raise_if_lost(error)
        raise DeviceError(f"the GPU refused {description}: {error}") from error
