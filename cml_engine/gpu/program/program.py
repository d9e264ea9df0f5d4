"""A plan on a GPU: buffers, bind groups and pipelines are created once and then only encoded."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import wgpu

from cml_engine.compiler.plan import Plan, StepCost, TensorPlace
from cml_engine.errors import InputError
from cml_engine.gpu.device import Device
from cml_engine.gpu.frames.job_runs import JobRun
from cml_engine.gpu.memory.allocation import Allocation
from cml_engine.gpu.memory.words import to_words
from cml_engine.gpu.program.device_inputs import Load, host_arrays, take_over
from cml_engine.gpu.program.preparation import OnProgress
from cml_engine.gpu.program.prepared import PreparedProgram
from cml_engine.gpu.program.readback import Readback
from cml_engine.gpu.program.retained_values import RetainedValues
from cml_engine.gpu.program.shared_constants import SharedConstants, write_numbers
from cml_engine.gpu.timing.timers import PassTimer
from cml_engine.ir.graph import Array


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
