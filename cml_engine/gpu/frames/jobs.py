"""The memory of a frame scheduler's jobs: their inputs, their outputs, and their network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import wgpu

from cml_engine.compiler.plan import StepCost
from cml_engine.errors import InputError, OutOfGpuMemory
from cml_engine.gpu.device import Device
from cml_engine.gpu.frames.job_inputs import check_inputs, is_array
from cml_engine.gpu.frames.job_runs import JobRun
from cml_engine.gpu.frames.outputs import Result
from cml_engine.gpu.memory.tensors import GpuTensor
from cml_engine.gpu.native import device_errors
from cml_engine.gpu.program.device_inputs import Load, loads_of
from cml_engine.gpu.program.program import GpuProgram
from cml_engine.gpu.textures.kernels import kernels_of
from cml_engine.ir.textures import TextureInput


class JobExecutor:
    """The memory management of jobs, from their accepted inputs to their outputs.

    Before a job begins, it reserves its network and the memory of its outputs.
    """

    def __init__(self, gpu: Device) -> None:
        self.gpu = gpu
        self._ended: list[GpuProgram] = []
        self._reserved: dict[GpuProgram, Result] = {}
        #: the input loads of the running jobs
        self._loads: dict[GpuProgram, list[Load]] = {}
        self._runs: dict[GpuProgram, JobRun] = {}
        #: the runs that the current frame works on
        self._worked: set[JobRun] = set()
        #: the networks whose jobs begin in the current frame
        self._beginning: list[GpuProgram] = []

    def accept(self, network: GpuProgram, inputs: Mapping[str, object]) -> dict[str, object]:
        """Checks the inputs of a future job and returns them by name, with host arrays copied.

        GPU tensors stay alive until :meth:`release_input`.
        """
        check_inputs(self.gpu, network, inputs)
        if wants_kernels(network, inputs):
            kernels_of(self.gpu).build_ahead(self.gpu)
        network.retained.promise(inputs)
        accepted: dict[str, object] = {}
        for name, value in inputs.items():
            accepted[name] = np.array(value) if is_array(value) else value
        for value in inputs.values():
            if isinstance(value, GpuTensor):
                value.keep()
        return accepted

    def input_steps(self, network: GpuProgram, inputs: Mapping[str, object]) -> Sequence[StepCost]:
        """Returns the costs of the dispatches that load GPU inputs before the network runs."""
        return [load.cost for load in loads_of(self.gpu, network.plan, inputs)]

    def release_input(self, value: object) -> None:
        """Releases an accepted input that the job no longer needs; an array needs no release."""
        if isinstance(value, GpuTensor):
            value.let_go()

    def reserve(self, network: GpuProgram, inputs: Mapping[str, object]) -> str:
        """Reserves the network and the output memory of a job before it begins.

        Returns "" on success, else a description of what the job waits for: pipelines, a network
        that another thread uses, or memory that others can free.
        """
        self._let_ended_go()
        if wants_kernels(network, inputs) and not kernels_of(self.gpu).ready:
            kernels_of(self.gpu).build_ahead(self.gpu)
            return "the pipelines that read its inputs"
        if taken := network.hold(self):
            return taken
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
            if not self.gpu.memory.may_ever_fit(network.plan.packed_results[1], but=network):
                raise
            return f"memory for its outputs: {str(error).splitlines()[0]}"
        return ""

    def _new_result(self, network: GpuProgram) -> Result:
        with network.pinned():
            return Result.of(network)

    @device_errors()
    def begin_job(
        self, encoder: wgpu.GPUCommandEncoder, network: GpuProgram, inputs: Mapping[str, object]
    ) -> JobRun:
        """Begins a reserved job: writes its inputs to the network's memory and returns the new run.

        Arrays are uploaded through the queue; the copies of GPU tensors are recorded into
        ``encoder``. On an error the reservation ends.
        """
        self._let_ended_go()
        try:
            return self._write_inputs(encoder, network, inputs)
        except Exception:
            network.let_go(self)
            self._give_up_reserved(network)
            raise

    def _write_inputs(
        self, encoder: wgpu.GPUCommandEncoder, network: GpuProgram, inputs: Mapping[str, object]
    ) -> JobRun:
        if network.prints is not None:
            network.prints.not_in_frames()
        run = self.gpu.runs.begin([*_makers(inputs), *network.built_on])
        _, self._loads[network] = network.begin(encoder, inputs, run)
        self._beginning.append(network)
        self._runs[network] = run
        self._worked.add(run)
        return run

    @device_errors()
    def finish_job(self, encoder: wgpu.GPUCommandEncoder, network: GpuProgram) -> Result | None:
        """Records the copies of the outputs into their reserved memory, then the variable updates.

        Returns the outputs. If an abandoned frame freed the reserved memory, new memory is
        taken. Returns None if there is none at the moment.
        """
        if network not in self._reserved and self._take_outputs(network):
            return None
        result, run = self._reserved.pop(network), self._runs[network]
        result.run = run
        self._worked.add(run)
        result.copy_from(encoder, network)
        network.encode_updates(encoder, run)
        network.retained.end()
        return result

    def _give_up_reserved(self, network: GpuProgram) -> None:
        reserved = self._reserved.pop(network, None)
        if reserved is not None:
            reserved.release()

    def end_job(self, network: GpuProgram) -> None:
        """Ends the network's job; its memory is free for others after this frame's submit."""
        self._ended.append(network)
        self._give_up_reserved(network)

    def resume_job(self, network: GpuProgram) -> None:
        """Reverts :meth:`end_job` in an abandoned frame: the job keeps the network's memory.

        The results in the memory are marked as invalid.
        """
        self._ended.remove(network)
        network.retained.spoil()

    def _let_ended_go(self) -> None:
        while self._ended:
            network = self._ended.pop()
            self._loads.pop(network, None)
            self._runs.pop(network, None)
            network.let_go(self)


def _makers(inputs: Mapping[str, object]) -> list[JobRun]:
    """Returns the runs that produced the inputs which are outputs of jobs.

    Raises :class:`InputError` if the results of one of the runs are wrong.
    """
    found = []
    for name, value in inputs.items():
        run = value.owner.run if isinstance(value, GpuTensor) and value.owner is not None else None
        if run is not None:
            found.append(run)
            if run.harm:
                raise InputError(f"input '{name}' is the output of a job that failed: {run.harm}")
    return found


def wants_kernels(network: GpuProgram, inputs: Mapping[str, object]) -> bool:
    """Returns True if an input needs the texture kernels.

    An input needs them if it is a texture, or if an integer network quantizes the input and its
    value is on the GPU.
    """
    entered = {name for name, place in network.plan.inputs.items() if place.conversion is not None}
    return any(
        isinstance(value, TextureInput) or (name in entered and not is_array(value))
        for name, value in inputs.items()
    )
