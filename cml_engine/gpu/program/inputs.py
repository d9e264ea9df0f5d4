"""Inputs that are on the device already: tensors in buffers, and textures."""

from __future__ import annotations

from collections.abc import Mapping

import wgpu

from cml_engine.compiler.plan import Plan
from cml_engine.errors import InputError
from cml_engine.gpu.device import Device
from cml_engine.gpu.memory.tensors import GpuTensor
from cml_engine.gpu.native import Copy, copy_recorder, device_errors
from cml_engine.gpu.program.memory import Residency
from cml_engine.gpu.textures.enter import NumbersLoad
from cml_engine.gpu.textures.load import TextureLoad
from cml_engine.gpu.textures.pipelines import kernels_of
from cml_engine.ir.graph import Array
from cml_engine.ir.textures import TextureInput, on_device

#: a step that runs before a network's own steps
Load = TextureLoad | NumbersLoad


def is_array(value: object) -> bool:
    """Returns True if the value is a host array: neither a GPU value nor a job's future output."""
    return not (on_device(value) or (hasattr(value, "job") and hasattr(value, "name")))


def host_arrays(inputs: Mapping[str, object]) -> dict[str, Array]:
    """Returns the inputs that are not on the device and must be uploaded, by name."""
    return {n: value for n, value in inputs.items() if not on_device(value)}  # type: ignore[misc]


def check_on_device(gpu: Device, residency: Residency, name: str, value: object) -> None:
    """Raises :class:`InputError` if a GPU tensor or a texture does not fit the input ``name``."""
    fact = residency.plan.inputs[name].fact
    if name in residency.plan.live_sliders:
        raise InputError(
            f"input '{name}' is a slider of an attribute, whose value the CPU writes: give a number"
        )
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
    arena = residency.arena
    if value.owner is None and arena is not None and value.buffer in arena.buffers:
        # WebGPU cannot copy within one buffer
        raise InputError(
            f"input '{name}' is a tensor of a session, which lies in one buffer with the memory "
            f"of '{residency.plan.name}'. Give a job's tensor (job.tensor, job.output), which is a "
            "copy"
        )


def check_runs(gpu_values: Mapping[str, object]) -> None:
    """Raises :class:`InputError` if a value is an output of a job whose results are wrong."""
    for name, value in gpu_values.items():
        if isinstance(value, GpuTensor) and value.run is not None and value.run.harm:
            raise InputError(f"input '{name}' is the output of a job that failed: {value.run.harm}")


def loads_of(gpu: Device, plan: Plan, inputs: Mapping[str, object]) -> list[Load]:
    """Returns the dispatches that load GPU inputs before a run, in the order of the inputs.

    A texture yields a load that reads it; a value for an integer network yields a load that
    quantizes it. The loads are not bound to memory yet.
    """
    loads: list[Load] = []
    for name, value in inputs.items():
        place = plan.inputs[name]
        if isinstance(value, TextureInput):
            loads.append(TextureLoad(gpu, name, place.fact, value))
        if place.conversion is not None and place.fact.size and not is_array(value):
            loads.append(NumbersLoad(gpu, name, place))
    return loads


@device_errors()
def take_over(
    encoder: wgpu.GPUCommandEncoder,
    gpu: Device,
    residency: Residency,
    gpu_values: Mapping[str, object],
) -> list[Load]:
    """Brings inputs that are on the device into the program's memory.

    Records the copies of tensors into ``encoder``. Returns the loads, bound to memory, which must
    run before the program's first step. Raises :class:`InputError` if an input does not fit.
    """
    plan = residency.plan
    copies: list[Copy] = []
    for name, value in gpu_values.items():
        check_on_device(gpu, residency, name, value)
    loads = loads_of(gpu, plan, gpu_values)
    if loads:
        kernels_of(gpu).build(gpu)  # for Session.run: a job waits for them before it begins
    pending = iter(loads)
    for name, value in gpu_values.items():
        place = plan.inputs[name]
        if not place.fact.size:
            continue
        reader = next(pending) if isinstance(value, TextureInput) else None
        target = residency.range(place.binding)
        if place.conversion is not None:
            converter = next(pending)
            assert isinstance(converter, NumbersLoad)
            target = converter.bind(plan.name, target)
        if isinstance(reader, TextureLoad):
            reader.bind(target)
        elif isinstance(value, GpuTensor):
            to = target["buffer"], target["offset"]
            copies.append((value.buffer, value.offset, *to, value.nbytes))
    if copies:
        copy_recorder()(encoder, copies)
    return loads
