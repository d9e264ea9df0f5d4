"""The GPU time of single steps, from timestamps at pass boundaries or else from the wall clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import wgpu

from cml_engine.gpu.device import Device
from cml_engine.gpu.memory.allocation import Allocation

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
            with self._memory(16 * len(part) + 16, usage) as resolved:
                times += self._stamped(part, encode, resolved)
        return times

    def _memory(self, nbytes: int, usage: int) -> Allocation:
        return self._gpu.memory.allocate(nbytes, usage, owner="timers", category="staging")

    def _stamped(self, steps: Sequence[int], encode: Encode, resolved: Allocation) -> list[float]:
        device = self._gpu.device
        # an empty pass comes first: on a software driver each step is timed from the end of the
        # previous pass (TimestampRing explains why)
        count = 2 * len(steps) + 2
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
