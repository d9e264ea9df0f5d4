"""A plan on a GPU: buffers, bind groups and pipelines are created once and then only encoded."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import wgpu

from cml_engine.compiler.plan import Plan, Step, StepCost, TensorPlace
from cml_engine.cpu.cpu_program import Watch
from cml_engine.errors import InputError, OutOfGpuMemory
from cml_engine.gpu.device import Device, submitted_pass
from cml_engine.gpu.frames.job_runs import JobRun
from cml_engine.gpu.memory.allocator import Allocation
from cml_engine.gpu.memory.tensors import from_words, to_words
from cml_engine.gpu.native import Dispatch, device_errors, dispatch_recorder
from cml_engine.gpu.program.cpu_operators import CpuOperators
from cml_engine.gpu.program.inputs import Load, check_runs, host_arrays, take_over
from cml_engine.gpu.program.memory import (
    EVERYTHING,
    Arena,
    Residency,
    SharedConstants,
    chunks,
    write_chunks,
    write_numbers,
)
from cml_engine.gpu.program.preparation import OnProgress, Preparation
from cml_engine.gpu.program.prints import Prints
from cml_engine.gpu.program.retained_values import RetainedValues
from cml_engine.gpu.timing.frame_timer import PassTimer
from cml_engine.ir.counted import CountedAxes
from cml_engine.ir.graph import Array

#: frames for which a prepared model is not evicted before its job begins
_GRACE_FRAMES = 240
_log = logging.getLogger(__name__)


class Successor(Protocol):
    """The interface of a replacement network: ``live.Replacement``."""

    def advance(self, budget_ms: float) -> None: ...


class GpuProgram:
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
        counted: CountedAxes | None = None,
    ) -> None:
        #: the axes of outputs whose number of elements is known only at run time
        self.counted = counted or {}
        self.plan, self.gpu, self.name = plan, gpu, plan.name
        #: True if an omitted input keeps its value
        self.retains = plan.reuse is not None
        #: the constants shared with programs of this network at other shapes
        self.constants = SharedConstants(plan, gpu.memory) if constants is None else constants
        self.residency = Residency(plan, gpu.memory, arena, self.constants)
        shared = self.residency.shared
        #: the name of the shared arena, or None; only one program of a group runs at a time
        self.exclusive_group = None if shared is None else shared.name
        self._preparation = Preparation(plan, gpu, self.residency, self.constants, on_progress)
        #: the validity of the results in its memory
        self.retained = RetainedValues(plan, self.residency)
        #: True once :meth:`close` has freed the memory permanently
        self._closed = False
        #: the frame until which it is not evicted, so that its job can begin
        self._stays_until = 0
        #: why the last allocation of its memory failed
        self._lacking = ""
        self.last_used = gpu.memory.tick()
        gpu.memory.add_tenant(self)
        gpu.memory.free_with(self, self.residency.release)
        self._step_costs = plan.step_costs()
        #: the job that last updated the variables, if any
        self._updated_by: JobRun | None = None
        #: the operators without a kernel, by the number of their step
        self.on_cpu = {
            step.index: CpuOperators(step.cpu_part)
            for step in plan.steps
            if step.cpu_part is not None
        }
        #: the network that will replace this one
        self.successor: Successor | None = None
        #: milliseconds of each step measured at load, on a device without timestamps
        self.load_times_ms: tuple[float, ...] = ()
        #: the values of sliders that are in the steps' parameters
        self._slider_values: dict[str, Array] = {}
        if deferred:
            self._take_memory()
        else:
            self.load()
            if not gpu.has_timestamps:
                self.measure_at_load()

    # --- memory and preparation

    @property
    def evictable(self) -> bool:
        """True if the program has memory on the device that can be evicted now."""
        # a program that waits for the rest of its memory must not block others
        waited_for = self.residency.complete and self.gpu.memory.frame < self._stays_until
        return bool(self.resident) and not (
            waited_for or self.residency.in_use or self.plan.updates
        )

    @property
    def evictable_later(self) -> bool:
        """True if the program has memory on the device that cannot be evicted now but can later."""
        return bool(self.resident) and not (self.evictable or self.plan.updates)

    @property
    def resident(self) -> list[Arena]:
        """The allocations of arena and weights that are on the device now."""
        return self.residency.resident

    def evict(self, *, wait: bool = True) -> None:
        """Frees arena and weights now.

        With ``wait`` it waits for other programs of a shared arena that run or are prepared. Raises
        :class:`InputError` if the program cannot be evicted.
        """
        with self.residency.if_idle(wait=wait) as idle:
            if not idle or self.plan.updates:
                why = "has variables that would be lost" if self.plan.updates else "is running"
                raise InputError(f"model '{self.name}' cannot be evicted: it {why}")
            self._preparation.restart()
            self.residency.release(now=True)

    def close(self) -> None:
        """Frees all memory permanently. Raises :class:`InputError` during a run or a job.

        Waits for other programs of a shared arena that run or are prepared.
        """
        with self.residency.if_idle(wait=True) as idle:
            if not idle:
                raise InputError(
                    f"{self.residency.description} cannot be closed: a run or a job is under way"
                )
            self._closed = True
            self._preparation.close()
            self.residency.release(now=True)

    def _acquire(self) -> None:
        if self._closed:
            raise InputError(f"the session of '{self.name}' was closed: make another one")
        self._preparation.acquire()

    def _take_memory(self) -> bool:
        """Allocates the program's memory and returns True if all of it is there.

        Returns False if other models must end their jobs first. Raises :class:`OutOfGpuMemory` if
        the memory can never fit.
        """
        try:
            with self.residency.pinned():
                self._acquire()
        except OutOfGpuMemory as error:
            if not self.gpu.memory.may_ever_fit(self.residency.missing_bytes, but=self):
                raise
            self._lacking = str(error).splitlines()[0]
        return self.residency.complete

    def build_ahead(self) -> None:
        """Starts to build the pipelines on all cores in the background."""
        self._preparation.build_ahead()

    def load(self) -> None:
        """Prepares memory, weights, pipelines and bind groups now, unless they are ready."""
        self.last_used = self.gpu.memory.tick()
        if self.prepared:
            return
        with self.residency.pinned():
            if not self.prepared:
                start = time.perf_counter()
                self._acquire()
                self._preparation.finish()
                ms, kernels = 1e3 * (time.perf_counter() - start), len(self._preparation.variants)
                _log.info("'%s' is ready: %d kernels, %.0f ms", self.name, kernels, ms)

    @property
    def waiting_for(self) -> str:
        """A description of the missing part, or "" if the program is ready."""
        if self.ready:
            return ""
        if not self.residency.complete:
            return f"memory: {self._lacking}" if self._lacking else "memory"
        return self._preparation.waiting_for

    @property
    def ready(self) -> bool:
        """True if the program is prepared and no other thread is running it."""
        return self.prepared and self.residency.is_free

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
        self._stays_until = self.gpu.memory.frame + _GRACE_FRAMES
        with self.residency.if_free() as free:
            if free and self._take_memory():
                self._preparation.advance(budget_ms)

    # --- running

    def run(self, inputs: Mapping[str, object]) -> dict[str, Array]:
        """Uploads the inputs, runs all needed steps and returns the outputs by name; blocks."""
        usage = wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST
        _, nbytes = self.plan.packed_results
        memory = self.gpu.memory
        with (
            self.residency.exclusive(),
            memory.allocate(nbytes, usage, owner=self.name, category="staging") as staging,
        ):
            return self._run(inputs, staging)

    def _run(self, inputs: Mapping[str, object], staging: Allocation) -> dict[str, Array]:
        encoder = self.gpu.device.create_command_encoder(label=self.name)
        steps, loads = self.begin(encoder, inputs)
        compute = encoder.begin_compute_pass(label=self.name)
        for load in loads:
            load.encode_all(compute)
        in_one_submit = self.prints is None and not self.on_cpu
        if in_one_submit:
            self.encode_steps(compute, steps)
        compute.end()
        if not in_one_submit:
            self.gpu.queue.submit([encoder.finish()])
            self.submit_steps(steps)
            encoder = self.gpu.device.create_command_encoder(label=self.name)
        packed, _ = self.plan.packed_results
        for name, place in self.plan.outputs.items():
            if nbytes := place.binding.nbytes:
                target = staging.at(packed[name].binding.offset)
                encoder.copy_buffer_to_buffer(*self.residency.place(place.binding), *target, nbytes)
        self.encode_updates(encoder)
        self.gpu.queue.submit([encoder.finish()])
        self.retained.end()
        return self._read_outputs(staging)

    @device_errors(RuntimeError)
    def _read_outputs(self, staging: Allocation) -> dict[str, Array]:
        """Waits for the last submitted run; returns its outputs by name, in the graph's order."""
        packed, _ = self.plan.packed_results
        buffer, start = staging.at(0)
        buffer.map_sync(wgpu.MapMode.READ)
        arrays = {}
        try:
            for name, place in self.plan.outputs.items():
                at = start + packed[name].binding.offset
                size = place.binding.nbytes
                arrays[name] = from_words(
                    buffer.read_mapped(at, size) if place.fact.size else b"", place
                )
        finally:
            buffer.unmap()
        return arrays

    def begin(
        self,
        encoder: wgpu.GPUCommandEncoder,
        inputs: Mapping[str, object],
        run: JobRun | None = None,
    ) -> tuple[Sequence[int], list[Load]]:
        """Begins a run on inputs that are on the host or the device.

        Uploads arrays, and records copies of GPU tensors into ``encoder``. Omitted inputs that the
        memory lost are uploaded again. ``run`` is given for a job of a scheduler. Returns the
        indices of the steps of the run, and the input loads that must run before them. Raises
        :class:`InputError` if the network's variables are wrong.
        """
        if self._updated_by is not None and self._updated_by.harm:
            raise InputError(
                f"the variables of '{self.name}' are wrong: Session.reset() gives them their first "
                f"values. A job that failed has changed them: {self._updated_by.harm}"
            )
        arrays = host_arrays(inputs)
        gpu_values = {name: value for name, value in inputs.items() if name not in arrays}
        check_runs(gpu_values)
        self.load()
        steps = self.steps_for(inputs)
        self._put(self.retained.begin(arrays, gpu_values.keys(), run))
        try:
            loads = take_over(encoder, self.gpu, self.residency, gpu_values)
        except Exception:
            self.retained.undo_begin()
            raise
        return range(len(self.plan.steps)) if steps is None else steps, loads

    def write_inputs(self, inputs: Mapping[str, Array]) -> None:
        """Queues the upload of these graph inputs into the arena, done before the next submit.

        For tools that run steps on their own: all results in the memory become invalid.
        """
        self.load()
        self.retained.invalidate()
        self._put(inputs)

    def _put(self, inputs: Mapping[str, Array]) -> None:
        assert self.residency.arena is not None
        for name, array in inputs.items():
            place = self.plan.inputs[name]
            if place.fact.size:
                self.residency.arena.write(to_words(array, place), place.binding.offset)
        self._move_sliders(inputs)

    def _move_sliders(self, inputs: Mapping[str, Array]) -> None:
        """Writes the parameters of the steps whose sliders have other values than before."""
        if not self.plan.live_steps:
            return
        for step, params in self.moved_params(inputs):
            assert self._preparation.uniforms is not None
            self._preparation.uniforms.write_params(replace(step, params=params))
        sliders = self.plan.live_sliders
        self._slider_values |= {n: np.array(inputs[n]) for n in sliders if n in inputs}

    def moved_params(self, inputs: Mapping[str, object]) -> list[tuple[Step, Mapping[str, object]]]:
        """Returns the steps whose sliders these inputs move, and their new parameters.

        Raises :class:`InputError` if a slider cannot have its value.
        """
        values, moved = self._slider_values, []
        for step in self.plan.live_steps:
            assert step.live is not None
            names = [name for name in step.live.sliders if name in inputs]
            changed = {name: np.asarray(inputs[name]) for name in names}
            if any(not np.array_equal(values.get(n, ()), value) for n, value in changed.items()):
                before = {n: values[n] for n in step.live.sliders if n in values}
                moved.append((step, step.live.compute({**before, **changed})))
        return moved

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
        return *self.residency.place(place.binding), place

    def reset(self) -> None:
        """Uploads the variables' first values from the model's files.

        Raises :class:`InputError` during a job.
        """
        if not self.plan.updates:
            return
        with self.residency.pinned():
            # programs of a shared arena have separate variables
            self.residency.refuse_if(bool(self.residency.holders))
            self.load()
            self._updated_by = None
            for _, target in self.plan.updates:
                if target.space == "own":
                    offset, array = self.plan.own[target.tensor]
                    assert self.residency.own is not None
                    write_numbers(self.residency.own, offset, array)

    # --- encoding

    @property
    def prints(self) -> Prints | None:
        """The print buffer; None if no kernel prints."""
        return self._preparation.prints

    def encode_all(self, compute: wgpu.GPUComputePassEncoder, step: int) -> None:
        """Records all workgroups of a step into a compute pass."""
        self.encode_steps(compute, (step,))

    def encode_steps(self, compute: wgpu.GPUComputePassEncoder, steps: Iterable[int]) -> None:
        """Records all workgroups of several steps, in order, into a compute pass."""
        self.encode_ranges(compute, [(step, 0, self.plan.steps[step].groups) for step in steps])

    def encode_range(
        self, compute: wgpu.GPUComputePassEncoder, step: int, first: int, count: int
    ) -> None:
        """Records workgroups ``[first, first + count)`` of a step into a compute pass."""
        self.encode_ranges(compute, ((step, first, count),))

    def encode_ranges(
        self, compute: wgpu.GPUComputePassEncoder, ranges: Iterable[tuple[int, int, int]]
    ) -> None:
        """Records ranges, each as a step, its first workgroup and a count, into a compute pass."""
        dispatch_recorder()(compute, self.dispatches(ranges))

    def dispatches(self, ranges: Iterable[tuple[int, int, int]]) -> list[Dispatch]:
        """Returns the dispatches of ranges, each a step, its first workgroup and a count.

        At most ``RANGE_SLOTS`` partial ranges may be recorded between two submits. Whole steps do
        not count. A step on the CPU has no dispatch.
        """
        launches = self._preparation.launches
        return [
            launch.whole if count == launch.groups else launch.part(first, count)
            for step, first, count in ranges
            if (launch := launches[step]) is not None
        ]

    def submit_steps(self, steps: Sequence[int]) -> None:
        """Runs whole steps in order, and writes what kernels print to stderr.

        The steps read the memory as it is; no inputs are uploaded. Blocks at a step on the CPU.
        """
        pending: list[int] = []
        for step in steps:
            prints = self.prints is not None and step in self.prints
            if not (prints or step in self.on_cpu):
                pending.append(step)
                continue
            self._submit(pending)
            pending = []
            if step in self.on_cpu:
                self.run_on_cpu(step)
            elif self.prints is not None:
                self.prints.run(self.plan.steps[step], self.encode_range)
        self._submit(pending)

    def _submit(self, steps: Sequence[int]) -> None:
        if steps:
            with submitted_pass(self.gpu.device) as compute:
                self.encode_steps(compute, steps)

    def run_on_cpu(
        self, step: int, watch: Watch | None = None, before: Watch | None = None
    ) -> None:
        """Computes a step on the CPU: reads its operands and uploads its results; blocks."""
        operators, read, place = self.on_cpu[step], self.gpu.queue.read_buffer, self.residency.place
        bindings = {name: operand.binding for name, operand in operators.part.reads.items()}
        data = {name: read(*place(b), b.nbytes) for name, b in bindings.items()}
        assert self.residency.arena is not None
        results = chunks(operators.compute(data, watch, before))
        write_chunks(self.residency.arena, results, EVERYTHING)

    def encode_updates(self, encoder: wgpu.GPUCommandEncoder, run: JobRun | None = None) -> None:
        """Records the copies that update the network's variables with this run's values.

        An output may be the old value of a variable, so outputs must be copied before. ``run`` is
        the job that makes the updates, if any.
        """
        place = self.residency.place
        for source, target in self.plan.updates:
            nbytes = min(source.nbytes, target.nbytes)
            encoder.copy_buffer_to_buffer(*place(source), *place(target), nbytes)
        if run is not None and self.plan.updates:
            self._updated_by = run

    # --- for a frame scheduler (``cml_engine.scheduler.Network``)

    def reserve_for(self, executor: object) -> str:
        """Reserves the memory for an executor's job until :meth:`end_reservation`; never blocks.

        Returns "" on success, else a description of what the job must wait for: a run of another
        thread that began after the program was checked, or the job of another scheduler.
        """
        residency = self.residency
        if not residency.lock.acquire(blocking=False):
            return "its network, which another thread took just now"
        try:
            if not self.prepared:
                return "its network, which another thread took just now"
            if residency.busy:
                return f"{residency.description}, in which a job of another scheduler is running"
            residency.holders.add(executor)
        finally:
            residency.lock.release()
        self.last_used = self.gpu.memory.tick()
        self._stays_until = 0
        return ""

    def end_reservation(self, executor: object) -> None:
        """Ends the reservation, because the job's last commands have been submitted."""
        self.residency.end_reservation(executor)

    @property
    def output_names(self) -> Collection[str]:
        """The names of the tensors that can be read after a run: outputs and taps."""
        return self.plan.results

    def step_costs(self) -> list[StepCost]:
        """Returns the description and cost of each step, in order."""
        return self._step_costs

    @property
    def built_on(self) -> list[JobRun]:
        """The runs of jobs whose results a new run may read, by variables and retained tensors."""
        updated_by = [] if self._updated_by is None else [self._updated_by]
        return [*self.retained.built_on, *updated_by]

    @property
    def known_inputs(self) -> frozenset[str]:
        """The names of the inputs that may be omitted because their last value is known."""
        return self.retained.known

    def steps_for(self, names: Collection[str], *, behind: bool = False) -> tuple[int, ...] | None:
        """Returns the indices of the steps for a run with these inputs; None for all steps.

        Values of other inputs are those of the previous run. With ``behind``, another run comes
        before, so the current content of the memory does not matter.
        """
        reuse = self.plan.reuse
        if reuse is None or not (behind or self.retained.results):
            return None
        return reuse.steps(names)

    def inherit(self, predecessor: GpuProgram) -> None:
        """Copies the input values of ``predecessor``, the program that this one replaces."""
        self.retained.inherit(predecessor.retained)

    def advance_successor(self, budget_ms: float) -> None:
        """Prepares the replacement network for about ``budget_ms``."""
        if self.successor is not None:
            self.successor.advance(budget_ms)

    def measure_at_load(self) -> None:
        """Measures every step by the wall clock and sets :attr:`load_times_ms`.

        Used on devices without timestamps. Blocks. Does nothing while a job is running in the
        memory.
        """
        timer, steps = PassTimer(self.gpu), range(len(self.plan.steps))
        with self.residency.pinned():
            if self.residency.busy:
                return
            self.load()
            self.retained.invalidate_results()
            timer.time(steps, self.encode_all)
            self.load_times_ms = tuple(timer.time(steps, self.encode_all))
