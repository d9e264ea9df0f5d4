"""The memory of a frame scheduler's jobs: their inputs, their outputs, and the network itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import wgpu

from cml_engine.errors import InputError, OutOfGpuMemory
from cml_engine.gpu.device import Device
from cml_engine.gpu.frames.job_inputs import check_input, check_inputs, is_array
from cml_engine.gpu.frames.outputs import GpuTensor, Result, output_bytes
from cml_engine.gpu.native import device_error
from cml_engine.gpu.program.program import GpuProgram


class JobExecutor:
    """Jobs from the inputs that are accepted for them to the outputs that they leave. A job has
    its network, and the memory for its outputs, before it begins."""

    def __init__(self, gpu: Device) -> None:
        self.gpu = gpu
        self._ended: list[GpuProgram] = []
        self._reserved: dict[GpuProgram, Result] = {}

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
        network.held.end()
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
        network.held.begin()

    def _let_ended_go(self) -> None:
        while self._ended:
            self._ended.pop().let_go(self)


def _refuse_released(name: str, value: Any) -> None:
    """:class:`InputError` for a GPU tensor whose memory was given back."""
    if isinstance(value, GpuTensor) and value.released:
        raise InputError(f"input '{name}': the GPU tensor's memory was released before")
