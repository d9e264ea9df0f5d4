"""Packed weights and kernel digests shared by the programs of one network at several shapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from threading import Lock

import numpy as np
import wgpu

from cml_engine.compiler.plan import Plan
from cml_engine.gpu.memory.allocation import Allocation
from cml_engine.gpu.memory.allocator import Allocator
from cml_engine.gpu.memory.segments import Segments
from cml_engine.gpu.shaders.steps import Variant, step_keys
from cml_engine.ir.graph import Array
from cml_engine.ir.layout import stored_bytes

_Usage = wgpu.BufferUsage
TENSOR_USAGE = _Usage.STORAGE | _Usage.COPY_SRC | _Usage.COPY_DST
#: an upload limit in bytes that is never reached
EVERYTHING = 1 << 62
_CHUNK_NUMBERS = 16 << 10

Chunks = Iterator[tuple[int, Array]]


class SharedConstants:
    """The constants that a plan shares with the plans of the same network at other shapes.

    No run changes them. They are uploaded once and stay on the device as long as one program
    uses them.
    """

    def __init__(self, plan: Plan, memory: Allocator) -> None:
        self.name = plan.name
        self.nbytes = max(plan.weights_bytes, 256)
        self._values = plan.weights
        self._memory = memory
        self._allocation: Allocation | None = None
        self._holders = 0
        self._chunks: Chunks = iter(())
        self._uploaded = False
        self._uploading = Lock()
        self._contents: dict[tuple[str, str], str] = {}

    def acquire(self) -> Allocation:
        """Returns the memory of the weights and counts a new user of it."""
        with self._memory.lock:
            if self._allocation is None:
                self._allocation = self._memory.allocate(
                    self.nbytes, TENSOR_USAGE, owner=self.name, category="weights"
                )
                self._chunks, self._uploaded = chunks(self._values), False
            self._holders += 1
            return self._allocation

    def give_back(self, now: bool) -> None:
        """Counts one user of the memory less and frees the memory after the last one.

        ``now`` frees it even while a frame is being encoded.
        """
        with self._memory.lock:
            self._holders -= 1
            if not self._holders:
                allocation, self._allocation = self._allocation, None
                assert allocation is not None
                free(allocation, now)

    def upload(self, limit: int) -> int:
        """Uploads about ``limit`` bytes of the weights, for a program that has taken the memory.

        Returns the unused part of the limit. Returns 0 if more weights may remain, or if another
        thread is uploading them.
        """
        if self._uploaded:
            return limit
        if not self._uploading.acquire(blocking=limit >= EVERYTHING):
            return 0
        try:
            assert self._allocation is not None
            limit = write_chunks(self._allocation, self._chunks, limit)
            self._uploaded = limit > 0
            return limit
        finally:
            self._uploading.release()

    def step_keys(self, plan: Plan) -> list[Variant]:
        """Returns the kernel variants of the plan's steps, in order.

        Kernel files that were read for an earlier plan are not read again.
        """
        return step_keys(plan, self._contents)


def chunks(values: Mapping[str, tuple[int, Array]]) -> Chunks:
    """Yields all values as pairs of a byte offset and at most 64 KiB of flat elements."""
    for offset, array in values.values():
        flat = np.ravel(array)
        for start in range(0, flat.size, _CHUNK_NUMBERS):
            yield offset + stored_bytes(flat[:start]), flat[start : start + _CHUNK_NUMBERS]


def write_chunks(allocation: Allocation, chunks: Chunks, limit: int) -> int:
    """Writes chunks up to ``limit`` bytes and returns the unused part of the limit.

    Returns 0 if more chunks may remain.
    """
    for offset, numbers in chunks:
        write_numbers(allocation, offset, numbers)
        limit -= numbers.nbytes
        if limit <= 0:
            return 0
    return limit


def write_numbers(allocation: Allocation, offset: int, numbers: Array) -> None:
    """Queues a write of numbers at a byte offset; Boolean values become 32-bit words."""
    if numbers.size:
        if numbers.dtype == np.bool_:
            numbers = numbers.astype(np.uint32)
        allocation.write(np.ascontiguousarray(numbers), offset)


def free(allocation: Allocation | Segments, now: bool) -> None:
    """Frees an allocation, either at once or as soon as no frame is being encoded."""
    if now:
        allocation.free_now()
    else:
        allocation.free()
