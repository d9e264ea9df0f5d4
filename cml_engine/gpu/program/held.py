"""What a program's memory holds of the run before."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from cml_engine.compiler.plan import Plan
from cml_engine.errors import InputError
from cml_engine.gpu.frames.job_runs import JobRun
from cml_engine.gpu.program.residency import Arena, Residency
from cml_engine.ir.graph import Array


class Held:
    """Whether the results of a whole run lie in the memory of a program: not before there was one,
    nor while the next is under way, nor when the memory was taken away or used by another.

    Where the plan retains them, inputs that are left out keep their values: those that came from
    the host are here too, for when the memory is taken away.
    """

    def __init__(self, plan: Plan, residency: Residency) -> None:
        self._plan, self._residency = plan, residency
        #: where the results, and the values of inputs, lie
        self._results: Arena | None = None
        self._inputs: Arena | None = None
        #: the job that wrote last what lies there
        self._run: JobRun | None = None
        #: by input its value, None where it came from the GPU
        self.values: dict[str, Array | None] = {}
        #: the same before the latest run began
        self._before = self.values
        #: inputs of jobs that were accepted, which may come before others
        self.promised: set[str] = set()

    @property
    def results(self) -> bool:
        """Whether they are there."""
        return self._is_there(self._results)

    def _is_there(self, arena: Arena | None) -> bool:
        there = self._residency
        if self._run is not None and self._run.harm:
            return False
        return arena is not None and arena is there.arena and there.wrote_last

    @property
    def built_on(self) -> list[JobRun]:
        """The run whose values a run that begins now may leave where they are."""
        run = self._run
        return [] if self._plan.reuse is None or run is None or run.harm else [run]

    @property
    def known(self) -> frozenset[str]:
        """The inputs that may be left out."""
        return (
            frozenset() if self._plan.reuse is None else frozenset({*self.values, *self.promised})
        )

    def inherit(self, before: Held) -> None:
        """The network takes the place of another, which was given these values."""
        self.values, self.promised = dict(before.values), set(before.promised)

    def promise(self, names: Collection[str]) -> None:
        """A job will give these inputs."""
        self.promised.update(names)

    def lose(self) -> None:
        """A tool writes what it likes."""
        self._results = self._inputs = None
        self._residency.claim()

    def take_back(self) -> None:
        """The frame in which the latest run began never ran."""
        self.values = self._before
        self.lose()

    def spoil(self) -> None:
        """The results are of no run any more."""
        self._results = None

    def begin(
        self, arrays: Mapping[str, Array], from_gpu: Collection[str], run: JobRun | None
    ) -> Mapping[str, Array]:
        """A run begins on these inputs, ``run`` where it is a job's. Returns the arrays to write:
        those that are left out too where the memory does not hold them any more.
        :class:`InputError` where one of these came from the GPU, or never was."""
        if self._plan.reuse is None:
            self._run = run
            self.lose()
            return arrays
        missing = [n for n in self._plan.inputs if n not in arrays and n not in from_gpu]
        if unknown := [name for name in missing if name not in self.values]:
            raise InputError(
                f"model '{self._plan.name}': input '{unknown[0]}' is left out and has no value: "
                "the job that was to give it did not begin. Give it"
            )
        restored: dict[str, Array] = {}
        if not self._is_there(self._inputs):
            for name in missing:
                value = self.values[name]
                if value is None:
                    raise InputError(
                        f"model '{self._plan.name}': input '{name}' is left out, and its value, "
                        "which came from the GPU, went with the session's memory. Give it again"
                    )
                restored[name] = value
        self.lose()
        self._run = run or self._run
        self._before = self.values
        given = {name: np.array(value) for name, value in arrays.items()}
        self.values = {**self.values, **given, **dict.fromkeys(from_gpu)}
        self._inputs = self._residency.arena
        return {**arrays, **restored}

    def end(self) -> None:
        """A run has been encoded to its end."""
        self._results = self._residency.arena
