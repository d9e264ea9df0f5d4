"""Inputs that are on the device already: tensors in buffers, and textures."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import wgpu

from cml_engine.compiler.plan import Plan, StepCost, TensorPlace
from cml_engine.errors import InputError
from cml_engine.gpu.device import Device
from cml_engine.gpu.memory.allocator import Allocation, BufferRange
from cml_engine.gpu.memory.tensors import GpuTensor
from cml_engine.gpu.native import device_errors
from cml_engine.gpu.program.memory import TENSOR_USAGE, Residency
from cml_engine.gpu.textures.kernels import (
    Params,
    check_bound,
    kernels_of,
    level_size,
    step_cost,
    texture_format,
)
from cml_engine.ir.graph import Array, Fact
from cml_engine.ir.layout import block_words
from cml_engine.ir.textures import TextureInput, by_channel, on_device, planes

#: the modes of ``textures/load.hlsl``
_MODES = {None: 0, "nearest": 0, "bilinear": 1, "area": 2}


class _KernelLoad:
    """A dispatch that runs before a network's own steps and writes to one of its inputs.

    It is created before the network has memory.
    """

    kernel = ""

    def __init__(self, gpu: Device, params: Params, cost: StepCost) -> None:
        self._gpu, self._params = gpu, params
        #: the step's cost for the scheduler
        self.cost = cost
        self._bind_group: wgpu.GPUBindGroup | None = None

    def encode_range(self, compute: wgpu.GPUComputePassEncoder, first: int, count: int) -> None:
        """Records workgroups ``[first, first + count)`` of the dispatch into a compute pass."""
        at_once = self.cost.groups != self._params.groups
        part = (0, self._params.groups) if at_once else (first, first + count)
        kernels = kernels_of(self._gpu)
        kernels.dispatch(compute, self.kernel, self._bind_group, self._params, part)

    def encode_all(self, compute: wgpu.GPUComputePassEncoder) -> None:
        """Records all workgroups of the dispatch into a compute pass."""
        self.encode_range(compute, 0, self.cost.groups)


class NumbersLoad(_KernelLoad):
    """A dispatch that quantizes an input's real numbers to the words of an integer network."""

    kernel = "enter"

    def __init__(self, gpu: Device, name: str, place: TensorPlace) -> None:
        assert place.conversion is not None
        batch, channels, *spatial = place.fact.shape
        rule, block_size = place.conversion, block_words(place.layout)
        params = Params(
            batch * -(-channels // 4) * prod(spatial),
            (channels, prod(spatial), 0, block_size),
            scale=(rule.inverse, rule.low, rule.high, 0.0),
        )
        super().__init__(gpu, params, step_cost("enter", f"enter '{name}'", params, 4 + block_size))
        self._nbytes = place.fact.nbytes
        self._numbers: Allocation | None = None

    def bind(self, network: str, target: BufferRange) -> BufferRange:
        """Binds the memory of the resulting words; returns memory to which the numbers must go.

        That memory is freed with this object.
        """
        memory = self._gpu.memory
        numbers = memory.allocate(self._nbytes, TENSOR_USAGE, owner=network, category="staging")
        numbers.free_with_owner(self)
        source = numbers.binding(0, self._nbytes)
        self._bind_group = kernels_of(self._gpu).bind_group(
            self.kernel,
            numbers.buffer,
            (*source.values(), *target.values()),
            lambda: [source, target],
        )
        return source


class TextureLoad(_KernelLoad):
    """A dispatch that reads a texture into the input ``name`` of a network.

    The constructor raises :class:`InputError` if texture and tensor do not fit.
    """

    kernel = "load"

    def __init__(self, gpu: Device, name: str, fact: Fact, source: TextureInput) -> None:
        label = f"input '{name}'"
        texel_format = texture_format(gpu, label, source.texture, written=False)
        picture = planes(label, fact, source.layout)
        check_bound(gpu, label, fact.nbytes, "give it as an array or in a buffer (gpu.tensor)")
        width, height = level_size(label, source.texture, source.layer, source.mip)
        if source.resize is None and (width, height) != (picture.width, picture.height):
            raise InputError(
                f"{label}: the texture is {width} x {height}, the tensor {picture.width} x "
                f"{picture.height}: say resize='bilinear' (or 'area', 'nearest')"
            )
        count = picture.channels
        params = Params(
            picture.pixels,
            (picture.width, picture.height, width, height),
            (*picture.strides, count),
            (*source.picked(label, texel_format, count), *[0] * (4 - count)),
            by_channel(source.scale, count, f"{label}: scale"),
            by_channel(source.shift, count, f"{label}: shift"),
            (_MODES[source.resize], source.srgb),
        )
        samples_per_pixel = {"bilinear": 4.0, "area": max(1.0, width * height / picture.pixels)}
        samples = samples_per_pixel.get(source.resize or "", 1.0)
        words_per_pixel = count + texel_format.texel_bytes / 4 * samples
        title = f"load_texture '{name}'"
        cost = step_cost("load_texture", title, params, words_per_pixel, source.at_once)
        super().__init__(gpu, params, cost)
        self._source = source

    def bind(self, target: BufferRange) -> None:
        """Binds the texture to read and the memory to write."""
        source = self._source

        def view() -> wgpu.GPUTextureView:
            return source.texture.create_view(
                dimension="2d",
                base_array_layer=source.layer,
                array_layer_count=1,
                base_mip_level=source.mip,
                mip_level_count=1,
            )

        view()  # a destroyed texture raises an error here, not at the host's submit
        self._bind_group = kernels_of(self._gpu).bind_group(
            self.kernel,
            source.texture,
            (source.layer, source.mip, *target.values()),
            lambda: [view(), target],
        )


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
    inputs: Mapping[str, object],
) -> list[Load]:
    """Brings inputs that are on the device into the program's memory.

    Records the copies of tensors into ``encoder``. Returns the loads, bound to memory, which must
    run before the program's first step. Raises :class:`InputError` if an input does not fit.
    """
    gpu_values = {name: value for name, value in inputs.items() if on_device(value)}
    for name, value in gpu_values.items():
        check_on_device(gpu, residency, name, value)
    plan = residency.plan
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
            encoder.copy_buffer_to_buffer(
                value.buffer, value.offset, target["buffer"], target["offset"], value.fact.nbytes
            )
    return loads
