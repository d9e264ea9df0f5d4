"""A plan on a GPU: buffers, bind groups and pipelines made once, then only encoded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import wgpu

from cml_engine.gpu.device import SLICE_BYTES, Device, Pipeline
from cml_engine.gpu.memory.allocation import Allocation
from cml_engine.gpu.memory.words import to_words
from cml_engine.gpu.program.common import Chunks, Common, write_chunks, write_numbers
from cml_engine.gpu.program.memory import ProgramMemory
from cml_engine.gpu.program.preparation import Preparation
from cml_engine.gpu.program.readback import Readback
from cml_engine.gpu.program.uniforms import Uniforms
from cml_engine.gpu.timing.timers import PassTimer
from cml_engine.plan import Plan, Step, StepWork

Array = np.ndarray[Any, Any]
#: frames that a model stays on the device for the job that it was prepared for
_GRACE_FRAMES = 240


@dataclass(frozen=True, slots=True)
class _Launch:
    """A step made ready: pipeline, bind group, and where its own slice lies in the slots."""

    pipeline: Pipeline
    bind_group: wgpu.GPUBindGroup
    slot: int
    groups: int

    def dispatch(
        self, compute: wgpu.GPUComputePassEncoder, slot: int, count: int, width: int
    ) -> None:
        """So many workgroups of the slice in that slot, in rows of ``width`` at most."""
        compute.set_pipeline(self.pipeline.pipeline)
        compute.set_bind_group(0, self.bind_group, [slot])
        if count <= width:
            compute.dispatch_workgroups(count)
        else:
            compute.dispatch_workgroups(width, -(-count // width))


class GpuProgram(ProgramMemory):
    """A plan whose weights are on the device and whose pipelines are built.

    A whole run is one compute pass in one command buffer. :meth:`encode_range` puts any range of
    workgroups of any step into a pass; ranges may come in any order and in different submits. Runs
    of several threads wait for each other; a scheduler's job has the arena for itself.

    While it is idle its arena and weights may be taken away (:meth:`evict`); they come back when
    it is next run or prepared. Variables that the network updates would be lost with them, so a
    network that has some is never evicted.
    """

    def __init__(
        self,
        plan: Plan,
        gpu: Device,
        *,
        deferred: bool = False,
        arena: str | None = None,
        common: Common | None = None,
    ) -> None:
        #: what programs of this network at other shapes are made with
        self.common = Common(plan, gpu.memory) if common is None else common
        super().__init__(plan, gpu, arena, self.common)
        self._uniforms: Uniforms | None = None
        self._launches: list[_Launch] = []
        self._step_costs = plan.step_costs()
        self._width = gpu.limits.max_groups_per_dimension
        self._readback = Readback(plan)
        self._keys = self.common.step_keys(plan)
        self._preparation = Preparation(plan, gpu, self._keys)
        #: milliseconds of each step as measured at load, where a frame cannot measure them
        self.load_times_ms: tuple[float, ...] = ()
        if deferred:
            self._take_memory()
        else:
            self.load()
            if not gpu.has_timestamps:
                self.measure_at_load()

    def _acquire(self) -> None:
        if self._uniforms is None:
            self._uniforms = Uniforms(self.plan, self.gpu)
        if self.residency.acquire() and self._launches:
            self._launches.clear()
            self._preparation.bind_again()

    def _forget(self) -> None:
        self._launches.clear()
        self._preparation = Preparation(self.plan, self.gpu, self._keys)

    def build_ahead(self) -> None:
        """Begin to build the pipelines, beside whatever else goes on."""
        self._preparation.build_ahead()

    def load(self) -> None:
        """Have weights, pipelines and bind groups now; at once where they are there already."""
        self.last_used = self.gpu.memory.tick()
        with self.pinned():
            if not self.prepared:
                self._acquire()
                self._preparation.finish(self)

    @property
    def waiting_for(self) -> str:
        """What it lacks to be ready, in words; "" where it is."""
        if self.ready:
            return ""
        if not self.residency.complete:
            return f"memory: {self.lacking}" if self.lacking else "memory"
        return self._preparation.waiting_for

    # --- running

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Upload, run everything, read back; blocks until the outputs are here."""
        with self.exclusive(), self._readback.staging(self.gpu) as staging:
            return self._run(inputs, staging)

    def _run(self, inputs: Mapping[str, Array], staging: Allocation) -> dict[str, Array]:
        self.write_inputs(inputs)
        encoder = self.gpu.device.create_command_encoder(label=self.plan.name)
        compute = encoder.begin_compute_pass(label=self.plan.name)
        for step in self.plan.steps:
            self.encode_all(compute, step.index)
        compute.end()
        self._readback.encode(encoder, self.place, staging)
        self.encode_updates(encoder)
        self.gpu.queue.submit([encoder.finish()])
        return self._readback.read(staging)

    def write_inputs(self, inputs: Mapping[str, Array]) -> None:
        """Put these of the graph's inputs into the arena (queued before the next submit)."""
        self.load()
        assert self.residency.arena is not None
        for name, array in inputs.items():
            place = self.plan.inputs[name]
            if place.fact.size:
                words = to_words(array, place)
                self.residency.arena.write(words, place.binding.offset)

    # --- for a frame scheduler

    def step_costs(self) -> list[StepWork]:
        """What each step is and costs per workgroup (``scheduler.Network``)."""
        return self._step_costs

    def measure_at_load(self) -> None:
        """Time every step once by the wall clock, for a device that cannot time its own work in a
        frame; :attr:`load_times_ms` has the result. Blocks; does nothing where a job is running in
        the memory."""
        timer = PassTimer(self.gpu)
        with self.pinned():
            if self.residency.busy:
                return
            self.load()
            timer.time([step.index for step in self.plan.steps], self.encode_all)
            times = timer.time([step.index for step in self.plan.steps], self.encode_all)
        self.load_times_ms = tuple(times)

    @property
    def ready(self) -> bool:
        """Whether weights are uploaded and pipelines built, and no other thread is running it."""
        with self._if_free() as free:
            return free and self.prepared

    @property
    def prepared(self) -> bool:
        """Whether weights are uploaded and pipelines built."""
        return self._preparation.done and self.residency.complete

    def prepare(self, budget_ms: float) -> None:
        """Take memory, upload some weights, look whether the pipelines are built; never waits.
        Where others hold the memory, and will give it back, nothing happens until they do, nor
        while another thread is running it until that has its result."""
        self.last_used = self.gpu.memory.tick()
        self.stays_until = self.gpu.memory.frame + _GRACE_FRAMES
        with self._if_free() as free:
            if free and self._take_memory():
                self._preparation.advance(self, budget_ms)

    def encode_all(self, compute: wgpu.GPUComputePassEncoder, step: int) -> None:
        """The whole step."""
        launch = self._launches[step]
        launch.dispatch(compute, launch.slot, launch.groups, self._width)

    def encode_range(
        self, compute: wgpu.GPUComputePassEncoder, step: int, first: int, count: int
    ) -> None:
        """Workgroups ``[first, first + count)`` of a step. At most ``RANGE_SLOTS`` parts of
        steps may be encoded between two submits; whole steps do not count."""
        launch = self._launches[step]
        if count == launch.groups:
            launch.dispatch(compute, launch.slot, count, self._width)
        else:
            assert self._uniforms is not None
            slot = self._uniforms.slots.take(first, first + count)
            launch.dispatch(compute, slot, count, self._width)

    def reset(self) -> None:
        """Give the variables the values that they have in the model's files."""
        if not self.plan.updates:
            return
        with self.pinned():
            self._refuse(bool(self.residency.holders))  # others of its arena have other variables
            self.load()
            for _, target in self.plan.updates:
                if target.space == "own":
                    offset, array = self.plan.own[target.tensor]
                    assert self.residency.own is not None
                    write_numbers(self.residency.own, offset, array)

    # --- making it

    def upload(self, values: Chunks, limit: int) -> int:
        """Upload so many bytes: weights that are shared, then ``values`` of its own; what is left
        of the limit, 0 where there may be more."""
        limit = self.common.upload(limit)
        own = self.residency.own
        return limit if own is None or limit <= 0 else write_chunks(own, values, limit)

    def make_launch(self, step: Step, pipeline: Pipeline) -> None:
        """Make what the next step needs beside its pipeline."""
        uniforms = self._uniforms
        assert uniforms is not None
        entries: list[dict[str, Any]] = [
            {"binding": 0, "resource": uniforms.slots.memory.binding(0, SLICE_BYTES)},
            {"binding": 1, "resource": uniforms.params_binding(step)},
        ]
        for i, binding in enumerate(step.bindings):
            buffer, offset = self.place(binding)
            # a device keeps a kernel inside its bindings: one that writes beyond its tensor is
            # seen only where the guard behind it is bound too
            guard = self.plan.options.get("guard", 0) if binding.space == "arena" else 0
            resource = {"buffer": buffer, "offset": offset, "size": binding.nbytes + guard}
            entries.append({"binding": i + 2, "resource": resource})
        bind_group = self.gpu.device.create_bind_group(layout=pipeline.layout, entries=entries)
        slot = uniforms.slots.step_offset(step.index)
        self._launches.append(_Launch(pipeline, bind_group, slot, step.groups))

    def encode_updates(self, encoder: wgpu.GPUCommandEncoder) -> None:
        """Give the network's variables their new values. An output may be a variable, and is its
        value before: copy outputs first."""
        for source, target in self.plan.updates:
            nbytes = min(source.nbytes, target.nbytes)
            encoder.copy_buffer_to_buffer(*self.place(source), *self.place(target), nbytes)
