"""A plan on a GPU: buffers, bind groups and pipelines made once, then only encoded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import wgpu

from cml_engine.errors import DeviceError
from cml_engine.gpu.device import SLICE_BYTES, Gpu, Pipeline
from cml_engine.gpu.preparation import Preparation, step_key
from cml_engine.gpu.readback import Readback
from cml_engine.gpu.timers import PassTimer
from cml_engine.gpu.uniforms import RANGE_SLOTS, Uniforms
from cml_engine.gpu.words import from_words, to_words
from cml_engine.graph import NUMPY_DTYPE
from cml_engine.plan import Binding, Plan, Step, StepCost, TensorPlace

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

    def __init__(self, plan: Plan, gpu: Gpu, *, deferred: bool = False) -> None:
        self.plan = plan
        self.name = plan.name
        self.gpu = gpu
        self._arena = self._buffer("arena", plan.memory.peak)
        self._weights = self._buffer("weights", plan.weights_bytes)
        self._uniforms = Uniforms(plan, gpu)
        self._slots = self._uniforms.slots
        self._launches: list[_Launch] = []
        self._step_costs = plan.step_costs()
        self._readback = Readback(plan, gpu)
        self._preparation = Preparation(self)
        #: milliseconds of each step as measured at load, where a frame cannot measure them
        self.load_times_ms: tuple[float, ...] = ()
        if not deferred:
            self._preparation.finish()
            if not gpu.has_timestamps:
                self.measure_at_load()

    # --- running

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Upload, run everything, read back; blocks until the outputs are here."""
        self.write_inputs(inputs)
        encoder = self.gpu.device.create_command_encoder(label=self.plan.name)
        compute = encoder.begin_compute_pass(label=self.plan.name)
        for step in self.plan.steps:
            self.encode_all(compute, step.index)
        compute.end()
        self.encode_updates(encoder)
        self._readback.encode(encoder, self.space)
        self.gpu.queue.submit([encoder.finish()])
        return self._readback.read()

    def write_inputs(self, inputs: Mapping[str, Array]) -> None:
        """Put these of the graph's inputs into the arena (queued before the next submit)."""
        for name, array in inputs.items():
            place = self.plan.inputs[name]
            if place.fact.size:
                words = to_words(array, place)
                self.gpu.queue.write_buffer(self._arena, place.binding.offset, words)

    # --- for a frame scheduler

    def step_costs(self) -> list[StepCost]:
        """What each step is and costs per workgroup (``scheduler.Network``)."""
        return self._step_costs

    def measure_at_load(self) -> None:
        """Time every step once by the wall clock, for a device that cannot time its own work in a
        frame; :attr:`load_times_ms` has the result. Blocks."""
        timer = PassTimer(self.gpu)
        timer.time([step.index for step in self.plan.steps], self.encode_all)
        times = timer.time([step.index for step in self.plan.steps], self.encode_all)
        self.load_times_ms = tuple(times)

    @property
    def ready(self) -> bool:
        """Whether weights are uploaded and pipelines built."""
        return self._preparation.done

    def prepare(self, budget_ms: float) -> None:
        """Upload some weights and look whether the pipelines are built; never waits."""
        self._preparation.advance(budget_ms)

    def encode_all(self, compute: wgpu.GPUComputePassEncoder, step: int) -> None:
        """The whole step."""
        launch = self._launches[step]
        self._dispatch(compute, launch, launch.slot, launch.groups)

    def encode_range(
        self, compute: wgpu.GPUComputePassEncoder, step: int, first: int, count: int
    ) -> None:
        """Workgroups ``[first, first + count)`` of a step. At most :data:`RANGE_SLOTS` parts of
        steps may be encoded between two submits; whole steps do not count."""
        launch = self._launches[step]
        if count == launch.groups:
            self._dispatch(compute, launch, launch.slot, count)
        else:
            self._dispatch(compute, launch, self._slots.take(first, first + count), count)

    def run_ranges(self, inputs: Mapping[str, Array], ranges: list[tuple[int, int, int]]) -> None:
        """Run ``(step, first, count)`` in this order, a submit for every :data:`RANGE_SLOTS`."""
        self.write_inputs(inputs)
        for start in range(0, len(ranges), RANGE_SLOTS):
            encoder = self.gpu.device.create_command_encoder()
            compute = encoder.begin_compute_pass()
            for step, first, count in ranges[start : start + RANGE_SLOTS]:
                self.encode_range(compute, step, first, count)
            compute.end()
            self.gpu.queue.submit([encoder.finish()])

    def reset(self) -> None:
        """Give the variables the values that they have in the model's files."""
        for _, variable in self.plan.updates:
            offset, array = self.plan.weights[variable.tensor]
            self.write_weights(offset, array)

    # --- looking at it

    def read_tensor(self, place: TensorPlace) -> Array:
        """A tensor's value now; blocks. Only tensors that still have their memory make sense."""
        if place.fact.size == 0:
            return np.zeros(place.fact.shape, NUMPY_DTYPE[place.fact.dtype])
        data = self.read_bytes(place.binding)
        return from_words(data, place)

    def read_bytes(self, binding: Binding) -> memoryview:
        buffer = self.space(binding.space)
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

    def space(self, space: str) -> wgpu.GPUBuffer:
        """The buffer behind a :class:`Binding`'s ``space``."""
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

    def write_weights(self, offset: int, words: Array) -> None:
        """Put 32-bit words (or truth values) at a byte offset of the weights."""
        if words.size:
            if words.dtype == np.bool_:
                words = words.astype(np.uint32)
            self.gpu.queue.write_buffer(self._weights, offset, np.ascontiguousarray(words))

    def make_launch(self, step: Step) -> None:
        """Build what the next step needs; its pipeline too, where no other step had it built."""
        pipeline = self.gpu.pipeline(step_key(step))
        entries: list[dict[str, Any]] = [
            _bind(0, self._slots.buffer, 0, SLICE_BYTES),
            _bind(1, self._uniforms.params, *self._uniforms.params_range(step)),
        ]
        for i, binding in enumerate(step.bindings):
            entries.append(_bind(i + 2, self.space(binding.space), binding.offset, binding.nbytes))
        bind_group = self.gpu.device.create_bind_group(layout=pipeline.layout, entries=entries)
        slot = self._slots.step_offset(step.index)
        self._launches.append(_Launch(pipeline, bind_group, slot, step.groups))

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

    def encode_updates(self, encoder: wgpu.GPUCommandEncoder) -> None:
        for source, target in self.plan.updates:
            encoder.copy_buffer_to_buffer(
                self.space(source.space),
                source.offset,
                self._weights,
                target.offset,
                min(source.nbytes, target.nbytes),
            )


def _bind(binding: int, buffer: wgpu.GPUBuffer, offset: int, size: int) -> dict[str, Any]:
    return {"binding": binding, "resource": {"buffer": buffer, "offset": offset, "size": size}}
