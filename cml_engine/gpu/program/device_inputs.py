"""Inputs that are on the device already: tensors in buffers, and textures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol

import wgpu

from cml_engine.compiler.plan import Binding, Plan
from cml_engine.errors import InputError
from cml_engine.gpu.device import Device
from cml_engine.gpu.memory.tensors import GpuTensor
from cml_engine.gpu.program.input_conversion import NumbersLoad, Waiting, readable
from cml_engine.gpu.program.residency import Residency
from cml_engine.gpu.textures.loads import Target, TextureLoad
from cml_engine.ir.graph import Fact
from cml_engine.ir.textures import TextureInput, on_device

#: a step that runs before a network's own steps
Load = TextureLoad | NumbersLoad


class InputOwner(Protocol):
    """The interface of the program that receives the inputs: ``program.ProgramMemory``."""

    @property
    def plan(self) -> Plan: ...
    @property
    def gpu(self) -> Device: ...
    @property
    def residency(self) -> Residency: ...
    def place(self, binding: Binding) -> tuple[wgpu.GPUBuffer, int]: ...


def host_arrays(inputs: Mapping[str, object]) -> dict[str, Any]:
    """Returns the inputs that are not on the device and must be uploaded, by name."""
    return {name: value for name, value in inputs.items() if not on_device(value)}


def check_on_device(gpu: Device, name: str, fact: Fact, value: object) -> None:
    """Raises :class:`InputError` if a GPU tensor or a texture does not fit the input ``name``."""
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


def refuse_own_memory(program: InputOwner, name: str, value: object) -> None:
    """Raises :class:`InputError` if the tensor is in the program's own arena.

    WebGPU cannot copy within one buffer.
    """
    arena = program.residency.arena
    if isinstance(value, GpuTensor) and value.owner is None and arena is not None:
        if value.buffer not in arena.buffers:
            return
        raise InputError(
            f"input '{name}' is a tensor of a session, which lies in one buffer with the memory of "
            f"'{program.plan.name}'. Give a job's tensor (job.tensor, job.output), which is a copy"
        )


def loads_of(gpu: Device, plan: Plan, inputs: Mapping[str, object]) -> list[Load]:
    """Returns the dispatches that load GPU inputs before a run, in the order of the inputs.

    A texture yields a load that reads it. A value that must be quantized from a staging copy
    yields a load that quantizes it. The loads are not bound to memory yet.
    """
    loads: list[Load] = []
    for name, value in inputs.items():
        place = plan.inputs[name]
        if isinstance(value, TextureInput):
            loads.append(TextureLoad(gpu, name, place.fact, value))
        if place.conversion is not None and _waits(value):
            loads.append(NumbersLoad(gpu, name, place))
    return loads


def _waits(value: object) -> bool:
    """Returns True if the value must be copied to a staging buffer before it is quantized."""
    return isinstance(value, TextureInput) or (isinstance(value, GpuTensor) and not readable(value))


def take_over(
    encoder: wgpu.GPUCommandEncoder, program: InputOwner, inputs: Mapping[str, object]
) -> list[Load]:
    """Brings inputs that are on the device into the program's memory.

    Records the copies of tensors, or their quantization, into ``encoder``. Returns the loads of the
    other inputs, bound to memory, which must run before the program's first step. Raises
    :class:`InputError` if an input does not fit.
    """
    for name, value in inputs.items():
        if on_device(value):
            check_on_device(program.gpu, name, program.plan.inputs[name].fact, value)
            refuse_own_memory(program, name, value)
    loads = loads_of(program.gpu, program.plan, inputs)
    ways = iter(loads)
    for name, value in inputs.items():
        place = program.plan.inputs[name]
        if not isinstance(value, GpuTensor | TextureInput):
            continue
        if isinstance(value, GpuTensor) and not value.fact.size:
            continue
        if place.conversion is None:
            _bring(encoder, value, ways, program, place.binding)
        elif _waits(value):
            waiting = Waiting(program.gpu, program.plan.name, place.fact.nbytes)
            whole = replace(place.binding, offset=0, nbytes=place.fact.nbytes)
            _bring(encoder, value, ways, waiting, whole)
            entering = next(ways)
            assert isinstance(entering, NumbersLoad)
            entering.bind(program, waiting)
        else:
            assert isinstance(value, GpuTensor)
            entering = NumbersLoad(program.gpu, name, place)
            entering.read_from(program, value)
            compute = encoder.begin_compute_pass(label=f"enter '{name}'")
            entering.encode_all(compute)
            compute.end()
    return loads


def _bring(
    encoder: wgpu.GPUCommandEncoder,
    value: GpuTensor | TextureInput,
    ways: Iterator[Load],
    target: Target,
    binding: Binding,
) -> None:
    """Moves a value to ``binding`` of ``target``.

    The copy of a tensor is recorded into ``encoder``; a texture is bound to the next load of
    ``ways``.
    """
    if isinstance(value, GpuTensor):
        place = target.place(binding)
        encoder.copy_buffer_to_buffer(value.buffer, value.offset, *place, value.fact.nbytes)
        return
    load = next(ways)
    assert isinstance(load, TextureLoad)
    load.bind(target, binding)
