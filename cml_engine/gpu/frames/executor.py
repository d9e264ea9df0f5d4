"""The device's side of a frame scheduler: slices into the host's encoder, timings and outputs back.

Timestamp slots are made beforehand and used again in a ring; outputs and readbacks take memory
from the device's allocator, which keeps what is given back. Nothing here waits: what has not
arrived is asked for again in the next frame. (The scheduler sees this class as
``scheduler.executor.Executor``.)
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import wgpu

from cml_engine.errors import InputError, OutOfGpuMemory
from cml_engine.gpu.device import Device
from cml_engine.gpu.frames.job_inputs import check_input, check_inputs, is_array
from cml_engine.gpu.frames.outputs import GpuTensor, Result, output_bytes
from cml_engine.gpu.native import device_error, poll
from cml_engine.gpu.program.preparation import BUILDER
from cml_engine.gpu.program.program import GpuProgram
from cml_engine.gpu.timing.timestamp_ring import AGE, TimestampRing

#: slices of a frame that are timed one by one
MAX_GROUPS = 12


class SliceLike(Protocol):
    """Workgroups ``[first, first + count)`` of a step of a program."""

    @property
    def network(self) -> Any: ...
    @property
    def step(self) -> int: ...
    @property
    def first(self) -> int: ...
    @property
    def count(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Timing:
    """Measured GPU time of one group of slices of a frame."""

    frame: int
    group: int
    ms: float


class FrameExecutor:
    """Encodes into the host's encoders on one device."""

    max_groups = MAX_GROUPS

    def __init__(self, gpu: Device) -> None:
        self.gpu = gpu
        self.name = gpu.name
        self.clock_source = "timestamps" if gpu.has_timestamps else "wall clock"
        # a software driver spreads workgroups over the cores: a slice that is no multiple of
        # their number leaves some idle at its end
        self.granule = (os.cpu_count() or 1) if gpu.limits.software else 1
        self._frame = -1
        self._ended: list[GpuProgram] = []
        self._reserved: dict[GpuProgram, Result] = {}
        self._unasked: list[Result] = []
        self._reading: list[Result] = []
        self._untold: set[int] = set()
        self._ring = TimestampRing(gpu, "frame scheduler", MAX_GROUPS, chained=True)

    # --- jobs

    def accept(self, network: GpuProgram, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Check the inputs of a job to come; copy arrays, and keep tensors until :meth:`let_go`."""
        check_inputs(self.gpu, network, inputs)
        for name, value in inputs.items():
            _refuse_released(name, value)
        accepted: dict[str, Any] = {}
        for name, value in inputs.items():
            accepted[name] = np.array(value) if is_array(value) else value
            if isinstance(value, GpuTensor):
                value.keep()
        return accepted

    def let_go(self, value: Any) -> None:
        """An accepted input is not needed any more."""
        if isinstance(value, GpuTensor):
            value.let_go()

    def reserve(self, network: GpuProgram) -> str:
        """Take the network and the memory for a job's outputs before it begins; what it waits for,
        where another thread has the one, or others can give back some of the other."""
        self._let_ended_go()
        if not network.hold(self):
            return "its network, which another thread took just now"
        try:
            waits_for = self._take_outputs(network)
        except Exception:
            network.let_go(self)
            raise
        if waits_for:
            network.let_go(self)
        return waits_for

    def _take_outputs(self, network: GpuProgram) -> str:
        try:
            self._reserved[network] = self._new_result(network)
        except OutOfGpuMemory as error:
            if not self.gpu.memory.may_ever_fit(output_bytes(network), but=network):
                raise
            return f"memory for its outputs: {str(error).splitlines()[0]}"
        return ""

    def _new_result(self, network: GpuProgram) -> Result:
        with network.pinned():
            return Result.of(network)

    def begin_job(
        self, encoder: wgpu.GPUCommandEncoder, network: GpuProgram, inputs: Mapping[str, Any]
    ) -> None:
        """Upload host arrays; copy GPU tensors where they come from."""
        self._let_ended_go()
        try:
            self._write_inputs(encoder, network, inputs)
        except Exception as error:
            network.let_go(self)
            self._give_up_reserved(network)
            if isinstance(error, wgpu.GPUError):
                raise device_error(error) from error
            raise

    def _write_inputs(
        self, encoder: wgpu.GPUCommandEncoder, network: GpuProgram, inputs: Mapping[str, Any]
    ) -> None:
        arrays = {name: v for name, v in inputs.items() if not isinstance(v, GpuTensor)}
        network.write_inputs(arrays)
        for name, value in inputs.items():
            if isinstance(value, GpuTensor):
                self._copy_in(encoder, network, name, value)

    def _copy_in(
        self, encoder: wgpu.GPUCommandEncoder, network: GpuProgram, name: str, tensor: GpuTensor
    ) -> None:
        check_input(self.gpu, network, name, tensor)
        _refuse_released(name, tensor)
        place = network.plan.inputs[name]
        if place.fact.size:
            encoder.copy_buffer_to_buffer(
                tensor.buffer, tensor.offset, *network.place(place.binding), place.fact.nbytes
            )

    def finish_job(self, encoder: wgpu.GPUCommandEncoder, network: GpuProgram) -> Result | None:
        """Copy the outputs into the memory that was reserved for them; then the variables may
        change. Where it went with a frame that was abandoned, there may be none for now."""
        if network not in self._reserved and self._take_outputs(network):
            return None
        result = self._reserved.pop(network)
        result.copy_from(encoder, network)
        network.encode_updates(encoder)
        return result

    def _give_up_reserved(self, network: GpuProgram) -> None:
        reserved = self._reserved.pop(network, None)
        if reserved is not None:
            reserved.release()

    def end_job(self, network: GpuProgram) -> None:
        """The network's job is over; its memory is its own again after this frame's submit."""
        self._ended.append(network)
        self._give_up_reserved(network)

    def resume_job(self, network: GpuProgram) -> None:
        """Its end was part of a frame that is being abandoned: the memory is still the job's."""
        self._ended.remove(network)

    def _let_ended_go(self) -> None:
        while self._ended:
            self._ended.pop().let_go(self)

    def tensor(self, result: Result, name: str) -> GpuTensor:
        """An output on the GPU."""
        return result.tensor(name)

    def request_read(self, encoder: wgpu.GPUCommandEncoder, result: Result) -> None:
        """Append the copy into mappable memory; in a later frame, where models that are running
        have all of it."""
        try:
            result.begin_read(encoder, self._frame)
        except OutOfGpuMemory as error:
            if self.gpu.memory.may_ever_fit(result.nbytes):
                self._unasked.append(result)
            else:
                result.error = error
        except wgpu.GPUError as error:
            result.error = device_error(error)
        else:
            self._reading.append(result)

    def read(self, result: Result, name: str) -> Any:
        """The output if it has arrived, else None."""
        return result.value(name)

    def is_reading(self, result: Result) -> bool:
        """Whether a readback of it is on its way."""
        return result in self._reading or result in self._unasked

    def release(self, result: Result) -> None:
        """Give the outputs' memory back."""
        result.release()

    # --- frames

    def encode(
        self,
        encoder: wgpu.GPUCommandEncoder,
        frame: int,
        groups: Sequence[Sequence[SliceLike]],
    ) -> list[tuple[GpuProgram, Exception]]:
        """A compute pass for each group, with timestamps at its ends where they can be had; the
        networks whose slices the device refused, with its reason."""
        self._frame = frame
        self.gpu.memory.open_frame(self)
        unasked, self._unasked = self._unasked, []
        for result in unasked:  # there was no memory for these in an earlier frame
            if not result.memory.freed:
                self.request_read(encoder, result)
        failed: dict[GpuProgram, Exception] = {}
        slot = self._ring.begin(frame) if groups else None
        try:
            if slot is not None:
                self._ring.lead(encoder, slot)
            for group in groups:
                writes = None if slot is None else self._ring.writes(slot)
                self._encode_group(encoder, group, writes, failed)
            if slot is not None:
                self._ring.resolve(encoder, slot)
        except wgpu.GPUError as error:
            raise device_error(error) from error
        if failed:  # what ran instead says nothing of what the slices take
            self._untold.add(frame)
        return list(failed.items())

    def _encode_group(
        self,
        encoder: wgpu.GPUCommandEncoder,
        group: Sequence[SliceLike],
        writes: Any,
        failed: dict[GpuProgram, Exception],
    ) -> None:
        compute = encoder.begin_compute_pass(label="cml", timestamp_writes=writes)
        try:
            for part in group:
                if part.network in failed:
                    continue
                try:
                    part.network.encode_range(compute, part.step, part.first, part.count)
                except Exception as error:
                    is_wgpu = isinstance(error, wgpu.GPUError)
                    failed[part.network] = device_error(error) if is_wgpu else error
        finally:  # the host goes on with its encoder whatever happens here
            compute.end()

    @property
    def frames_in_flight(self) -> int:
        """Frames whose timings have not arrived, without those too young to be asked."""
        return self._ring.in_flight

    @property
    def untimed_frames(self) -> int:
        """Frames that ran without timings because all slots were taken."""
        return self._ring.dropped

    def end_frame(self, frame: int) -> list[Timing]:
        """Ask for what is old enough, take what has arrived."""
        self._let_ended_go()
        self.gpu.memory.close_frame(self)
        try:
            self._ask(frame)
        except wgpu.GPUError as error:  # the device is lost: nothing will come
            for result in self._reading:
                result.lose(device_error(error))
            self._reading.clear()
            return []
        self._reading = [result for result in self._reading if not result.take()]
        timings = []
        for slot, spent in self._ring.take():
            if slot.frame in self._untold:
                self._untold.discard(slot.frame)
                continue
            timings += [Timing(slot.frame, group, ms) for group, ms in enumerate(spent)]
        return timings

    def _ask(self, frame: int) -> None:
        timings_awaited = self._ring.ask(frame)
        for result in self._reading:
            result.ask(frame - AGE)
        if timings_awaited or self._reading:
            poll(self.gpu.device)

    def preparing(self) -> str:
        """What the thread that builds pipelines is doing, and its last error, in words."""
        return BUILDER.doing()

    def take_unsubmitted(self) -> list[int]:
        """Frames that were ended and never ran: their receipts did not come."""
        return self._ring.take_unsubmitted()

    def check(self) -> None:
        """:class:`DeviceError` where the device is lost."""
        self._ring.check()

    def abandon_frame(self, frame: int) -> None:
        """The frame's encoder is thrown away: what it would have copied did not happen."""
        self._ring.abandon(frame)
        self._untold.discard(frame)
        for result in [r for r in self._reading if r.asked_frame == frame]:
            self._reading.remove(result)
            result.stop_reading()
            self._unasked.append(result)
        self._let_ended_go()
        self.gpu.memory.close_frame(self)


def _refuse_released(name: str, value: Any) -> None:
    """:class:`InputError` for a GPU tensor whose memory was given back."""
    if isinstance(value, GpuTensor) and value.released:
        raise InputError(f"input '{name}': the GPU tensor's memory was released before")
