"""Large buffers, and ranges of them: where memory comes from when the host brings no allocator."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import wgpu

from cml_engine.errors import DeviceError
from cml_engine.gpu.native import raise_if_lost
from cml_engine.ir.memory import FreeList, HeapStats

_Usage = wgpu.BufferUsage
#: buffers that the host maps are mapped whole, so they are never shared
_MAPPABLE = _Usage.MAP_READ | _Usage.MAP_WRITE
#: empty whole buffers of a class that are kept for the next who wants one of about that size
_SPARE_WHOLE = 16
#: the first heap of a class is so many times smaller than the largest
_GROWTH = 64
#: no heap is larger than this part of the budget
_BUDGET_PART = 8


class HeapRange:
    """A range of a heap (``cml_engine.ir.memory.MemoryRange``)."""

    __slots__ = ("_heap", "_heaps", "buffer", "nbytes", "offset")

    def __init__(self, heap: _Heap, heaps: Heaps, offset: int, nbytes: int) -> None:
        self._heap, self._heaps = heap, heaps
        self.buffer: wgpu.GPUBuffer = heap.buffer
        self.offset, self.nbytes = offset, nbytes

    def free(self) -> None:
        """Give it back to its heap."""
        self._heap.ranges.free(self.offset)
        self._heaps.freed(self._heap)


class _Heap:
    """A buffer of one class. A ``whole`` one holds a single range: it is mapped by the host, or
    the range is larger than any heap."""

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
    """The engine's own :class:`cml_engine.ir.memory.MemorySource`.

    Heaps are kept apart by usage and category: WebGPU refuses a buffer that is used in two ways
    at once, and copies within one buffer. The first heap of a class is small and every further
    one twice as large, up to ``heap_bytes``. An empty heap goes back to the driver, but for one.

    ``may_reserve(nbytes)`` says whether the budget has room for so much more.
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
        """See :class:`cml_engine.ir.memory.MemorySource`."""
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
        usual = nbytes if whole else self._usual_size(key, nbytes)
        for size in dict.fromkeys((usual, nbytes)):  # a smaller heap is better than none
            if self._may_reserve(size):
                try:
                    return self._create(key, size, whole)
                except MemoryError:
                    if size == nbytes:
                        raise
        raise MemoryError("the budget is used up")

    def _usual_size(self, key: tuple[int, str], nbytes: int) -> int:
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
        """A range of the heap was freed: give the heap back if it is one too many."""
        if heap.ranges.empty:
            alike = self._classes[heap.key]
            spare = [h for h in alike if h.whole == heap.whole and h.ranges.empty]
            many = heap.whole and heap.key[0] & _MAPPABLE
            kept = 0 if not self._may_reserve(0) else _SPARE_WHOLE if many else 1
            if len(spare) > kept:
                self._destroy(min(spare, key=lambda h: h.ranges.nbytes))

    def trim(self) -> None:
        """Give back every heap that is empty, the spare ones too."""
        for heaps in list(self._classes.values()):
            for heap in [h for h in heaps if h.ranges.empty]:
                self._destroy(heap)

    def lasting_bytes(self, passing: Collection[str]) -> int:
        """Bytes of the buffers whose content is of none of these categories, or is not on its way
        to the host: what is left when all of those have gone."""
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
        """Every heap as it is now."""
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


def guarded(make: Callable[[], Any], what: str) -> Any:
    """What ``make`` makes; ``MemoryError`` where the GPU has no memory for it, and
    :class:`DeviceError` where it refuses for another reason."""
    try:
        return make()
    except (wgpu.GPUError, RuntimeError) as error:
        if isinstance(error, wgpu.GPUOutOfMemoryError) or "memory" in str(error).lower():
            raise MemoryError(f"the GPU has no memory for {what}") from error
        raise_if_lost(error)
        raise DeviceError(f"the GPU refused {what}: {error}") from error
