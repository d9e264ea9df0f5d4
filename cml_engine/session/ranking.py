"""The time of every operator of a program."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cml_engine.backends.cpu import CpuProgram
from cml_engine.graph import Graph, Node
from cml_engine.report.rank import OpTime, RankReport

if TYPE_CHECKING:
    from cml_engine.gpu.program.program import GpuProgram

Array = np.ndarray[Any, Any]


def rank_cpu(
    graph: Graph, arrays: Mapping[str, Array], runs: int, given: Sequence[str] | None
) -> RankReport:
    """What every node takes in NumPy, by the wall clock."""
    program = CpuProgram(graph, retain=given is not None)
    program.run(arrays)
    again = arrays if given is None else {name: arrays[name] for name in given}
    seen: list[Node] = []
    program.run(again, lambda node, _: seen.append(node))
    operators = [OpTime.of_node(node, graph) for node in seen]
    times = np.array([_time_nodes(program, again) for _ in range(runs)])
    return RankReport.of(graph.name, "CPU (NumPy)", "wall clock", operators, times)


def rank_gpu(
    program: GpuProgram, arrays: Mapping[str, Array], runs: int, given: Sequence[str] | None
) -> RankReport:
    """What every step takes on the device."""
    from cml_engine.gpu.program import inspect

    plan, gpu = program.plan, program.gpu
    steps = None if given is None or plan.reuse is None else plan.reuse.steps(given)
    inspect.time_steps(program, arrays, 1)
    times = inspect.time_steps(program, arrays, runs, steps)
    operators = [OpTime.of_step(s) for s in plan.steps if steps is None or s.index in steps]
    clock = "timestamps" if gpu.has_timestamps else "wall clock"
    return RankReport.of(plan.name, gpu.name, clock, operators, times)


def _time_nodes(program: CpuProgram, arrays: Mapping[str, Array]) -> list[float]:
    times: list[float] = []
    last = time.perf_counter()

    def watch(node: Node, results: Any) -> None:
        nonlocal last
        now = time.perf_counter()
        times.append(1e3 * (now - last))
        last = time.perf_counter()

    program.run(arrays, watch)
    return times
