"""A plan made ready on a GPU: pipelines, bind groups and memory made once, then only encoded."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import wgpu

from cml_engine.compiler.plan import Plan, Step
from cml_engine.errors import DeviceError, InputError
from cml_engine.gpu.device import SLICE_BYTES, Device
from cml_engine.gpu.native import device_error
from cml_engine.gpu.pipelines import Pipeline
from cml_engine.gpu.program.common import Chunks, Common, write_chunks
from cml_engine.gpu.program.preparation import OnProgress, Preparation
from cml_engine.gpu.program.prints import Prints, printing_keys
from cml_engine.gpu.program.program_memory import ProgramMemory
from cml_engine.gpu.program.uniforms import Uniforms
from cml_engine.gpu.shaders.steps import Variant

#: frames that a model stays on the device for the job that it was prepared for
_GRACE_FRAMES = 240
_log = logging.getLogger(__name__)


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


@contextlib.contextmanager
def _group(compute: wgpu.GPUComputePassEncoder, name: str) -> Iterator[None]:
    compute.push_debug_group(name)
    try:
        yield
    finally:
        compute.pop_debug_group()


class PreparedProgram(ProgramMemory):
    """What a program needs to be encoded: weights on the device, pipelines, bind groups."""

    def __init__(
        self,
        plan: Plan,
        gpu: Device,
        arena: str | None,
        common: Common | None,
        on_progress: OnProgress | None,
    ) -> None:
        #: what programs of this network at other shapes are made with
        self.common = Common(plan, gpu.memory) if common is None else common
        super().__init__(plan, gpu, arena, self.common)
        self._uniforms: Uniforms | None = None
        #: whether it has given its memory back for good
        self._closed = False
        self._launches: list[_Launch] = []
        self._width = gpu.limits.max_groups_per_dimension
        self._keys = self.common.step_keys(plan)
        if gpu.debug_kernels:
            self._keys = printing_keys(plan, gpu, self._keys)
        #: what its kernels print, where any does
        self.prints: Prints | None = None
        self._preparation = Preparation(plan, gpu, self._keys, on_progress)
        #: kernels and sizes of bindings that the device takes together
        self._rehearsed: set[tuple[Variant, tuple[int, ...]]] = set()

    def common_of(self, plan: Plan) -> Common | None:
        """Other weights for this program's plan; None where its kernels' files have changed."""
        common = Common(plan, self.gpu.memory)
        return common if common.step_keys(plan) == self._keys else None

    def close(self) -> None:
        """Give all memory back for good. :class:`InputError` while something runs."""
        with self._if_free() as free:
            if not free or self._in_use:
                raise InputError(f"{self._called} cannot be closed: a run or a job is under way")
            self._closed = True
            self._forget()
            self._preparation = Preparation(self.plan, self.gpu, self._keys)
            self.residency.release(now=True)
            self._uniforms = self.prints = None

    def _acquire(self) -> None:
        if self._closed:
            raise InputError(f"the session of '{self.name}' was closed: make another one")
        if self._uniforms is None:
            self._uniforms = Uniforms(self.plan, self.gpu)
            if self.gpu.debug_kernels:
                self.prints = Prints.of(self.plan, self.gpu, self._keys)
        if self.residency.acquire() and self._launches:
            self._launches.clear()
            self._preparation.bind_again()

    def _forget(self) -> None:
        self._launches.clear()
        self._preparation.restart()

    def build_ahead(self) -> None:
        """Begin to build the pipelines, beside whatever else goes on."""
        self._preparation.build_ahead()

    def load(self) -> None:
        """Have weights, pipelines and bind groups now; at once where they are there already."""
        self.last_used = self.gpu.memory.tick()
        with self.pinned():
            if not self.prepared:
                start = time.perf_counter()
                self._acquire()
                self._preparation.finish(self)
                ms = 1e3 * (time.perf_counter() - start)
                _log.info("'%s' is ready: %d kernels, %.0f ms", self.name, len(set(self._keys)), ms)

    @property
    def waiting_for(self) -> str:
        """What it lacks to be ready, in words; "" where it is."""
        if self.ready:
            return ""
        if not self.residency.complete:
            return f"memory: {self.lacking}" if self.lacking else "memory"
        return self._preparation.waiting_for

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

    # --- encoding it

    def encode_all(self, compute: wgpu.GPUComputePassEncoder, step: int) -> None:
        """The whole step."""
        launch = self._launches[step]
        with self._marked(compute, step):
            launch.dispatch(compute, launch.slot, launch.groups, self._width)

    def submit_steps(self, steps: Sequence[int]) -> None:
        """Run these steps whole, in this order, on what lies in the memory, and show what their
        kernels print."""
        for step in steps:
            if self.prints is not None and step in self.prints:
                self.prints.run(self.plan.steps[step], self.encode_range)
                continue
            encoder = self.gpu.device.create_command_encoder()
            compute = encoder.begin_compute_pass()
            self.encode_all(compute, step)
            compute.end()
            self.gpu.queue.submit([encoder.finish()])

    def encode_range(
        self, compute: wgpu.GPUComputePassEncoder, step: int, first: int, count: int
    ) -> None:
        """Workgroups ``[first, first + count)`` of a step. At most ``RANGE_SLOTS`` parts of
        steps may be encoded between two submits; whole steps do not count."""
        launch = self._launches[step]
        slot = launch.slot
        if count != launch.groups:
            assert self._uniforms is not None
            slot = self._uniforms.slots.take(first, first + count)
        with self._marked(compute, step):
            launch.dispatch(compute, slot, count, self._width)

    def _marked(
        self, compute: wgpu.GPUComputePassEncoder, step: int
    ) -> contextlib.AbstractContextManager[None]:
        """In the ``with`` block commands are in a debug group, where these are asked for."""
        if not self.gpu.markers:
            return contextlib.nullcontext()
        return _group(compute, f"{self.name}: {self.plan.steps[step].title}")

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
        if self.prints is not None and step.index in self.prints:
            entries.append({"binding": len(entries), "resource": self.prints.binding})
        bind_group = self.gpu.device.create_bind_group(layout=pipeline.layout, entries=entries)
        slot = uniforms.slots.step_offset(step.index)
        launch = _Launch(pipeline, bind_group, slot, step.groups)
        call = self._keys[step.index], tuple(binding.nbytes for binding in step.bindings)
        if not step.trusted and call not in self._rehearsed:
            self._rehearse(launch)
            self._rehearsed.add(call)
        self._launches.append(launch)

    def _rehearse(self, launch: _Launch) -> None:
        """Encodes a launch and throws it away. What the device has against it, as a binding that is
        smaller than the kernel's array, fails here and not in the host's frame."""
        try:
            encoder = self.gpu.device.create_command_encoder()
            compute = encoder.begin_compute_pass()
            launch.dispatch(compute, launch.slot, launch.groups, self._width)
            compute.end()
            encoder.finish()
        except wgpu.GPUError as error:
            raise DeviceError(
                f"kernel '{launch.pipeline.label}': {device_error(error).message}"
            ) from error

    def encode_updates(self, encoder: wgpu.GPUCommandEncoder) -> None:
        """Give the network's variables their new values. An output may be a variable, and is its
        value before: copy outputs first."""
        for source, target in self.plan.updates:
            nbytes = min(source.nbytes, target.nbytes)
            encoder.copy_buffer_to_buffer(*self.place(source), *self.place(target), nbytes)
