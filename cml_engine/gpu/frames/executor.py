"""The GPU side of the frame scheduler: records slices, then collects timings and outputs.

Timestamp slots are created once and reused in a ring. Outputs and readbacks (``outputs.py``)
take memory from the device's allocator, which reuses freed memory. No call
blocks: data that has not arrived is polled again in the next frame. The scheduler sees this class
as ``cml_engine.scheduler.executor.Executor``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, Protocol, cast

import numpy as np
import wgpu

from cml_engine.compiler.plan import Slice, StepCost, Timing
from cml_engine.errors import DeviceError, InputError, OutOfGpuMemory
from cml_engine.errors.arguments import check_instance
from cml_engine.gpu.device import Device
from cml_engine.gpu.frames.cpu_runs import CpuRun
from cml_engine.gpu.frames.job_runs import JobRun
from cml_engine.gpu.frames.outputs import Readback, Readbacks, Result
from cml_engine.gpu.memory.tensors import GpuTensor
from cml_engine.gpu.native import (
    Dispatch,
    device_error,
    device_errors,
    pass_recorder,
    poll,
)
from cml_engine.gpu.program.inputs import Load, check_on_device, is_array, loads_of
from cml_engine.gpu.program.preparation import BUILDER
from cml_engine.gpu.program.program import GpuProgram
from cml_engine.gpu.textures.pack import TextureCopies
from cml_engine.gpu.textures.pipelines import kernels_of
from cml_engine.gpu.timing.timestamp_ring import TimestampRing
from cml_engine.io.frame_gate import frame_gate
from cml_engine.ir.graph import Fact
from cml_engine.ir.textures import TextureTarget, on_device


class _Job(Protocol):
    """A job of any scheduler (``cml_engine.scheduler.Job``)."""

    @property
    def name(self) -> str: ...
    @property
    def network(self) -> object: ...
    @property
    def result(self) -> object: ...
    @property
    def ended(self) -> bool: ...


class _Promised(Protocol):
    """A future output of a job (``cml_engine.scheduler.JobOutput``)."""

    @property
    def job(self) -> _Job: ...
    @property
    def name(self) -> str: ...


def check_inputs(gpu: Device, network: object, inputs: Mapping[str, object]) -> None:
    """Raises :class:`InputError` if the network or one of the inputs does not fit the device.

    The network must belong to ``gpu``. Each input must exist, lie on the host or on ``gpu``, and
    have the network's shape and type.
    """
    if not isinstance(network, GpuProgram):
        raise InputError(
            f"{network!r} is no network on a GPU: submit a cml.Session(graph, gpu) to the "
            "scheduler of the same cml.Gpu"
        )
    if network.gpu is not gpu:
        raise InputError(
            f"model '{network.name}' is on another cml.Gpu ({network.gpu.name}) than the scheduler "
            f"({gpu.name}): make both with the same one"
        )
    for name, value in inputs.items():
        place = network.plan.inputs.get(name)
        if place is None:
            names = ", ".join(network.plan.inputs) or "(none)"
            raise InputError(f"model '{network.name}' has no input '{name}'; it has {names}")
        if on_device(value):
            check_on_device(gpu, network.residency, name, value)
            continue
        input_fact: Fact | None
        if is_array(value):
            # sessions check the element type beforehand
            description, input_fact = "array", Fact(place.fact.dtype, np.asarray(value).shape)
        else:
            description = "GPU tensor"
            input_fact = _promised_fact(gpu, name, cast(_Promised, value))
        if input_fact is not None and input_fact != place.fact:
            raise InputError(
                f"input '{name}': wanted {place.fact}, got a {description} {input_fact}"
            )
    network.moved_params({name: value for name, value in inputs.items() if is_array(value)})


def _promised_fact(gpu: Device, name: str, value: _Promised) -> Fact | None:
    """Returns the shape and type of a job's future output; None if the job ended without a result.

    Raises :class:`InputError` if the job is on another device or has no such output.
    """
    job = value.job
    if isinstance(job.network, GpuProgram):
        is_on_gpu, places = job.network.gpu is gpu, job.network.plan.results
    elif isinstance(job.result, Result):
        is_on_gpu, places = job.result.memory.allocator is gpu.memory, job.result.places
    elif job.ended:
        return None
    else:
        is_on_gpu, places = False, {}
    if not is_on_gpu:
        raise InputError(
            f"input '{name}': job '{job.name}' runs on another device. Read its output "
            "there, and give the array"
        )
    if value.name not in places:
        raise InputError(
            f"input '{name}': job '{job.name}' has no output '{value.name}'; it has "
            f"{', '.join(places)}"
        )
    return places[value.name].fact


_network_of = attrgetter("network")
#: why a result is wrong whose frame is abandoned
_ABANDONED = (
    "the frame in which it ended was abandoned. Take the tensor again once the job is done, or "
    "give the job's output()"
)
#: the most groups of slices per frame that are timed separately
MAX_GROUPS = 12


@dataclass(slots=True)
class _RunningJob:
    """A job that has reserved its network: its run and input loads once it has begun."""

    #: the memory of its outputs until they are written
    result: Result | None
    run: JobRun | None = None
    loads: Sequence[Load] = ()
    #: its latest step on the CPU
    on_cpu: CpuRun | None = None

    def cancel_cpu_step(self) -> None:
        step, self.on_cpu = self.on_cpu, None
        if step is not None:
            step.cancel()


class FrameExecutor:
    """The executor that records jobs into the host's command encoders on one device.

    Before a job begins, it reserves its network and the memory of its outputs.
    """

    max_groups = MAX_GROUPS

    def __init__(self, gpu: Device) -> None:
        self.gpu = gpu
        self._ended: list[GpuProgram] = []
        self._jobs: dict[GpuProgram, _RunningJob] = {}
        #: the runs that the current frame works on
        self._worked: set[JobRun] = set()
        #: the outputs of the jobs that end in the current frame
        self._results: list[Result] = []
        #: the networks whose jobs begin in the current frame
        self._beginning: list[GpuProgram] = []
        self.name = gpu.name
        self.clock_source = "timestamps" if gpu.has_timestamps else "wall clock"
        # a software driver spreads workgroups over the cores: unless the slice is a multiple of
        # the core count, some cores idle at its end
        self.granule = (os.cpu_count() or 1) if gpu.limits.software else 1
        self.timing_is_expensive = gpu.limits.software
        #: the current frame, or the next one
        self._frame = 0
        self._readbacks = Readbacks(gpu)
        self._copies = TextureCopies(gpu)
        self._unmeasured: set[int] = set()
        #: True if the current frame leaves a receipt, and the frame in which that was decided
        self._has_receipt, self._receipt_frame = False, -1
        #: the runs that each frame worked on, until it is known that the frame ran
        self._frames: dict[int, set[JobRun]] = {}
        self._losses = gpu.runs.losses
        self._ring = TimestampRing(gpu, "frame scheduler", MAX_GROUPS, chained=True)

    @device_errors()
    def new_encoder(self) -> wgpu.GPUCommandEncoder:
        """Returns a new command encoder of the device."""
        return self.gpu.device.create_command_encoder()

    @device_errors()
    def submit(self, encoder: wgpu.GPUCommandEncoder) -> None:
        """Submits an encoder of :meth:`new_encoder`."""
        self.gpu.queue.submit([encoder.finish()])

    def check_encoder(self, encoder: object) -> None:
        """Raises :class:`InputError` if ``encoder`` is no command encoder of this device."""
        check_instance(wgpu.GPUCommandEncoder, encoder, "encoder")
        if getattr(encoder, "_device", self.gpu.device) is not self.gpu.device:
            raise InputError(
                "the encoder is of another device than the scheduler's: make it with "
                "gpu.device.create_command_encoder()"
            )

    # --- outputs

    @device_errors()
    def request_read(self, encoder: wgpu.GPUCommandEncoder, result: Readback) -> None:
        """Records the copy of a job's tensors into mappable memory, for :meth:`Result.read`.

        The copy is postponed to a later frame if the frame can leave no receipt or if running
        models use all of the memory.
        """
        if self._leave_receipt(encoder):
            self._readbacks.request(encoder, result, self._frame)
            self._ring.close()
        else:
            self._readbacks.postpone(result)

    @device_errors()
    def copy_to_texture(
        self,
        encoder: wgpu.GPUCommandEncoder,
        result: Result,
        name: str,
        options: Mapping[str, object],
    ) -> StepCost:
        """Records the copy of an output into a texture and returns the cost of the copy.

        ``options`` are the arguments of :class:`TextureTarget`.
        """
        self.check_encoder(encoder)
        target = TextureTarget(**options)  # type: ignore[arg-type]
        return self._copies.copy(encoder, self._frame, name, result.tensor(name), target)

    def take_copies(self) -> list[tuple[StepCost, float]]:
        """Returns the texture copies whose timings have arrived since the last call.

        Each is the copy's cost and its measured milliseconds.
        """
        return self._copies.collect()

    # --- frames

    def encode(
        self,
        encoder: wgpu.GPUCommandEncoder,
        frame: int,
        groups: Sequence[Sequence[Slice]],
        *,
        timed: bool = True,
    ) -> list[tuple[GpuProgram, Exception]]:
        """Records one compute pass per group and returns the failed networks with their errors.

        With ``timed``, the passes are timed if the device supports that. A failed network's later
        slices in the frame are omitted.
        """
        self._frame = frame
        self.gpu.memory.open_frame(self)
        failed: dict[GpuProgram, Exception] = {}
        slot = self._ring.begin(frame, timed=timed) if groups else None
        if groups:
            self._has_receipt, self._receipt_frame = slot is not None, frame
        stamps = slot if timed else None
        with device_errors():
            if self._worked or self._readbacks.pending:
                self._leave_receipt(encoder)
            if self._readbacks.pending and self._has_receipt:
                self._readbacks.request_again(encoder, frame)
                self._ring.close()
            if stamps is not None:
                self._ring.lead(encoder, stamps)
            for group in groups:
                if stamps is None:
                    self._encode_group(encoder, group, self._ring.untimed_pass, failed)
                else:
                    self._encode_group(encoder, group, self._ring.timed_pass(stamps), failed)
                    self._ring.settle(encoder, stamps)
            if slot is not None:
                self._ring.resolve(encoder, slot)
        if failed and stamps is not None:  # the frame's timings do not measure the failed slices
            self._unmeasured.add(frame)
        return list(failed.items())

    def _encode_group(
        self,
        encoder: wgpu.GPUCommandEncoder,
        group: Sequence[Slice],
        description: Any,
        failed: dict[GpuProgram, Exception],
    ) -> None:
        dispatches: list[Dispatch] = []
        for network, slices in groupby(group, key=_network_of):
            if network in failed:
                continue
            try:
                dispatches += self._dispatches(network, slices)
            except Exception as error:
                is_wgpu = isinstance(error, wgpu.GPUError)
                failed[network] = device_error(error) if is_wgpu else error
        pass_recorder()(encoder, description, dispatches)

    def _dispatches(self, network: GpuProgram, slices: Iterable[Slice]) -> list[Dispatch]:
        job = self._jobs.get(network)
        if job is not None and job.run is not None:
            self._worked.add(job.run)
        loads = () if job is None else job.loads
        if not loads:
            return network.dispatches([(step, first, count) for _, step, first, count in slices])
        parts, n_loads = list(slices), len(loads)
        ranges = [(s - n_loads, first, count) for _, s, first, count in parts if s >= n_loads]
        loaded = [loads[s].dispatch(first, count) for _, s, first, count in parts if s < n_loads]
        return [*loaded, *network.dispatches(ranges)]

    def _leave_receipt(self, encoder: wgpu.GPUCommandEncoder) -> bool:
        """Adds the frame's receipt, once per frame: a number that arrives only after a submit.

        The receipt reveals a frame that is never submitted. Returns False if no timestamp slot
        is free.
        """
        if self._receipt_frame != self._frame:
            slot = self._ring.begin(self._frame, timed=False)
            if slot is not None:
                self._ring.resolve(encoder, slot)
            self._has_receipt, self._receipt_frame = slot is not None, self._frame
        return self._has_receipt

    def is_behind(self, most_frames: int) -> bool:
        """Returns True if the timings of ``most_frames`` ended frames have not arrived, or no slot
        is free for the receipt of another."""
        return self._ring.is_full or self._ring.in_flight >= most_frames

    def end_frame(self, frame: int) -> list[Timing]:
        """Ends the frame after its submit and returns the timings of all frames that have arrived.

        It also starts mapping the data of frames that are old enough, collects arrived
        readbacks, and marks the runs of unsubmitted frames as wrong. Returns no timings if the
        device is lost.
        """
        frame_gate.end_frame()
        self._frame = frame + 1
        self._beginning.clear()
        self._results.clear()
        self._free_ended()
        self.gpu.memory.close_frame(self)
        if self._worked:
            self._frames[frame], self._worked = self._worked, set()
        oldest_frame = self._ring.oldest
        try:
            self._start_mappings(frame)
            timings = self._timings()
        except DeviceError as error:  # the device is lost: no data will arrive
            self._readbacks.fail(error)
            for number in [n for n in self._frames if n >= oldest_frame]:
                self.gpu.runs.mark_wrong(self._frames.pop(number), str(error))
            return []
        if unsubmitted := self._ring.take_unsubmitted():
            self._mark_unsubmitted(unsubmitted)
        self._forget_settled_frames()
        self._readbacks.collect(self._ring.oldest)  # data of a frame that never ran is garbage
        for job in self._jobs.values():
            if job.on_cpu is not None:
                job.on_cpu.start_when_read()
        return timings

    def _timings(self) -> list[Timing]:
        """Returns the arrived timings, one per group, without frames in which a slice failed."""
        timings: list[Timing] = []
        for slot, spent in self._ring.collect():
            if slot.frame in self._unmeasured:
                self._unmeasured.discard(slot.frame)
                continue
            timings += [Timing(slot.frame, group, ms) for group, ms in enumerate(spent)]
        return timings

    def _mark_unsubmitted(self, frames: Sequence[int]) -> None:
        """Marks the runs of frames that were ended but never submitted as wrong.

        Requests the readbacks of these frames again.
        """
        for frame in frames:
            reason = (
                f"frame {frame} was encoded and never submitted, so its numbers are wrong. Submit "
                "every encoder, or call abandon_frame()"
            )
            self.gpu.runs.mark_wrong(self._frames.pop(frame, ()), reason)
        self._readbacks.abandon(frames)

    def _forget_settled_frames(self) -> None:
        """Forgets the runs of the frames that are known to have run.

        A count of frames must not decide: a slow device's receipts may arrive hundreds of frames
        later, while the host's loop runs on.
        """
        oldest_frame = self._ring.oldest
        for frame in [frame for frame in self._frames if frame < oldest_frame]:
            del self._frames[frame]

    @device_errors()
    def _start_mappings(self, frame: int) -> None:
        pending = (
            self._ring.start_mapping(frame),
            self._copies.start_mapping(frame),
            self._readbacks.start_mapping(frame),
        )
        if any(pending):
            poll(self.gpu.device)

    def preparing(self) -> str:
        """Returns a text about the pipeline-building thread: its current work and last error."""
        return BUILDER.describe()

    def take_losses(self) -> bool:
        """Returns True if runs were found to be wrong since the last call.

        The runs may belong to another scheduler on this device. Each job checks its own
        :attr:`JobRun.harm`.
        """
        losses_before, self._losses = self._losses, self.gpu.runs.losses
        return losses_before != self._losses

    def check(self) -> None:
        """Raises :class:`DeviceError` if the device is lost."""
        self._ring.check()

    def abandon_frame(self, frame: int) -> None:
        """Reverts the state of a frame whose encoder is discarded and never submitted."""
        frame_gate.end_frame()
        self._frame = frame + 1
        self._ring.abandon(frame)
        self._copies.abandon(frame)
        self._unmeasured.discard(frame)
        for job in self._jobs.values():  # its operands were not computed
            if job.on_cpu is not None and job.on_cpu.frame == frame:
                job.cancel_cpu_step()
        self._readbacks.abandon((frame,))
        self._worked.clear()
        while self._results:  # a tensor of them may be the input of a job that was submitted since
            self._results.pop().run = JobRun((), _ABANDONED)
        while self._beginning:  # their inputs were not copied
            self._beginning.pop().retained.undo_begin()
        self._free_ended()
        self.gpu.memory.close_frame(self)

    # --- jobs

    def accept(
        self, network: GpuProgram, inputs: Mapping[str, object]
    ) -> tuple[dict[str, object], Sequence[StepCost]]:
        """Checks the inputs of a future job and returns them by name, with host arrays copied.

        The second value has the costs of the dispatches that load textures before the network
        runs. GPU tensors stay alive until :meth:`release_input`.
        """
        check_inputs(self.gpu, network, inputs)
        loads = [load.cost for load in loads_of(self.gpu, network.plan, inputs)]
        if loads:
            kernels_of(self.gpu).build_ahead(self.gpu)
        network.retained.expect_inputs(inputs)
        accepted: dict[str, object] = {}
        for name, value in inputs.items():
            accepted[name] = np.array(value) if is_array(value) else value
        for value in inputs.values():
            if isinstance(value, GpuTensor):
                value.add_reader()
        return accepted, loads

    def release_input(self, value: object) -> None:
        """Releases an accepted input that the job no longer needs; an array needs no release."""
        if isinstance(value, GpuTensor):
            value.remove_reader()

    def reserve(self, network: GpuProgram, inputs: Mapping[str, object]) -> str:
        """Reserves the network and the output memory of a job before it begins.

        Returns "" on success, else a description of what the job waits for: pipelines, a network
        that another thread uses, or memory that others can free.
        """
        self._free_ended()
        if loads_of(self.gpu, network.plan, inputs) and not kernels_of(self.gpu).ready:
            kernels_of(self.gpu).build_ahead(self.gpu)
            return "the pipelines that read its inputs"
        if waits_for := network.reserve_for(self):
            return waits_for
        try:
            result, waits_for = self._new_result(network)
        except Exception:
            network.end_reservation(self)
            raise
        if waits_for:
            network.end_reservation(self)
        else:
            self._jobs[network] = _RunningJob(result)
        return waits_for

    def _new_result(self, network: GpuProgram) -> tuple[Result | None, str]:
        """Returns memory for the outputs of a job, or None and a text that says what is missing.

        Raises :class:`OutOfGpuMemory` if the outputs can never fit.
        """
        try:
            return Result(network), ""
        except OutOfGpuMemory as error:
            if not self.gpu.memory.may_ever_fit(network.plan.packed_results[1], but=network):
                raise
            return None, f"memory for its outputs: {str(error).splitlines()[0]}"

    @device_errors()
    def begin_job(
        self, encoder: wgpu.GPUCommandEncoder, network: GpuProgram, inputs: Mapping[str, object]
    ) -> JobRun:
        """Begins a reserved job: writes its inputs to the network's memory and returns the new run.

        Arrays are uploaded through the queue; the copies of GPU tensors are recorded into
        ``encoder``. On an error the reservation ends.
        """
        self._free_ended()
        job = self._jobs[network]
        try:
            if network.prints is not None:
                network.prints.not_in_frames()
            job.run = self.gpu.runs.begin([*_producing_runs(inputs), *network.built_on])
            _, job.loads = network.begin(encoder, inputs, job.run)
        except Exception:
            network.end_reservation(self)
            self._release_reserved(self._jobs.pop(network))
            raise
        self._beginning.append(network)
        self._worked.add(job.run)
        return job.run

    @device_errors()
    def finish_job(self, encoder: wgpu.GPUCommandEncoder, network: GpuProgram) -> Result | None:
        """Records the copies of the outputs into their reserved memory, then the variable updates.

        Returns the outputs. If an abandoned frame freed the reserved memory, new memory is
        taken. Returns None if there is none at the moment, or if no timestamp slot is free for the
        frame's receipt.
        """
        job = self._jobs[network]
        if not self._leave_receipt(encoder):
            return None
        result, job.result = job.result or self._new_result(network)[0], None
        if result is None:
            return None
        assert job.run is not None
        result.run = job.run
        self._worked.add(job.run)
        result.copy_from(encoder, network)
        network.encode_updates(encoder, job.run)
        network.retained.end()
        self._results.append(result)
        return result

    def begin_cpu_step(
        self, encoder: wgpu.GPUCommandEncoder, network: GpuProgram, step: int
    ) -> None:
        """Records the readback of the operands of a step on the CPU, if it has not begun."""
        job = self._jobs[network]
        if job.on_cpu is None or job.on_cpu.step != step:
            job.on_cpu = CpuRun(network, step, self._frame)
            self.request_read(encoder, job.on_cpu)

    @device_errors()
    def end_cpu_step(self, network: GpuProgram, step: int, budget_ms: float) -> bool:
        """Uploads a part of a CPU step's results; returns True once all are on the device."""
        cpu_run = self._jobs[network].on_cpu
        return cpu_run is not None and cpu_run.step == step and cpu_run.upload(budget_ms)

    def _release_reserved(self, job: _RunningJob) -> None:
        job.cancel_cpu_step()
        result, job.result = job.result, None
        if result is not None:
            result.release()

    def end_job(self, network: GpuProgram) -> None:
        """Ends the network's job; its memory is free for others after this frame's submit."""
        self._ended.append(network)
        self._release_reserved(self._jobs[network])

    def resume_job(self, network: GpuProgram) -> None:
        """Reverts :meth:`end_job` in an abandoned frame: the job keeps the network's memory.

        The results in the memory are marked as invalid.
        """
        self._ended.remove(network)
        network.retained.invalidate_results()

    def _free_ended(self) -> None:
        while self._ended:
            network = self._ended.pop()
            self._jobs.pop(network, None)
            network.end_reservation(self)


def _producing_runs(inputs: Mapping[str, object]) -> list[JobRun]:
    """Returns the runs that produced the inputs which are outputs of jobs."""
    runs = (value.run for value in inputs.values() if isinstance(value, GpuTensor))
    return [run for run in runs if run is not None]
