"""A plan on a GPU: buffers, bind groups and pipelines made once, then only encoded."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import wgpu

from cml_engine.compiler.plan import Plan, StepWork, TensorPlace
from cml_engine.errors import InputError
from cml_engine.gpu.device import Device
from cml_engine.gpu.frames.job_runs import JobRun
from cml_engine.gpu.memory.allocation import Allocation
from cml_engine.gpu.memory.words import to_words
from cml_engine.gpu.program.common import Common, write_numbers
from cml_engine.gpu.program.device_inputs import Load, host_arrays, take_over
from cml_engine.gpu.program.held import Held
from cml_engine.gpu.program.preparation import OnProgress
from cml_engine.gpu.program.prepared import PreparedProgram
from cml_engine.gpu.program.readback import Readback
from cml_engine.gpu.timing.timers import PassTimer
from cml_engine.ir.graph import Array


class Successor(Protocol):
    """``live.Replacement``."""

    def advance(self, budget_ms: float) -> None: ...


class GpuProgram(PreparedProgram):
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
        on_progress: OnProgress | None = None,
    ) -> None:
        super().__init__(plan, gpu, arena, common, on_progress)
        self._step_costs = plan.step_costs()
        self._readback = Readback(plan)
        #: whether results of a run can be read from its memory
        self.held = Held(plan, self.residency)
        #: the job that gave the variables their values, if any did
        self._updated_by: JobRun | None = None
        #: what will take its place
        self.successor: Successor | None = None
        #: milliseconds of each step as measured at load, where a frame cannot measure them
        self.load_times_ms: tuple[float, ...] = ()
        if deferred:
            self._take_memory()
        else:
            self.load()
            if not gpu.has_timestamps:
                self.measure_at_load()

    # --- running

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Upload, run everything, read back; blocks until the outputs are here."""
        with self.exclusive(), self._readback.staging(self.gpu) as staging:
            return self._run(inputs, staging)

    def _run(self, inputs: Mapping[str, Any], staging: Allocation) -> dict[str, Array]:
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
        self.held.end()
        return self._readback.read(staging)

    def begin(
        self, encoder: wgpu.GPUCommandEncoder, inputs: Mapping[str, Any], run: JobRun | None = None
    ) -> tuple[Sequence[int], list[Load]]:
        """As :meth:`begin_run`, with inputs of every kind. Returns the steps of the run, and the
        loads that come before them."""
        arrays = host_arrays(inputs)
        steps = self.begin_run(arrays, inputs.keys() - arrays.keys(), run)
        try:
            return steps, take_over(encoder, self, inputs)
        except Exception:
            self.held.take_back()
            raise

    def begin_run(
        self,
        inputs: Mapping[str, Array],
        from_gpu: Collection[str] = (),
        run: JobRun | None = None,
    ) -> Sequence[int]:
        """Put the inputs into the arena for a run, which may be a job's; those that are left out
        and are not there any more too. ``from_gpu`` are copied there by the caller. Returns the
        steps that it has to do. :class:`InputError` where the variables are wrong."""
        if self._updated_by is not None and self._updated_by.harm:
            raise InputError(
                f"the variables of '{self.name}' are wrong: Session.reset() gives them their first "
                f"values. A job that failed has changed them: {self._updated_by.harm}"
            )
        self.load()
        steps = self.steps_for({*inputs, *from_gpu})
        self._put(self.held.begin(inputs, from_gpu, run))
        return range(len(self.plan.steps)) if steps is None else steps

    def write_inputs(self, inputs: Mapping[str, Array]) -> None:
        """Put these of the graph's inputs into the arena (queued before the next submit), for a
        tool that runs steps as it likes: nothing that lies there is known afterwards."""
        self.load()
        self.held.lose()
        self._put(inputs)

    def _put(self, inputs: Mapping[str, Array]) -> None:
        assert self.residency.arena is not None
        for name, array in inputs.items():
            place = self.plan.inputs[name]
            if place.fact.size:
                words = to_words(array, place)
                self.residency.arena.write(words, place.binding.offset)

    def result_place(self, name: str) -> tuple[wgpu.GPUBuffer, int, TensorPlace]:
        """Where an output or a kept tensor of the last run lies: buffer, byte offset, and what it
        is. :class:`InputError` where there is none now."""
        place = self.plan.results.get(name)
        if place is None:
            raise InputError(
                f"model '{self.name}' keeps no tensor '{name}'; it has "
                f"{', '.join(self.plan.results)}. Name it in CompileOptions(keep=…)"
            )
        if not self.held.results:
            raise InputError(
                f"model '{self.name}' holds no '{name}' now: no run has ended in its memory, or "
                "others had the memory since. Run it first"
            )
        return *self.place(place.binding), place

    # --- for a frame scheduler

    def step_costs(self) -> list[StepWork]:
        """What each step is and costs per workgroup (``scheduler.Network``)."""
        return self._step_costs

    @property
    def retains(self) -> bool:
        """Whether an input that is left out keeps its value (``scheduler.Network``)."""
        return self.plan.reuse is not None

    @property
    def built_on(self) -> list[JobRun]:
        """The jobs whose values a run that begins now may read from variables and retained
        tensors."""
        updated_by = [] if self._updated_by is None else [self._updated_by]
        return [*self.held.built_on, *updated_by]

    def encode_updates(self, encoder: wgpu.GPUCommandEncoder, run: JobRun | None = None) -> None:
        """Give the network's variables their new values, of a job's ``run`` or a whole one."""
        super().encode_updates(encoder)
        if run is not None and self.plan.updates:
            self._updated_by = run

    @property
    def known_inputs(self) -> frozenset[str]:
        """The inputs that may be left out."""
        return self.held.known

    def steps_for(self, given: Collection[str], *, behind: bool = False) -> tuple[int, ...] | None:
        """The steps of a run that is given these inputs, None for all; ``behind`` another run,
        whatever the memory holds now (``scheduler.Network``)."""
        reuse = self.plan.reuse
        if reuse is None or not (behind or self.held.results):
            return None
        return reuse.steps(given)

    def inherit(self, before: GpuProgram) -> None:
        """The network takes the place of another, which was given these values of inputs."""
        self.held.inherit(before.held)

    def advance_successor(self, budget_ms: float) -> None:
        """Prepare what will take its place, for about that long (``scheduler.Network``)."""
        if self.successor is not None:
            self.successor.advance(budget_ms)

    def measure_at_load(self) -> None:
        """Time every step once by the wall clock, for a device that cannot time its own work in a
        frame; :attr:`load_times_ms` has the result. Blocks; does nothing where a job is running in
        the memory."""
        timer = PassTimer(self.gpu)
        with self.pinned():
            if self.residency.busy:
                return
            self.load()
            self.held.spoil()
            timer.time([step.index for step in self.plan.steps], self.encode_all)
            times = timer.time([step.index for step in self.plan.steps], self.encode_all)
        self.load_times_ms = tuple(times)

    def reset(self) -> None:
        """Give the variables the values that they have in the model's files."""
        if not self.plan.updates:
            return
        with self.pinned():
            self._refuse(bool(self.residency.holders))  # others of its arena have other variables
            self.load()
            self._updated_by = None
            for _, target in self.plan.updates:
                if target.space == "own":
                    offset, array = self.plan.own[target.tensor]
                    assert self.residency.own is not None
                    write_numbers(self.residency.own, offset, array)
