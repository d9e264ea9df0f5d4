"""A plan on a GPU: buffers, bind groups and pipelines made once, then only encoded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import wgpu

from cml_engine.errors import DeviceError
from cml_engine.gpu.device import SLICE_BYTES, Gpu, Pipeline
from cml_engine.gpu.hlsl import shader_key
from cml_engine.gpu.params import parse_params
from cml_engine.gpu.timers import PassTimer
from cml_engine.graph import NUMPY_DTYPE
from cml_engine.plan import Binding, Plan, Step, TensorPlace

Array = np.ndarray[Any, Any]
_Usage = wgpu.BufferUsage


@dataclass(frozen=True, slots=True)
class _Launch:
    """A step made ready: pipeline, bind group, and where its own slice lies in the slots."""

    pipeline: Pipeline
    bind_group: wgpu.GPUBindGroup
    slot: int
    groups: int


class GpuProgram:
    """A plan whose weights are on the device and whose pipelines are built.

    A whole run is one compute pass in one command buffer. :meth:`encode` puts any range of
    workgroups of any step into a pass; ranges may come in any order and in different submits.
    """

    def __init__(self, plan: Plan, gpu: Gpu) -> None:
        self.plan = plan
        self.gpu = gpu
        self._arena = self._buffer("arena", plan.memory.peak)
        self._weights = self._buffer("weights", plan.weights_bytes)
        self._upload_weights()
        uniforms = _Uniforms(plan, gpu)
        self._slots = uniforms.slots
        self._launches = [self._launch(step, uniforms) for step in plan.steps]
        self._readback = _Readback(plan, gpu)

    # --- running

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Upload, run everything, read back; blocks until the outputs are here."""
        self.write_inputs(inputs)
        encoder = self.gpu.device.create_command_encoder(label=self.plan.name)
        compute = encoder.begin_compute_pass(label=self.plan.name)
        for step in self.plan.steps:
            self.encode_all(compute, step.index)
        compute.end()
        self._encode_updates(encoder)
        self._readback.encode(encoder, self._space)
        self.gpu.queue.submit([encoder.finish()])
        return self._readback.read()

    def write_inputs(self, inputs: Mapping[str, Array]) -> None:
        """Put the graph's inputs into the arena (queued before the next submit)."""
        for name, place in self.plan.inputs.items():
            if place.fact.size:
                words = _to_words(inputs[name], place)
                self.gpu.queue.write_buffer(self._arena, place.binding.offset, words)

    def encode_all(self, compute: wgpu.GPUComputePassEncoder, step: int) -> None:
        """The whole step."""
        launch = self._launches[step]
        self._dispatch(compute, launch, launch.slot, launch.groups)

    def encode_range(
        self, compute: wgpu.GPUComputePassEncoder, step: int, first: int, count: int, slot: int
    ) -> None:
        """Workgroups ``[first, first + count)`` of a step, through the free slot number ``slot``
        (0 … :data:`RANGE_SLOTS` - 1), which must not be used twice in a submit."""
        launch = self._launches[step]
        offset = self._slots.range_offset(slot)
        data = self._slots.data(first, first + count)
        self.gpu.queue.write_buffer(self._slots.buffer, offset, data)
        self._dispatch(compute, launch, offset, count)

    def run_ranges(self, inputs: Mapping[str, Array], ranges: list[tuple[int, int, int]]) -> None:
        """Run ``(step, first, count)`` in this order, a submit for every :data:`RANGE_SLOTS`."""
        self.write_inputs(inputs)
        for start in range(0, len(ranges), RANGE_SLOTS):
            encoder = self.gpu.device.create_command_encoder()
            compute = encoder.begin_compute_pass()
            for slot, (step, first, count) in enumerate(ranges[start : start + RANGE_SLOTS]):
                self.encode_range(compute, step, first, count, slot)
            compute.end()
            self.gpu.queue.submit([encoder.finish()])

    def reset(self) -> None:
        """Give the variables the values that they have in the model's files."""
        for _, variable in self.plan.updates:
            offset, array = self.plan.weights[variable.tensor]
            self._write(self._weights, offset, array)

    # --- looking at it

    def read_tensor(self, place: TensorPlace) -> Array:
        """A tensor's value now; blocks. Only tensors that still have their memory make sense."""
        if place.fact.size == 0:
            return np.zeros(place.fact.shape, NUMPY_DTYPE[place.fact.dtype])
        data = self.read_bytes(place.binding)
        return _from_words(data, place)

    def read_bytes(self, binding: Binding) -> memoryview:
        buffer = self._space(binding.space)
        return self.gpu.queue.read_buffer(buffer, binding.offset, binding.nbytes)

    def read_arena(self) -> Array:
        """The whole arena as 32-bit words (tests look at what lies between the tensors)."""
        return np.frombuffer(self.gpu.queue.read_buffer(self._arena), np.uint32)

    def fill_arena(self, word: int) -> None:
        """Set every word of the arena (tests: what a kernel did not write shows)."""
        self.gpu.queue.write_buffer(self._arena, 0, np.full(self._arena.size // 4, word, np.uint32))

    def time_steps(self, inputs: Mapping[str, Array], runs: int) -> Array:
        """Milliseconds of every step, ``[runs, steps]``, each step in a pass of its own: passes
        cannot overlap, so the sum is somewhat more than an undisturbed run takes."""
        self.write_inputs(inputs)
        timer = PassTimer(self.gpu)
        steps = [step.index for step in self.plan.steps]
        return np.array([timer.time(steps, self.encode_all) for _ in range(runs)])

    # --- making it

    def _space(self, space: str) -> wgpu.GPUBuffer:
        return self._arena if space == "arena" else self._weights

    def _buffer(self, what: str, size: int) -> wgpu.GPUBuffer:
        usage = _Usage.STORAGE | _Usage.COPY_SRC | _Usage.COPY_DST
        size = -(-max(size, 256) // 256) * 256
        try:
            return self.gpu.device.create_buffer(
                label=f"{self.plan.name}.{what}", size=size, usage=usage
            )
        except (wgpu.GPUError, RuntimeError) as error:
            raise DeviceError(
                f"model '{self.plan.name}': the GPU has no {size} bytes for its {what}: {error}"
            ) from error

    def _upload_weights(self) -> None:
        for offset, array in self.plan.weights.values():
            self._write(self._weights, offset, array)

    def _write(self, buffer: wgpu.GPUBuffer, offset: int, array: Array) -> None:
        if array.size:
            words = array.astype(np.uint32) if array.dtype == np.bool_ else array
            self.gpu.queue.write_buffer(buffer, offset, np.ascontiguousarray(words))

    def _launch(self, step: Step, uniforms: _Uniforms) -> _Launch:
        key = shader_key(
            step.path, step.params_layout, len(step.bindings), step.defines, step.trusted
        )
        pipeline = self.gpu.pipeline(key)
        entries: list[dict[str, Any]] = [
            _bind(0, self._slots.buffer, 0, SLICE_BYTES),
            _bind(1, uniforms.params, *uniforms.params_range(step)),
        ]
        for i, binding in enumerate(step.bindings):
            entries.append(_bind(i + 2, self._space(binding.space), binding.offset, binding.nbytes))
        bind_group = self.gpu.device.create_bind_group(layout=pipeline.layout, entries=entries)
        return _Launch(pipeline, bind_group, self._slots.step_offset(step.index), step.groups)

    def _dispatch(
        self, compute: wgpu.GPUComputePassEncoder, launch: _Launch, slot: int, count: int
    ) -> None:
        width = self.gpu.limits.max_groups_per_dimension
        compute.set_pipeline(launch.pipeline.pipeline)
        compute.set_bind_group(0, launch.bind_group, [slot])
        if count <= width:
            compute.dispatch_workgroups(count)
        else:
            compute.dispatch_workgroups(width, -(-count // width))

    def _encode_updates(self, encoder: wgpu.GPUCommandEncoder) -> None:
        for source, target in self.plan.updates:
            encoder.copy_buffer_to_buffer(
                self._space(source.space),
                source.offset,
                self._weights,
                target.offset,
                min(source.nbytes, target.nbytes),
            )


#: ranges of workgroups that one submit may hold
RANGE_SLOTS = 256


class _Slots:
    """A uniform buffer of slices: one per step for a whole run, then the free ones for ranges."""

    def __init__(self, plan: Plan, gpu: Gpu) -> None:
        self._stride = max(gpu.limits.uniform_offset_alignment, SLICE_BYTES)
        self._width = gpu.limits.max_groups_per_dimension
        self._steps = len(plan.steps)
        block = bytearray(self._stride * (self._steps + RANGE_SLOTS))
        for step in plan.steps:
            at = self.step_offset(step.index)
            block[at : at + SLICE_BYTES] = self.data(0, step.groups)
        self.buffer = gpu.device.create_buffer_with_data(
            label=f"{plan.name}.slots", data=block, usage=_Usage.UNIFORM | _Usage.COPY_DST
        )

    def step_offset(self, step: int) -> int:
        return step * self._stride

    def range_offset(self, slot: int) -> int:
        return (self._steps + slot) * self._stride

    def data(self, first: int, end: int) -> bytes:
        return np.array([first, end, self._width, 0], np.uint32).tobytes()


class _Uniforms:
    """Every step's parameters, written once: shapes do not change while a plan lives."""

    def __init__(self, plan: Plan, gpu: Gpu) -> None:
        self.slots = _Slots(plan, gpu)
        align = gpu.limits.uniform_offset_alignment
        block = bytearray()
        self._ranges: list[tuple[int, int]] = []
        for step in plan.steps:
            data = parse_params(step.params_layout).pack(step.params)
            self._ranges.append((len(block), len(data)))
            block += data + bytes(-len(data) % align)
        self.params = gpu.device.create_buffer_with_data(
            label=f"{plan.name}.params", data=block or bytes(16), usage=_Usage.UNIFORM
        )

    def params_range(self, step: Step) -> tuple[int, int]:
        return self._ranges[step.index]


class _Readback:
    """One mappable buffer for all outputs of a run."""

    def __init__(self, plan: Plan, gpu: Gpu) -> None:
        self._places = [(n, p) for n, p in plan.outputs.items() if p.fact.size]
        self._empty = {
            n: np.zeros(p.fact.shape, NUMPY_DTYPE[p.fact.dtype])
            for n, p in plan.outputs.items()
            if not p.fact.size
        }
        self._order = list(plan.outputs)
        self._offsets: list[int] = []
        end = 0
        for _, place in self._places:
            self._offsets.append(end)
            end += place.binding.nbytes
        self._buffer = gpu.device.create_buffer(
            label=f"{plan.name}.readback",
            size=max(end, 16),
            usage=_Usage.MAP_READ | _Usage.COPY_DST,
        )

    def encode(self, encoder: wgpu.GPUCommandEncoder, space: Any) -> None:
        for (_, place), offset in zip(self._places, self._offsets, strict=True):
            b = place.binding
            encoder.copy_buffer_to_buffer(space(b.space), b.offset, self._buffer, offset, b.nbytes)

    def read(self) -> dict[str, Array]:
        """The outputs of the run that was submitted last; waits for it."""
        self._buffer.map_sync(wgpu.MapMode.READ)
        try:
            found = dict(self._empty)
            for (name, place), offset in zip(self._places, self._offsets, strict=True):
                data = self._buffer.read_mapped(offset, place.binding.nbytes)
                found[name] = _from_words(data, place)
        finally:
            self._buffer.unmap()
        return {name: found[name] for name in self._order}


def _bind(binding: int, buffer: wgpu.GPUBuffer, offset: int, size: int) -> dict[str, Any]:
    return {"binding": binding, "resource": {"buffer": buffer, "offset": offset, "size": size}}


def _to_words(array: Array, place: TensorPlace) -> Array:
    """The array as the GPU wants it: 32-bit words in the tensor's layout."""
    logical = place.fact.dtype == "logical"
    dtype = np.dtype(np.uint32) if logical else NUMPY_DTYPE[place.fact.dtype]
    return np.ascontiguousarray(block(array) if place.layout == "c4" else array, dtype)


def _from_words(data: Any, place: TensorPlace) -> Array:
    fact = place.fact
    dtype = np.dtype(np.uint32) if fact.dtype == "logical" else NUMPY_DTYPE[fact.dtype]
    words = np.frombuffer(data, dtype)
    plain = unblock(words, fact.shape) if place.layout == "c4" else words[: fact.size]
    return np.array(plain.reshape(fact.shape), NUMPY_DTYPE[fact.dtype])


def block(array: Array) -> Array:
    """A tensor ``[N, C, spatial…]`` as c4 (``cml_engine/layout.py``)."""
    batch, channels, *spatial = array.shape
    blocks = -(-channels // 4)
    padded = np.zeros((batch, blocks * 4, *spatial), array.dtype)
    padded[:, :channels] = array
    return np.moveaxis(padded.reshape(batch, blocks, 4, *spatial), 2, -1)


def unblock(words: Array, shape: tuple[int, ...]) -> Array:
    """A tensor of that (NCHW) shape out of its c4 words (``cml_engine/layout.py``)."""
    batch, channels, *spatial = shape
    blocks = -(-channels // 4)
    size = batch * blocks * int(np.prod(spatial)) * 4
    blocked = words[:size].reshape(batch, blocks, *spatial, 4)
    moved = np.moveaxis(blocked, -1, 2)
    return moved.reshape(batch, blocks * 4, *spatial)[:, :channels]
