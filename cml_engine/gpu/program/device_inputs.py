"""Inputs that lie on the device already: tensors in buffers, and textures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import wgpu

from cml_engine.errors import InputError
from cml_engine.gpu.device import Device
from cml_engine.gpu.memory.tensors import GpuTensor
from cml_engine.gpu.program.residency import Residency
from cml_engine.gpu.textures.loads import TextureLoad
from cml_engine.graph import Fact
from cml_engine.plan import Binding, Plan
from cml_engine.textures.inputs import TextureInput, on_device


class Program(Protocol):
    """Whose inputs they are: ``program.ProgramMemory``."""

    @property
    def plan(self) -> Plan: ...
    @property
    def gpu(self) -> Device: ...
    @property
    def residency(self) -> Residency: ...
    def place(self, binding: Binding) -> tuple[wgpu.GPUBuffer, int]: ...


def host_arrays(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs that are to be uploaded."""
    return {name: value for name, value in inputs.items() if not on_device(value)}


def check_on_device(gpu: Device, name: str, fact: Fact, value: Any) -> None:
    """:class:`InputError` where a tensor or a texture cannot be that input."""
    if isinstance(value, TextureInput):
        TextureLoad(gpu, name, fact, value)
        return
    if not isinstance(value, GpuTensor):
        raise InputError(
            f"input '{name}': wanted an array, a cml.TextureInput, a job's tensor or "
            f"gpu.tensor(...), got {type(value).__name__}"
        )
    if getattr(value.buffer, "_device", gpu.device) is not gpu.device:
        raise InputError(
            f"input '{name}' is a GPU tensor of another device than the network's ({gpu.name}). "
            "Read it there, and give the array"
        )
    if value.fact != fact:
        raise InputError(f"input '{name}': wanted {fact}, got a GPU tensor {value.fact}")
    if value.released:
        raise InputError(f"input '{name}': the GPU tensor's memory was released before")


def refuse_own_memory(program: Program, name: str, value: Any) -> None:
    """One buffer cannot be copied within itself."""
    arena = program.residency.arena
    if isinstance(value, GpuTensor) and value.owner is None and arena is not None:
        if value.buffer is not arena.buffer:
            return
        raise InputError(
            f"input '{name}' is a tensor of a session, which lies in one buffer with the memory of "
            f"'{program.plan.name}'. Give a job's tensor (job.tensor, job.output), which is a copy"
        )


def texture_loads(gpu: Device, plan: Plan, inputs: Mapping[str, Any]) -> list[TextureLoad]:
    """The textures among the inputs, in their order."""
    return [
        TextureLoad(gpu, name, plan.inputs[name].fact, value)
        for name, value in inputs.items()
        if isinstance(value, TextureInput)
    ]


def take_over(
    encoder: wgpu.GPUCommandEncoder, program: Program, inputs: Mapping[str, Any]
) -> list[TextureLoad]:
    """Append the copies of tensors into the program's memory; the loads of its textures, which
    are to come before its first step."""
    loads = []
    for name, value in inputs.items():
        place = program.plan.inputs[name]
        if on_device(value):
            check_on_device(program.gpu, name, place.fact, value)
            refuse_own_memory(program, name, value)
        if isinstance(value, GpuTensor) and place.fact.size:
            encoder.copy_buffer_to_buffer(
                value.buffer, value.offset, *program.place(place.binding), place.fact.nbytes
            )
        elif isinstance(value, TextureInput):
            load = TextureLoad(program.gpu, name, place.fact, value)
            load.bind(program, place.binding)
            loads.append(load)
    return loads
