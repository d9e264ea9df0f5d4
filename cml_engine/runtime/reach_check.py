"""Checks how far bright pixels and a NaN in a network's inputs reach on the GPU.

The reach by definition is NumPy's, which computes every convolution by its windows here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from cml_engine.errors import InputError
from cml_engine.ir.graph import Array, Graph
from cml_engine.runtime.session import CompileOptions, Session

if TYPE_CHECKING:
    from cml_engine.gpu.gpu import Gpu

#: how many times as bright as the brightest value a planted one is; NaN plants a NaN
_RATIOS = (1e3, 1e4, 1e5, np.nan)
#: the largest change of results out of reach, relative to the largest result: some roundings
_MOST = 1e-5


@dataclass(frozen=True, slots=True)
class PlantedValue:
    """The results that one value in an input changes.

    ``reached`` and ``results`` are the numbers of results that change by definition, and of all.
    ``beyond`` is the number of others that change on the GPU: ``not_finite`` of them to a NaN or an
    infinity, the rest by at most ``moved``, relative to the largest result.
    """

    input: str
    at: tuple[int, ...]
    ratio: float
    reached: int
    results: int
    beyond: int
    not_finite: int
    moved: float

    @property
    def ok(self) -> bool:
        return not self.not_finite and self.moved <= _MOST

    def __str__(self) -> str:
        planted = "NaN" if np.isnan(self.ratio) else f"{self.ratio:.0e} times"
        line = f"  {planted:12s} reaches {self.reached} of {self.results} results"
        if not self.beyond:
            return line + " and no others"
        if self.not_finite:
            return f"{line}, and makes {self.not_finite} others NaN or infinite"
        return f"{line}, and moves {self.beyond} others by up to {self.moved:.1e} of the largest"


@dataclass(frozen=True, slots=True)
class ReachReport:
    """The reach of every planted value; ``str()`` is a text for people."""

    model: str
    device: str
    values: tuple[PlantedValue, ...]

    @property
    def ok(self) -> bool:
        """True if no value reaches results that do not depend on it."""
        return all(value.ok for value in self.values)

    def __str__(self) -> str:
        lines = [f"{self.model}: bright pixels and a NaN in the inputs, on {self.device}"]
        for before, value in zip((None, *self.values), self.values, strict=False):
            if before is None or before.input != value.input:
                lines.append(f"input '{value.input}' at {list(value.at)}")
            lines.append(str(value))
        if not self.ok:
            lines.append(
                "values reach results that do not depend on them: --no-winograd, in Python "
                "CompileOptions(winograd=False), keeps them in their windows"
            )
        return "\n".join(lines)


def check_reach(
    graph: Graph, gpu: Gpu, inputs: Mapping[str, Array], options: CompileOptions
) -> ReachReport:
    """Plants bright values and a NaN in the middle of every input of floats and runs the network.

    ``options`` are those of the GPU's session. Raises :class:`InputError` if there is no such
    input.
    """
    names = [n for n in graph.inputs if graph.facts[n].dtype == "scalar" and graph.facts[n].size]
    if graph.integer or not names:
        raise InputError(f"'{graph.name}' has no inputs of floats to plant bright values in")
    sessions = (
        Session(graph, "cpu", CompileOptions(winograd=False)),
        Session(graph, gpu, replace(options, cpu="allow")),
    )
    clean = [_run(session, inputs) for session in sessions]
    values = []
    for name in names:
        at = tuple(extent // 2 if axis > 1 else 0 for axis, extent in enumerate(inputs[name].shape))
        for ratio in _RATIOS:
            array = np.array(inputs[name])
            array[at] = ratio * max(float(np.abs(array).max()), 1e-3)
            found = [_run(session, {**inputs, name: array}) for session in sessions]
            values.append(_compare(name, at, ratio, clean, found))
    return ReachReport(graph.name, gpu.name, tuple(values))


def _run(session: Session, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Returns the outputs by name; those with a counted axis have their largest extent."""
    session.reset()
    with np.errstate(all="ignore"):
        return session.program.run(session.check_inputs(inputs))


def _compare(
    name: str,
    at: tuple[int, ...],
    ratio: float,
    clean: list[dict[str, Array]],
    found: list[dict[str, Array]],
) -> PlantedValue:
    reached = results = beyond = not_finite = 0
    moved = 0.0
    for output, before in clean[1].items():
        after = found[1][output]
        depends = _differ(clean[0][output], found[0][output])
        others = _differ(before, after) & ~depends
        reached, results = reached + int(depends.sum()), results + depends.size
        beyond += int(others.sum())
        lost = others & ~np.isfinite(after) & np.isfinite(before)
        not_finite += int(lost.sum())
        rest = others & ~lost
        if rest.any():
            largest = float(np.abs(np.where(np.isfinite(before), before, 0)).max()) or 1.0
            change = np.abs(after[rest].astype(np.float64) - before[rest].astype(np.float64))
            moved = max(moved, float(np.nanmax(change, initial=0.0)) / largest)
    return PlantedValue(name, at, ratio, reached, results, beyond, not_finite, moved)


def _differ(a: Array, b: Array) -> Array:
    """Returns a mask of the elements that differ; one NaN equals another."""
    return np.asarray((a != b) & ~((a != a) & (b != b)))
