"""Readbacks of outputs to the host, which take several frames."""

from __future__ import annotations

from collections.abc import Collection

import wgpu

from cml_engine.errors import DeviceError, OutOfGpuMemory
from cml_engine.gpu.device import Device
from cml_engine.gpu.frames.outputs import Result
from cml_engine.gpu.native import device_errors
from cml_engine.gpu.timing.timestamp_ring import AGE


class Readbacks:
    """The results whose readbacks have not arrived. No call blocks."""

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu
        self._unasked: list[Result] = []
        self._reading: list[Result] = []

    @property
    def pending(self) -> bool:
        """True if there are postponed readbacks for :meth:`request_again`."""
        return bool(self._unasked)

    def __contains__(self, result: Result) -> bool:
        return result in self._reading or result in self._unasked

    def request(self, encoder: wgpu.GPUCommandEncoder, result: Result, frame: int) -> None:
        """Records the copy of a result into mappable memory; sets ``result.error`` if that fails.

        The copy is postponed to a later frame if running models use all of the memory.
        """
        try:
            with device_errors():
                result.begin_read(encoder, frame)
        except OutOfGpuMemory as error:
            if self._gpu.memory.may_ever_fit(result.nbytes):
                self._unasked.append(result)
            else:
                result.error = error
        except DeviceError as error:
            result.error = error
        else:
            self._reading.append(result)

    def request_again(self, encoder: wgpu.GPUCommandEncoder, frame: int) -> None:
        """Records the postponed copies, except of results that were freed.

        A copy was postponed if an earlier frame had no memory for it or was abandoned.
        """
        unasked, self._unasked = self._unasked, []
        for result in unasked:
            if not result.memory.freed:
                self.request(encoder, result, frame)

    def start_mapping(self, frame: int) -> bool:
        """Starts mapping the copies that were recorded at least ``AGE`` frames before ``frame``.

        Returns True if any readback is pending.
        """
        for result in self._reading:
            result.start_mapping(frame - AGE)
        return bool(self._reading)

    def collect(self, before: float) -> None:
        """Collects the arrived copies of the frames before frame ``before`` into their results."""
        self._reading = [
            result
            for result in self._reading
            if result.requested_frame >= before or not result.collect()
        ]

    def lose(self, error: DeviceError) -> None:
        """Ends all pending readbacks with ``error`` because the device is lost."""
        for result in self._reading:
            result.lose(error)
        self._reading.clear()

    def postpone(self, result: Result) -> None:
        """Queues the readback for :meth:`request_again` in the next frame."""
        self._unasked.append(result)

    def abandon(self, frames: Collection[int]) -> None:
        """Postpones the copies that were recorded in these abandoned frames."""
        for result in [r for r in self._reading if r.requested_frame in frames]:
            self._reading.remove(result)
            result.stop_reading()
            self.postpone(result)
