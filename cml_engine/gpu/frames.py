"""The device's side of a frame scheduler: slices into the host's encoder, timings and outputs back.

Timestamp slots are made beforehand and used again in a ring; outputs and readbacks take memory
from the device's allocator, which keeps what is given back. Nothing here waits: what has not
arrived is asked for again in the next frame. (The scheduler sees this class as
``scheduler.executor.Executor``.)
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import wgpu

from cml_engine.backends.gpu import GpuProgram
from cml_engine.errors import DeviceError, InputError, OutOfGpuMemory
from cml_engine.gpu.allocation import Allocation
from cml_engine.gpu.device import Gpu
from cml_engine.gpu.native import PendingMap, device_error, poll
from cml_engine.gpu.residency import TENSOR_USAGE
from cml_engine.gpu.timestamp_ring import AGE, TimestampRing
from cml_engine.gpu.words import empty, from_words
from cml_engine.graph import Fact
from cml_engine.plan import Binding, TensorPlace

_Usage = wgpu.BufferUsage
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


@dataclass(frozen=True, slots=True)
class GpuTensor:
    """A tensor on the GPU: plain row-major words in ``buffer`` from byte ``offset`` on. The
    renderer binds it, or copies it to a texture; another job takes it as an input."""

    buffer: wgpu.GPUBuffer
    offset: int
    nbytes: int
    fact: Fact


@dataclass(eq=False)
class Result:
    """The outputs of a finished job, in memory of their own until it is released."""

    memory: Allocation
    places: dict[str, TensorPlace]
    nbytes: int
    staging: Allocation | None = None
    asked_frame: int = -1
    mapping: PendingMap | None = None
    data: bytes | None = None
    #: why a readback is not to be had
    error: DeviceError | None = None

    def __post_init__(self) -> None:
        give_back = self.memory.allocator.later
        self._release = weakref.finalize(self, give_back, self.memory.free)
        self._release.atexit = False

    def release(self) -> None:
        """Give the outputs' memory back."""
        if self._release.detach():
            self.memory.free()


class FrameExecutor:
    """Encodes into the host's encoders on one device."""

    max_groups = MAX_GROUPS

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.name = gpu.name
        self.clock_source = "timestamps" if gpu.has_timestamps else "wall clock"
        # a software driver spreads workgroups over the cores: a slice that is no multiple of
        # their number leaves some idle at its end
        self.granule = (os.cpu_count() or 1) if gpu.limits.software else 1
        self._frame = -1
        self._ended: list[GpuProgram] = []
        self._unasked: list[Result] = []
        self._reading: list[Result] = []
        self._ring = TimestampRing(gpu, "frame scheduler", MAX_GROUPS, chained=True)

    # --- jobs

    def begin_job(
        self, encoder: wgpu.GPUCommandEncoder, network: GpuProgram, inputs: Mapping[str, Any]
    ) -> None:
        """Upload host arrays; copy GPU tensors where they come from."""
        self._let_ended_go()
        network.hold(self)
        try:
            self._write_inputs(encoder, network, inputs)
        except Exception as error:
            network.let_go(self)
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
        place = network.plan.inputs[name]
        if tensor.fact != place.fact:
            raise InputError(f"input '{name}': wanted {place.fact}, got a GPU tensor {tensor.fact}")
        if place.fact.size:
            encoder.copy_buffer_to_buffer(
                tensor.buffer, tensor.offset, *network.place(place.binding), place.fact.nbytes
            )

    def finish_job(self, encoder: wgpu.GPUCommandEncoder, network: GpuProgram) -> Result:
        """Copy the outputs into memory that stays theirs; then the variables may change."""
        places, size = _output_places(network)
        memory = self.gpu.memory.allocate(
            size, TENSOR_USAGE, owner=network.name, category="output", alignment=256
        )
        for name, place in places.items():
            source = network.plan.outputs[name].binding
            encoder.copy_buffer_to_buffer(
                *network.place(source),
                memory.buffer,
                memory.offset + place.binding.offset,
                source.nbytes,
            )
        network.encode_updates(encoder)
        return Result(memory, places, size)

    def end_job(self, network: GpuProgram) -> None:
        """The network's job is over; its memory is its own again after this frame's submit."""
        self._ended.append(network)

    def resume_job(self, network: GpuProgram) -> None:
        """Its end was part of a frame that is being abandoned: the memory is still the job's."""
        self._ended.remove(network)

    def _let_ended_go(self) -> None:
        while self._ended:
            self._ended.pop().let_go(self)

    def tensor(self, result: Result, name: str) -> GpuTensor:
        """An output on the GPU."""
        place = result.places[name]
        offset = result.memory.offset + place.binding.offset
        return GpuTensor(result.memory.buffer, offset, place.fact.nbytes, place.fact)

    def request_read(self, encoder: wgpu.GPUCommandEncoder, result: Result) -> None:
        """Append the copy into mappable memory; in a later frame, where models that are running
        have all of it."""
        try:
            result.staging = self.gpu.memory.allocate(
                result.nbytes,
                _Usage.MAP_READ | _Usage.COPY_DST,
                owner=result.memory.owner,
                category="staging",
            )
        except OutOfGpuMemory as error:
            if self.gpu.memory.may_come_free():
                self._unasked.append(result)
            else:
                result.error = error
            return
        source, target = result.memory, result.staging
        encoder.copy_buffer_to_buffer(
            source.buffer, source.offset, target.buffer, target.offset, result.nbytes
        )
        result.asked_frame = self._frame
        self._reading.append(result)

    def read(self, result: Result, name: str) -> Any:
        """The output if it has arrived, else None."""
        if result.error is not None:
            raise result.error
        if result.data is None:
            return None
        place = result.places[name]
        if not place.fact.size:
            return empty(place.fact)
        start = place.binding.offset
        return from_words(result.data[start : start + place.binding.nbytes], place)

    def release(self, result: Result) -> None:
        """Give the outputs' memory back."""
        result.release()

    # --- frames

    def encode(
        self,
        encoder: wgpu.GPUCommandEncoder,
        frame: int,
        groups: Sequence[Sequence[SliceLike]],
    ) -> None:
        """A compute pass for each group, with timestamps at its ends where they can be had."""
        self._frame = frame
        self.gpu.memory.open_frame(self)
        unasked, self._unasked = self._unasked, []
        for result in unasked:  # there was no memory for these in an earlier frame
            if not result.memory.freed:
                self.request_read(encoder, result)
        slot = self._ring.begin(frame) if groups else None
        try:
            if slot is not None:
                self._ring.lead(encoder, slot)
            for group in groups:
                writes = None if slot is None else self._ring.writes(slot)
                self._encode_group(encoder, group, writes)
            if slot is not None:
                self._ring.resolve(encoder, slot)
        except wgpu.GPUError as error:
            raise device_error(error) from error

    def _encode_group(
        self, encoder: wgpu.GPUCommandEncoder, group: Sequence[SliceLike], writes: Any
    ) -> None:
        compute = encoder.begin_compute_pass(label="cml", timestamp_writes=writes)
        try:
            for part in group:
                part.network.encode_range(compute, part.step, part.first, part.count)
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
                result.error, result.staging = device_error(error), None
            self._reading.clear()
            return []
        self._take_readbacks()
        return [
            Timing(slot.frame, group, ms)
            for slot, spent in self._ring.take()
            for group, ms in enumerate(spent)
        ]

    def _ask(self, frame: int) -> None:
        timings_awaited = self._ring.ask(frame)
        for result in self._reading:
            if result.mapping is None and frame - result.asked_frame >= AGE:
                assert result.staging is not None
                result.mapping = PendingMap(result.staging.buffer, result.nbytes)
        if timings_awaited or self._reading:
            poll(self.gpu.device)

    def take_unsubmitted(self) -> list[int]:
        """Frames that were ended and never ran: their receipts did not come."""
        return self._ring.take_unsubmitted()

    def check(self) -> None:
        """:class:`DeviceError` where the device is lost."""
        self._ring.check()

    def abandon_frame(self, frame: int) -> None:
        """The frame's encoder is thrown away: what it would have copied did not happen."""
        self._ring.abandon(frame)
        for result in [r for r in self._reading if r.asked_frame == frame]:
            self._reading.remove(result)
            assert result.staging is not None
            result.staging.free()
            result.staging = None
            self._unasked.append(result)
        self._let_ended_go()
        self.gpu.memory.close_frame(self)

    def _take_readbacks(self) -> None:
        for result in self._reading:
            if result.mapping is not None and result.mapping.done:
                assert result.staging is not None
                try:
                    result.data = result.mapping.take()
                except DeviceError as error:
                    result.error = error
                result.staging.free()
                result.staging = None
        self._reading = [r for r in self._reading if r.staging is not None]


def _output_places(network: GpuProgram) -> tuple[dict[str, TensorPlace], int]:
    """Where each output lies in the outputs' own buffer, and that buffer's size."""
    places: dict[str, TensorPlace] = {}
    end = 0
    for name, place in network.plan.outputs.items():
        nbytes = place.binding.nbytes
        places[name] = TensorPlace(Binding(name, "outputs", end, nbytes), place.fact, place.layout)
        end += -(-nbytes // 256) * 256
    return places, max(end, 256)
