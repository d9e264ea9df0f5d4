"""A prepared plan on a GPU: its pipelines, bind groups and memory are created once."""

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
from cml_engine.gpu.program.preparation import OnProgress, Preparation
from cml_engine.gpu.program.prints import Prints, printing_keys
from cml_engine.gpu.program.program_memory import ProgramMemory
from cml_engine.gpu.program.shared_constants import Chunks, SharedConstants, write_chunks
from cml_engine.gpu.program.uniforms import Uniforms
from cml_engine.gpu.shaders.steps import Variant

#: frames for which a prepared model is not evicted before its job begins
_GRACE_FRAMES = 240
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Launch:
    """A prepared step: its pipeline, its bind group and the offset of its slice uniform."""

    pipeline: Pipeline
    bind_group: wgpu.GPUBindGroup
    slot: int
    groups: int

    def dispatch(
        self, compute: wgpu.GPUComputePassEncoder, slot: int, count: int, width: int
    ) -> None:
        """Records a dispatch of ``count`` workgroups of the slice at offset ``slot``.

        A row has at most ``width`` workgroups.
        """
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
    """A program with all it needs to be encoded: uploaded weights, pipelines, bind groups."""

    def __init__(
        self,
        plan: Plan,
        gpu: Device,
        arena: str | None,
        constants: SharedConstants | None,
        on_progress: OnProgress | None,
    ) -> None:
        #: the constants shared with programs of this network at other shapes
        self.constants = SharedConstants(plan, gpu.memory) if constants is None else constants
        super().__init__(plan, gpu, arena, self.constants)
        self._uniforms: Uniforms | None = None
        #: True once :meth:`close` has freed the memory permanently
        self._closed = False
        self._launches: list[_Launch] = []
        self._width = gpu.limits.max_groups_per_dimension
        self._keys = self.constants.step_keys(plan)
        if gpu.debug_kernels:
            self._keys = printing_keys(plan, gpu, self._keys)
        #: the print buffer; None if no kernel prints
        self.prints: Prints | None = None
        self._preparation = Preparation(plan, gpu, self._keys, on_progress)
        #: combinations of a kernel and binding sizes that the device has accepted
        self._rehearsed: set[tuple[Variant, tuple[int, ...]]] = set()

    def constants_of(self, plan: Plan) -> SharedConstants | None:
        """Returns new shared constants for ``plan``: this program's plan with other weights.

        Returns None if a kernel file has changed, so that this program's pipelines do not fit.
        """
        common = SharedConstants(plan, self.gpu.memory)
        return common if common.step_keys(plan) == self._keys else None

    def close(self) -> None:
        """Frees all memory permanently. Raises :class:`InputError` during a run or a job."""
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
        """Starts to build the pipelines on all cores in the background."""
        self._preparation.build_ahead()

    def load(self) -> None:
        """Prepares memory, weights, pipelines and bind groups now, unless they are ready."""
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
        """A description of the missing part, or "" if the program is ready."""
        if self.ready:
            return ""
        if not self.residency.complete:
            return f"memory: {self.lacking}" if self.lacking else "memory"
        return self._preparation.waiting_for

    @property
    def ready(self) -> bool:
        """True if the program is prepared and no other thread is running it."""
        with self._if_free() as free:
            return free and self.prepared

    @property
    def prepared(self) -> bool:
        """True if the weights are uploaded and the pipelines and bind groups exist."""
        return self._preparation.done and self.residency.complete

    def prepare(self, budget_ms: float) -> None:
        """Does a part of the preparation within ``budget_ms``; never blocks.

        It takes memory, uploads some weights and checks if the pipelines are built. It does
        nothing while other models use memory that they will free later, or while another thread
        runs this program.
        """
        self.last_used = self.gpu.memory.tick()
        self.stays_until = self.gpu.memory.frame + _GRACE_FRAMES
        with self._if_free() as free:
            if free and self._take_memory():
                self._preparation.advance(self, budget_ms)

    # --- encoding

    def encode_all(self, compute: wgpu.GPUComputePassEncoder, step: int) -> None:
        """Records all workgroups of a step into a compute pass."""
        launch = self._launches[step]
        with self._marked(compute, step):
            launch.dispatch(compute, launch.slot, launch.groups, self._width)

    def submit_steps(self, steps: Sequence[int]) -> None:
        """Submits whole steps in order, each on its own, and writes what kernels print to stderr.

        The steps read the memory as it is; no inputs are uploaded.
        """
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
        """Records workgroups ``[first, first + count)`` of a step into a compute pass.

        At most ``RANGE_SLOTS`` partial ranges may be encoded between two submits. Whole steps do
        not count.
        """
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
        """Returns a context that puts commands into a debug group, if markers are enabled."""
        if not self.gpu.markers:
            return contextlib.nullcontext()
        return _group(compute, f"{self.name}: {self.plan.steps[step].title}")

    # --- preparing

    def upload(self, values: Chunks, limit: int) -> int:
        """Uploads at most ``limit`` bytes: shared weights first, then ``values`` of this program.

        Returns the unused part of the limit, 0 if more may remain.
        """
        limit = self.constants.upload(limit)
        own = self.residency.own
        return limit if own is None or limit <= 0 else write_chunks(own, values, limit)

    def make_launch(self, step: Step, pipeline: Pipeline) -> None:
        """Creates the bind group of the next step and appends its launch.

        Raises :class:`DeviceError` if the device rejects the launch of an untrusted kernel.
        """
        uniforms = self._uniforms
        assert uniforms is not None
        entries: list[dict[str, Any]] = [
            {"binding": 0, "resource": uniforms.slots.memory.binding(0, SLICE_BYTES)},
            {"binding": 1, "resource": uniforms.params_binding(step)},
        ]
        for i, binding in enumerate(step.bindings):
            buffer, offset = self.place(binding)
            # a device keeps a kernel inside its bindings: a write beyond the tensor is visible
            # only if the guard bytes behind it are bound too
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
        """Encodes a launch and discards it.

        Validation errors, such as a binding smaller than the kernel's array, are thus raised
        here and not in the host's frame.
        """
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
        """Records the copies that update the network's variables with this run's values.

        An output may be the old value of a variable, so outputs must be copied before.
        """
        for source, target in self.plan.updates:
            nbytes = min(source.nbytes, target.nbytes)
            encoder.copy_buffer_to_buffer(*self.place(source), *self.place(target), nbytes)
