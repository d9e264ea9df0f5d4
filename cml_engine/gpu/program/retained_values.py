"""Tracks which results and inputs of the previous run a program's memory still contains."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from cml_engine.compiler.plan import Plan
from cml_engine.errors import InputError
from cml_engine.gpu.frames.job_runs import JobRun
from cml_engine.gpu.program.memory import Arena, Residency
from cml_engine.ir.graph import Array


class RetainedValues:
    """The validity of the results and inputs in a program's memory.

    The results are valid from the end of a run until the next run begins, the memory is evicted,
    another program uses it, or the run turns out to be wrong.

    If the plan reuses results, omitted inputs keep their values. Values that came from the host are
    also kept here, to restore them after an eviction.
    """

    def __init__(self, plan: Plan, residency: Residency) -> None:
        self._plan, self._residency = plan, residency
        #: the arenas with valid results and with the input values
        self._results_arena: Arena | None = None
        self._inputs_arena: Arena | None = None
        #: the job that last wrote to the arena
        self._run: JobRun | None = None
        #: each input's value; None if it came from the GPU
        self.values: dict[str, Array | None] = {}
        #: ``values`` before the latest run began
        self._before = self.values
        #: inputs of accepted jobs that have not begun
        self.promised: set[str] = set()

    @property
    def results(self) -> bool:
        """True if the memory contains valid results."""
        return self._is_resident(self._results_arena)

    def _is_resident(self, arena: Arena | None) -> bool:
        residency = self._residency
        if self._run is not None and self._run.harm:
            return False
        return arena is not None and arena is residency.arena and residency.wrote_last

    @property
    def built_on(self) -> list[JobRun]:
        """The run whose retained values a new run may read, as a list of at most one."""
        run = self._run
        return [] if self._plan.reuse is None or run is None or run.harm else [run]

    @property
    def known(self) -> frozenset[str]:
        """The names of the inputs that may be omitted; empty if the plan does not reuse results."""
        return (
            frozenset() if self._plan.reuse is None else frozenset({*self.values, *self.promised})
        )

    def inherit(self, predecessor: RetainedValues) -> None:
        """Copies the input values of ``predecessor``, the state of the replaced network."""
        self.values, self.promised = dict(predecessor.values), set(predecessor.promised)

    def expect_inputs(self, names: Collection[str]) -> None:
        """Records inputs that an accepted job will provide."""
        self.promised.update(names)

    def invalidate(self) -> None:
        """Invalidates results and inputs, because the memory is about to be overwritten."""
        self._results_arena = self._inputs_arena = None
        self._residency.claim()

    def undo_begin(self) -> None:
        """Restores the input values from before the latest run, and invalidates the results.

        Called if that run was abandoned.
        """
        self.values = self._before
        self.invalidate()

    def invalidate_results(self) -> None:
        """Invalidates the results and keeps the inputs."""
        self._results_arena = None

    def begin(
        self, arrays: Mapping[str, Array], from_gpu: Collection[str], run: JobRun | None
    ) -> Mapping[str, Array]:
        """Begins a run on these inputs and returns the arrays to upload, by name.

        ``run`` is given for a job of a scheduler. The returned arrays include omitted inputs
        that the memory lost. Raises :class:`InputError` if an omitted input never had a value,
        or had one from the GPU that was lost.
        """
        if self._plan.reuse is None:
            self._run = run
            self.invalidate()
            return arrays
        missing = [n for n in self._plan.inputs if n not in arrays and n not in from_gpu]
        if unknown := [name for name in missing if name not in self.values]:
            raise InputError(
                f"model '{self._plan.name}': input '{unknown[0]}' is left out and has no value: "
                "the job that was to give it did not begin. Give it"
            )
        restored: dict[str, Array] = {}
        if not self._is_resident(self._inputs_arena):
            for name in missing:
                value = self.values[name]
                if value is None:
                    raise InputError(
                        f"model '{self._plan.name}': input '{name}' is left out, and its value, "
                        "which came from the GPU, went with the session's memory. Give it again"
                    )
                restored[name] = value
        self.invalidate()
        self._run = run or self._run
        self._before = self.values
        copies = {name: np.array(value) for name, value in arrays.items()}
        self.values = {**self.values, **copies, **dict.fromkeys(from_gpu)}
        self._inputs_arena = self._residency.arena
        return {**arrays, **restored}

    def end(self) -> None:
        """Marks the results as valid, because a run has been encoded to its end."""
        self._results_arena = self._residency.arena
