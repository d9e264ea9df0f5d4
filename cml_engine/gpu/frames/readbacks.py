"""Outputs on their way to the host, over as many frames as that takes."""

from __future__ import annotations

from collections.abc import Collection

import wgpu

from cml_engine.errors import DeviceError, OutOfGpuMemory
from cml_engine.gpu.device import Device
from cml_engine.gpu.frames.outputs import Result
from cml_engine.gpu.native import device_errors
from cml_engine.gpu.timing.timestamp_ring import AGE


class Readbacks:
    """Results whose copies have not arrived; nothing here waits for one."""

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu
        self._unasked: list[Result] = []
        self._reading: list[Result] = []

    @property
    def pending(self) -> bool:
        """Whether :meth:`request_again` has something to request."""
        return bool(self._unasked)

    def __contains__(self, result: Result) -> bool:
        return result in self._reading or result in self._unasked

    def request(self, encoder: wgpu.GPUCommandEncoder, result: Result, frame: int) -> None:
        """Append the copy into mappable memory; in a later frame, where models that are running
        have all of it."""
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
        """Those for which there was no memory in an earlier frame, or whose frame was abandoned."""
        unasked, self._unasked = self._unasked, []
        for result in unasked:
            if not result.memory.freed:
                self.request(encoder, result, frame)

    def ask(self, frame: int) -> bool:
        """Ask for what is old enough; whether anything is on its way."""
        for result in self._reading:
            result.ask(frame - AGE)
        return bool(self._reading)

    def take(self, before: float) -> None:
        """Take what has arrived of the copies of frames before this one."""
        self._reading = [
            result for result in self._reading if result.asked_frame >= before or not result.take()
        ]

    def lose(self, error: DeviceError) -> None:
        """The device is lost: nothing will come."""
        for result in self._reading:
            result.lose(error)
        self._reading.clear()

    def postpone(self, result: Result) -> None:
        """Request it in the next frame."""
        self._unasked.append(result)

    def abandon(self, frames: Collection[int]) -> None:
        """The copies of these frames did not happen: they are requested again in the next one."""
        for result in [r for r in self._reading if r.asked_frame in frames]:
            self._reading.remove(result)
            result.stop_reading()
            self.postpone(result)
