"""Inputs that are on the device already: tensors in buffers, and textures."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Any, Protocol

import wgpu

from cml_engine.compiler.plan import Binding, Plan, StepCost, TensorPlace
from cml_engine.errors import InputError
from cml_engine.gpu.device import Device
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
from cml_engine.ir.graph import Fact
from cml_engine.ir.layout import block_words
from cml_engine.ir.textures import TextureInput, by_channel, on_device, planes

#: the modes of ``textures/load.hlsl``
_MODES = {None: 0, "nearest": 0, "bilinear": 1, "area": 2}


class Target(Protocol):
    """The interface of the memory that a tensor is loaded into: ``program.ProgramMemory``."""

    def place(self, binding: Binding) -> tuple[wgpu.GPUBuffer, int]: ...


class TextureLoad:
    """A dispatch that reads a texture into the input ``name`` of a network.

    It is created before the network has memory. The constructor raises :class:`InputError` if
    texture and tensor do not fit.
    """

    def __init__(self, gpu: Device, name: str, fact: Fact, given: TextureInput) -> None:
        what = f"input '{name}'"
        form = texture_format(gpu, what, given.texture, written=False)
        picture = planes(what, fact, given.layout)
        check_bound(gpu, what, fact.nbytes, "give it as an array or in a buffer (gpu.tensor)")
        width, height = level_size(what, given.texture, given.layer, given.mip)
        if given.resize is None and (width, height) != (picture.width, picture.height):
            raise InputError(
                f"{what}: the texture is {width} x {height}, the tensor {picture.width} x "
                f"{picture.height}: say resize='bilinear' (or 'area', 'nearest')"
            )
        count = picture.channels
        picked = given.picked(what, form, count)
        self._params = Params(
            picture.pixels,
            (picture.width, picture.height, width, height),
            (*picture.strides, count),
            (*picked, *[0] * (4 - count)),
            by_channel(given.scale, count, f"{what}: scale"),
            by_channel(given.shift, count, f"{what}: shift"),
            (_MODES[given.resize], given.srgb),
        )
        self._gpu, self._given = gpu, given
        per_pixel = {"bilinear": 4.0, "area": max(1.0, width * height / picture.pixels)}
        words = count + form.texel_bytes / 4 * per_pixel.get(given.resize or "", 1.0)
        #: the step's cost for the scheduler
        self.cost: StepCost = step_cost(
            "load_texture", f"load_texture '{name}'", self._params, words, given.at_once
        )
        self._bound: Any = None

    def bind(self, target: Target, binding: Binding) -> None:
        """Binds the texture to read and the memory to write; builds missing pipelines."""
        buffer, offset = target.place(binding)
        given, texture = self._given, self._given.texture

        def view() -> Any:
            return texture.create_view(
                dimension="2d",
                base_array_layer=given.layer,
                array_layer_count=1,
                base_mip_level=given.mip,
                mip_level_count=1,
            )

        kernels = kernels_of(self._gpu)
        with device_errors():
            kernels.build(
                self._gpu
            )  # only Session.run builds them here: a job waits for them before it begins
            view()  # a destroyed texture raises an error here, not at the host's submit
            self._bound = kernels.bound(
                "load",
                texture,
                (given.layer, given.mip, buffer, offset, binding.nbytes),
                lambda: (view(), {"buffer": buffer, "offset": offset, "size": binding.nbytes}),
            )

    def encode_range(self, compute: wgpu.GPUComputePassEncoder, first: int, count: int) -> None:
        """Records workgroups ``[first, first + count)`` of the dispatch into a compute pass."""
        part = (0, self._params.groups) if self._given.at_once else (first, first + count)
        kernels = kernels_of(self._gpu)
        kernels.dispatch(compute, "load", self._bound, self._params, part)

    def encode_all(self, compute: wgpu.GPUComputePassEncoder) -> None:
        """Records all workgroups of the dispatch into a compute pass."""
        self.encode_range(compute, 0, self.cost.groups)


_NOTHING = (0, 0, 0, 0)
_WORD = 4


def readable(tensor: GpuTensor) -> bool:
    """Returns True if a kernel can read the tensor in its own buffer (usage ``STORAGE``)."""
    return bool(int(tensor.buffer.usage) & wgpu.BufferUsage.STORAGE)


class Waiting:
    """A buffer for a copy of a tensor that no kernel can read in place; freed with this object."""

    def __init__(self, gpu: Device, name: str, nbytes: int) -> None:
        self._memory = gpu.memory.allocate(nbytes, TENSOR_USAGE, owner=name, category="staging")
        weakref.finalize(self, gpu.memory.free_later, self._memory.free).atexit = False

    def place(self, binding: Binding) -> tuple[wgpu.GPUBuffer, int]:
        """Returns the buffer and byte offset of the only tensor, for any binding."""
        return self._memory.buffer, self._memory.offset


class NumbersLoad:
    """A dispatch that quantizes one input's real numbers before a network's own steps."""

    def __init__(self, gpu: Device, name: str, place: TensorPlace) -> None:
        assert place.conversion is not None
        self._gpu, self._place = gpu, place
        batch, channels, *spatial = place.fact.shape
        blocks = batch * -(-channels // 4) * prod(spatial)
        entry = place.conversion
        self._params = Params(
            blocks,
            (channels, prod(spatial), 0, block_words(place.layout)),
            _NOTHING,
            _NOTHING,
            (entry.inverse, entry.low, entry.high, 0.0),
            (0.0, 0.0, 0.0, 0.0),
            (0, 0),
        )
        words = 4 + block_words(place.layout)
        #: the step's cost for the scheduler
        self.cost: StepCost = step_cost("enter", f"enter '{name}'", self._params, words)
        self._bound: Any = None
        self._from: Any = None

    def bind(self, target: Target, source: Target) -> None:
        """Binds the memory of the numbers (``source``) and of the resulting words (``target``)."""
        nbytes = self._place.fact.nbytes
        self._from = source
        self._bind(target, *source.place(Binding("", "", 0, nbytes)), nbytes)

    def read_from(self, target: Target, tensor: GpuTensor) -> None:
        """Binds the GPU tensor to read from, and the memory of the resulting words (``target``)."""
        before = tensor.offset % self._gpu.limits.storage_offset_alignment
        nbytes = before + self._place.fact.nbytes
        channels, positions, _, words = self._params.sizes
        self._params = self._params.with_sizes((channels, positions, before // _WORD, words))
        self._bind(target, tensor.buffer, tensor.offset - before, nbytes)

    def _bind(self, target: Target, buffer: wgpu.GPUBuffer, offset: int, nbytes: int) -> None:
        own, at, size = *target.place(self._place.binding), self._place.binding.nbytes
        kernels = kernels_of(self._gpu)
        with device_errors():
            kernels.build(
                self._gpu
            )  # only Session.run builds them here: a job waits for them before it begins
            self._bound = kernels.bound(
                "enter",
                buffer,
                (offset, nbytes, own, at, size),
                lambda: (
                    {"buffer": buffer, "offset": offset, "size": nbytes},
                    {"buffer": own, "offset": at, "size": size},
                ),
            )

    def encode_range(self, compute: wgpu.GPUComputePassEncoder, first: int, count: int) -> None:
        """Records workgroups ``[first, first + count)`` of the dispatch into a compute pass."""
        kernels = kernels_of(self._gpu)
        kernels.dispatch(compute, "enter", self._bound, self._params, (first, first + count))

    def encode_all(self, compute: wgpu.GPUComputePassEncoder) -> None:
        """Records all workgroups of the dispatch into a compute pass."""
        self.encode_range(compute, 0, self.cost.groups)


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
