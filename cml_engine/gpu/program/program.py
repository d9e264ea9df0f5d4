"""A plan on a GPU: buffers, bind groups and pipelines are created once and then only encoded."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import wgpu

from cml_engine.compiler.plan import Binding, Plan, Step, StepCost, TensorPlace
from cml_engine.errors import DeviceError, InputError
from cml_engine.gpu.device import SLICE_BYTES, Device, Pipeline
from cml_engine.gpu.frames.job_runs import JobRun
from cml_engine.gpu.memory.allocation import Allocation
from cml_engine.gpu.memory.tensors import empty, from_words, to_words
from cml_engine.gpu.native import device_error, device_errors
from cml_engine.gpu.program.inputs import Load, host_arrays, take_over
from cml_engine.gpu.program.memory import (
    Chunks,
    ProgramMemory,
    SharedConstants,
    write_chunks,
    write_numbers,
)
from cml_engine.gpu.program.preparation import OnProgress, Preparation, Uniforms
from cml_engine.gpu.program.prints import Prints, printing_keys
from cml_engine.gpu.program.retained_values import RetainedValues
from cml_engine.gpu.shaders.hlsl import Variant
from cml_engine.gpu.timing.frame_timer import PassTimer
from cml_engine.ir.graph import Array


class Readback:
    """Reads all outputs of a run to the host, through one mappable buffer per run."""

    def __init__(self, plan: Plan) -> None:
        self._name = plan.name
        self._places = [(n, p) for n, p in plan.outputs.items() if p.fact.size]
        self._empty = {n: empty(p.fact) for n, p in plan.outputs.items() if not p.fact.size}
        self._order = list(plan.outputs)
        self._offsets: list[int] = []
        end = 0
        for _, place in self._places:
            self._offsets.append(end)
            end += place.binding.nbytes
        self._nbytes = end

    def staging(self, gpu: Device) -> Allocation:
        """Returns a mappable buffer for :meth:`encode` and :meth:`read`; the caller frees it."""
        usage = wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST
        return gpu.memory.allocate(self._nbytes, usage, owner=self._name, category="staging")

    def encode(
        self,
        encoder: wgpu.GPUCommandEncoder,
        place_of: Callable[[Binding], tuple[wgpu.GPUBuffer, int]],
        staging: Allocation,
    ) -> None:
        """Records the copies of the outputs into the mappable buffer."""
        for (_, place), offset in zip(self._places, self._offsets, strict=True):
            source, nbytes = place_of(place.binding), place.binding.nbytes
            encoder.copy_buffer_to_buffer(*source, staging.buffer, staging.offset + offset, nbytes)

    @device_errors(RuntimeError)
    def read(self, staging: Allocation) -> dict[str, Array]:
        """Waits for the last submitted run; returns its outputs by name, in the graph's order."""
        buffer = staging.buffer
        buffer.map_sync(wgpu.MapMode.READ)
        try:
            found = dict(self._empty)
            for (name, place), offset in zip(self._places, self._offsets, strict=True):
                data = buffer.read_mapped(staging.offset + offset, place.binding.nbytes)
                found[name] = from_words(data, place)
        finally:
            buffer.unmap()
        return {name: found[name] for name in self._order}


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


class Successor(Protocol):
    """The interface of a replacement network: ``live.Replacement``."""

    def advance(self, budget_ms: float) -> None: ...


class GpuProgram(PreparedProgram):
    """A plan whose weights are on the device and whose pipelines are built.

    A whole run is one compute pass in one command buffer. :meth:`encode_range` appends any range of
    workgroups of any step to a pass; ranges may come in any order and in different submits. Runs of
    several threads wait for each other; a scheduler's job has exclusive use of the arena.

    An idle program's arena and weights may be evicted (:meth:`evict`); the next run or preparation
    restores them. A network that updates variables is never evicted, because the variables would be
    lost.
    """

    def __init__(
        self,
        plan: Plan,
        gpu: Device,
        *,
        deferred: bool = False,
        arena: str | None = None,
        constants: SharedConstants | None = None,
        on_progress: OnProgress | None = None,
    ) -> None:
        super().__init__(plan, gpu, arena, constants, on_progress)
        self._step_costs = plan.step_costs()
        self._readback = Readback(plan)
        #: the validity of the results in its memory
        self.retained = RetainedValues(plan, self.residency)
        #: the job that last updated the variables, if any
        self._updated_by: JobRun | None = None
        #: the network that will replace this one
        self.successor: Successor | None = None
        #: milliseconds of each step measured at load, on a device without timestamps
        self.load_times_ms: tuple[float, ...] = ()
        if deferred:
            self._take_memory()
        else:
            self.load()
            if not gpu.has_timestamps:
                self.measure_at_load()

    # --- running

    def run(self, inputs: Mapping[str, object]) -> dict[str, Array]:
        """Uploads the inputs, runs all needed steps and returns the outputs by name; blocks."""
        with self.exclusive(), self._readback.staging(self.gpu) as staging:
            return self._run(inputs, staging)

    def _run(self, inputs: Mapping[str, object], staging: Allocation) -> dict[str, Array]:
        encoder = self.gpu.device.create_command_encoder(label=self.plan.name)
        steps, loads = self.begin(encoder, inputs)
        compute = encoder.begin_compute_pass(label=self.plan.name)
        for load in loads:
            load.encode_all(compute)
        if self.prints is None:
            for step in steps:
                self.encode_all(compute, step)
        compute.end()
        if self.prints is not None:
            self.gpu.queue.submit([encoder.finish()])
            self.submit_steps(steps)
            encoder = self.gpu.device.create_command_encoder(label=self.plan.name)
        self._readback.encode(encoder, self.place, staging)
        self.encode_updates(encoder)
        self.gpu.queue.submit([encoder.finish()])
        self.retained.end()
        return self._readback.read(staging)

    def begin(
        self,
        encoder: wgpu.GPUCommandEncoder,
        inputs: Mapping[str, object],
        run: JobRun | None = None,
    ) -> tuple[Sequence[int], list[Load]]:
        """Begins a run like :meth:`begin_run`, with inputs on the host or the device.

        Records copies of GPU tensors into ``encoder``. Returns the indices of the steps of the
        run, and the input loads that must run before them.
        """
        arrays = host_arrays(inputs)
        steps = self.begin_run(arrays, inputs.keys() - arrays.keys(), run)
        try:
            return steps, take_over(encoder, self, inputs)
        except Exception:
            self.retained.take_back()
            raise

    def begin_run(
        self,
        inputs: Mapping[str, Array],
        from_gpu: Collection[str] = (),
        run: JobRun | None = None,
    ) -> Sequence[int]:
        """Uploads the inputs of a run into the arena and returns the indices of the steps to run.

        Omitted inputs that the memory lost are uploaded again. The caller copies the inputs
        named in ``from_gpu``. ``run`` is given for a job of a scheduler. Raises
        :class:`InputError` if the network's variables are wrong.
        """
        if self._updated_by is not None and self._updated_by.harm:
            raise InputError(
                f"the variables of '{self.name}' are wrong: Session.reset() gives them their first "
                f"values. A job that failed has changed them: {self._updated_by.harm}"
            )
        self.load()
        steps = self.steps_for({*inputs, *from_gpu})
        self._put(self.retained.begin(inputs, from_gpu, run))
        return range(len(self.plan.steps)) if steps is None else steps

    def write_inputs(self, inputs: Mapping[str, Array]) -> None:
        """Queues the upload of these graph inputs into the arena, done before the next submit.

        For tools that run steps on their own: all results in the memory become invalid.
        """
        self.load()
        self.retained.lose()
        self._put(inputs)

    def _put(self, inputs: Mapping[str, Array]) -> None:
        assert self.residency.arena is not None
        for name, array in inputs.items():
            place = self.plan.inputs[name]
            if place.fact.size:
                words = to_words(array, place)
                self.residency.arena.write(words, place.binding.offset)

    def result_place(self, name: str) -> tuple[wgpu.GPUBuffer, int, TensorPlace]:
        """Returns the buffer, byte offset and place of an output or a kept tensor of the last run.

        Raises :class:`InputError` if the memory does not contain it.
        """
        place = self.plan.results.get(name)
        if place is None:
            raise InputError(
                f"model '{self.name}' keeps no tensor '{name}'; it has "
                f"{', '.join(self.plan.results)}. Name it in CompileOptions(keep=…)"
            )
        if not self.retained.results:
            raise InputError(
                f"model '{self.name}' holds no '{name}' now: no run has ended in its memory, or "
                "others had the memory since. Run it first"
            )
        return *self.place(place.binding), place

    # --- for a frame scheduler

    def step_costs(self) -> list[StepCost]:
        """Returns the description and cost of each step, in order (``scheduler.Network``)."""
        return self._step_costs

    @property
    def retains(self) -> bool:
        """True if an omitted input keeps its value (``scheduler.Network``)."""
        return self.plan.reuse is not None

    @property
    def built_on(self) -> list[JobRun]:
        """The runs of jobs whose results a new run may read, by variables and retained tensors."""
        updated_by = [] if self._updated_by is None else [self._updated_by]
        return [*self.retained.built_on, *updated_by]

    def encode_updates(self, encoder: wgpu.GPUCommandEncoder, run: JobRun | None = None) -> None:
        """Records the updates of the network's variables.

        ``run`` is the job that makes them, if any.
        """
        super().encode_updates(encoder)
        if run is not None and self.plan.updates:
            self._updated_by = run

    @property
    def known_inputs(self) -> frozenset[str]:
        """The names of the inputs that may be omitted because their last value is known."""
        return self.retained.known

    def steps_for(self, given: Collection[str], *, behind: bool = False) -> tuple[int, ...] | None:
        """Returns the indices of the steps for a run with these inputs; None for all steps.

        Values of other inputs are those of the previous run. With ``behind``, another run comes
        before, so the current content of the memory does not matter. Part of
        ``scheduler.Network``.
        """
        reuse = self.plan.reuse
        if reuse is None or not (behind or self.retained.results):
            return None
        return reuse.steps(given)

    def inherit(self, before: GpuProgram) -> None:
        """Copies the input values of ``before``, the program that this one replaces."""
        self.retained.inherit(before.retained)

    def advance_successor(self, budget_ms: float) -> None:
        """Prepares the replacement network for about ``budget_ms`` (``scheduler.Network``)."""
        if self.successor is not None:
            self.successor.advance(budget_ms)

    def measure_at_load(self) -> None:
        """Measures every step by the wall clock and sets :attr:`load_times_ms`.

        Used on devices without timestamps. Blocks. Does nothing while a job is running in the
        memory.
        """
        timer = PassTimer(self.gpu)
        with self.pinned():
            if self.residency.busy:
                return
            self.load()
            self.retained.spoil()
            timer.time([step.index for step in self.plan.steps], self.encode_all)
            times = timer.time([step.index for step in self.plan.steps], self.encode_all)
        self.load_times_ms = tuple(times)

    def reset(self) -> None:
        """Uploads the variables' first values from the model's files.

        Raises :class:`InputError` during a job.
        """
        if not self.plan.updates:
            return
        with self.pinned():
            self._refuse(
                bool(self.residency.holders)
            )  # programs of a shared arena have separate variables
            self.load()
            self._updated_by = None
            for _, target in self.plan.updates:
                if target.space == "own":
                    offset, array = self.plan.own[target.tensor]
                    assert self.residency.own is not None
                    write_numbers(self.residency.own, offset, array)
