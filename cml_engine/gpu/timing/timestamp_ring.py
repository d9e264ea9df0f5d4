"""A ring of timestamp slots for recent frames, created once and reused.

No call blocks: a frame's slot is requested when the frame is old enough and read when it has
arrived. Each frame also leaves a receipt, a number that a command of the frame copies. A missing
receipt reveals a frame that was never submitted.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Required, TypedDict

import numpy as np
import wgpu

from cml_engine.gpu.device import Device
from cml_engine.gpu.memory.staging import Staging
from cml_engine.gpu.native import (
    Copy,
    copy_recorder,
    describe_pass,
    device_errors,
    pass_recorder,
)

_Usage = wgpu.BufferUsage
#: the most frames whose timings may be in flight; further frames run untimed
SLOTS = 8
#: the age in frames at which timings are requested: earlier the frame may not be done, and some
#: drivers would block
AGE = 2
#: WebGPU's alignment in bytes of the offset that queries are resolved to
ALIGNMENT = 256
#: receipt numbers per ring, stored in a table on the GPU
_RECEIPTS = 256
_receipts = itertools.count(1, _RECEIPTS)


#: the most frames whose receipts share a slot
_TOGETHER = 16
#: the least share of a pass's time that is left without the time of an empty pass
_LEAST_LEFT = 0.1
#: empty passes of which the median time counts
_EMPTY = 15


class TimestampWrites(TypedDict, total=False):
    """The ``timestamp_writes`` of a pass."""

    query_set: Required[wgpu.GPUQuerySet]
    beginning_of_pass_write_index: int
    end_of_pass_write_index: int


@dataclass(slots=True)
class FrameSlot:
    """The readback slot of a frame with ``passes`` timed passes.

    It contains the timestamps, and the receipts of this frame and of the untimed frames before it.
    """

    index: int
    readback: Staging
    passes: int = 0
    #: frames and their receipt numbers, oldest first
    receipts: list[tuple[int, int]] = field(default_factory=list)
    #: True if the next frame shares this slot
    open: bool = False

    @property
    def frame(self) -> int:
        """The number of the slot's latest frame."""
        return self.receipts[-1][0]


class TimestampRing:
    """A ring that times up to ``passes`` passes of every frame and detects frames that never ran.

    Without timestamp queries there are only receipts. Memory is allocated under the name ``owner``.

    With ``chained``, a frame's passes follow each other directly, after a call of :meth:`lead`,
    each with a call of :meth:`settle` behind it. On a software driver each pass is then timed from
    the end of the previous one. The reason: after llvmpipe has drawn anything, it queues
    timestamps with the tiles to be drawn, but runs compute work at once. A timestamp is then
    written at any time during the next pass, unless the driver has to wait for it. Empty passes
    show how long that takes by itself; it is subtracted.
    """

    def __init__(self, gpu: Device, owner: str, passes: int, *, chained: bool = False) -> None:
        self._leads = chained and gpu.limits.software and gpu.has_timestamps
        self.passes = passes = passes + 2 * self._leads
        #: the last times of empty passes
        self._empty_ms: deque[float] = deque(maxlen=_EMPTY)
        # only the end of a chained pass is written: a timestamp takes a software driver 20 to 50 µs
        self._queries_per_pass = 1 if self._leads else 2
        self._label = "cml" if gpu.markers else ""
        #: the descriptions of passes for a recorder: without timestamps, and those used before
        self.untimed_pass = describe_pass(self._label)
        self._timed_passes: dict[int, Any] = {}
        #: frames that ran without timings because all slots were taken
        self.dropped = 0
        self._period_ms = gpu.timestamp_period_ns * 1e-6
        self._receipt_at = 8 * self._queries_per_pass * passes
        self._slot_bytes = -(-(self._receipt_at + 4 * _TOGETHER) // ALIGNMENT) * ALIGNMENT
        self._table_at = SLOTS * self._slot_bytes
        self._scratch_at = self._table_at + 4 * _RECEIPTS
        self._receipt = 0
        self._first_receipt = next(_receipts)
        self._busy: list[FrameSlot] = []
        self._unsubmitted: list[int] = []
        usage = _Usage.COPY_SRC | _Usage.COPY_DST
        self._writes: list[TimestampWrites] = []
        if gpu.has_timestamps:
            count = SLOTS * self._queries_per_pass * passes
            with device_errors():
                self._queries = gpu.device.create_query_set(type="timestamp", count=count)
            for first in range(0, count, self._queries_per_pass):
                writes: TimestampWrites = {
                    "query_set": self._queries,
                    "end_of_pass_write_index": first + self._queries_per_pass - 1,
                }
                if self._queries_per_pass == 2:
                    writes["beginning_of_pass_write_index"] = first
                self._writes.append(writes)
            usage |= _Usage.QUERY_RESOLVE
        # resolved timestamps of every slot, then the table of receipts
        self._resolved = gpu.memory.allocate(
            self._scratch_at + 8, usage, owner=owner, category="staging"
        )
        self._resolved.free_with_owner(self)
        table = np.arange(_RECEIPTS, dtype=np.uint32) + np.uint32(self._first_receipt)
        self._resolved.write(table, self._table_at)
        self._free = [
            FrameSlot(i, Staging(gpu.memory, self._slot_bytes, owner)) for i in range(SLOTS)
        ]

    def begin(self, frame: int, *, timed: bool = True) -> FrameSlot | None:
        """Returns a slot for the frame, or None if all slots are in flight.

        Several frames that are not ``timed`` share a slot with the next timed frame.
        """
        slot = self._busy[-1] if self._busy and self._busy[-1].open else self._take_free()
        if slot is None:
            self.dropped += 1
            return None
        slot.receipts.append((frame, self._first_receipt + self._receipt))
        self._receipt = (self._receipt + 1) % _RECEIPTS
        slot.open = not timed and len(slot.receipts) < _TOGETHER
        return slot

    def _take_free(self) -> FrameSlot | None:
        if not self._free:
            return None
        slot = self._free.pop(0)
        self._busy.append(slot)
        return slot

    def _give_back(self, slot: FrameSlot) -> None:
        slot.passes, slot.open = 0, False
        slot.receipts.clear()
        self._free.append(slot)

    def writes(self, slot: FrameSlot) -> TimestampWrites | None:
        """Returns ``timestamp_writes`` for the frame's next pass; None without timestamp queries.

        The pass must then be encoded.
        """
        if not self._writes:
            return None
        slot.passes += 1
        return self._writes[slot.index * self.passes + slot.passes - 1]

    def timed_pass(self, slot: FrameSlot) -> Any:
        """Returns the description of the frame's next pass, for a recorder.

        It counts as a call of :meth:`writes`.
        """
        writes = self.writes(slot)
        index = slot.index * self.passes + slot.passes - 1
        description = self._timed_passes.get(index)
        if description is None:
            description = self._timed_passes[index] = describe_pass(self._label, writes)
        return description

    def lead(self, encoder: wgpu.GPUCommandEncoder, slot: FrameSlot) -> None:
        """Records empty timed passes before the first chained one, if the driver needs them."""
        for _ in range(2 * self._leads):
            pass_recorder()(encoder, self.timed_pass(slot), ())
            self.settle(encoder, slot)

    def settle(self, encoder: wgpu.GPUCommandEncoder, slot: FrameSlot) -> None:
        """Has the driver write the timestamp of the last chained pass now, if it would be late."""
        if self._leads:
            query = slot.index * self.passes + slot.passes - 1
            offset = self._resolved.offset + self._scratch_at
            encoder.resolve_query_set(self._queries, query, 1, self._resolved.buffer, offset)

    def resolve(self, encoder: wgpu.GPUCommandEncoder, slot: FrameSlot) -> None:
        """Records the copies of the frame's timestamps, if any, and receipt into the slot."""
        buffer, back = self._resolved.buffer, slot.readback.memory
        copies: list[Copy] = []
        if slot.passes:
            first = slot.index * self._queries_per_pass * self.passes
            count = self._queries_per_pass * slot.passes
            offset = self._resolved.offset + slot.index * self._slot_bytes
            encoder.resolve_query_set(self._queries, first, count, buffer, offset)
            copies.append((buffer, offset, back.buffer, back.offset, 8 * count))
        number = slot.receipts[-1][1] - self._first_receipt
        offset = self._resolved.offset + self._table_at + 4 * number
        target = back.offset + self._receipt_at + 4 * (len(slot.receipts) - 1)
        copies.append((buffer, offset, back.buffer, target, 4))
        copy_recorder()(encoder, copies)

    def start_mapping(self, frame: int) -> bool:
        """Starts mapping the slots that are at least ``AGE`` frames old at the end of ``frame``.

        Returns True if any slot is in flight, so that the device must be polled.
        """
        for slot in self._busy:
            if not slot.readback.is_mapping and frame - slot.frame >= AGE:
                slot.open = False
                slot.readback.start_mapping()
        return self.in_flight > 0

    def collect(self) -> Iterator[tuple[FrameSlot, list[float]]]:
        """Yields the slots whose timings have arrived, oldest first, with milliseconds per pass.

        Slots without timed passes and frames that never ran are omitted; the latter are stored
        for :meth:`take_unsubmitted`. A slot is reused after its iteration. Raises
        :class:`DeviceError` if the device is lost.
        """
        while self._busy and self._busy[0].readback.arrived:
            slot = self._busy.pop(0)
            try:
                data = slot.readback.collect()
                unsubmitted = self._never_ran(slot, data)
                self._unsubmitted += unsubmitted
                if slot.passes and slot.frame not in unsubmitted:
                    yield slot, self._milliseconds(slot, data)
            finally:
                self._give_back(slot)

    def _never_ran(self, slot: FrameSlot, data: bytes) -> list[int]:
        """Returns the numbers of the slot's frames whose receipts are missing from ``data``."""
        received = struct.unpack_from(f"={len(slot.receipts)}I", data, self._receipt_at)
        pairs = zip(slot.receipts, received, strict=True)
        return [frame for (frame, number), receipt in pairs if receipt != number]

    def _milliseconds(self, slot: FrameSlot, data: bytes) -> list[float]:
        # struct is faster than NumPy for a few numbers per frame
        ticks = struct.unpack_from(f"={self._queries_per_pass * slot.passes}q", data)
        starts, ends = (ticks, ticks[1:]) if self._leads else (ticks[::2], ticks[1::2])
        times = [(end - start) * self._period_ms for start, end in zip(starts, ends, strict=False)]
        fixed_ms = 0.0
        if self._leads:
            self._empty_ms.append(times.pop(0))
            fixed_ms = median(self._empty_ms)
        # a pass as short as an empty one has some time left, or nothing would be learned of it
        return [max(_LEAST_LEFT * ms, ms - fixed_ms, 0.0) for ms in times]

    def abandon(self, frame: int) -> None:
        """Drops the latest timestamps and receipt of a frame whose encoder is discarded."""
        for slot in [s for s in self._busy if s.frame == frame]:
            slot.readback.forget()
            slot.receipts.pop()
            slot.passes, slot.open = 0, True
            if not slot.receipts:
                self._busy.remove(slot)
                self._give_back(slot)

    def take_unsubmitted(self) -> list[int]:
        """Returns the numbers of the frames that were ended but never ran, and clears the list."""
        frames, self._unsubmitted = self._unsubmitted, []
        return frames

    def close(self) -> None:
        """Closes the latest slot to further frames, so that its readback does not wait for them."""
        if self._busy:
            self._busy[-1].open = False

    @property
    def oldest(self) -> float:
        """The first frame that may or may not have run; infinity if all frames are settled."""
        return self._busy[0].receipts[0][0] if self._busy else math.inf

    @property
    def is_full(self) -> bool:
        """True if a frame would get no slot, and no receipt would show that it ran."""
        return not self._free and not self._busy[-1].open

    @property
    def in_flight(self) -> int:
        """The number of slots that were requested and have not arrived."""
        return sum([slot.readback.is_mapping for slot in self._busy])

    def check(self) -> None:
        """Raises :class:`DeviceError` if the device is lost.

        A small write to the ring's memory shows that.
        """
        self._resolved.write(np.array([self._first_receipt], np.uint32), self._table_at)
