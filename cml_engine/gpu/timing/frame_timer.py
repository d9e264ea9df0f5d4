"""GPU times, measured by timestamps: of the host's passes in every frame, and of single steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import wgpu

from cml_engine.errors import DeviceError, InputError
from cml_engine.errors.arguments import TIMES, check_nonempty_names, check_text
from cml_engine.gpu.device import Device
from cml_engine.gpu.memory.allocator import Allocation
from cml_engine.gpu.native import device_errors, poll
from cml_engine.gpu.timing.timestamp_ring import (
    ALIGNMENT,
    SLOTS,
    FrameSlot,
    TimestampRing,
    TimestampWrites,
)

#: WebGPU's limit on the entries of one query set
_MAX_QUERIES = 4096
_MOST_STEPS = _MAX_QUERIES // 2 - 1

#: ``encode(compute pass, step)``
Encode = Callable[[wgpu.GPUComputePassEncoder, int], None]


class PassTimer:
    """Measures the GPU time of single steps, each in its own pass. ``source`` names its clock."""

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu
        self.source = "timestamps" if gpu.has_timestamps else "wall clock"
        self._queries: wgpu.GPUQuerySet | None = None

    def time(self, steps: Sequence[int], encode: Encode) -> list[float]:
        """Submits the steps and returns the milliseconds of each, in order; blocks.

        ``encode(compute pass, step)`` records a step.
        """
        if not self._gpu.has_timestamps:
            with self._memory(4, wgpu.BufferUsage.COPY_SRC) as marker:
                return [self._wall(step, encode, marker) for step in steps]
        times: list[float] = []
        for start in range(0, len(steps), _MOST_STEPS):
            part = steps[start : start + _MOST_STEPS]
            usage = wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC
            with self._memory(_settled_at(len(part)) + 8, usage) as resolved:
                times += self._stamped(part, encode, resolved)
        return times

    def _memory(self, nbytes: int, usage: int) -> Allocation:
        return self._gpu.memory.allocate(nbytes, usage, owner="timers", category="staging")

    def _stamped(self, steps: Sequence[int], encode: Encode, resolved: Allocation) -> list[float]:
        device = self._gpu.device
        # an empty pass comes first: on a software driver each step is timed from the end of the
        # previous pass, once that is surely written (TimestampRing explains why)
        count = 2 * len(steps) + 2
        settled_at = resolved.offset + _settled_at(len(steps))
        if self._queries is None or self._queries.count < count:
            self._queries = device.create_query_set(type="timestamp", count=count)
        encoder = device.create_command_encoder()
        for i, step in enumerate([None, *steps]):
            stamps = {
                "query_set": self._queries,
                "beginning_of_pass_write_index": 2 * i,
                "end_of_pass_write_index": 2 * i + 1,
            }
            compute = encoder.begin_compute_pass(timestamp_writes=stamps)
            if step is not None:
                encode(compute, step)
            compute.end()
            if self._gpu.limits.software:
                encoder.resolve_query_set(self._queries, 2 * i + 1, 1, resolved.buffer, settled_at)
        encoder.resolve_query_set(self._queries, 0, count, resolved.buffer, resolved.offset)
        self._gpu.queue.submit([encoder.finish()])
        data = self._gpu.queue.read_buffer(resolved.buffer, resolved.offset, 8 * count)
        ticks = np.frombuffer(data, np.uint64).reshape(-1, 2)
        if self._gpu.limits.software:
            spent = np.diff(ticks[:, 1]).astype(np.float64)
        else:
            spent = (ticks[1:, 1] - ticks[1:, 0]).astype(np.float64)
        return [float(ms) for ms in spent * (self._gpu.timestamp_period_ns * 1e-6)]

    def _wall(self, step: int, encode: Encode, marker: Allocation) -> float:
        encoder = self._gpu.device.create_command_encoder()
        compute = encoder.begin_compute_pass()
        encode(compute, step)
        compute.end()
        start = time.perf_counter()
        self._gpu.queue.submit([encoder.finish()])
        # wgpu-py's own wait for submitted work raises TypeError in 0.32; a readback waits as well
        self._gpu.queue.read_buffer(marker.buffer, marker.offset, 4)
        return 1e3 * (time.perf_counter() - start)


def _settled_at(steps: int) -> int:
    """Returns the first aligned offset after the timestamps of ``steps`` passes and of one more."""
    return -(-16 * (steps + 1) // ALIGNMENT) * ALIGNMENT


class FrameTimer:
    """A timer of named passes of the host, created by :meth:`cml_engine.Gpu.frame_timer`.

    In every frame: :meth:`writes` for each pass to be timed, :meth:`resolve` at the end of the
    encoder, :meth:`end_frame` after the submit. Times arrive at least two frames later. No GPU
    object is created after the constructor. Without timestamp queries nothing is timed. On
    llvmpipe, render passes are timed correctly, and compute passes only until the device has
    drawn something (:class:`TimestampRing` explains why; the scheduler's own passes avoid the
    problem).

    Parameters
    ----------
    names : the names of the passes. Several passes of a frame may have the same name: their times
        are added up.
    passes : the most timed passes of one frame; a frame with more of them is not timed.
    every : one frame in ``every`` is timed. On llvmpipe two timed passes make a frame half a
        millisecond longer.
    """

    def __init__(self, gpu: Device, names: Sequence[str], passes: int = 16, every: int = 1) -> None:
        self.names = check_nonempty_names(names, "the names of a frame timer's passes")
        TIMES.check(passes, "passes of a frame timer")
        self._every = TIMES.check(every, "every")
        #: the number of the current frame
        self.frame = 0
        self._gpu = gpu
        self._ring: TimestampRing | None = None
        if gpu.has_timestamps:
            self._ring = TimestampRing(gpu, "frame timer", passes)
        self._slot: FrameSlot | None = None
        self._timed: list[list[str]] = [[] for _ in range(SLOTS)]
        self._resolved = self._skipped = False

    @property
    def untimed_frames(self) -> int:
        """The number of frames that were not timed.

        They had too many passes, or too many frames were in flight.
        """
        return self._ring.dropped if self._ring else 0

    def writes(self, name: str) -> TimestampWrites | None:
        """Returns ``timestamp_writes`` for the next pass ``name``; None if the pass is not timed.

        Each call reserves timestamps, so the pass must be encoded. Raises :class:`InputError` if
        the timer does not have the name.
        """
        if check_text(name, "a pass") not in self.names:
            raise InputError(f"no pass {name!r} in this timer: it has {', '.join(self.names)}")
        if self._ring is None or self._skipped or self._resolved or self.frame % self._every:
            return None
        if self._slot is None:
            self._slot = self._ring.begin(self.frame)
            if self._slot is None:
                self._skipped = True
                return None
            self._timed[self._slot.index].clear()
        if self._slot.passes == self._ring.passes:
            self._skip()
            return None
        self._timed[self._slot.index].append(name)
        return self._ring.writes(self._slot)

    @device_errors()
    def resolve(self, encoder: wgpu.GPUCommandEncoder) -> None:
        """Records the copy of the frame's timestamps for readback, after its last timed pass."""
        if self._ring is not None and self._slot is not None:
            self._ring.resolve(encoder, self._slot)
            self._resolved = True

    def end_frame(self) -> list[tuple[int, dict[str, float]]]:
        """Ends the frame after its submit and returns the times that have arrived.

        An entry is a frame's number and its milliseconds by name, oldest frame first. A pass
        that did not run in the frame has no entry.
        """
        if self._ring is None:
            return []
        if not self._resolved:
            self._ring.abandon(self.frame)
        frame = self._next_frame()
        try:
            with device_errors():
                if self._ring.start_mapping(frame):
                    poll(self._gpu.device)
            arrived = [(s.frame, self._by_name(s, ms)) for s, ms in self._ring.collect()]
        except DeviceError:  # the device is lost: no data will arrive
            return []
        self._ring.take_unsubmitted()  # frames that never ran have no times
        return arrived

    def abandon_frame(self) -> None:
        """Ends a frame whose encoder is discarded, instead of the submit and :meth:`end_frame`."""
        if self._ring is not None:
            self._ring.abandon(self.frame)
        self._next_frame()

    def _next_frame(self) -> int:
        """Advances to the next frame and returns the number of the previous one."""
        self._slot, self._resolved, self._skipped = None, False, False
        self.frame += 1
        return self.frame - 1

    def _skip(self) -> None:
        """Drops the frame's timestamps because it has too many passes, and counts it as untimed."""
        assert self._ring is not None
        self._ring.abandon(self.frame)
        self._ring.dropped += 1
        self._slot, self._skipped = None, True

    def _by_name(self, slot: FrameSlot, ms: Sequence[float]) -> dict[str, float]:
        times: dict[str, float] = {}
        for name, spent in zip(self._timed[slot.index], ms, strict=True):
            times[name] = times.get(name, 0.0) + spent
        return times
